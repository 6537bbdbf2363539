"""Queries that sort, join and group whole tables in the table engine (DuckDB).

A query takes the columns of its tables and returns SQL. The SQL names columns by their place (``t0.c0``), because the
engine does not distinguish ``x`` from ``X``. Each table has its row numbers in the column ``n``. Equal rows are ordered
by these numbers, so a query has the same result, in the same order, each time. Missing values, NULL and NaN, come last
in either sort direction. A missing value is a key of a group, but never a key of a join.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias, final

from hocket._base import texts
from hocket.data import aggregate as aggregates
from hocket.data import arrow, blocks, transport

Table: TypeAlias = Mapping[str, transport.ArrowType]
"""The columns of a table and their types."""

COMPUTED: Final = "computed"
"""In the place of a type: the engine determines the column's type."""

WHOLE: Final = "whole"
"""In the place of a type: whole numbers. The engine computes them in 128 bits; the result has 64 if these suffice."""


@final
@dataclass(frozen=True)
class ListOf:
    """The type of a column of lists of values of one type."""

    kind: transport.ArrowType


@final
@dataclass(frozen=True, kw_only=True)
class Statement:
    """A query for tables with known columns."""

    sql: str
    columns: tuple[tuple[str, Any], ...]
    """Names and types of the columns of the result. A type is Arrow's, None, `COMPUTED`, `WHOLE` or a `ListOf`."""
    num_keys: int = 0
    """A block of the result ends only where these first columns change. 0: anywhere."""
    is_ordered: bool = False
    """Whether digits depend on the order of the rows. One thread has to take them then."""
    sources: Mapping[str, tuple[tuple[int, str], ...]] = dataclasses.field(default_factory=dict)
    """For each column of the result that holds values of the tables, its source columns, by table number and name. If
    these have categories, the column has categories too."""
    ranks: tuple[str, ...] = ()
    """Columns of the first table with ordered categories. The engine sorts by the numbers of their categories, which it
    gets from `_rank`."""
    mixed: frozenset[str] = frozenset()
    """Columns of signed and unsigned whole numbers, which travel as decimals."""


class Query(abc.ABC):
    """A query over tables."""

    keeps_rows: ClassVar[bool] = False
    """Whether the result has as many rows as the table."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that the query reads of its first table, if its result has no others; None: all."""
        return None

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The query's name in a description of the plan."""

    @abc.abstractmethod
    def build(self, tables: Sequence[Table]) -> Statement:
        """Return the query for these tables.

        Raises:
            KeyError: A table lacks a column.
            TypeError: The operation does not support a column's type.
            ValueError: Two columns of the result would have one name.
        """


def _name(table: int, at: int) -> str:
    return f"t{table}.c{at}"


def _places(table: Table, number: int = 0) -> dict[str, str]:
    return {name: _name(number, at) for at, name in enumerate(table)}


def _is_float(kind: transport.ArrowType) -> bool:
    return kind is not None and arrow.load("A relation").types.is_floating(kind)


def _present(value: str, kind: transport.ArrowType) -> str:
    """Return the expression of a value, with NULL for a missing value."""
    return f"CASE WHEN isnan({value}) THEN NULL ELSE {value} END" if _is_float(kind) else value


def _read_missing(value: str, kind: transport.ArrowType) -> str:
    """Return the expression of a group's key: NaN if the missing values in its rows are NaN."""
    return f"coalesce({_present(value, kind)}, max({value}))" if _is_float(kind) else value


def _order(value: str, kind: transport.ArrowType, *, descending: bool) -> str:
    present = _present(value, kind)  # NULL and NaN become one value, and stay in the order of their rows
    return f"{present} {'DESC' if descending else 'ASC'} NULLS LAST"


