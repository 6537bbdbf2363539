"""JAX's arrays as values: their memory travels beside the pickle, as that of numpy's arrays does."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpy.typing as npt


def reduce_array(array: Any) -> tuple[Any, ...]:
    """Return the reduced form of an array. JAX's own copies the memory into the pickle."""
    if not array.is_fully_addressable:
        found: tuple[Any, ...] = array.__reduce__()  # JAX's error says that this process has a part only
        return found
    host = np.asarray(array)  # no copy if the array is on the host
    is_known = host.dtype.kind in "biufc"  # numpy copies other types, such as bfloat16, into the pickle
    return _rebuild_array, (host if is_known else host.view(f"u{host.itemsize}"), host.dtype, array.weak_type)


def _rebuild_array(host: npt.NDArray[Any], dtype: np.dtype[Any], is_weak: bool) -> Any:
    """Return an array on JAX's default device, as JAX's own form does.

    On the host it may use the memory that it is given, which nothing else refers to."""
    array: Any = jax.device_put(host.view(dtype))
    if is_weak:
        array.aval = array.aval.update(weak_type=True)
    return array
