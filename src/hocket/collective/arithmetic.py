"""Arithmetic on arrays: numpy's functions, or those of a framework that has more number types."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np


class ReduceOp(enum.IntEnum):
    """The operation that combines the ranks' tensors."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    MEAN = 4
    BAND = 5
    BOR = 6
    BXOR = 7


BITWISE: Final = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def explain_bitwise(op: ReduceOp, dtype: object) -> str:
    """Return the message for a bitwise operation on numbers that are not integers."""
    return f"op={op.name} combines the bits of integers, but received {dtype}. Convert it to int64 first."


@dataclass(frozen=True, kw_only=True, eq=False)
class Arithmetic:
    """The functions that copy and combine arrays of one kind. The arrays are one-dimensional and contiguous."""

    name: str
    view: Callable[[Any, Any, int, int], Any]
    """Takes a buffer, a dtype, a count and an offset in bytes; returns an array that shares the buffer's memory."""
    copy: Callable[[Any, Any], object]
    """Takes a target and a source."""
    combine: Mapping[ReduceOp, Callable[..., object]]
    """Functions of two arrays and ``out=``, by operation."""
    divide: Callable[..., object]
    """A function of an array, a number, and ``out=``."""
    is_inexact: Callable[[Any], bool]
    """Whether a dtype has a mean: integers have none."""


NUMPY: Final = Arithmetic(
    name="numpy",
    view=np.frombuffer,
    copy=np.copyto,
    combine={
        ReduceOp.SUM: np.add,
        ReduceOp.MEAN: np.add,
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
        ReduceOp.BAND: np.bitwise_and,
        ReduceOp.BOR: np.bitwise_or,
        ReduceOp.BXOR: np.bitwise_xor,
    },
    divide=np.divide,
    is_inexact=lambda dtype: dtype.kind not in "iub",
)
