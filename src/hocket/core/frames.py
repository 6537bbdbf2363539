"""Errors show a user the user's own lines, and none of this package's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hocket import exceptions

P = ParamSpec("P")
T = TypeVar("T")


def hide_frames_of(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function that users call hide our frames. Where a call takes no more than some microseconds, the function
    does so by itself: this adds a call."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            exceptions.hide_frames(error)
            raise

    return call
