"""Copies of the caller's arrays that JAX can take over as they are.

JAX does not copy a numpy array whose memory begins at a multiple of 64 bytes when it puts it onto a processor: the
value then changes when the program fills its buffer again, as loaders do (measured with jax 0.10, ``may_alias=False``
too). Where the memory begins is chance. So what is given is copied here, once, to where JAX takes it over without a
second copy; replicas then share it.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import numpy as np
import numpy.typing as npt

_ALIGNMENT: Final = 64
"""Of XLA's arrays on processors, in bytes."""


def copy_if_host(value: object) -> object:
    """Return a numpy array's copy, and anything else as it is."""
    return copy(value) if isinstance(value, np.ndarray) and value.dtype != object else value


def check_width(value: object) -> None:
    """Raise if an array has numbers that JAX would change: it has 32 bits for each without ``jax_enable_x64``."""
    if (
        not isinstance(value, np.ndarray)
        or value.dtype.kind not in "iuf"
        or value.dtype.itemsize <= 4
        or not value.size
    ):
        return
    kind = jax.dtypes.canonicalize_dtype(value.dtype)
    if kind == value.dtype:
        return
    most = np.finfo(kind) if value.dtype.kind == "f" else np.iinfo(kind)
    finite = value[np.isfinite(value)] if value.dtype.kind == "f" else value
    if finite.size and not (float(most.min) <= float(finite.min()) and float(finite.max()) <= float(most.max)):
        raise ValueError(
            f"The array has numbers from {finite.min()} to {finite.max()}, and JAX would make {kind} of it, which has "
            "none so large. Call jax.config.update('jax_enable_x64', True) first, or convert it."
        )


def copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy, in C order, whose memory begins where XLA wants it."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    made = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(made, array)
    return made
