"""Proxies of objects in an actor, which other processes use like the objects themselves.

A server's variables, the gate, the dealer of a dataset, the registry and a memory owner each have a proxy. A set named
``ASKABLE`` beside the object's class lists the names that a proxy has. The actor refuses all others (`answer`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar, final

from hocket.core import actor, api

T = TypeVar("T")


@final
class RemoteProxy:
    """A proxy of an object in an actor: its methods and properties return the actor's answer."""

    def __init__(self, cls: type, askable: AbstractSet[str], ask: Callable[..., object]) -> None:
        self._cls = cls
        self._askable = askable
        self._ask = ask

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteProxy, (self._cls, self._askable, self._ask)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or name not in self._askable:
            raise AttributeError(f"{self._cls.__name__}.{name} is not available to other processes.")
        if isinstance(getattr(self._cls, name), property):
            return self._ask(name)
        return functools.partial(self._ask, name)


def build_proxy(cls: type[T], askable: AbstractSet[str], ask: Callable[..., object]) -> T:
    """Return a proxy of an object in an actor. Its declared type is the object's class.

    Args:
        cls: The object's class.
        askable: The names of the methods and properties that the proxy has.
        ask: Sends a call to the actor; takes a name and arguments. The proxy can be pickled if `ask` can.
    """
    return RemoteProxy(cls, askable, ask)  # type: ignore[return-value]  # it has the methods of `cls`


def build_actor_proxy(cls: type[T], askable: AbstractSet[str], handle: actor.ActorHandle) -> T:
    """Return a proxy of an actor itself. It can be pickled."""
    return build_proxy(cls, askable, functools.partial(_ask_actor, handle))


def answer(target: object, askable: AbstractSet[str], name: str, args: tuple[Any, ...]) -> object:
    """Answer a proxy's call. The actor calls this function."""
    if name not in askable:
        raise AttributeError(f"{type(target).__name__}.{name} is not available to other processes.")
    found = getattr(target, name)
    return found(*args) if callable(found) else found


def ask(method: Any, *args: object) -> object:
    """Call a method of an actor; wait for its result."""
    return api.get(method.remote(*args))


def _ask_actor(handle: actor.ActorHandle, name: str, *args: object) -> object:
    return ask(getattr(handle, name), *args)
