"""Every message in the source has the fields that `engine.local.messages` declares."""

from __future__ import annotations

import ast
import inspect
import pathlib
from collections.abc import Iterator

import pytest

from hocket.engine.local import messages
from hocket.engine.local.driver import inbox

ROOT = pathlib.Path(messages.__file__).parent

NUMBERS: dict[str, int] = {
    name: value for name, value in vars(messages).items() if isinstance(value, int) and value in messages.declared
}


def find_number(node: ast.expr) -> int | None:
    """Return the number of a message that is written ``messages.NAME``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "messages":
        return NUMBERS.get(node.attr)
    return None


def count_fields(tree: ast.AST) -> Iterator[tuple[int, int, bool, int]]:
    """Yield the line, the number, whether the rest is open, and how many fields there are, of each tuple and pattern
    in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and node.elts:
            parts = node.elts[1:]
            number = find_number(node.elts[0])
            is_open = any(isinstance(part, ast.Starred) for part in parts)
        elif isinstance(node, ast.MatchSequence) and node.patterns and isinstance(node.patterns[0], ast.MatchValue):
            parts = node.patterns[1:]  # type: ignore[assignment]
            number = find_number(node.patterns[0].value)
            is_open = any(isinstance(part, ast.MatchStar) for part in parts)
        else:
            continue
        if number is not None:
            yield node.lineno, number, is_open, len(parts) - is_open


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_tuples_and_patterns_have_the_declared_fields(path: pathlib.Path) -> None:
    for line, number, is_open, count in count_fields(ast.parse(path.read_text())):
        fields = messages.declared[number]
        assert count == len(fields) or (is_open and count < len(fields)), f"{path}:{line} must have {fields}"


def test_messages_are_found_in_the_source() -> None:
    found = {number for path in ROOT.rglob("*.py") for _, number, _, _ in count_fields(ast.parse(path.read_text()))}
    assert len(found) > 40


def test_handlers_take_the_declared_fields() -> None:
    for number, handler in inbox._HANDLERS.items():
        _, _, *taken = inspect.signature(handler).parameters
        assert tuple(taken) == messages.declared[number], handler


def test_each_number_has_one_name() -> None:
    assert len(NUMBERS) == len(messages.declared)
