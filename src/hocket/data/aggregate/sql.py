"""Aggregates as expressions of SQL for the table engine (`relations`).

Each aggregate is computed in two parts: first from the values of each block, and then from the blocks' results in
order. So tasks can work on blocks independently, and the digits do not depend on the number of tasks. An aggregate that
needs all values at once has no parts.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from hocket.data import reading


@dataclass(frozen=True)
class Aggregation(abc.ABC):
    """Base class of the aggregates.

    Args:
        on: The column.
        ignore_nulls: Whether to ignore missing values, including NaN. If not, one missing value makes the aggregate
            missing.
        alias_name: Name of the result. Default: ``sum(x)``, with the aggregate's and the column's name.

    Raises:
        TypeError: The column is not a name.
    """

    on: str | None = None
    ignore_nulls: bool = True
    alias_name: str | None = None

    word: ClassVar[str]
    """Name of the aggregate."""
    needs_numbers: ClassVar[bool] = True
    """Whether the column must hold numbers."""
    keeps_type: ClassVar[bool] = False
    """Whether the result has the column's type."""
    gives_list: ClassVar[bool] = False
    """Whether the result is a list of values of the column's type."""

    def __post_init__(self) -> None:
        if not isinstance(self.on, str):
            name = type(self).__name__
            raise TypeError(f"{name}() takes the name of a column, but received {self.on!r}. Write {name}('x').")
        self._check_rest()

    def _check_rest(self) -> None:
        alias, flag = self.alias_name, self.ignore_nulls
        for what, value, fits in (
            ("alias_name must be a text", alias, alias is None or isinstance(alias, str)),
            ("ignore_nulls must be True or False", flag, isinstance(flag, bool)),
        ):
            if not fits:
                raise TypeError(f"{what}, but received {value!r}. Leave it out for the default.")

    @property
    def name(self) -> str:
        """Name of the result."""
        return self.alias_name or f"{self.word}({self.on or ''})"

    @abc.abstractmethod
    def make(self, value: str) -> str:
        """Return the expression of the aggregate of all values.

        Args:
            value: The expression of a value, with NULL for a missing value.
        """

    def list_parts(self, value: str) -> Sequence[str] | None:
        """Return the expressions of a block's parts; None if the aggregate has no parts."""
        return None

    def merge(self, parts: Sequence[str], keys: Sequence[str]) -> str:
        """Return the expression of the aggregate from the columns that hold the blocks' parts.

        Args:
            parts: The columns of the parts.
            keys: The columns of the group's key.
        """
        raise NotImplementedError

    def add_columns(self, parts: Sequence[str], keys: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Return columns that `merge` needs besides the parts: the ends of their names, and their expressions."""
        return ()


def _set(one: Aggregation, **values: object) -> None:
    """Set and check the fields of an aggregate whose arguments are in Ray's order."""
    for name, value in values.items():
        object.__setattr__(one, name, value)
    Aggregation.__post_init__(one)


@final
@dataclass(frozen=True)
class Count(Aggregation):
    """The number of rows; with a column and ``ignore_nulls=True``, the number of its values.

    Example:
        >>> from hocket import data
        >>> data.from_items([{"x": 1}, {"x": None}]).aggregate(data.aggregate.Count("x", ignore_nulls=True))
        {'count(x)': 1}
    """

    on: str | None = None
    ignore_nulls: bool = False
    word: ClassVar[str] = "count"
    needs_numbers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.on is not None:
            super().__post_init__()
        self._check_rest()

    def make(self, value: str) -> str:
        return f"count({value})" if self.on is not None and self.ignore_nulls else "count(*)"

    def list_parts(self, value: str) -> Sequence[str]:
        return (self.make(value),)

    def merge(self, parts: Sequence[str], keys: Sequence[str]) -> str:
        return f"CAST(coalesce(sum({parts[0]}), 0) AS BIGINT)"


@final
@dataclass(frozen=True)
class Sum(Aggregation):
    """The sum."""

    word: ClassVar[str] = "sum"

    def make(self, value: str) -> str:
        return f"sum({value})"

    def list_parts(self, value: str) -> Sequence[str]:
        return (self.make(value),)

    def merge(self, parts: Sequence[str], keys: Sequence[str]) -> str:
        return f"sum({parts[0]})"


@dataclass(frozen=True)
class _Extreme(Aggregation):
    needs_numbers: ClassVar[bool] = False
    keeps_type: ClassVar[bool] = True

    def make(self, value: str) -> str:
        return f"{self.word}({value})"

    def list_parts(self, value: str) -> Sequence[str]:
        return (self.make(value),)

    def merge(self, parts: Sequence[str], keys: Sequence[str]) -> str:
        return f"{self.word}({parts[0]})"


@final
@dataclass(frozen=True)
class Min(_Extreme):
    """The least value of numbers, texts or times."""

    word: ClassVar[str] = "min"


@final
@dataclass(frozen=True)
class Max(_Extreme):
    """The greatest value of numbers, texts or times."""

    word: ClassVar[str] = "max"


@final
@dataclass(frozen=True)
class AbsMax(Aggregation):
    """The greatest absolute value."""

    word: ClassVar[str] = "abs_max"

    def make(self, value: str) -> str:
        return f"max(abs({value}))"

    def list_parts(self, value: str) -> Sequence[str]:
        return (self.make(value),)

    def merge(self, parts: Sequence[str], keys: Sequence[str]) -> str:
        return f"max({parts[0]})"


@final
@dataclass(frozen=True)
class Mean(Aggregation):
    """The mean, a float."""

    word: ClassVar[str] = "mean"

    def make(self, value: str) -> str:
        return f"avg(CAST({value} AS DOUBLE))"

    def list_parts(self, value: str) -> Sequence[str]:
        return f"sum(CAST({value} AS DOUBLE))", f"count({value})"

    def merge(self, parts: Sequence[str], keys: Sequence[str]) -> str:
        return f"sum({parts[0]}) / nullif(sum({parts[1]}), 0)"


@final
@dataclass(frozen=True, init=False)
class Std(Aggregation):
    """The standard deviation, a float.

    Parts are merged by the formula of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances" (1979). So a large mean costs no digits.

    Args:
        ddof: The number that is subtracted from the count before the division: 1 for a sample, 0 for all values.
    """

    ddof: int = 1
    word: ClassVar[str] = "std"

    def __init__(
        self, on: str | None = None, ddof: int = 1, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        _set(self, on=on, ddof=ddof, ignore_nulls=ignore_nulls, alias_name=alias_name)
        if isinstance(ddof, bool) or not isinstance(ddof, int):
            raise TypeError(f"ddof must be a whole number, but received {ddof!r}. Write Std('x', ddof=0).")

    def make(self, value: str) -> str:
        count = f"count({value})"
        spread = f"var_pop(CAST({value} AS DOUBLE)) * {count}"
        return f"CASE WHEN {count} > {self.ddof} THEN sqrt({spread} / ({count} - {self.ddof})) END"

    def list_parts(self, value: str) -> Sequence[str]:
        number = f"CAST({value} AS DOUBLE)"
        return f"count({value})", f"avg({number})", f"var_pop({number}) * count({value})"

    def add_columns(self, parts: Sequence[str], keys: Sequence[str]) -> Sequence[tuple[str, str]]:
        count, mean, _ = parts
        window = f"OVER (PARTITION BY {', '.join(keys)})" if keys else "OVER ()"
        return (("mean", f"sum({count} * {mean}) {window} / nullif(sum({count}) {window}, 0)"),)

    def merge(self, parts: Sequence[str], keys: Sequence[str]) -> str:
        count, mean, spread, whole = parts
        total = f"(sum({spread}) + sum({count} * ({mean} - {whole}) * ({mean} - {whole})))"
        return f"CASE WHEN sum({count}) > {self.ddof} THEN sqrt({total} / (sum({count}) - {self.ddof})) END"


@final
@dataclass(frozen=True, init=False)
class Quantile(Aggregation):
    """The value below which a given share of the values lies, interpolated between two values.

    Args:
        q: The share, from 0 to 1. 0.5 is the median.

    Raises:
        ValueError: `q` is not from 0 to 1.
    """

    q: float = 0.5
    word: ClassVar[str] = "quantile"

    def __init__(
        self, on: str | None = None, q: float = 0.5, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        _set(self, on=on, q=q, ignore_nulls=ignore_nulls, alias_name=alias_name)
        if not reading.is_number(self.q, 0, 1):
            raise ValueError(f"q must be from 0 to 1, but received {self.q!r}. Write q=0.5 for the median.")
        object.__setattr__(self, "q", float(q))

    def make(self, value: str) -> str:
        return f"quantile_cont(CAST({value} AS DOUBLE), {self.q!r})"


@final
@dataclass(frozen=True)
class CountDistinct(Aggregation):
    """The number of different values. With ``ignore_nulls=False``, missing values count as one more."""

    word: ClassVar[str] = "count_distinct"
    needs_numbers: ClassVar[bool] = False

    def make(self, value: str) -> str:
        found = f"count(DISTINCT {value})"
        return found if self.ignore_nulls else f"{found} + CAST(count(*) > count({value}) AS BIGINT)"


@final
@dataclass(frozen=True)
class Unique(Aggregation):
    """The different values as a list, in order, with a missing value last, unless ``ignore_nulls=True``. With
    ``encode_lists=True``, the different values in a column's lists, without missing ones."""

    ignore_nulls: bool = False
    encode_lists: bool | None = None
    word: ClassVar[str] = "unique"
    needs_numbers: ClassVar[bool] = False
    gives_list: ClassVar[bool] = True

    def make(self, value: str) -> str:
        if self.encode_lists:
            return f"list_sort(list_distinct(flatten(list({value}))))"
        found = f"list(DISTINCT {value} ORDER BY {value} NULLS LAST)"
        return found + (f" FILTER (WHERE {value} IS NOT NULL)" if self.ignore_nulls else "")


@final
@dataclass(frozen=True, init=False)
class AsList(Aggregation):
    """All values as a list, in the order of the rows. With ``ignore_nulls=True``, missing values are left out."""

    word: ClassVar[str] = "list"

    def __init__(self, on: str | None = None, alias_name: str | None = None, ignore_nulls: bool = False) -> None:
        _set(self, on=on, ignore_nulls=ignore_nulls, alias_name=alias_name)

    needs_numbers: ClassVar[bool] = False
    gives_list: ClassVar[bool] = True

    def make(self, value: str) -> str:
        return f"list({value} ORDER BY n)" + (f" FILTER (WHERE {value} IS NOT NULL)" if self.ignore_nulls else "")


@final
@dataclass(frozen=True, init=False)
class MissingValuePercentage(Aggregation):
    """The percentage of missing values, a float."""

    word: ClassVar[str] = "missing_pct"

    def __init__(self, on: str | None = None, alias_name: str | None = None) -> None:
        _set(self, on=on, ignore_nulls=True, alias_name=alias_name)

    needs_numbers: ClassVar[bool] = False

    def make(self, value: str) -> str:
        return f"100.0 * (count(*) - count({value})) / nullif(count(*), 0)"

    def list_parts(self, value: str) -> Sequence[str]:
        return "count(*)", f"count({value})"

    def merge(self, parts: Sequence[str], keys: Sequence[str]) -> str:
        return f"100.0 * (sum({parts[0]}) - sum({parts[1]})) / nullif(sum({parts[0]}), 0)"


@final
@dataclass(frozen=True)
class ZeroPercentage(Aggregation):
    """The percentage of zeros, a float. Missing values do not count, unless ``ignore_nulls=False``."""

    word: ClassVar[str] = "zero_pct"

    def make(self, value: str) -> str:
        return f"100.0 * count_if({value} = 0) / nullif({self._count(value)}, 0)"

    def list_parts(self, value: str) -> Sequence[str]:
        return f"count_if({value} = 0)", self._count(value)

    def merge(self, parts: Sequence[str], keys: Sequence[str]) -> str:
        return f"100.0 * sum({parts[0]}) / nullif(sum({parts[1]}), 0)"

    def _count(self, value: str) -> str:
        return f"count({value})" if self.ignore_nulls else "count(*)"


@final
@dataclass(frozen=True, init=False)
class ApproximateQuantile(Aggregation):
    """Several quantiles, as a list; see `Quantile`. Despite the name they are exact.

    Args:
        quantiles: The shares, from 0 to 1.
        quantile_precision: For programs written for Ray: has no effect.

    Raises:
        ValueError: There is no share, or one is not from 0 to 1.
    """

    quantiles: tuple[float, ...] = (0.5,)
    word: ClassVar[str] = "approx_quantile"

    def __init__(
        self,
        on: str | None = None,
        quantiles: Sequence[float] = (0.5,),
        quantile_precision: int = 800,
        alias_name: str | None = None,
    ) -> None:
        _set(self, on=on, quantiles=tuple(quantiles), ignore_nulls=True, alias_name=alias_name)
        if not self.quantiles or not all(reading.is_number(q, 0, 1) for q in self.quantiles):
            raise ValueError(f"quantiles must be numbers from 0 to 1, but received {quantiles!r}. Write [0.25, 0.5].")
        object.__setattr__(self, "quantiles", tuple(map(float, self.quantiles)))

    def make(self, value: str) -> str:
        return f"quantile_cont(CAST({value} AS DOUBLE), [{', '.join(map(repr, self.quantiles))}])"
