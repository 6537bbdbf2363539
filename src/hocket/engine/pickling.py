"""The pickler that values are encoded with, and what a value has to do with it."""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar

from hocket.engine import contract

PROTOCOL = 5

Reducer = Callable[[Any], tuple[Any, ...]]
"""Returns what `pickle` makes of an object: a callable that rebuilds it, and the arguments."""

reducers: dict[type, Reducer] = {}
"""How to encode the instances of classes that the user has registered; they come before what pickle would do."""


@functools.cache
def load_pickler() -> type[pickle.Pickler]:
    """Return cloudpickle's pickler, with the user's own reducers.

    With what it imports it takes 5 ms (measured). A driver needs it for the first function that it encodes, and the
    guardian starts meanwhile (`Engine.expect_work`).
    """
    import cloudpickle

    main = sys.modules.get("__mp_main__")  # what multiprocessing makes of the script in a process that it has spawned
    if getattr(main, "__name__", "") == "__mp_main__":
        cloudpickle.register_pickle_by_value(main)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[object] = ChainMap(reducers, cloudpickle.Pickler.dispatch_table)

    return Pickler


def can_travel(value: object) -> bool:
    """Tell whether a value can be encoded."""
    outer = contract.encoding.refs
    contract.encoding.refs = []
    try:
        load_pickler()(io.BytesIO(), PROTOCOL).dump(value)
    except Exception:  # a user's __reduce__ may raise anything
        return False
    finally:
        contract.encoding.refs = outer
    return True
