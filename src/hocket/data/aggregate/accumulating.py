"""Aggregates that Python functions compute: first from the rows of each block, then from the blocks' results in order.

They are slower than the aggregates of `sql`, and exist for results that those do not have.
"""

from __future__ import annotations

import abc
import collections
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hocket.data import blocks, columns, reading


class Accumulating(abc.ABC):
    """The base of all accumulating aggregates.

    An *accumulation* is the intermediate result of some rows. It is sent between tasks, so it has to be picklable.
    """

    name: str
    """Name of the result."""

    @abc.abstractmethod
    def begin(self, key: object) -> Any:
        """Return the accumulation of no rows.

        Args:
            key: The key of the group: a value, a tuple of them, or None.
        """

    @abc.abstractmethod
    def add(self, made: Any, block: blocks.Block) -> Any:
        """Return an accumulation extended by these rows."""

    @abc.abstractmethod
    def merge(self, first: Any, second: Any) -> Any:
        """Return two accumulations as one."""

    @abc.abstractmethod
    def finish(self, made: Any) -> Any:
        """Return the result of an accumulation."""


@final
class AggregateFn(Accumulating):
    """An aggregate that consists of a user's functions.

    Args:
        init: Takes the key of a group, and returns the accumulation of no rows.
        merge: Takes two accumulations, and returns one.
        name: Name of the result.
        accumulate_row: Takes an accumulation and a row, and returns the extended accumulation.
        accumulate_block: Takes an accumulation and an Arrow table. Used in the place of `accumulate_row`.
        finalize: Takes the accumulation of all rows, and returns the result. Default: the accumulation is the result.

    Raises:
        TypeError: A value is not a function, or both or neither of `accumulate_row` and `accumulate_block` are given.

    Example:
        >>> from hocket import data
        >>> from hocket.data.aggregate import AggregateFn
        >>> longest = AggregateFn(
        ...     init=lambda key: "",
        ...     accumulate_row=lambda found, row: max(found, row["word"], key=len),
        ...     merge=lambda one, other: max(one, other, key=len),
        ...     name="longest",
        ... )
        >>> data.from_items([{"word": "a"}, {"word": "abc"}, {"word": "bc"}]).aggregate(longest)
        {'longest': 'abc'}
    """

    def __init__(
        self,
        init: Callable[[Any], object],
        merge: Callable[[Any, Any], object],
        name: str,
        accumulate_row: Callable[[Any, blocks.Row], object] | None = None,
        accumulate_block: Callable[[Any, Any], object] | None = None,
        finalize: Callable[[Any], object] | None = None,
    ) -> None:
        if (accumulate_row is None) == (accumulate_block is None):
            raise TypeError(
                "AggregateFn() needs either accumulate_row or accumulate_block, but received "
                f"{'neither' if accumulate_row is None else 'both'}. Pass one of them."
            )
        functions = {
            "init": init,
            "merge": merge,
            "accumulate": accumulate_row or accumulate_block,
            "finalize": finalize or _keep,
        }
        for what, function in functions.items():
            if not callable(function):
                raise TypeError(f"{what} of AggregateFn() must be a function, but received {function!r:.80}.")
        self.name = _check_name("AggregateFn", name)
        self._init, self._merge, self._finalize = init, merge, finalize or _keep
        self._row, self._block = accumulate_row, accumulate_block

    def begin(self, key: Any) -> Any:
        """Return the accumulation of no rows."""
        return self._init(key)

    def add(self, made: Any, block: blocks.Block) -> Any:
        """Return an accumulation extended by these rows."""
        if self._block is not None:
            return self._block(made, block.to_batch("pyarrow"))
        if self._row is not None:
            for row in block.list_rows():
                made = self._row(made, row)
        return made

    def merge(self, first: Any, second: Any) -> Any:
        """Return two accumulations as one."""
        return self._merge(first, second)

    def finish(self, made: Any) -> Any:
        """Return the result of an accumulation."""
        return self._finalize(made)


