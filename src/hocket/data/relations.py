"""An engine for tables (DuckDB) sorts, joins and groups whole tables.

A query gets the columns of its tables and returns SQL. Inside, columns are called by their place (``t0.c0``), because
the engine does not tell ``x`` from ``X``, and each table has its rows' numbers as ``n``: rows that are equal stay in
their order, so a query has the same result each time, in the same order. Missing values, which are NULL and NaN, come
last, whichever way is sorted; they are a key of a group, and no key of a join.
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
"""In the place of a type: the column is what the engine makes it."""

WHOLE: Final = "whole"
"""In the place of a type: whole numbers, for which the engine takes 128 bits, and 64 that hold them are enough."""


@final
@dataclass(frozen=True)
class ListOf:
    """The type of a column of lists of such values."""

    kind: transport.ArrowType


@final
@dataclass(frozen=True, kw_only=True)
class Statement:
    """A query for given tables."""

    sql: str
    columns: tuple[tuple[str, Any], ...]
    """Names and types of the columns of the result. A type is Arrow's, None, `COMPUTED`, `WHOLE` or a `ListOf`."""
    num_keys: int = 0
    """A block of the result ends where these first columns change."""
    is_ordered: bool = False
    """Whether digits depend on the order in which rows are taken, so that one thread has to do it."""
    sources: Mapping[str, tuple[tuple[int, str], ...]] = dataclasses.field(default_factory=dict)
    """Of each column of the result whose values are ones of the tables: of which tables' columns, by number and name.
    If these have categories, so has it."""
    ranks: tuple[str, ...] = ()
    """Columns of the first table with categories in an order. The engine gets the number of each value's, to sort by:
    `_rank`."""
    mixed: frozenset[str] = frozenset()
    """Columns of whole numbers with and without signs, which travel as decimals."""


class Query(abc.ABC):
    """A query over tables."""

    keeps_rows: ClassVar[bool] = False
    """Whether there are as many rows afterwards."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Which columns of its first table it looks at, if it leaves no other; None: all."""
        return None

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """How it is called where a plan is shown."""

    @abc.abstractmethod
    def build(self, tables: Sequence[Table]) -> Statement:
        """Return the query for these tables.

        Raises:
            KeyError: A table lacks a column.
            TypeError: A column is of a type that this cannot be done with.
            ValueError: Two columns of the result would have one name.
        """


def _name(table: int, at: int) -> str:
    return f"t{table}.c{at}"


def _places(table: Table, number: int = 0) -> dict[str, str]:
    return {name: _name(number, at) for at, name in enumerate(table)}


def _is_float(kind: transport.ArrowType) -> bool:
    return kind is not None and arrow.load("A relation").types.is_floating(kind)


def _present(value: str, kind: transport.ArrowType) -> str:
    """Return the expression of a value that is NULL if it is missing."""
    return f"CASE WHEN isnan({value}) THEN NULL ELSE {value} END" if _is_float(kind) else value


def _read_missing(value: str, kind: transport.ArrowType) -> str:
    """Return the expression of a group's key: NaN if that is the missing value which its rows have."""
    return f"coalesce({_present(value, kind)}, max({value}))" if _is_float(kind) else value


def _order(value: str, kind: transport.ArrowType, *, descending: bool) -> str:
    present = _present(value, kind)  # so that a NaN and a NULL are in the order in which they were
    return f"{present} {'DESC' if descending else 'ASC'} NULLS LAST"


