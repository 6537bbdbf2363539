"""How an engine finds what a call on an actor is to run, and runs what belongs to an actor's event loop."""

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
    """Return what the actor's class calls so, bound to the actor; or one that every actor has. As in Ray, whose handles
    know the class and not the object: an attribute of the actor that has the same name does not hide the method."""
    if name in _OF_ALL:
        return functools.partial(_OF_ALL[name], actor)
    try:
        if name not in actor.__dict__:
            return getattr(actor, name)
    except AttributeError:  # it has slots
        return getattr(actor, name)
    found = inspect.getattr_static(type(actor), name)
    return found.__get__(actor, type(actor)) if hasattr(found, "__get__") else found


def construct_on(loop: asyncio.AbstractEventLoop, construct: Callable[[], object]) -> object:
    """Run an actor's constructor on its loop, where it may start tasks that go on afterwards; return the actor."""
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
    """Run something to its end on a loop that does not run."""

    async def wait() -> None:
        await awaitable

    loop.run_until_complete(wait())
