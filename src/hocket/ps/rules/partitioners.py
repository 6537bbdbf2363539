"""Partitioners: they choose the number of shards of a variable.

The rules are those of ``tf.distribute.experimental.partitioners``, with their names and arguments. A partitioner takes
a variable's shape and dtype, and returns the shards along each axis. `split_rows` cuts along the first axis only.

Any function can serve as a partitioner. It is called as ``partitioner(shape=shape, dtype=dtype)``, and must return 1
for each axis but the first.
"""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket.ps import checks

PartitionFunction: TypeAlias = Callable[..., Sequence[int]]
"""A function of ``shape=`` and ``dtype=`` that returns the number of shards along each axis."""


class Partitioner(abc.ABC):
    """A rule for the number of a variable's shards. It is immutable and can be pickled.

    There are three partitioners: `FixedShards`, `MinSize` and `MaxSize`.
    """

    @abc.abstractmethod
    def _count(self, length: int, row_bytes: int, num_bytes: int) -> int:
        """Return the number of shards of `length` rows, from the bytes of a row and of all rows. The caller clamps the
        number to 1 and to one shard for each row."""

    @final
    def __call__(self, shape: Sequence[int], dtype: npt.DTypeLike, axis: int = 0) -> list[int]:
        """Return the number of shards along each axis: 1 along all but `axis`.

        Raises:
            ValueError: The shape has no such axis, or a length in it is not a whole number.

        Example:
            >>> from hocket import ps
            >>> ps.MinSize(min_shard_bytes=4, max_shards=2)(shape=[6, 1], dtype="float32")
            [2, 1]
        """
        lengths = [
            checks.require_count("each length in shape", n, "Give the variable's shape.", least=0) for n in shape
        ]
        if not 0 <= axis < len(lengths):
            raise ValueError(
                f"axis must be one of the shape's {len(lengths)} axes, but received axis={axis} with shape={lengths}. "
                "Leave it out for the first."
            )
        row_bytes = math.prod(lengths[:axis] + lengths[axis + 1 :]) * self._measure_element(np.dtype(dtype))
        count = self._count(lengths[axis], row_bytes, lengths[axis] * row_bytes)
        shards = [1] * len(lengths)
        shards[axis] = max(1, min(count, lengths[axis]))
        return shards

    def _measure_element(self, dtype: np.dtype[Any]) -> int:
        return dtype.itemsize


@final
@dataclass(frozen=True)
class FixedShards(Partitioner):
    """A fixed number of shards, or one for each row if there are fewer rows.

    Args:
        num_shards: The number of shards.

    Raises:
        ValueError: `num_shards` is less than 1.

    Example:
        >>> from hocket import ps
        >>> ps.FixedShards(2)([10, 3], "float32")
        [2, 1]
    """

    num_shards: int

    def __post_init__(self) -> None:
        _require_counts(self, "num_shards")

    def _count(self, length: int, row_bytes: int, num_bytes: int) -> int:
        return self.num_shards


