"""Arrays that a reader may write to, and classes that travel by value.

Ray maps an object into all its readers, who see their arrays read-only; with us what `get` returns is the reader's own.
So an array is copied once more when it is unpickled, for which its pickle is made to say so. With
``HOCKET_RAY_READ_ONLY_ARRAYS=1`` in the environment of who stores them, arrays come read-only and without the copy, as
Ray's users know them.

Cloudpickle gives each class of the driver's script a number when it leaves its process, and where the number is known
already the class is not built again: so what comes back is an instance of the driver's own class, and ``except
MyError`` catches it. Our functions are pickled with cloudpickle and Ray's values with a copy of it that Ray brings,
which counts apart, unless both use one list.
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
    if array.dtype.kind in "mMV":  # dates, and kinds that others have added, export no buffer of their own
        array_bytes = array.reshape(-1, order="A").view(np.uint8)
        return _rebuild_array, (pickle.PickleBuffer(cast("Any", array_bytes)), array.dtype, array.shape, order)
    return _rebuild_array, (pickle.PickleBuffer(cast("Any", array)), array.dtype, array.shape, order)


def _rebuild_array(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape, order=order).copy(order="K")


_table: dict[type, Callable[[Any], object]] = {}


def install() -> None:
    """Have Ray's pickler in this process write arrays so, and use the user's own reducers."""
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
    """Leave Ray's pickler as it was."""
    tables = ray.cloudpickle.CloudPickler.dispatch_table.maps
    tables[:] = _list_others(tables)


def _list_others(tables: list[object]) -> list[object]:
    ours = (pickling.reducers, outside.refusing, _table)
    return [table for table in tables if all(table is not one for one in ours)]


_TRACKERS = ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID")
"""By class, and by number; both forget a class that is gone."""


def share_numbers() -> None:
    """Have Ray's cloudpickle use the numbers of the other one in this process, from now on. Again: does nothing."""
    theirs: object = ray.cloudpickle.cloudpickle
    for name in _TRACKERS:
        ours, others = getattr(cloudpickle, name), getattr(theirs, name)
        if others is not ours:
            ours.update({key: found for key, found in others.items() if key not in ours})
            setattr(theirs, name, ours)
