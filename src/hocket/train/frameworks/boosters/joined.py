"""Training functions whose library is joined with the other ranks' while they run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeAlias, final

Join: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]
"""Joins the calling rank's library with the other ranks', for the duration of a block."""


@final
class JoinedFunction:
    """A training function that is joined while it runs; it looks like the function.

    Args:
        function: The training function.
        join: How. A function of a module, which ranks can import.
    """

    def __init__(self, function: Callable[..., object], join: Join) -> None:
        functools.update_wrapper(self, function)  # first, because it takes over an object's attributes
        self._function = function
        self._join = join

    def __call__(self, *args: object) -> object:
        """Run it in a rank."""
        with self._join():
            return self._function(*args)


def add(function: object, join: Join) -> Any:
    """Return a training function that is joined while it runs; what cannot be called stays as it is."""
    return JoinedFunction(function, join) if callable(function) else function


def refuse_old(trainer: str, **given: object) -> None:
    """Refuse what Ray's trainers took before they ran a training function."""
    for name, value in given.items():
        if value is not None:
            raise DeprecationWarning(
                f"{trainer}({name}=...) trained without a function in older versions of Ray, and does not any more, as "
                f"in Ray. Pass a function that trains: {trainer}(train_loop, datasets=...)."
            )
