"""Error messages for options that are misspelt, or stand where the command does not look for them."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hocket import keywords

_WORKERS_ELSEWHERE: Final = re.compile(
    r"-np?(?P<count>\d*)|--(num|n|np|nprocs?|num[-_]proc|num[-_]procs|num[-_]workers|num[-_]processes|world[-_]size)"
)
"""Options for the number of ranks in other launchers: mpirun, Horovod, srun, accelerate."""


def suggest(parser: argparse.ArgumentParser, unknown: Sequence[str], argv: Sequence[str]) -> str:
    """Return a question that suggests known options, with their values, for unknown ones; empty if none is similar.

    Args:
        parser: The command's parser.
        unknown: The words that the parser did not know.
        argv: The command line, in which an option's value follows it.
    """
    meant = []
    for word in unknown:
        name, equals, value = word.partition("=")
        option, count = _find_close(parser, name)
        if option:
            following = argv[argv.index(word) + 1 :][:1] if takes_value(parser, option) and not equals else []
            given = value or count or " ".join(part for part in following if not part.startswith("-"))
            meant.append(f"{option} {shlex.quote(given)}" if given else option)
    return f" Did you mean {', '.join(meant)}?" if meant else ""


def _find_close(parser: argparse.ArgumentParser, name: str) -> tuple[str, str]:
    """Return the known option closest to an unknown one, and the value written into that; empty if there is none."""
    known = list_options(parser)
    elsewhere = _WORKERS_ELSEWHERE.fullmatch(name)
    if elsewhere and "--workers" in known:
        return "--workers", elsewhere["count"] or ""
    if not name.startswith("--"):
        return "", ""
    return keywords.find_close(name.replace("_", "-"), known, 0.75), ""


def list_options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a command that its help shows."""
    shown = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    return [name for action in shown for name in action.option_strings if name.startswith("--") and name != "--help"]


def takes_value(parser: argparse.ArgumentParser, option: str) -> bool:
    """Return whether an option takes a value."""
    return any(option in action.option_strings and action.nargs != 0 for action in parser._actions)


def describe_misplaced(parser: argparse.ArgumentParser, target: str, args: Sequence[str], *, is_module: bool) -> str:
    """Return the error for launcher options after the script; empty if there are none.

    The options may be the script's own. They are if the script's file names them, or if they follow a ``--``.

    Args:
        parser: The launcher's parser.
        target: The script, or a module's name.
        args: The words after it.
        is_module: Whether `target` is a module's name.
    """
    source = "" if is_module else _read(target)
    found = [(name, words) for name, words in _walk(parser, args) if name not in source]
    if not found:
        return ""
    names = ", ".join(f"`{name}`" for name, _ in found)
    moved = shlex.join([word for _, words in found for word in words] + (["-m"] if is_module else []) + [target])
    subject = "the module" if is_module else "the script"
    follows, it, it_is = ("follows", "it", "it is") if len(found) == 1 else ("follow", "them", "they are")
    return (
        f"{names} {follows} {subject}, which receives {it}. If {it_is} meant for the launcher, write hocket run {moved}"
    )


def _walk(parser: argparse.ArgumentParser, args: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the launcher's options among a script's arguments, each with its own words."""
    known = list_options(parser)
    seen: set[str] = set()
    for position, word in enumerate(args):
        if word == "--":
            return
        name, equals, _ = word.partition("=")
        if name not in known or name in seen:
            continue
        seen.add(name)
        has_value = takes_value(parser, name) and not equals
        yield name, [word, *(part for part in args[position + 1 : position + 2] if has_value and part[:1] != "-")]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:  # a folder, an archive, a program: its options are unknown
        return ""