def list_ranks(table: Table, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that are sorted by the order of their categories."""
    return tuple(key for key in dict.fromkeys(keys) if arrow.is_categorical(table[key]) and table[key].ordered)


def _order_key(table: Table, key: str, *, descending: bool, is_grouped: bool = False) -> str:
    """Return the sort expression of a key: for rows, or for groups, whose rows all have the same key."""
    at = list(table).index(key)
    if not list_ranks(table, [key]):
        return _order(_name(0, at), table[key], descending=descending)
    return _order(f"min(t0.r{at})" if is_grouped else f"t0.r{at}", None, descending=descending)


@final
@dataclass(frozen=True)
class Sort(Query):
    """The same rows, sorted.

    Args:
        keys: The columns to sort by, the most important first.
        descending: For each column, whether it is sorted in descending order.
        groups: Whether a block ends only where the keys change.
    """

    keys: tuple[str, ...]
    descending: tuple[bool, ...]
    groups: bool = False
    keeps_rows: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"{'group' if self.groups else 'sort'}({', '.join(self.keys)})"

    def build(self, tables: Sequence[Table]) -> Statement:
        (table,) = tables
        blocks.check_columns(self.keys, list(table))
        places = _places(table)
        ways = zip(self.keys, self.descending, strict=True)
        for key in self.keys:
            transport.check_key(key, table[key], self.name)
        order = [_order_key(table, key, descending=down) for key, down in ways]
        # A block ends where its first columns change, so the keys of groups come first.
        names = [*self.keys, *(name for name in table if name not in self.keys)] if self.groups else list(table)
        return Statement(
            sql=f"SELECT {', '.join(places[name] for name in names)} FROM t0 ORDER BY {', '.join([*order, 't0.n'])}",
            columns=tuple((name, table[name]) for name in names),
            num_keys=len(self.keys) if self.groups else 0,
            sources={name: ((0, name),) for name in names},
            ranks=list_ranks(table, self.keys),
        )


JOINS: Final = {
    "inner": "JOIN",
    "left_outer": "LEFT JOIN",
    "right_outer": "RIGHT JOIN",
    "full_outer": "FULL JOIN",
    "left_semi": "SEMI JOIN",
    "right_semi": "SEMI JOIN",
    "left_anti": "ANTI JOIN",
    "right_anti": "ANTI JOIN",
}
"""Ray's names of joins, and SQL's."""


@final
@dataclass(frozen=True, kw_only=True)
class Join(Query):
    """Rows of two tables beside each other where their keys are equal, in the order of the left rows.

    Args:
        how: The kind of join: a key of `JOINS`.
        on: The keys of the left table.
        right_on: The keys of the right table.
        left_suffix: Added to the names of the left table's other columns that both tables have.
        right_suffix: Added to the names of the right table's other columns that both tables have.
    """

    how: str
    on: tuple[str, ...]
    right_on: tuple[str, ...]
    left_suffix: str
    right_suffix: str

    @property
    def name(self) -> str:
        return f"join({self.how}, {', '.join(self.on)})"

    def build(self, tables: Sequence[Table]) -> Statement:
        left, right = tables
        if not left or not right:
            return self._take_one(left, right)
        for side, keys, table in (("left", self.on, left), ("right", self.right_on, right)):
            try:
                blocks.check_columns(keys, list(table))
            except KeyError as error:
                raise texts.mark_told(KeyError(f"join(), {side} data set: {error.args[0]}")) from None
        here, there = _places(left), _places(right, 1)
        conditions = []
        for key, other in zip(self.on, self.right_on, strict=True):
            _unify_keys(key, left[key], other, right[other])
            conditions.append(f"{here[key]} = {there[other]}")
            conditions += [  # a NULL equals nothing, but the engine's NaN equals itself
                f"NOT isnan({place})"
                for place, kind in ((here[key], left[key]), (there[other], right[other]))
                if _is_float(kind)
            ]
        verb, where = JOINS[self.how], " AND ".join(conditions)
        # A choice among the right rows is the same choice with the tables exchanged.
        if self.how in ("right_semi", "right_anti"):
            return self._choose(verb, where, right, there, "t1", "t0")
        if self.how in ("left_semi", "left_anti"):
            return self._choose(verb, where, left, here, "t0", "t1")
        columns, values, sources = self._list_columns(left, right, here, there)
        return Statement(
            sql=f"SELECT {', '.join(values)} FROM t0 {verb} t1 ON {where} ORDER BY t0.n NULLS LAST, t1.n NULLS LAST",
            columns=columns,
            sources={name: source for (name, _), source in zip(columns, sources, strict=True)},
        )

    def _take_one(self, left: Table, right: Table) -> Statement:
        """Return the query for a table without known columns, which has no rows, and one with columns."""
        table, places, of = (left, _places(left), "t0") if left else (right, _places(right, 1), "t1")
        blocks.check_columns(self.on if left else self.right_on, list(table))
        keeps = ("left_outer", "left_anti") if left else ("right_outer", "right_anti")
        where = "" if self.how in (*keeps, "full_outer") else " WHERE false"
        names = dict(zip(self.right_on, self.on, strict=True)) if not left and "semi" not in self.how else {}
        return Statement(
            sql=f"SELECT {', '.join(places.values())} FROM {of}{where} ORDER BY {of}.n",
            columns=tuple((names.get(name, name), kind) for name, kind in table.items()),
            sources={names.get(name, name): ((0 if left else 1, name),) for name in table},
        )

    def _choose(self, verb: str, where: str, table: Table, places: Mapping[str, str], of: str, by: str) -> Statement:
        return Statement(
            sql=f"SELECT {', '.join(places.values())} FROM {of} {verb} {by} ON {where} ORDER BY {of}.n",
            columns=tuple(table.items()),
            sources={name: ((int(of[1:]), name),) for name in table},
        )

    def _list_columns(
        self, left: Table, right: Table, here: Mapping[str, str], there: Mapping[str, str]
    ) -> tuple[tuple[tuple[str, object], ...], list[str], list[tuple[tuple[int, str], ...]]]:
        columns: list[tuple[str, Any]] = []
        values = []
        sources: list[tuple[tuple[int, str], ...]] = []
        others = dict(zip(self.on, self.right_on, strict=True))
        rest = [name for name in right if name not in self.right_on]
        # Only names that both tables have get a suffix; keys have one column in the result.
        both = {name for name in left if name not in self.on} & set(rest)
        for name, kind in left.items():
            is_key = name in others
            found = _unify_keys(name, kind, others[name], right[others[name]]) if is_key else kind
            # A row without a partner on the left has its key on the right.
            values.append(f"coalesce({here[name]}, {there[others[name]]})" if is_key else here[name])
            columns.append((name + self.left_suffix if name in both else name, found))
            sources.append(((0, name), (1, others[name])) if is_key else ((0, name),))
        for name in rest:
            values.append(there[name])
            columns.append((name + self.right_suffix if name in both else name, right[name]))
            sources.append(((1, name),))
        names = [name for name, _ in columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"join(): both data sets have the column {', '.join(map(repr, twice))}. Write "
                "right_suffix='_right', or give it another name with rename_columns()."
            )
        return tuple(columns), values, sources


def _unify_keys(
    key: str, kind: transport.ArrowType, other: str, other_kind: transport.ArrowType
) -> transport.ArrowType:
    """Return the common type of a key that has a type in each of two tables."""
    pa = arrow.load("join()")
    if kind is None or other_kind is None or kind == other_kind:
        return other_kind if kind is None else kind
    both = (kind, other_kind)
    if all(map(pa.types.is_dictionary, both)) and pa.types.is_dictionary(found := arrow.unify(both)):
        return found
    sides = [one.value_type if pa.types.is_dictionary(one) else one for one in both]
    if sides[0] == sides[1]:
        return sides[0]
    if any(all(map(is_kind, sides)) for is_kind in (pa.types.is_integer, pa.types.is_floating, _is_text)):
        return arrow.unify(sides)
    raise TypeError(
        f"join(): the key {key!r} of the left data set is {kind}, but {other!r} of the right one is {other_kind}, and "
        "these cannot be compared without loss. Convert them to one type with map_batches()."
    )


def _is_text(kind: object) -> bool:
    types = arrow.load("join()").types
    return bool(types.is_string(kind) or types.is_large_string(kind))


@final
@dataclass(frozen=True)
class Aggregate(Query):
    """A row for each group, with its key and aggregates of its rows, in the order of the keys.

    Args:
        keys: The columns to group by. None given: all rows are one group.
        aggregations: The aggregates.
        is_second: Whether the table holds the parts that `AggregateParts` has made from each block.
    """

    keys: tuple[str, ...]
    aggregations: tuple[aggregates.Aggregation, ...]
    is_second: bool = False

    @property
    def name(self) -> str:
        return f"aggregate({', '.join(one.name for one in self.aggregations)})"

    @property
    def columns(self) -> tuple[str, ...] | None:
        return None if self.is_second else _list_columns(self.keys, self.aggregations)

    def build(self, tables: Sequence[Table]) -> Statement:
        (table,) = tables
        keys, columns, order, shown = _build_keys(self.keys, table)
        values, helpers = shown, []
        sources = {key: ((0, key),) for key in self.keys}
        for number, one in enumerate(self.aggregations):
            if self.is_second:
                parts = [_name(0, at) for at, name in enumerate(table) if name.startswith(_name_part(number, "part"))]
                added = one.add_columns(parts, keys)
                helpers += [f"{value} AS h{number}{end}" for end, value in added]
                merged = one.merge([*parts, *(f"t0.h{number}{end}" for end, _ in added)], keys)
                value = _make_ranked(one, _name_part(number, "part0"), table) or merged
                gaps = f"sum({_name(0, list(table).index(_name_part(number, 'gaps')))})" if _sees_gaps(one) else ""
                kind = _find_part_kind(one, number, table)
            else:
                present, kind = _read_column(one, table)
                value = _make_ranked(one, one.on, table) or one.make(present)
                gaps = f"count(*) - count({present})"
            if _sees_gaps(one):
                # The engine leaves missing values out. Where they count, one makes the result missing.
                value = f"CASE WHEN {gaps} > 0 THEN NULL ELSE {value} END"
            values.append(value)
            columns.append((one.name, _find_result(one, kind, is_part=self.is_second)))
            if kind is not None:
                sources[one.name] = ((0, _name_part(number, "part0") if self.is_second else one.on or ""),)
        _check_names(columns)
        # Helpers are computed over the groups' rows first, because an aggregate cannot contain another one.
        source = f"(SELECT *, {', '.join(helpers)} FROM t0) AS t0" if helpers else "t0"
        group = f" GROUP BY {', '.join(keys)} ORDER BY {', '.join(order)}" if keys else ""
        return Statement(
            sql=f"SELECT {', '.join(values)} FROM {source}{group}",
            columns=tuple(columns),
            is_ordered=True,
            sources=sources,
            ranks=list_ranks(table, [*self.keys, *_list_extremes(self.aggregations, table, is_second=self.is_second)]),
        )

    def can_be_parted(self) -> bool:
        """Return whether all of its aggregates can be computed in parts."""
        return all(one.list_parts("x") is not None for one in self.aggregations)


@final
@dataclass(frozen=True)
class AggregateParts(Query):
    """The parts of each block that `Aggregate` merges: a row for each key."""

    keys: tuple[str, ...]
    aggregations: tuple[aggregates.Aggregation, ...]

    @property
    def name(self) -> str:
        return f"aggregate({', '.join(one.name for one in self.aggregations)})"

    @property
    def columns(self) -> tuple[str, ...]:
        return _list_columns(self.keys, self.aggregations)

    def build(self, tables: Sequence[Table]) -> Statement:
        (table,) = tables
        keys, columns, order, values = _build_keys(self.keys, table)
        sources = {key: ((0, key),) for key in self.keys}
        for number, one in enumerate(self.aggregations):
            present, kind = _read_column(one, table)
            ranked = _make_ranked(one, one.on, table)
            for at, part in enumerate(one.list_parts(present) or () if ranked is None else [ranked]):
                values.append(part)
                columns.append((_name_part(number, f"part{at}"), _find_result(one, kind, is_part=False)))
                sources[columns[-1][0]] = ((0, one.on or ""),)
            if _sees_gaps(one):
                values.append(f"count(*) - count({present})")
                columns.append((_name_part(number, "gaps"), COMPUTED))
        group = f" GROUP BY {', '.join(keys)} ORDER BY {', '.join(order)}" if keys else ""
        return Statement(
            sql=f"SELECT {', '.join(values)} FROM t0{group}",
            columns=tuple(columns),
            is_ordered=True,
            sources=sources,
            ranks=list_ranks(table, [*self.keys, *_list_extremes(self.aggregations, table)]),
        )


def _list_extremes(
    aggregations: Sequence[aggregates.Aggregation], table: Table, *, is_second: bool = False
) -> Sequence[str]:
    """Return the columns whose least or greatest value an aggregate takes."""
    found = [
        _name_part(number, "part0") if is_second else one.on or ""
        for number, one in enumerate(aggregations)
        if one.word in _EXTREMES
    ]
    return [name for name in dict.fromkeys(found) if name in table]


_EXTREMES: Final = ("min", "max")


def _make_ranked(one: aggregates.Aggregation, column: str | None, table: Table) -> str | None:
    """Return the expression of the least or greatest value by the order of categories; None for another aggregate, or
    for a column without ordered categories."""
    if column is None or one.word not in _EXTREMES or not list_ranks(table, [column]):
        return None
    at = list(table).index(column)
    # The engine knows categories as texts, whose own order is another one.
    return f"arg_{one.word}(t0.c{at}, t0.r{at})"


def _list_columns(keys: Sequence[str], aggregations: Sequence[aggregates.Aggregation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*keys, *(one.on for one in aggregations if one.on is not None)]))


def _name_part(number: int, what: str) -> str:
    """Return the name of a column of parts. No user's column begins with a NUL character."""
    return f"\0{number}:{what}"


def _build_keys(keys: Sequence[str], table: Table) -> tuple[list[str], list[tuple[str, object]], list[str], list[str]]:
    """Return the keys' expressions for GROUP BY, their columns, their sort expressions, and the values to select."""
    blocks.check_columns(keys, list(table))
    places = _places(table)
    for key in keys:
        transport.check_key(key, table[key], "groupby()")
    order = [_order_key(table, key, descending=False, is_grouped=True) for key in keys]
    groups = [_present(places[key], table[key]) for key in keys]
    shown = [_read_missing(places[key], table[key]) for key in keys]
    return groups, [(key, table[key]) for key in keys], order, shown


def _read_column(one: aggregates.Aggregation, table: Table) -> tuple[str, transport.ArrowType]:
    """Return the expression of an aggregate's input, and its type."""
    if one.on is None:
        return "1", None
    blocks.check_columns([one.on], list(table))
    kind = table[one.on]
    if one.needs_numbers and kind is not None and not _is_number(kind):
        raise TypeError(
            f"{type(one).__name__}({one.on!r}) needs numbers, but the column holds {kind}. Choose another column, or "
            "convert it to numbers with map_batches()."
        )
    place = _places(table)[one.on]
    present = place if one.word == "list" and not one.ignore_nulls else _present(place, kind)
    is_whole = one.word == "abs_max" and kind is not None and not _is_float(kind)
    types = arrow.load("An aggregate").types
    if is_whole and (types.is_integer(kind) or types.is_boolean(kind)):
        present = f"CAST({present} AS HUGEINT)"  # the least number has no absolute value in its own type
    return present, kind


def _is_number(kind: transport.ArrowType) -> bool:
    types = arrow.load("An aggregate").types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind))


