"""User-defined serializers, for classes that pickle cannot handle or should not handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hocket.engine import pickling

T = TypeVar("T")


def register_serializer(cls: type[T], *, serializer: Callable[[T], object], deserializer: Callable[..., T]) -> None:
    """Send instances of a class as the result of `serializer`, and rebuild them with `deserializer`.

    This holds for the calling process, and for exactly this class, not its subclasses. `deserializer` travels with the
    values, so a receiver need not register anything. A worker that returns instances must call this function, too.

    Args:
        cls: The class.
        serializer: Takes an instance and returns a value that can travel.
        deserializer: Takes that value and returns an instance.

    Raises:
        TypeError: `cls` is no class, or a function cannot be called.

    Example:
        >>> import threading
        >>> import hocket
        >>> class Guarded:
        ...     def __init__(self, value):
        ...         self.value, self.lock = value, threading.Lock()
        >>> hocket.util.register_serializer(Guarded, serializer=lambda guarded: guarded.value, deserializer=Guarded)
        >>> hocket.get(hocket.put(Guarded(3))).value
        3
        >>> hocket.util.deregister_serializer(Guarded)
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_serializer takes a class, but received {cls!r}. Pass type(instance).")
    for name, function in (("serializer", serializer), ("deserializer", deserializer)):
        if not callable(function):
            raise TypeError(f"{name} must be a function of one argument, but received {function!r}.")
    pickling.reducers[cls] = lambda instance: (deserializer, (serializer(instance),))


def deregister_serializer(cls: type) -> None:
    """Undo `register_serializer`. A class that is not registered has no effect."""
    pickling.reducers.pop(cls, None)
