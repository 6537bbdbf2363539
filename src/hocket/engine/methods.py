"""The search for the method that a call on an actor runs, and functions that run code on an actor's event loop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hocket import exceptions

if TYPE_CHECKING:
    import asyncio


def _call_function(actor: object, function: Any, /, *args: object, **kwargs: object) -> object:
    return function(actor, *args, **kwargs)


def _terminate(actor: object) -> None:
    raise exceptions.ActorExit


_OF_ALL: dict[str, Any] = {
    "__ray_ready__": lambda actor: True,
    "__ray_call__": _call_function,
    "__ray_terminate__": _terminate,
}
"""Methods that every actor has. The names are Ray's."""


def get_method(actor: object, name: str) -> Any:
    """Return a method of the actor's class, bound to the actor, or a method that every actor has. As in Ray, where
    handles know only the class, an attribute of the object with this name does not hide the method."""
    if name in _OF_ALL:
        return functools.partial(_OF_ALL[name], actor)
    try:
        if name not in actor.__dict__:
            return getattr(actor, name)
    except AttributeError:  # the actor has slots, and no `__dict__`
        return getattr(actor, name)
    found = inspect.getattr_static(type(actor), name)
    return found.__get__(actor, type(actor)) if hasattr(found, "__get__") else found


def construct_on(loop: asyncio.AbstractEventLoop, construct: Callable[[], object]) -> object:
    """Run an actor's constructor on its loop, where it may start tasks that run on afterwards; return the actor."""
    built: list[object] = []
    errors: list[BaseException] = []

    async def run() -> None:
        try:
            built.append(construct())
        except BaseException as error:  # raised below, without the frames of asyncio
            errors.append(error)

    loop.run_until_complete(run())
    if errors:
        raise errors[0]
    return built[0]


def complete_on(loop: asyncio.AbstractEventLoop, awaitable: Any) -> None:
    """Run an awaitable to its end on a loop that is not running."""

    async def wait() -> None:
        await awaitable

    loop.run_until_complete(wait())
