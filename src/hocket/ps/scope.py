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


def require_strategy(what: str) -> Any:
    """Return the strategy in whose scope the caller is, for what needs one; raise a RuntimeError if it is in none."""
    strategy = _current.get()
    if strategy is None:
        raise RuntimeError(
            f"{what}(...) makes a variable on servers, but no strategy is in scope. Write: with strategy.scope(): v = "
            f"{what}(...)"
        )
    return strategy


def get_strategy() -> Any:
    """Return the strategy in whose scope the caller is.

    Raises:
        RuntimeError: It is in none.

    Example:
        >>> from hocket import ps
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
        >>> with strategy.scope():
        ...     ps.get_strategy() is strategy
        True
        >>> strategy.close()
    """
    return require_strategy("ps.get_strategy")
