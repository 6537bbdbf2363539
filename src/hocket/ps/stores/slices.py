"""Slices: rows that belong to repeated ids. This module finds the different ids, and sums the rows of each id.

A step on a table looks up thousands of ids, and a few ids are most of them: with ids as in a natural language, the
commonest id is every fourth. ``numpy.add.reduceat`` would sum their rows at a nanosecond for each number. Three other
methods together take a tenth of that, each for the ids that suit it:

- Rows of **rare** ids are added in turns: turn k adds the k-th row of every id that has so many rows, all at once.
- Rows of a **common** id are gathered, and a product with ones sums them.
- Rows that **repeat** too, as in the gradient of a sum over a bag of ids, are not gathered. A small matrix counts how
  often each id has each different row; its product with the different rows is all sums at once. A stride of 0 in the
  array, which ``numpy.broadcast_to`` and ``torch.Tensor.expand`` make, reveals repeated rows.

Sums of floats depend on the order of addition, in their last bits. The order here depends only on the ids and machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from hocket.ps.stores.memory import Array

COMMON: Final = 16
"""The number of rows from which an id is common. Measured: with 8,192 ids as above, 8 and 32 take a tenth longer."""

FEW_ROWS: Final = 1024
"""The number of different rows up to which the matrix is worth while. The matrix then has at most 64 numbers for each
id looked up (`FEW_ROWS` / `COMMON`)."""


@final
@dataclass(frozen=True, slots=True)
class Grouping:
    """Repeated ids, sorted.

    Attributes:
        ids: [unique], rising: each id once.
        order: [asked], the places of the ids looked up; places of equal ids are neighbours.
        starts: [unique], the index in `order` where the places of each id begin.
    """

    ids: Array
    order: Array
    starts: Array

    def find_places(self) -> Array:
        """Return [asked]: for each id looked up, its index in `ids`.

        Example:
            >>> import numpy as np
            >>> group(np.array([7, 5, 7])).find_places().tolist()
            [1, 0, 1]
        """
        is_start = np.zeros(len(self.order), np.int64)
        is_start[self.starts[1:]] = 1
        places = np.empty(len(self.order), np.int64)
        places[self.order] = np.cumsum(is_start)
        return places

    def sum_rows(self, values: Array, dtype: npt.DTypeLike | None = None) -> Array:
        """Return the sum of the rows of each id: [unique, dim].

        Args:
            values: [..., dim], as many rows as there are ids, in the order of the ids looked up.
            dtype: The type of the variable that the sums are for. Sums are made in a type that has room for it, too,
                because sums of small integers or half floats soon overflow their own type.

        Example:
            >>> import numpy as np
            >>> group(np.array([7, 5, 7])).sum_rows(np.array([[1.0], [2.0], [3.0]])).tolist()
            [[2.0], [4.0]]
        """
        source, rows = _find_source(values)
        if dtype is not None:
            source = source.astype(np.result_type(source, dtype), copy=False)
        rows = self.order if rows is None else rows[self.order]
        result = np.take(source, rows[self.starts], axis=0, mode="clip")
        counts = np.diff(self.starts, append=len(rows))
        many = np.flatnonzero(counts > 1)
        if not len(many):
            return result
        is_common = counts[many] >= COMMON
        with np.errstate(over="ignore", invalid="ignore"):
            self._sum_rare(source, rows, counts, many[~is_common], result)
            common = many[is_common]
            if len(common):
                if len(source) <= FEW_ROWS and len(source) < len(rows) and _is_finite(source):
                    self._sum_few(source, rows, counts, common, result)
                else:
                    self._sum_common(source, rows, counts, common, result)
        return result

    def _sum_rare(self, source: Array, rows: Array, counts: Array, which: Array, result: Array) -> None:
        which = which[np.argsort(-counts[which], kind="stable")]
        starts, lengths = self.starts[which], -counts[which]
        sums = result[which]
        for turn in range(1, COMMON - 1):
            left = int(np.searchsorted(lengths, -turn))  # the number of ids with more than `turn` rows
            if not left:
                break
            sums[:left] += np.take(source, rows[starts[:left] + turn], axis=0, mode="clip")
        result[which] = sums

    def _sum_common(self, source: Array, rows: Array, counts: Array, which: Array, result: Array) -> None:
        ones = np.ones(int(counts[which].max()), source.dtype)
        for place in which.tolist():
            start, count = int(self.starts[place]), int(counts[place])
            part = np.take(source, rows[start : start + count], axis=0, mode="clip")
            np.matmul(ones[:count], part, out=result[place])

    def _sum_few(self, source: Array, rows: Array, counts: Array, which: Array, result: Array) -> None:
        lengths = counts[which]
        ends = np.cumsum(lengths)
        owners = np.repeat(np.arange(len(which)), lengths)
        places = np.arange(ends[-1]) + np.repeat(self.starts[which] - ends + lengths, lengths)
        cells = np.bincount(owners * len(source) + rows[places], minlength=len(which) * len(source))
        result[which] = np.matmul(cells.astype(source.dtype).reshape(len(which), len(source)), source)


def group(ids: Array) -> Grouping:
    """Sort and group ids: integers, one-dimensional."""
    order = np.argsort(ids)
    ordered = ids[order]
    is_start = np.empty(len(ids), np.bool_)
    is_start[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_start[1:])
    starts = np.flatnonzero(is_start)
    return Grouping(ordered[starts], order, starts)


def _find_source(values: Array) -> tuple[Array, Array | None]:
    """Return the different rows, and for each given row its index among them; None: no row repeats."""
    shape = values.shape[:-1]
    repeats = [stride == 0 and size > 1 for stride, size in zip(values.strides, shape, strict=False)]
    if not any(repeats):
        return values.reshape(-1, values.shape[-1]), None
    source = values[tuple(slice(0, 1) if repeat else slice(None) for repeat in repeats)]
    numbers = np.arange(source.size // max(1, source.shape[-1])).reshape(source.shape[:-1])
    return source.reshape(-1, source.shape[-1]), np.broadcast_to(numbers, shape).reshape(-1)


def _is_finite(values: Array) -> bool:
    """Tell whether all numbers are finite. In a product, 0 times infinity would spread NaN to other sums."""
    return bool(np.isfinite(values).all())