def list_ranks(table: Table, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys whose order is that of their categories."""
    return tuple(key for key in dict.fromkeys(keys) if arrow.is_categorical(table[key]) and table[key].ordered)


def _order_key(table: Table, key: str, *, descending: bool, is_grouped: bool = False) -> str:
    """Return how rows are ordered by a key, or groups, in which all rows have the same."""
    at = list(table).index(key)
    if not list_ranks(table, [key]):
        return _order(_name(0, at), table[key], descending=descending)
    return _order(f"min(t0.r{at})" if is_grouped else f"t0.r{at}", None, descending=descending)


@final
@dataclass(frozen=True)
class Sort(Query):
    """The same rows, sorted.

    Args:
        keys: By which columns, the first one first.
        descending: Which of them go down.
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
    """Rows of two tables beside each other where their keys are equal, in the order of the left ones.

    Args:
        how: Which join: a key of `JOINS`.
        on: The keys of the left table.
        right_on: Those of the right one.
        left_suffix: What is added to the names of other columns that both have.
        right_suffix: The same, for those of the right table.
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
            conditions += [
                f"NOT isnan({place})"
                for place, kind in ((here[key], left[key]), (there[other], right[other]))
                if _is_float(kind)
            ]
        verb, where = JOINS[self.how], " AND ".join(conditions)
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
        """Return the query where nothing is known of one table but that it has no rows."""
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
        both = {name for name in left if name not in self.on} & set(rest)
        for name, kind in left.items():
            is_key = name in others
            found = _unify_keys(name, kind, others[name], right[others[name]]) if is_key else kind
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
    """Return the type of a key of which two tables have one part each."""
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
        "these cannot be compared without loss. Make them one type with map_batches()."
    )


def _is_text(kind: object) -> bool:
    types = arrow.load("join()").types
    return bool(types.is_string(kind) or types.is_large_string(kind))


@final
@dataclass(frozen=True)
class Aggregate(Query):
    """A row for each group, with its key and aggregates of its rows, in the order of the keys.

    Args:
        keys: By which columns rows are grouped; none: all rows are one group.
        aggregations: What is computed.
        is_second: Whether the table has parts of blocks, which `AggregateParts` has made.
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
                value = f"CASE WHEN {gaps} > 0 THEN NULL ELSE {value} END"
            values.append(value)
            columns.append((one.name, _find_result(one, kind, is_part=self.is_second)))
            if kind is not None:
                sources[one.name] = ((0, _name_part(number, "part0") if self.is_second else one.on or ""),)
        _check_names(columns)
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
        """Return whether each of its aggregates has parts."""
        return all(one.list_parts("x") is not None for one in self.aggregations)


@final
@dataclass(frozen=True)
class AggregateParts(Query):
    """Of each block, the parts that `Aggregate` merges: a row for each key."""

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
    """Return the columns of which an aggregate takes the least or the greatest value."""
    found = [
        _name_part(number, "part0") if is_second else one.on or ""
        for number, one in enumerate(aggregations)
        if one.word in _EXTREMES
    ]
    return [name for name in dict.fromkeys(found) if name in table]


_EXTREMES: Final = ("min", "max")


def _make_ranked(one: aggregates.Aggregation, column: str | None, table: Table) -> str | None:
    """Return the least or the greatest of values that have categories in an order; None if it is another aggregate, or
    they are in that of the values."""
    if column is None or one.word not in _EXTREMES or not list_ranks(table, [column]):
        return None
    at = list(table).index(column)
    return f"arg_{one.word}(t0.c{at}, t0.r{at})"


def _list_columns(keys: Sequence[str], aggregations: Sequence[aggregates.Aggregation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*keys, *(one.on for one in aggregations if one.on is not None)]))


def _name_part(number: int, what: str) -> str:
    """Return the name of a column of parts. No user's column begins so."""
    return f"\0{number}:{what}"


def _build_keys(keys: Sequence[str], table: Table) -> tuple[list[str], list[tuple[str, object]], list[str], list[str]]:
    """Return by what rows are grouped, the columns of the keys, by what they are ordered, and what is shown of them."""
    blocks.check_columns(keys, list(table))
    places = _places(table)
    for key in keys:
        transport.check_key(key, table[key], "groupby()")
    order = [_order_key(table, key, descending=False, is_grouped=True) for key in keys]
    groups = [_present(places[key], table[key]) for key in keys]
    shown = [_read_missing(places[key], table[key]) for key in keys]
    return groups, [(key, table[key]) for key in keys], order, shown


def _read_column(one: aggregates.Aggregation, table: Table) -> tuple[str, transport.ArrowType]:
    """Return the expression of an aggregate's value, and its type."""
    if one.on is None:
        return "1", None
    blocks.check_columns([one.on], list(table))
    kind = table[one.on]
    if one.needs_numbers and kind is not None and not _is_number(kind):
        raise TypeError(
            f"{type(one).__name__}({one.on!r}) needs numbers, but the column holds {kind}. Choose another column, or "
            "make numbers of it with map_batches()."
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
"""Aggregates that themselves say what a missing value is to them."""


def _sees_gaps(one: aggregates.Aggregation) -> bool:
    """Return whether the aggregate of values of which one is missing is missing."""
    return not one.ignore_nulls and one.word not in _COUNTS_MISSING


def _find_part_kind(one: aggregates.Aggregation, number: int, table: Table) -> object:
    return table.get(_name_part(number, "part0")) if one.keeps_type or one.word in ("sum", "abs_max") else None


def _find_result(one: aggregates.Aggregation, kind: transport.ArrowType, *, is_part: bool) -> object:
    if one.gives_list:
        return kind if getattr(one, "encode_lists", False) else ListOf(kind)
    if one.word in ("sum", "abs_max") and not _is_float(kind):
        is_exact = kind is not None and arrow.load("An aggregate").types.is_decimal(kind)
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
