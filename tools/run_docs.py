"""Run the Python blocks of Markdown pages: what is shown is run.

The ```python blocks of one page are one script, run in a fresh process in an empty folder, so that a later block uses
what an earlier one made. A block opened with ```python no-run is left out and must follow an HTML comment that says
why.

A block opened with ```python title="name.py" is a file: it is written, and not run. The commands of ```console blocks,
the lines that begin with ``$ ``, run after the script, each after the files that stand above it on the page. Those of
a block opened with ```console fails must fail.

A ```text block is output, and has to be seen: the blocks of a page are looked for in what the page writes, in order.
``...`` stands for any text in a line, and alone in a line for any lines.

    python tools/run_docs.py README.md docs/*.md
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TITLE = re.compile(r'python title="(?P<name>[\w.]+)"$')
"""A block that is a file."""

COMMANDS = {"console": "$", "console fails": "!"}
"""Blocks of commands, and how a command of each is kept."""

ABORTED = "terminate called without an active exception"
"""The last words of torch's own gloo, which now and then aborts a program of torchrun's that is done."""

FENCE = re.compile(r"^```(?P<info>.*)$")
"""A line that opens or closes a block; indented blocks are not recognised, so a page does not indent them."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page's blocks as a script whose line numbers are the page's own."""

    script: str
    """The page with every line outside the runnable blocks left empty."""
    blocks: int
    """How many blocks run."""
    skipped: int
    """How many are marked no-run."""
    steps: list[tuple[str, str]]
    """Files to write, each with its text, and commands to run, each as ``("$", command)``, or ``("!", command)`` if it
    must fail, in order."""
    shown: list[tuple[int, list[str]]]
    """The blocks of output, each with the number of its first line."""


def parse_page(path: Path) -> Page:
    script: list[str] = []
    info: str | None = None
    text_before = ""
    blocks = skipped = 0
    steps: list[tuple[str, str]] = []
    shown: list[tuple[int, list[str]]] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if fence is None:
            script.append(line if info == "python" else "")
            if info is not None and (title := TITLE.match(info)):
                steps[-1] = (title["name"], f"{steps[-1][1]}{line}\n")
            elif info in COMMANDS and line.startswith("$ "):
                steps.append((COMMANDS[info], line[2:]))
            elif info == "text":
                shown[-1][1].append(line.rstrip())
            text_before = line.strip() or text_before
            continue
        script.append("")
        if info is not None:
            info = None
            continue
        info = " ".join(fence["info"].split())
        title = TITLE.match(info)
        if info.startswith("python") and title is None and info not in {"python", "python no-run"}:
            raise ValueError(f"{path}:{number}: ```{info}: a block says `python`, `python no-run` or a title")
        if title:
            steps.append((title["name"], ""))
        if info == "text":
            shown.append((number + 1, []))
        if info == "python no-run" and not text_before.endswith("-->"):
            raise ValueError(f"{path}:{number}: a no-run block needs the reason in an HTML comment before it")
        blocks += info == "python"
        skipped += info == "python no-run"
    return Page(script="\n".join(script) + "\n", blocks=blocks, skipped=skipped, steps=steps, shown=shown)


def run_page(path: Path, page: Page, *, limit_seconds: float) -> bool:
    """Run the page in an empty folder, as a file named like it so that tracebacks lead back to the page's lines.

    The name keeps its ``.md``: a page jax.md as jax.py would be what ``import jax`` finds.
    """
    with tempfile.TemporaryDirectory(prefix="hocket-docs-") as folder:
        script, log = Path(folder, f"{path.name}.py"), Path(folder, "log")
        script.write_text(page.script)
        start = time.perf_counter()
        end = time.monotonic() + limit_seconds
        commands: list[tuple[str, str]] = [("$", f"{sys.executable} -X faulthandler {script.name}")] * bool(page.blocks)
        with log.open("w") as output:
            for name, text in [*commands, *page.steps]:
                if name not in COMMANDS.values():
                    Path(folder, name).write_text(text)
                elif ending := run_command(text, folder, output, end - time.monotonic(), must_fail=name == "!"):
                    print(f"{path}: {text}: {ending}\n{log.read_text()}")
                    return False
        if unseen := find_unseen(page.shown, log.read_text()):
            print(f"{path}:{unseen}: the page does not write this, or not here\n{log.read_text()}")
            return False
    count = sum(name in COMMANDS.values() for name, _ in page.steps)
    told = f", {count} commands" if count else ""
    print(f"{path}: {page.blocks} blocks run, {page.skipped} not{told}, {time.perf_counter() - start:.1f} s")
    return True


def find_unseen(shown: list[tuple[int, list[str]]], output: str) -> int | None:
    """Return the line of the first block that the output does not have behind the blocks before it."""
    lines = [line.rstrip() for line in output.splitlines()]
    text, place = "\n".join(["", *lines, ""]), 0
    for number, block in shown:
        patterns = [
            r"(?:[^\n]*\n)*?" if line.strip() == "..." else re.escape(line).replace(r"\.\.\.", r"[^\n]*") + r"\n"
            for line in block
        ]
        found = re.compile(r"(?<=\n)" + "".join(patterns)).search(text, place)
        if found is None:
            return number
        place = found.end()
    return None


def run_command(
    command: str, folder: str, output: IO[str], limit_seconds: float, *, must_fail: bool = False, is_again: bool = False
) -> str:
    """Run a command of a page; return what is wrong with its end, or nothing. One that gloo aborts runs once more."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with subprocess.Popen(
        command,
        shell=True,
        cwd=folder,
        stdout=output,
        stderr=output,
        start_new_session=True,  # so that what the shell has started ends with it
        env={**os.environ, "PATH": places, "PYTHONUNBUFFERED": "1"},  # what processes write stays in order
    ) as process:
        try:
            status = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "still running when the page's time was over"
    if must_fail:
        return "" if status else "does not fail"
    if status and not is_again and ABORTED in Path(output.name).read_text():
        print(f"{command}: exit status {status}; torch's gloo has aborted it, so it runs once more")
        return run_command(command, folder, output, limit_seconds, is_again=True)
    return f"exit status {status}" if status else ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the Python blocks of Markdown pages.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds a page may take (default 240)")
    arguments = parser.parse_args()
    pages = [(path, parse_page(path)) for path in arguments.pages]
    failed = [
        path
        for path, page in pages
        if (page.blocks or page.steps) and not run_page(path, page, limit_seconds=arguments.limit)
    ]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
