"""How the instances of a class travel, where pickle does not know or should not be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hocket.engine import pickling

T = TypeVar("T")


def register_serializer(cls: type[T], *, serializer: Callable[[T], object], deserializer: Callable[..., T]) -> None:
    """Have the instances of a class sent as what `serializer` makes of them, and rebuilt by `deserializer`.

    Holds for this process, and for exactly this class, not its subclasses. `deserializer` travels with the values, so
    who receives one needs to register nothing; a worker that is to return instances calls this too.

    Args:
        cls: The class.
        serializer: Takes an instance and returns something that can travel.
        deserializer: Takes that and returns an instance.

    Raises:
        TypeError: `cls` is no class, or one of the functions cannot be called.

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
    """Undo `register_serializer`. Does nothing for a class that is not registered."""
    pickling.reducers.pop(cls, None)
