"""Where the package opens pickles, removes trees, unpacks archives, and takes names or files that others may have
written, found in its syntax trees; `docs/security.md` says of each place why it may."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path("src/hocket")
PAGE = Path("docs/security.md")

_PICKLES = {"pickle", "cloudpickle", "marshal", "dill", "joblib", "shelve", "jsonpickle", "_pickle"}

#: By what a place does: the last name of the call, and whose it is; None: anybody's.
KINDS: dict[str, dict[str, set[str] | None]] = {
    "unpickles": {
        "loads": _PICKLES,
        "load": _PICKLES | {"yaml", "torch", "opener", "_opener", "Opener"},
        "Unpickler": None,
        "load_file": {"trust", "trust_module"},
        "unsafe_load": None,
        "full_load": None,
        "load_model": None,
        "eval": {""},
        "exec": {""},
        "read_pickle": None,
    },
    "removes a tree": {"rmtree": None, "remove_folder": None, "delete_dir": None, "removedirs": None},
    "unpacks": {"extract": {"archive", "tar", "zip"}, "extractall": None, "extractfile": None, "unpack_archive": None},
    "takes names": {
        "list_sizes": None,
        "read_records": {"", "storage", "commits"},
        "getmembers": {"archive", "tar"},
        "namelist": None,
        "infolist": None,
        "find_fault": {"names", "names_module"},
        "find_folder_fault": {"names", "names_module"},
        "join": {"names", "names_module"},
        "check": {"names", "names_module"},
    },
}

Place = tuple[str, str, str]
"""What is done, in which file, in which function."""


def find_places(root: Path = SOURCE) -> set[Place]:
    """Return all places of the package, without `hocket.testing`, which is for programs that test."""
    return {
        (kind, path.relative_to(root).as_posix(), function)
        for path in sorted(root.rglob("*.py"))
        if "testing" not in path.relative_to(root).parts
        for kind, function in find_in(ast.parse(path.read_text(), str(path)))
    }


def find_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Give what a module does, and in which function; also where it only names what does it."""
    yield from _visit(tree, ())


def _visit(node: ast.AST, outer: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        within = (*outer, child.name) if named else outer  # type: ignore[attr-defined]
        for kind in _name_kinds(child):
            yield kind, ".".join(within) or "(module)"
        yield from _visit(child, within)


def _name_kinds(node: ast.AST) -> Iterator[str]:
    owner = ""
    if isinstance(node, ast.Attribute):
        name = node.attr
        inner = node.value.func if isinstance(node.value, ast.Call) else node.value
        owner = inner.id if isinstance(inner, ast.Name) else inner.attr if isinstance(inner, ast.Attribute) else "?"
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        name = node.id
    elif isinstance(node, ast.keyword):
        if node.arg in ("allow_pickle", "weights_only", "safe_mode") and isinstance(node.value, ast.Constant):
            risky = {"allow_pickle": True, "weights_only": False, "safe_mode": False}[node.arg]
            if node.value.value is risky:
                yield "unpickles"
        return
    elif isinstance(node, ast.ImportFrom) and node.module in _PICKLES:
        yield from ["unpickles"] * any(alias.name in ("load", "loads", "Unpickler") for alias in node.names)
        return
    else:
        return
    for kind, names in KINDS.items():
        if name in names and ((owners := names[name]) is None or owner in owners):
            yield kind
    if name == "decode" and owner in ("values", "encoding"):
        yield "unpickles"


def read_page(text: str) -> dict[Place, str]:
    """Return the reasons that the page's tables give, by place."""
    found: dict[Place, str] = {}
    kind = ""
    for line in text.splitlines():
        heading = re.fullmatch(r"### Where the package (.+)", line)
        if heading:
            kind = heading[1]
        elif line.startswith("#"):
            kind = ""
        row = re.fullmatch(r"\| `([^`]+)` \| (.+?) \| (.+) \|", line)
        if row and kind:
            for function in re.findall(r"`([^`]+)`", row[2]):
                found[kind, row[1], function] = row[3]
    return found
