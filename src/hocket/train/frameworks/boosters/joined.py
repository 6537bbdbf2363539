"""Training functions that run while the ranks' libraries are joined."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeAlias, final

Join: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]
"""A context manager that joins the calling rank's library with the other ranks'."""


@final
class JoinedFunction:
    """A training function that is joined while it runs. The object looks like the function.

    Args:
        function: The training function.
        join: Joins the library. It must be a function of a module, which ranks can import.
    """

    def __init__(self, function: Callable[..., object], join: Join) -> None:
        functools.update_wrapper(self, function)  # first, since its copied attributes could overwrite ours
        self._function = function
        self._join = join

    def __call__(self, *args: object) -> object:
        """Run the function in a rank."""
        with self._join():
            return self._function(*args)


def add(function: object, join: Join) -> Any:
    """Return a training function that is joined while it runs, or the object itself if it cannot be called."""
    return JoinedFunction(function, join) if callable(function) else function


def refuse_old(trainer: str, **given: object) -> None:
    """Refuse arguments that Ray's trainers took before they took a training function."""
    for name, value in given.items():
        if value is not None:
            raise DeprecationWarning(
                f"{trainer}({name}=...) is not supported, as in Ray: only older versions of Ray trained without a "
                f"function. Pass a function that trains: {trainer}(train_loop, datasets=...)."
            )
