"""Finds out whether a script will load torch, by reading it: no code of the user's runs before the ranks do.

The result only serves to load torch early, once for all ranks. If it misses torch, each rank loads torch itself, which
takes longer. That is also the case for a script that changes environment variables before it imports torch, since
libraries read these when they are loaded.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from hocket._base import internals

FILES_READ = 50
"""How many of the user's files to read at most. A guess: reading them should take less than 0.1 s."""

_TORCH = frozenset(
    {"torch", "torchvision", "torchaudio", "lightning", "pytorch_lightning", "transformers", "accelerate"}
)
"""Modules that load torch."""

_CHANGES = frozenset({"update", "setdefault", "pop", "clear", "popitem"})
"""Methods that change `os.environ`."""


def list_modules(path: str, roots: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules to load before a program starts.

    Args:
        path: The program's file.
        roots: The folders of the user's own modules, which are read, too.
    """
    found: list[str] = []
    row, seen = [path], {path}
    uses_optimizer = False
    for _ in range(FILES_READ):
        if not row:
            break
        tree = _read(row.pop(0))
        if tree is None:
            continue
        nodes = list(_walk(tree))
        names = [name for node in nodes for name in _list_imported(node)]
        if not found and any(name.partition(".")[0] in _TORCH for name in names):
            if any(_changes_environment(node) for node in _list_before_torch(nodes)):
                return ()
            found.append("torch")
        uses_optimizer |= any(_names_optimizer(node) for node in nodes)
        for file in (file for name in names for file in _list_files(name, roots)):
            if file not in seen:
                seen.add(file)
                row.append(file)
    # The first step of an optimizer loads the compiler, which takes as long as torch itself.
    return (*found, internals.TORCH_COMPILER) if found and uses_optimizer else tuple(found)


def _read(path: str) -> ast.Module | None:
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read(), path)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the rank will report any error better


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree in the order of the text."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def _list_imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _list_before_torch(nodes: list[ast.AST]) -> list[ast.AST]:
    for number, node in enumerate(nodes):
        if any(name.partition(".")[0] in _TORCH for name in _list_imported(node)):
            return nodes[:number]
    return nodes


def _changes_environment(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return any(_is_variable(target) for target in targets)
        case ast.AugAssign(target=target):
            return _is_variable(target) or _is_environment(target)
        case ast.Call(func=ast.Attribute(attr="putenv" | "unsetenv")):
            return True
        case ast.Call(func=ast.Attribute(value=owner, attr=name)):
            return name in _CHANGES and _is_environment(owner)
    return False


def _is_variable(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and _is_environment(node.value)


def _is_environment(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def _names_optimizer(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "optim") or any(
        name.startswith("torch.optim") for name in _list_imported(node)
    )


def _list_files(name: str, roots: tuple[str, ...]) -> Iterator[str]:
    """Yield the user's files that an import of a name may load."""
    parts = name.split(".")
    for root in roots:
        for depth in range(1, len(parts) + 1):
            place = os.path.join(root, *parts[:depth])
            for file in (f"{place}.py", os.path.join(place, "__init__.py")):
                if os.path.isfile(file):
                    yield file
