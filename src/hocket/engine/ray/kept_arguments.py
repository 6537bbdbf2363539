"""The arguments of actors' constructors, kept while the actors may be built again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, final

import ray

from hocket._base.internals import ray as ray_internals
from hocket.engine.ray import natives, outside

_INLINE_BYTES: Final = 100 * 1024
"""The largest value that travels inside a call: Ray's ``max_direct_call_object_size``."""

_FIRST_SEARCH: Final = 16
"""The number of actors that starts the first search for dead ones; later searches follow when it has doubled."""

_PLAIN: Final = frozenset({type(None), bool, int, float})


@final
class KeptArguments:
    """References to the constructors' arguments of this process's actors, while the actors may be restarted.

    Ray runs a constructor again with the original arguments, but does not keep objects among them: when the last
    reference to one is gone, the next restart fails. The same holds for large values, which Ray puts into its store
    itself. So the creating process keeps references to both.

    Args:
        list_dead: A function that returns the ids of dead actors, in hexadecimal. (Not of living ones, because Ray may
            not list a new actor yet.)
    """

    def __init__(self, list_dead: Callable[[], Iterable[str]]) -> None:
        self._list_dead = list_dead
        self._kept: dict[str, list[object]] = {}
        self._search_at = 0
        self._lock = threading.Lock()

    def keep(self, native: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Keep the references among an actor's arguments until it is dead."""
        found = [arg for arg in (*args, *kwargs.values()) if natives.is_object(arg)]
        if not found:
            return
        with self._lock:
            self._kept[natives.format_id(native)] = found
            is_search_due = len(self._kept) >= max(_FIRST_SEARCH, self._search_at)
        if is_search_due:
            dead = self._list_dead()
            with self._lock:
                for actor_id in dead:
                    self._kept.pop(actor_id, None)
                self._search_at = 2 * len(self._kept)

    def forget(self, native: object) -> None:
        """Drop the arguments of an actor that will not be restarted."""
        with self._lock:
            self._kept.pop(natives.format_id(native), None)

    def clear(self) -> None:
        """Drop all arguments."""
        with self._lock:
            self._kept.clear()


def put_large(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """Replace values that Ray would put into its store by references, which can be kept."""
    return tuple(map(_put_if_large, args)), {name: _put_if_large(arg) for name, arg in kwargs.items()}


def _put_if_large(arg: object) -> object:
    if type(arg) in _PLAIN or natives.is_object(arg) or not _is_large(arg):
        return arg
    return ray.put(arg)


def _is_large(arg: Any) -> bool:
    if type(arg) in (str, bytes):
        return len(arg) > _INLINE_BYTES // 4  # of UTF-8
    if outside.is_outside():
        return True
    serialized = ray_internals.get_serializer().serialize(arg)
    return bool(serialized.total_bytes > _INLINE_BYTES)
