"""The strategy in scope: new variables belong to the strategy of the innermost ``with strategy.scope()``."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

_current: contextvars.ContextVar[object] = contextvars.ContextVar("hocket.ps.scope", default=None)


@contextlib.contextmanager
def entered(strategy: object) -> Iterator[None]:
    """Let a strategy make the variables of a ``with`` block."""
    token = _current.set(strategy)
    try:
        yield
    finally:
        _current.reset(token)


def require_strategy(what: str) -> Any:
    """Return the strategy in scope, on behalf of the function `what`; raise a RuntimeError if none is in scope."""
    strategy = _current.get()
    if strategy is None:
        raise RuntimeError(
            f"{what}(...) makes a variable on servers, but no strategy is in scope. Write: with strategy.scope(): v = "
            f"{what}(...)"
        )
    return strategy


def get_strategy() -> Any:
    """Return the strategy in scope.

    Raises:
        RuntimeError: No strategy is in scope.

    Example:
        >>> from hocket import ps
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
        >>> with strategy.scope():
        ...     ps.get_strategy() is strategy
        True
        >>> strategy.close()
    """
    return require_strategy("ps.get_strategy")
