"""Plain prose: lines of Markdown that are too long, and words that make a sentence which has to be read twice.

In Python it reads every docstring, every text under an attribute, and every comment. A public docstring's first
paragraph must also be a sentence.

    python tools/prose.py README.md docs/*.md src

`wrap` fits paragraphs into the line, for the tools that write pages.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import textwrap
import tokenize
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

_OPENING = re.compile(r"(What|Who|Whose|Whoever|Of what|Those|That which)\b(?!.*\?)")
"""A relative clause as the subject of a docstring or a comment."""

_NO_AGENT = re.compile(
    r"\b(is|are|was|were) (told|heard of|asked|said|looked at)\b|\b(nobody's|somebody's|manieth|let be)\b"
    r"|\b(those|what|one) that (it|they) \w+ (is|are)\b"
)
"""A verb without an agent, and pronouns without a noun."""

_NOTHING = re.compile(r"(See there|The same|Does nothing)\.?")

_ENTRY = re.compile(r"^\s+\*{0,2}\w+: ")

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


def find_python_faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield the faults of a module's docstrings, texts under attributes and comments, each with its line."""
    module = ast.parse(source)
    for node, name in _list_public(module):
        docstring = ast.get_docstring(node)
        if docstring is None:
            continue
        first = " ".join(docstring.split("\n\n")[0].split())
        if first[-1] not in ".:?)":
            yield node.body[0].lineno, f"the first paragraph of {name} is no sentence: it ends with `{first[-20:]}`"
    for line, text in sorted([*_list_docstrings(module), *_list_comments(source)]):
        for fault in _find_riddles(text):
            yield line, fault


def _find_riddles(text: str) -> Iterator[str]:
    """Yield the faults of a docstring or a comment."""
    prose = re.sub(r"``.*?``|`[^`]*`", "", _remove_examples(text), flags=re.DOTALL)
    words = " ".join(prose.split())
    openings = [words, *(_ENTRY.sub("", line) for line in prose.splitlines() if _ENTRY.match(line))]
    for opening in openings:
        if found := _OPENING.match(opening):
            yield f"`{found[0]}` opens `{opening[:40]}`: the subject is a thing, so name it"
    if _NOTHING.fullmatch(words):
        yield f"`{words}` says nothing: say what the reader would find there"
    if found := _NO_AGENT.search(words):
        yield f"`{found[0]}` makes a riddle: name the thing and who does it"
    for found in _WORD.finditer(words):
        yield f"`{found[0].lower()}` makes a riddle: {WORDS[found[0].lower()]}"


def _remove_examples(docstring: str) -> str:
    """Return a docstring without the lines of its doctests, results included."""
    kept: list[str] = []
    is_example = False
    for line in docstring.splitlines():
        is_example = line.lstrip().startswith((">>>", "...")) or (is_example and bool(line.strip()))
        if not is_example:
            kept.append(line)
    return "\n".join(kept)


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


def _list_docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each text that stands as a statement: docstrings, and what follows an attribute."""
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _list_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment; lines below one another are one."""
    begun: tuple[int, str] | None = None
    before = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string.lstrip("#: ")
        is_alone = not token.line[: token.start[1]].strip()
        if begun is not None and is_alone and line == before + 1:
            begun = begun[0], f"{begun[1]} {text}"
        else:
            if begun is not None:
                yield begun
            begun = line, text
        before = line if is_alone else -1
    if begun is not None:
        yield begun


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
        find = find_python_faults if file.suffix == ".py" else find_faults
        faults += [f"{file}:{number}: {fault}" for number, fault in find(file.read_text())]
    print(*faults, sep="\n", end="\n" * bool(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