@final
@dataclass(frozen=True)
class MinSize(Partitioner):
    """As many shards as allowed, but where possible none smaller than a number of bytes.

    Args:
        min_shard_bytes: The least size of a shard. 256 KiB, as in TensorFlow.
        max_shards: The largest number of shards. With 1, as in TensorFlow, no variable is cut.
        bytes_per_string: The bytes to count for an element that is a string or an object.

    Raises:
        ValueError: A number is less than 1.

    Example:
        >>> from hocket import ps
        >>> ps.MinSize(min_shard_bytes=4, max_shards=10)([6, 1], "float32")
        [6, 1]
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        _require_counts(self, "min_shard_bytes", "max_shards", "bytes_per_string")

    def _count(self, length: int, row_bytes: int, num_bytes: int) -> int:
        return min(self.max_shards, -(-num_bytes // self.min_shard_bytes))

    def _measure_element(self, dtype: np.dtype[Any]) -> int:
        return self.bytes_per_string if dtype.kind in "SUO" else dtype.itemsize


@final
@dataclass(frozen=True)
class MaxSize(Partitioner):
    """As few shards as possible, but none larger than a number of bytes, unless a single row is larger.

    Args:
        max_shard_bytes: The largest size of a shard.
        max_shards: The largest number of shards, even if shards become too large. None for any number.
        bytes_per_string: The bytes to count for an element that is a string or an object.

    Raises:
        ValueError: A number is less than 1.

    Example:
        >>> from hocket import ps
        >>> ps.MaxSize(max_shard_bytes=4)([6, 1], "float32")
        [6, 1]
        >>> ps.MaxSize(max_shard_bytes=1024)([6, 1], "float32")
        [1, 1]
    """

    max_shard_bytes: int
    max_shards: int | None = None
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        _require_counts(self, "max_shard_bytes", "bytes_per_string")
        if self.max_shards is not None:
            _require_counts(self, "max_shards")

    def _count(self, length: int, row_bytes: int, num_bytes: int) -> int:
        rows = max(1, self.max_shard_bytes // row_bytes) if row_bytes else max(1, length)
        count = -(-length // rows)
        return count if self.max_shards is None else min(count, self.max_shards)

    def _measure_element(self, dtype: np.dtype[Any]) -> int:
        return self.bytes_per_string if dtype.kind in "SUO" else dtype.itemsize


def count_shards(partitioner: PartitionFunction | None, shape: Sequence[int], dtype: npt.DTypeLike) -> int:
    """Return the number of shards that a variable is cut into along its first axis.

    Args:
        partitioner: The rule, or None for one shard. It is not called for a scalar.
        shape: The variable's shape.
        dtype: The variable's dtype.

    Returns:
        A number from 1 to the number of rows. Without rows, 1.

    Example:
        >>> from hocket.ps.rules import partitioners
        >>> partitioners.count_shards(lambda shape, dtype: [5, 1], shape=(3, 8), dtype="float32")
        3
    """
    if partitioner is None or not shape:
        return 1
    dtype = np.dtype(dtype)
    found = partitioner(shape=tuple(shape), dtype=dtype)
    rule = (
        f"A partitioner must return one whole number from 1 for each of the {len(shape)} axes, and 1 for all but "
        "the first"
    )
    remedy = f"Return {[2] + [1] * (len(shape) - 1)} for two shards, say."
    try:
        counts = [operator.index(count) for count in found]
    except TypeError:
        raise ValueError(f"{rule}, but {partitioner!r} returned {found!r} for shape={tuple(shape)}. {remedy}") from None
    if len(counts) != len(shape) or counts[0] < 1 or any(count != 1 for count in counts[1:]):
        raise ValueError(f"{rule}, but {partitioner!r} returned {found!r} for shape={tuple(shape)}. {remedy}")
    return max(1, min(counts[0], shape[0]))


def split_rows(num_rows: int, num_shards: int) -> list[int]:
    """Return the number of rows of each shard: contiguous ranges, the first of them longer if the rows do not divide.

    TensorFlow calls this split "div".

    Args:
        num_rows: The number of rows.
        num_shards: The number of shards. No shard is left without rows, so there are at most as many shards as rows.

    Example:
        >>> from hocket.ps.rules import partitioners
        >>> partitioners.split_rows(13, 5)
        [3, 3, 3, 2, 2]
    """
    num_rows = checks.require_count("num_rows", num_rows, "Give the length of the first axis.", least=0)
    num_shards = checks.require_count("num_shards", num_shards, "Give 1 for all rows in one.")
    num_shards = max(1, min(num_shards, num_rows))
    rows, longer = divmod(num_rows, num_shards)
    return [rows + (shard < longer) for shard in range(num_shards)]


def _require_counts(partitioner: Partitioner, *names: str) -> None:
    for name in names:
        remedy = "Give the number of servers, say." if name.endswith("shards") else "Give 262144 for 256 KiB, say."
        object.__setattr__(partitioner, name, checks.require_count(name, getattr(partitioner, name), remedy))