class AggregateFnV2(Accumulating):
    """An aggregate that a user writes as a class.

    Args:
        name: Name of the result.
        zero_factory: Returns the accumulation of no rows.
        on: The column, for the derived class.
        ignore_nulls: Whether to ignore missing values, for the derived class.
    """

    def __init__(
        self, name: str, zero_factory: Callable[[], object], *, on: str | None = None, ignore_nulls: bool = True
    ) -> None:
        self.name = _check_name(type(self).__name__, name)
        self._zero = zero_factory
        self._target_col_name = on
        self._ignore_nulls = ignore_nulls

    def get_target_column(self) -> str | None:
        """Return the name of the column."""
        return self._target_col_name

    @abc.abstractmethod
    def aggregate_block(self, block: Any) -> Any:
        """Return the accumulation of an Arrow table."""

    @abc.abstractmethod
    def combine(self, current_accumulator: Any, new: Any) -> Any:
        """Return two accumulations as one."""

    def finalize(self, accumulator: Any) -> Any:
        """Return the result of the accumulation of all rows. Default: the accumulation itself."""
        return accumulator

    def begin(self, key: Any) -> Any:
        """Return the accumulation of no rows."""
        return self._zero()

    def add(self, made: Any, block: blocks.Block) -> Any:
        """Return an accumulation extended by these rows."""
        if self._target_col_name is not None:
            blocks.check_columns([self._target_col_name], list(block.columns))
        return self.combine(made, self.aggregate_block(block.to_batch("pyarrow")))

    def merge(self, first: Any, second: Any) -> Any:
        """Return two accumulations as one."""
        return self.combine(first, second)

    def finish(self, made: Any) -> Any:
        """Return the result of an accumulation."""
        return self.finalize(made)


class _Counting(Accumulating):
    """The count of each value, in the order in which values come first."""

    def __init__(self, on: str, name: str) -> None:
        self.on = _check_name(type(self).__name__, on)
        self.name = name

    def begin(self, key: object) -> dict[object, int]:
        return {}

    def add(self, made: dict[Any, int], block: blocks.Block) -> dict[object, int]:
        values = (_freeze(row[self.on]) for row in block.select([self.on]).list_rows())
        return self.merge(made, collections.Counter(value for value in values if self._counts(value)))

    def _counts(self, value: object) -> bool:
        """Return whether a value counts."""
        return True

    def merge(self, first: dict[object, int], second: dict[object, int]) -> dict[object, int]:
        return {**first, **{value: first.get(value, 0) + count for value, count in second.items()}}


@final
class ValueCounter(_Counting):
    """The count of each value: a dict of ``values``, in the order in which they come first, and their ``counts``.

    Args:
        on: The column.
        alias_name: Name of the result. Default: ``value_counter(x)``.

    Example:
        >>> from hocket import data
        >>> from hocket.data.aggregate import ValueCounter
        >>> data.from_items([{"x": "b"}, {"x": "a"}, {"x": "b"}]).aggregate(ValueCounter("x"))
        {'value_counter(x)': {'counts': [2, 1], 'values': ['b', 'a']}}
    """

    def __init__(self, on: str, alias_name: str | None = None) -> None:
        super().__init__(on, alias_name or f"value_counter({on})")

    def finish(self, made: dict[Any, int]) -> dict[str, list[Any]]:
        """Return the result of an accumulation."""
        return {"counts": list(made.values()), "values": list(map(_thaw, made))}


@final
class ApproximateTopK(_Counting):
    """The most frequent values: a list of dicts, each with a value, under the column's name, and its ``count``.

    Despite the name it is exact. Among equally frequent values, earlier ones win. Missing values do not count.

    Args:
        on: The column.
        k: Number of values.
        log_capacity: For programs written for Ray: has no effect.
        alias_name: Name of the result. Default: ``approx_topk(x)``.

    Raises:
        ValueError: `k` is less than 1.
    """

    def __init__(self, on: str, k: int, log_capacity: int = 15, alias_name: str | None = None) -> None:
        super().__init__(on, alias_name or f"approx_topk({on})")
        reading.check_count("k", k, 1, "ApproximateTopK('x', k=3)")
        self.k = k

    def _counts(self, value: object) -> bool:
        return not columns.is_missing(_thaw(value))

    def finish(self, made: dict[Any, int]) -> list[dict[str, Any]]:
        """Return the result of an accumulation."""
        best = sorted(made.items(), key=lambda pair: -pair[1])[: self.k]
        return [{self.on: _thaw(value), "count": count} for value, count in best]


@final
@dataclass(frozen=True)
class _Frozen:
    """A list, an array, a dict or NaN, as a hashable value for counting."""

    kind: type
    values: tuple[Any, ...] = ()


def _freeze(value: object) -> object:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and math.isnan(value):
        return _Frozen(float)  # each NaN differs from every other
    if isinstance(value, dict):
        return _Frozen(dict, tuple((key, _freeze(one)) for key, one in value.items()))
    return _Frozen(list, tuple(map(_freeze, value))) if isinstance(value, list) else value


def _thaw(value: object) -> object:
    if not isinstance(value, _Frozen):
        return value
    if value.kind is float:
        return math.nan
    if value.kind is dict:
        return {key: _thaw(one) for key, one in value.values}
    return list(map(_thaw, value.values))


def _keep(made: object) -> object:
    return made


def _check_name(what: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(
            f"The name of {what}() must be a text that is not empty, but received {name!r:.80}. Write {what}(..., "
            "name='longest')."
        )
    return name
