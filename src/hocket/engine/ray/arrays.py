"""Arrays that readers can write to, and classes that travel by value.

**Arrays.** Ray maps an object into all its readers, with read-only arrays. In Hocket, `get` returns the reader's own
value. So an array's pickle has it copied once more when it is unpickled. With ``HOCKET_RAY_READ_ONLY_ARRAYS=1`` in the
environment of the process that stores arrays, they come read-only and without the copy, as in Ray.

**Classes.** Cloudpickle gives each class of the driver's script a number when it leaves its process. A process that
knows the number does not build the class again: so a value that comes back is an instance of the driver's own class,
and ``except MyError`` catches it. Our functions are pickled with cloudpickle, but Ray's values with Ray's own copy of
cloudpickle. The two count separately, unless they share one list.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import ray
from cloudpickle import cloudpickle

from hocket.engine import pickling
from hocket.engine.ray import outside

VARIABLE = "HOCKET_RAY_READ_ONLY_ARRAYS"


def _reduce_array(array: np.ndarray[Any, Any]) -> object:
    flags = array.flags
    if array.dtype.hasobject or not flags.forc:
        return array.__reduce_ex__(pickling.PROTOCOL)
    order = "C" if flags.c_contiguous else "F"
    if array.dtype.kind in "mMV":  # dates, and dtypes from other packages, export no buffer themselves
        array_bytes = array.reshape(-1, order="A").view(np.uint8)
        return _rebuild_array, (pickle.PickleBuffer(cast("Any", array_bytes)), array.dtype, array.shape, order)
    return _rebuild_array, (pickle.PickleBuffer(cast("Any", array)), array.dtype, array.shape, order)


def _rebuild_array(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape, order=order).copy(order="K")


_table: dict[type, Callable[[Any], object]] = {}


def install() -> None:
    """Have Ray's pickler in this process write arrays for a copy, and use the user's own reducers."""
    if os.environ.get(VARIABLE, "") not in ("1", "true"):
        _table[np.ndarray] = _reduce_array
    else:
        _table.clear()
    tables = ray.cloudpickle.CloudPickler.dispatch_table.maps
    tables[:] = [
        outside.refusing if outside.is_outside() else pickling.reducers,
        _table,
        *_list_others(tables),
    ]


def uninstall() -> None:
    """Restore Ray's pickler."""
    tables = ray.cloudpickle.CloudPickler.dispatch_table.maps
    tables[:] = _list_others(tables)


def _list_others(tables: list[object]) -> list[object]:
    ours = (pickling.reducers, outside.refusing, _table)
    return [table for table in tables if all(table is not one for one in ours)]


_TRACKERS = ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID")
"""The tables of numbers by class, and of classes by number; both drop a class that is gone."""


def share_numbers() -> None:
    """Have Ray's cloudpickle share the tables of the other cloudpickle in this process. A second call does nothing."""
    theirs: object = ray.cloudpickle.cloudpickle
    for name in _TRACKERS:
        ours, others = getattr(cloudpickle, name), getattr(theirs, name)
        if others is not ours:
            ours.update({key: found for key, found in others.items() if key not in ours})
            setattr(theirs, name, ours)
