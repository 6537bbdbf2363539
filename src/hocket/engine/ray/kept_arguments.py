"""The arguments of actors' constructors, kept for as long as the actors may be built again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, final

import ray

from hocket._base.internals import ray as ray_internals
from hocket.engine.ray import natives, outside

_INLINE_BYTES: Final = 100 * 1024
"""Up to this size a value travels inside the call: Ray's ``max_direct_call_object_size``."""

_FIRST_SEARCH: Final = 16
"""With as many actors the dead among them are looked for, and then whenever their number has doubled."""

_PLAIN: Final = frozenset({type(None), bool, int, float})


@final
class KeptArguments:
    """References on what the actors of this process were built from, for as long as those that may be restarted live.

    Ray runs a constructor again from what the actor's creator passed, but does not keep objects that were passed: once
    nobody refers to one, the next restart fails. That holds for references as well as for values that Ray puts into its
    store on the way, because they are large. So the creating process keeps references on both.

    Args:
        list_dead: Returns the ids of actors that are dead, in hexadecimal. (A new one may not be known to be living
            yet.)
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
        """Let go of the arguments of an actor that will not be restarted."""
        with self._lock:
            self._kept.pop(natives.format_id(native), None)

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            self._kept.clear()


def put_large(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """Put references in the place of values that Ray would put into its store, where nobody could keep them."""
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
