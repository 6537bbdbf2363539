"""Run the Python blocks of Markdown pages: what is shown is run.

The ```python blocks of one page are one script, run in a fresh process in an empty folder, so that a later block uses
what an earlier one made. A block opened with ```python no-run is left out and must follow an HTML comment that says
why.

    python tools/run_docs.py README.md docs/*.md
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

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


def parse_page(path: Path) -> Page:
    script: list[str] = []
    info: str | None = None
    text_before = ""
    blocks = skipped = 0
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if fence is None:
            script.append(line if info == "python" else "")
            text_before = line.strip() or text_before
            continue
        script.append("")
        if info is not None:
            info = None
            continue
        info = " ".join(fence["info"].split())
        if info.startswith("python") and info not in {"python", "python no-run"}:
            raise ValueError(f"{path}:{number}: ```{info}: a block says `python` or `python no-run`")
        if info == "python no-run" and not text_before.endswith("-->"):
            raise ValueError(f"{path}:{number}: a no-run block needs the reason in an HTML comment before it")
        blocks += info == "python"
        skipped += info == "python no-run"
    return Page(script="\n".join(script) + "\n", blocks=blocks, skipped=skipped)


def run_page(path: Path, page: Page, *, limit_seconds: float) -> bool:
    """Run the page in an empty folder, as a file named like it so that tracebacks lead back to the page's lines.

    The name keeps its ``.md``: a page jax.md as jax.py would be what ``import jax`` finds.
    """
    with tempfile.TemporaryDirectory(prefix="hocket-docs-") as folder:
        script, log = Path(folder, f"{path.name}.py"), Path(folder, "log")
        script.write_text(page.script)
        command = [sys.executable, "-X", "faulthandler", script.name]
        start = time.perf_counter()
        with log.open("w") as output:
            try:
                status = subprocess.run(
                    command, cwd=folder, stdout=output, stderr=output, timeout=limit_seconds, check=False
                ).returncode
                ending = f"exit status {status}" if status else ""
            except subprocess.TimeoutExpired:
                ending = f"still running after {limit_seconds:g} s"
        if ending:
            print(f"{path}: {ending}\n{log.read_text()}")
            return False
    print(f"{path}: {page.blocks} blocks run, {page.skipped} not, {time.perf_counter() - start:.1f} s")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the Python blocks of Markdown pages.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a page may take (default 120)")
    arguments = parser.parse_args()
    pages = [(path, parse_page(path)) for path in arguments.pages]
    failed = [path for path, page in pages if page.blocks and not run_page(path, page, limit_seconds=arguments.limit)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
