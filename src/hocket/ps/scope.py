"""The strategy in scope, which makes new variables: that of the innermost ``with strategy.scope()``."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_current: contextvars.ContextVar[object] = contextvars.ContextVar("hocket.ps.scope", default=None)


@contextlib.contextmanager
def entered(strategy: object) -> Iterator[None]:
    """Have a strategy make the variables of a ``with`` block."""
    token = _current.set(strategy)
    try:
        yield
    finally:
        _current.reset(token)


def get_strategy(what: str) -> Any:
    """Return the strategy in whose scope the caller is.

    Raises:
        RuntimeError: It is in none.
    """
    strategy = _current.get()
    if strategy is None:
        raise RuntimeError(
            f"{what}(...) makes a variable on servers, but no strategy is in scope. Write: with strategy.scope(): v = "
            f"{what}(...)"
        )
    return strategy
