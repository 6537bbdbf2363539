"""Plain prose in Markdown: which lines are too long, and which words make a sentence that has to be read twice. And in
Python, where it looks at the first paragraph of the docstrings of modules and of what is public in them.

    python tools/prose.py README.md docs/*.md src

`wrap` fits paragraphs into the line, for the tools that write pages.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

WIDTH = 120

WORDS = {
    "shall": "say what happens, or `must`",
    "whoever": "name who it is",
    "whom": "name who it is",
    "is told": "name who says it, and what: `Hocket warns`",
    "are told": "name who says it, and what",
    "tells": "`says`, `shows` or `prints`",
    "so it is when": "write it in the sentence before: `also when ...`",
    "lest": "`so that ... not`",
    "thereof": "name the thing",
    "hereby": "leave it out",
    "utilize": "`use`",
    "leverage": "`use`",
    "in order to": "`to`",
    "please note": "leave it out",
    "simply": "leave it out",
    "obviously": "leave it out",
}
"""Words that are not written, and what is written instead."""

_ITEM = re.compile(r"^(\s*)([-*]|\d+\.)\s+")
_WORD = re.compile(r"\b(" + "|".join(WORDS) + r")\b", re.IGNORECASE)


def list_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are no code, each with its number."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*```", line):
            is_code = not is_code
        elif not is_code:
            yield number, line


def find_faults(text: str) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with a page, each with its line. A row of a table may be long: it cannot be broken."""
    for number, line in list_prose(text):
        if len(line) > WIDTH and not line.lstrip().startswith("|"):
            yield number, f"{len(line)} columns; a line has {WIDTH} at most"
        for found in _WORD.finditer(re.sub(r"`[^`]*`", "", line)):
            word = found[0].lower()
            yield number, f"`{word}` makes a riddle: {WORDS[word]}"


def find_docstring_faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with the first paragraphs of a module's docstrings, each with its line."""
    for node, name in _list_public(ast.parse(source)):
        docstring = ast.get_docstring(node)
        if docstring is None:
            continue
        first = " ".join(docstring.split("\n\n")[0].split())
        line = node.body[0].lineno
        if first[-1] not in ".:?)":
            yield line, f"the first paragraph of {name} is no sentence: it ends with `{first[-20:]}`"
        for found in _WORD.finditer(re.sub(r"`[^`]*`", "", first)):
            word = found[0].lower()
            yield line, f"`{word}` makes a riddle of {name}: {WORDS[word]}"


_Documented: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _list_public(module: ast.Module) -> Iterator[tuple[_Documented, str]]:
    left: list[tuple[_Documented, str]] = [(module, "the module")]
    while left:
        node, name = left.pop()
        yield node, name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        left += [
            (child, f"`{child.name}`")
            for child in node.body
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name[0] != "_"
        ]


def wrap(text: str) -> str:
    """Return a page whose paragraphs and items fit into the line."""
    out: list[str] = []
    for paragraph, is_text in _list_paragraphs(text.split("\n")):
        if not is_text or all(len(line) <= WIDTH for line in paragraph):
            out += paragraph
            continue
        item = _ITEM.match(paragraph[0])
        first = item[0] if item else ""
        words = " ".join(line.strip() for line in paragraph)[len(first.strip()) :].strip()
        out += textwrap.wrap(
            words,
            WIDTH,
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(out)


def _list_paragraphs(lines: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield what belongs together, and whether it is text: the lines of a paragraph or an item; all else by itself."""
    paragraph: list[str] = []
    is_code = False
    for line in lines:
        is_fence = bool(re.match(r"\s*```", line))
        is_code ^= is_fence
        is_apart = is_fence or is_code or not line.strip() or line.lstrip().startswith(("|", "#", "<!--", ">", "!["))
        if paragraph and (is_apart or _ITEM.match(line)):
            yield paragraph, True
            paragraph = []
        if is_apart:
            yield [line], False
        else:
            paragraph.append(line)
    if paragraph:
        yield paragraph, True


def main(paths: list[str]) -> int:
    """Print the faults of pages, of programs, and of the programs in folders; return 1 if there are any."""
    files = [file for path in map(Path, paths) for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    faults = []
    for file in files:
        find = find_docstring_faults if file.suffix == ".py" else find_faults
        faults += [f"{file}:{number}: {fault}" for number, fault in find(file.read_text())]
    print(*faults, sep="\n", end="\n" * bool(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
