"""Arithmetic on the numbers themselves: numpy's functions, or those of a framework that has more kinds of numbers."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np


class ReduceOp(enum.IntEnum):
    """How the tensors of the ranks become one."""

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
    """Return the message for an operation on bits of what is no whole number."""
    return f"op={op.name} is about the bits of whole numbers, but received {dtype}. Convert it to int64 first."


@dataclass(frozen=True, kw_only=True, eq=False)
class Arithmetic:
    """How arrays of one kind are copied and combined. They are one-dimensional and contiguous."""

    name: str
    view: Callable[[Any, Any, int, int], Any]
    """Of a buffer, a dtype, a count and an offset in bytes: an array that looks into the buffer."""
    copy: Callable[[Any, Any], object]
    """Target, source."""
    combine: Mapping[ReduceOp, Callable[..., object]]
    """Of two arrays and ``out=``."""
    divide: Callable[..., object]
    """Of an array and a number, and ``out=``."""
    is_inexact: Callable[[Any], bool]
    """Whether a dtype has a mean: whole numbers have none."""


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
