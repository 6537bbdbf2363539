"""Files that are left out because they cannot be read. A task notes them, and reports them with its block's size."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_noted: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("noted", default=None)


def note(path: str) -> None:
    """Note that a file is left out."""
    noted = _noted.get()
    if noted is not None:
        noted.append(path)


@contextlib.contextmanager
def collect() -> Iterator[list[str]]:
    """Give the paths of files that are left out in a block."""
    noted: list[str] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)
