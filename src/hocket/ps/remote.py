"""Objects that live in an actor, used from other processes as if they were there.

One proxy stands for each of them: a server's variables, the gate, the deal of a dataset, the registry, and who makes
memory. What may be asked of an object is a set of names beside its class, ``ASKABLE``. The proxy has these names, and
the actor refuses others (`answer`).
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
    """An object in an actor: each of its methods returns the actor's answer, and so does each of its properties."""

    def __init__(self, cls: type, askable: AbstractSet[str], ask: Callable[..., object]) -> None:
        self._cls = cls
        self._askable = askable
        self._ask = ask

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteProxy, (self._cls, self._askable, self._ask)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or name not in self._askable:
            raise AttributeError(f"{self._cls.__name__}.{name} cannot be asked for from another process.")
        if isinstance(getattr(self._cls, name), property):
            return self._ask(name)
        return functools.partial(self._ask, name)


def build_proxy(cls: type[T], askable: AbstractSet[str], ask: Callable[..., object]) -> T:
    """Return what stands for an object in an actor. It has the object's methods, so it has its type.

    Args:
        cls: The object's class.
        askable: Which of its methods and properties the proxy has.
        ask: Asks the actor: called with a name and arguments. It can travel if the proxy shall.
    """
    return RemoteProxy(cls, askable, ask)  # type: ignore[return-value]  # it answers as one


def build_actor_proxy(cls: type[T], askable: AbstractSet[str], handle: actor.ActorHandle) -> T:
    """Return what stands for an actor itself. It can travel."""
    return build_proxy(cls, askable, functools.partial(_ask_actor, handle))


def answer(target: object, askable: AbstractSet[str], name: str, args: tuple[Any, ...]) -> object:
    """Do what a proxy asks for. Called in the actor."""
    if name not in askable:
        raise AttributeError(f"Another process may not ask for {name!r} of {type(target).__name__}.")
    found = getattr(target, name)
    return found(*args) if callable(found) else found


def ask(method: Any, *args: object) -> object:
    """Call a method of an actor; wait for what it returns."""
    return api.get(method.remote(*args))


def _ask_actor(handle: actor.ActorHandle, name: str, *args: object) -> object:
    return ask(getattr(handle, name), *args)