_COUNTS_MISSING: Final = ("count", "count_distinct", "missing_pct", "zero_pct", "list", "unique")
"""Aggregates that define the role of missing values themselves."""


def _sees_gaps(one: aggregates.Aggregation) -> bool:
    """Return whether one missing value makes the aggregate missing."""
    return not one.ignore_nulls and one.word not in _COUNTS_MISSING


def _find_part_kind(one: aggregates.Aggregation, number: int, table: Table) -> object:
    return table.get(_name_part(number, "part0")) if one.keeps_type or one.word in ("sum", "abs_max") else None


def _find_result(one: aggregates.Aggregation, kind: transport.ArrowType, *, is_part: bool) -> object:
    if one.gives_list:
        return kind if getattr(one, "encode_lists", False) else ListOf(kind)
    if one.word in ("sum", "abs_max") and not _is_float(kind):
        is_exact = kind is not None and arrow.load("An aggregate").types.is_decimal(kind)
        # Parts of whole numbers may need more than 64 bits. They arrive here as decimals of scale 0.
        return COMPUTED if is_exact and not (is_part and kind.scale == 0) else WHOLE
    return kind if one.keeps_type else COMPUTED


def _check_names(columns: Sequence[tuple[str, object]]) -> None:
    names = [name for name, _ in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"Two columns of the result would be called {', '.join(map(repr, twice))}. Name one of them with "
            "alias_name='...'."
        )
