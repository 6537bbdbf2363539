"""Slices: rows that belong to ids which repeat. Which ids there are, and the sum of the rows of each.

A step on a table looks up thousands of ids, of which a few are most: with ids as in a natural language the commonest is
every fourth. ``numpy.add.reduceat`` would add their rows up at a nanosecond for each number; three other ways together
take a tenth of that, each for the ids that it is good at:

- a **rare** id's rows are added up in turns: in turn k the k-th row of every id that has so many, all at once;
- a **common** id's rows are gathered, and a product with ones adds them up;
- rows that **repeat** too, as the gradient of a sum over a bag of ids does, are not gathered at all: how often each id
  has which of them makes a small matrix, whose product with the different rows is all sums at once. An array with a
  stride of 0, which ``numpy.broadcast_to`` and ``torch.Tensor.expand`` make, tells.

Sums of floats depend on the order of adding, in their last bits. The order here depends on the ids and on nothing else,
on one machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from hocket.ps.stores.memory import Array

COMMON: Final = 16
"""From how many rows on an id is common. Measured: with 8,192 ids as above, 8 and 32 take a tenth longer."""

FEW_ROWS: Final = 1024
"""How many different rows make a matrix worth while. The matrix then has at most 64 numbers for each id asked for
(`FEW_ROWS` / `COMMON`)."""


@final
@dataclass(frozen=True, slots=True)
class Grouping:
    """Ids that repeat, sorted.

    Attributes:
        ids: [unique], rising: each id once.
        order: [asked], the places of the ids asked for, those of equal ids side by side.
        starts: [unique], where in `order` the places of each id begin.
    """

    ids: Array
    order: Array
    starts: Array

    def find_places(self) -> Array:
        """Return [asked]: which of `ids` each id asked for is.

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
            values: [..., dim], as many rows as there are ids, in the order in which they were asked for.
            dtype: What the sums are for: they are made in a type that has room for this one, too. Small whole numbers
                and half floats soon have no room for their own sum.

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
            left = int(np.searchsorted(lengths, -turn))  # so many have more than `turn` rows
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
    """Sort ids: whole numbers, in one row."""
    order = np.argsort(ids)
    ordered = ids[order]
    is_start = np.empty(len(ids), np.bool_)
    is_start[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_start[1:])
    starts = np.flatnonzero(is_start)
    return Grouping(ordered[starts], order, starts)


def _find_source(values: Array) -> tuple[Array, Array | None]:
    """Return the different rows, and for each row given which of them it is; None: each is one of its own."""
    shape = values.shape[:-1]
    repeats = [stride == 0 and size > 1 for stride, size in zip(values.strides, shape, strict=False)]
    if not any(repeats):
        return values.reshape(-1, values.shape[-1]), None
    source = values[tuple(slice(0, 1) if repeat else slice(None) for repeat in repeats)]
    numbers = np.arange(source.size // max(1, source.shape[-1])).reshape(source.shape[:-1])
    return source.reshape(-1, source.shape[-1]), np.broadcast_to(numbers, shape).reshape(-1)


def _is_finite(values: Array) -> bool:
    """Tell whether no number would spread over others in a product: 0 times infinity is no number."""
    return bool(np.isfinite(values).all())
