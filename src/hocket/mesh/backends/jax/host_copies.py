"""Copies of the caller's arrays that JAX can take over as they are.

JAX does not copy a numpy array whose memory begins at a multiple of 64 bytes when it puts it onto a processor: the
value then changes when the program fills its buffer again, as loaders do (measured with jax 0.10, ``may_alias=False``
too). Where the memory begins is chance. So what is given is copied here, once, to where JAX takes it over without a
second copy; replicas then share it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

_ALIGNMENT: Final = 64
"""Of XLA's arrays on processors, in bytes."""


def copy_if_host(value: Any) -> Any:
    """Return a numpy array's copy, and anything else as it is."""
    return copy(value) if isinstance(value, np.ndarray) and value.dtype != object else value


def copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy, in C order, whose memory begins where XLA wants it."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    made = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(made, array)
    return made
