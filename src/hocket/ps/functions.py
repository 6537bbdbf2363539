"""Functions that closures call: what they refer to, what is refused, and how workers know them."""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from hocket.core import api
from hocket.ps import base_strategy, closures, foreign, handles, streams

_SERVED: Final = (streams.PerWorker, handles.Handle, base_strategy.BaseStrategy)
"""What is another thing in each call, and would be a constant in a graph."""


@final
class Functions:
    """The functions of a coordinator, by number."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Callable[..., object], closures.Function] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, fn: Callable[..., object]) -> closures.Function:
        """Return a function as workers know it: the same for the same function.

        What has a state is read anew each time.

        Raises:
            TypeError: It takes along what would be a copy in each worker.
        """
        is_plain = isinstance(fn, types.FunctionType)
        function = self._known.get(fn) if is_plain else None
        if function is None:
            foreign.refuse_captured(fn)  # once: what workers know of a function stays
            with streams.collected() as inputs:
                ref = api.put(fn)
            # Pickling a function by reference shows none of what it refers to by name.
            inputs += find_inputs([value for _, value in foreign.list_captured(fn)]) if is_plain else []
            name = getattr(fn, "__qualname__", repr(fn))
            function = closures.Function(next(self._numbers), name, ref, tuple(inputs))
            if is_plain:
                self._known[fn] = function
        return function


def find_inputs(structure: object, kinds: object = streams.PerWorker) -> list[object]:
    """Return the per-worker iterators and values, or instances of other classes, in nested lists, tuples and dicts."""
    found: list[Any] = []
    closures.map_instances(structure, kinds, found.append)
    return found


def read_keywords(args: object, kwargs: object) -> dict[str, object]:
    """Return the keywords of a call."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        given = list(args) if isinstance(args, Sequence) and not isinstance(args, str) else [args]
        raise TypeError(
            "Coordinator.schedule takes a function's arguments as a tuple, and its keywords as a dict, but received "
            f"{kwargs!r} as keywords. Write args=({', '.join(map(repr, [*given, kwargs]))})."
        )
    return dict(kwargs or {})


def check_call(fn: object, args: object, kwargs: Mapping[str, object]) -> None:
    """Refuse what cannot be called, would be a copy in each worker, or a constant in the graph of a ``tf.function``."""
    if not callable(fn):
        raise TypeError(f"Coordinator.schedule takes a function, and its arguments in args=(...), but received {fn!r}.")
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise TypeError(f"args must be a tuple of arguments, but received {args!r}. Write args=({args!r},).")
    foreign.refuse_arguments(fn, args, kwargs)
    if foreign.is_graph(fn):
        for name, value in foreign.list_taken(fn, args, kwargs):
            if find_inputs(value, _SERVED):
                foreign.refuse_graph(fn, name)
