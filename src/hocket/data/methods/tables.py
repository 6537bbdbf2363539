"""Operations on whole datasets, as on tables: sorting, grouping, joining, and aggregates of all rows."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from hocket import keywords
from hocket._base import missing
from hocket.data import aggregate as aggregates
from hocket.data import blocks, calls, columns, plan, reading, relations, steps
from hocket.data.execution import relations as engine
from hocket.data.methods import looking
from hocket.data.methods.contract import Planned, Self

D = TypeVar("D", bound=Planned)

Aggregate: TypeAlias = aggregates.Aggregation | aggregates.Accumulating


# --- rows -------------------------------------------------------------------------------------------------------------


def sort(
    self: Self, key: str | Sequence[str], descending: bool | Sequence[bool] = False, boundaries: object = None
) -> Self:
    """Sort the rows. Rows with equal keys stay in their order; missing values and NaN come last.

    Args:
        key: The columns to sort by, the most important first.
        descending: Whether to sort in descending order; or a list with a value for each column.
        boundaries: For programs written for Ray: has no effect.

    Raises:
        ValueError: No column is named, or `descending` has another length.
        KeyError: A column does not exist. Raised when rows are requested.
        MissingExtraError: DuckDB, which sorts, is not installed.

    Example:
        >>> from hocket import data
        >>> rows = data.from_items([{"x": 2, "y": "b"}, {"x": 1, "y": "c"}, {"x": 2, "y": "a"}])
        >>> rows.sort(["x", "y"], descending=[True, False]).take_all()
        [{'x': 2, 'y': 'a'}, {'x': 2, 'y': 'b'}, {'x': 1, 'y': 'c'}]
    """
    keys = _check_keys("sort", key)
    several: object = descending
    ways = [descending] * len(keys) if isinstance(descending, bool) else []
    ways = list(several) if isinstance(several, Iterable) else ways
    if len(ways) != len(keys) or not all(isinstance(way, bool) for way in ways):
        raise ValueError(
            f"descending must be True or False, or a list with one of these for each of {list(keys)}, but received "
            f"{descending!r}."
        )
    return _relate(self, relations.Sort(keys, tuple(ways)))


def groupby(self: Self, key: str | Sequence[str] | None, num_partitions: int | None = None) -> GroupedData[Self]:
    """Return the rows in groups with equal keys. The missing keys are a group, too.

    Args:
        key: The columns to group by; None: all rows are one group.
        num_partitions: For programs written for Ray: has no effect.

    Raises:
        ValueError: No column is named, or one is named twice.

    Example:
        >>> from hocket import data
        >>> rows = data.from_items([{"x": "b", "y": 2}, {"x": "a", "y": 1}, {"x": "b", "y": 4}])
        >>> rows.groupby("x").mean("y").take_all()
        [{'x': 'a', 'mean(y)': 1.0}, {'x': 'b', 'mean(y)': 3.0}]
    """
    return GroupedData(self, () if key is None else _check_keys("groupby", key))


def join(
    self: Self,
    ds: Planned,
    join_type: str = "inner",
    num_partitions: int | None = None,
    on: str | Sequence[str] = ("id",),
    right_on: str | Sequence[str] | None = None,
    left_suffix: str | None = None,
    right_suffix: str | None = None,
    *,
    partition_size_hint: object = None,
    aggregator_ray_remote_args: object = None,
    validate_schemas: bool = False,
) -> Self:
    """Put rows of another dataset beside the rows with the same key, in the order of the left rows.

    A missing key equals no other key.

    Args:
        ds: The other dataset, the right one.
        join_type: ``"inner"``, ``"left_outer"``, ``"right_outer"``, ``"full_outer"``; or, to choose rows of one
            side, ``"left_semi"``, ``"left_anti"``, ``"right_semi"``, ``"right_anti"``.
        num_partitions: For programs written for Ray: has no effect.
        on: The columns of the key.
        right_on: The columns of the key in the right dataset. Default: the same.
        left_suffix: Added to the names of this dataset's other columns that both datasets have.
        right_suffix: Added to the names of the right dataset's other columns that both datasets have.
        partition_size_hint: For programs written for Ray: has no effect.
        aggregator_ray_remote_args: For programs written for Ray: has no effect.
        validate_schemas: For programs written for Ray: has no effect. The types of keys are always compared.

    Raises:
        ValueError: The join type does not exist, or two columns would have one name.
        KeyError: A column does not exist. Raised when rows are requested.
        TypeError: A key's types in the two datasets cannot be compared. Raised when rows are requested.

    Example:
        >>> from hocket import data
        >>> names = data.from_items([{"id": 1, "name": "one"}, {"id": 2, "name": "two"}])
        >>> rows = data.from_items([{"id": 2, "x": 0.5}, {"id": 3, "x": 1.5}])
        >>> rows.join(names, "left_outer", on="id").take_all()
        [{'id': 2, 'x': 0.5, 'name': 'two'}, {'id': 3, 'x': 1.5, 'name': None}]
    """
    how: object = join_type
    if not isinstance(how, str) or how not in relations.JOINS:
        question = keywords.suggest(how, relations.JOINS) if isinstance(how, str) else ""
        raise ValueError(
            f"join_type must be one of {', '.join(relations.JOINS)}, but received {join_type!r}.{question}"
        )
    if not _has_plan(ds):
        raise TypeError(f"join() takes a data set, but received {ds!r:.80}. Make one, for example with from_pandas().")
    keys = _check_keys("join", on)
    others = keys if right_on is None else _check_keys("join", right_on)
    if len(keys) != len(others):
        raise ValueError(f"on and right_on must name equally many columns, but received {keys} and {others}.")
    query = relations.Join(
        how=join_type,
        on=keys,
        right_on=others,
        left_suffix=left_suffix or "",
        right_suffix=right_suffix or "",
    )
    return _relate(self, query, ds._plan)


def union(self: Self, *other: Planned) -> Self:
    """Return the rows of this dataset, and then the rows of others.

    Example:
        >>> from hocket import data
        >>> data.range(2).union(data.range(1)).take_all()
        [{'id': 0}, {'id': 1}, {'id': 0}]
    """
    return self._then(plan.Union(_list_plans("union", other)))


def zip_columns(self: Self, *other: Planned) -> Self:
    """Put the columns of other datasets beside these: the first row to the first, and so on.

    A column whose name is taken gets ``_1``, ``_2``, ... added, the number of its dataset.

    Raises:
        ValueError: The datasets do not have equally many rows. Raised when rows are read.

    Example:
        >>> from hocket import data
        >>> data.range(2).zip(data.from_items([{"x": "a"}, {"x": "b"}])).take_all()
        [{'id': 0, 'x': 'a'}, {'id': 1, 'x': 'b'}]
    """
    return self._then(plan.Zip(_list_plans("zip", other)))


# --- aggregates of all rows -------------------------------------------------------------------------------------------


def aggregate(self: Planned, *aggs: Aggregate) -> dict[str, Any]:
    """Return aggregates of all rows, by name. Without values, a count is 0, and most other aggregates are None.

    Example:
        >>> from hocket import data
        >>> from hocket.data.aggregate import Max, Mean
        >>> data.range(5).aggregate(Mean("id"), Max("id", alias_name="last"))
        {'mean(id)': 2.0, 'last': 4}
    """
    aggs = _name_apart(aggs)
    own = [one for one in aggs if isinstance(one, aggregates.Accumulating)]
    others = [one for one in aggs if not isinstance(one, aggregates.Accumulating)]
    found: dict[str, Any] = {}
    for part in (others, own) if own and others else (aggs,):
        rows = looking.take_all(groupby(self, None).aggregate(*part))
        found.update(rows[0] if rows else {one.name: _aggregate_nothing(one) for one in part})
    return {one.name: found[one.name] for one in aggs}


def _name_apart(aggs: Sequence[Aggregate]) -> tuple[Aggregate, ...]:
    """Return aggregates with different names. As in Ray, a name that is taken gets a number: ``x``, ``x_2``."""
    found: list[Any] = []
    for one in aggs:
        taken, kept = {getattr(other, "name", None) for other in found}, one
        if isinstance(kept, aggregates.Accumulating) and kept.name in taken:
            kept = copy.copy(kept)
            names = (f"{one.name}_{number}" for number in itertools.count(2))
            kept.name = next(name for name in names if name not in taken)
        found.append(kept)
    return tuple(found)


def unique(self: Planned, column: str, ignore_nulls: bool = False) -> list[Any]:
    """Return the different values of a column, in order. A missing value is last, unless `ignore_nulls` is True.

    Example:
        >>> from hocket import data
        >>> data.from_items([{"x": 3}, {"x": 1}, {"x": 3}]).unique("x")
        [1, 3]
    """
    found = [row[column] for row in looking.take_all(groupby(self, column).count())]
    return [one for one in found if not (ignore_nulls and columns.is_missing(one))]


def add_up(self: Planned, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
    """Return the sum of a column, or a dict of the sums of several.

    Args:
        on: The column, or several. Default: all.
        ignore_nulls: Whether to ignore missing values. If not, one missing value makes the result None.
    """
    return _compute(self, aggregates.Sum, on, ignore_nulls=ignore_nulls)


def find_least(self: Planned, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
    """Return the least value of a column. See `sum`."""
    return _compute(self, aggregates.Min, on, ignore_nulls=ignore_nulls)


def find_greatest(self: Planned, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
    """Return the greatest value of a column. See `sum`."""
    return _compute(self, aggregates.Max, on, ignore_nulls=ignore_nulls)


def compute_mean(self: Planned, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
    """Return the mean of a column. See `sum`."""
    return _compute(self, aggregates.Mean, on, ignore_nulls=ignore_nulls)


def compute_std(self: Planned, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> Any:
    """Return the standard deviation of a column. See `sum`, and `aggregates.Std` for `ddof`."""
    return _compute(self, aggregates.Std, on, ignore_nulls=ignore_nulls, ddof=ddof)


def _compute(self: Planned, kind: Any, on: str | Sequence[str] | None, **settings: object) -> object:
    names = looking.columns(self) or [] if on is None else _check_keys(kind.word, on)
    found = aggregate(self, *(kind(name, **settings) for name in names)) if names else {}
    return next(iter(found.values()), None) if len(names) < 2 else found


def _relate(self: Self, query: relations.Query, *others: plan.Plan) -> Self:
    engine.load(query.name)
    return self._then(plan.Relation(query=query, others=others))


@missing.explain_attributes
@keywords.guard_methods
class GroupedData(Generic[D]):
    """Rows in groups. Made by `Dataset.groupby`.

    Args:
        dataset: The rows.
        keys: The columns to group by. None given: all rows are one group.
    """

    def __init__(self, dataset: D, keys: Sequence[str]) -> None:
        self._dataset = dataset
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        return f"GroupedData({self._dataset!r}, by {', '.join(self._keys) or 'nothing'})"

    def aggregate(self, *aggs: Aggregate) -> D:
        """Return a row for each group, in the order of their keys: the key, and aggregates.

        Args:
            *aggs: `hocket.data.aggregate.Sum` and the like, or a user's own `hocket.data.aggregate.AggregateFn`.

        Raises:
            TypeError: A value is not an aggregate.
            ValueError: No aggregate is given.

        Example:
            >>> from hocket import data
            >>> from hocket.data.aggregate import Count, Sum
            >>> rows = data.range(5).map_batches(lambda batch: {"x": batch["id"], "odd": batch["id"] % 2})
            >>> rows.groupby("odd").aggregate(Count(), Sum("x")).take_all()
            [{'odd': 0, 'count()': 3, 'sum(x)': 6}, {'odd': 1, 'count()': 2, 'sum(x)': 4}]
        """
        for one in aggs:
            if not isinstance(one, aggregates.Aggregation | aggregates.Accumulating):
                raise TypeError(
                    f"aggregate() takes aggregates, but received {one!r:.80}. Write aggregates.Sum('x'), for example."
                )
        aggs = _name_apart(aggs)
        if not aggs:
            raise ValueError(
                "aggregate() needs at least one aggregate. Write aggregate(aggregates.Count()), for example."
            )
        engine.load("aggregate()")
        sql = tuple(one for one in aggs if isinstance(one, aggregates.Aggregation))
        own = tuple(one for one in aggs if isinstance(one, aggregates.Accumulating))
        if not own:
            return self._compute_sql(sql)
        if not sql:
            return self._accumulate(own)
        names = [one.name for one in own]
        beside: Any = self._accumulate(own)
        beside = beside._then(plan.Step(work=steps.SelectColumns(tuple(names)), name="select_columns"))
        found: Any = self._compute_sql(sql)
        found = found._then(plan.Zip((beside._plan,)))
        order = (*self._keys, *(one.name for one in aggs))
        made: D = found._then(plan.Step(work=steps.SelectColumns(order), name="select_columns"))
        return made

    def _compute_sql(self, aggs: tuple[aggregates.Aggregation, ...]) -> D:
        query = relations.Aggregate(self._keys, aggs)
        found: Any = self._dataset
        if query.can_be_parted():
            parts = relations.AggregateParts(self._keys, aggs)
            work = steps.Summarize(
                function=functools.partial(engine.apply, parts),
                take_scan=functools.partial(engine.take_scan, parts),
                columns=parts.columns,
            )
            found = found._then(plan.Step(work=work, name=parts.name))
            query = relations.Aggregate(self._keys, aggs, is_second=True)
        made: D = found._then(plan.Relation(query=query))
        return made

    def _accumulate(self, aggs: tuple[aggregates.Accumulating, ...]) -> D:
        names = [*self._keys, *(one.name for one in aggs)]
        if len(set(names)) < len(names):
            raise ValueError(f"Two columns of the result would have the same name: {names}. Choose other names.")
        name = f"aggregate({', '.join(one.name for one in aggs)})"
        found: Any = self._dataset
        add = functools.partial(engine.accumulate, self._keys, aggs)
        found = found._then(plan.Step(work=steps.EachBlock(add, keeps_rows=False), name=name))
        merge = functools.partial(engine.merge, self._keys, aggs)
        found = found._then(plan.Repartition(1))
        made: D = found._then(plan.Step(work=steps.EachBlock(merge, keeps_rows=False), name=name))
        return made

    def count(self) -> D:
        """Return a row for each group: its key, and ``count()``, its number of rows."""
        return self.aggregate(aggregates.Count())

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> D:
        """Return a row for each group: its key, and the sum of each column. Default: all columns of numbers."""
        return self._compute(aggregates.Sum, on, ignore_nulls=ignore_nulls)

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> D:
        """Return a row for each group: its key, and the least value of each column. Default: all columns of numbers."""
        return self._compute(aggregates.Min, on, ignore_nulls=ignore_nulls)

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> D:
        """Return a row for each group: its key, and each column's greatest value. Default: all columns of numbers."""
        return self._compute(aggregates.Max, on, ignore_nulls=ignore_nulls)

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> D:
        """Return a row for each group: its key, and the mean of each column. Default: all columns of numbers."""
        return self._compute(aggregates.Mean, on, ignore_nulls=ignore_nulls)

    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> D:
        """Return a row for each group: its key, and each column's standard deviation. Default: columns of numbers."""
        return self._compute(aggregates.Std, on, ignore_nulls=ignore_nulls, ddof=ddof)

    def _compute(self, kind: Any, on: str | Sequence[str] | None, **settings: object) -> D:
        names = self._list_numbers(kind.word) if on is None else _check_keys(kind.word, on)
        if names is None:
            return self._dataset
        return self.aggregate(*(kind(name, **settings) for name in names))

    def _list_numbers(self, verb: str) -> Sequence[str] | None:
        """Return the columns of numbers that are not keys; None if there are no rows that show the columns."""
        schema = looking.schema(self._dataset)
        if schema is None:
            return None
        kinds = dict(zip(schema.names, schema.types, strict=True))
        found = [name for name, kind in kinds.items() if columns.is_number(kind) and name not in self._keys]
        if not found:
            raise ValueError(
                f"{verb}() without a name takes all columns of numbers except the keys, but the columns "
                f"{schema.names} include none. Name a column: {verb}('x')."
            )
        return found

    def map_groups(
        self, fn: object, *, batch_format: str | None = "default", zero_copy_batch: bool = True, **how: object
    ) -> D:
        """Call a function with all rows of a group. The batches that it returns become the rows.

        Groups come in the order of their keys, and the rows of a group in their order. A group has to fit into memory.

        Args:
            fn: Takes the group as a batch and returns a batch, or yields several. Or a class whose instances do this.
            batch_format: Format of the batch for `fn`; see `Dataset.map_batches`.
            zero_copy_batch: Whether the batch's arrays are read-only; see `Dataset.map_batches`.
            **how: ``fn_args``, ``concurrency`` and others; see `Dataset.map_batches`.

        Raises:
            TypeError: `fn` is neither a function nor a class whose instances can be called.

        Example:
            >>> from hocket import data
            >>> rows = data.from_items([{"x": "b", "y": 2}, {"x": "a", "y": 1}, {"x": "b", "y": 4}])
            >>> rows.groupby("x").map_groups(lambda group: {"x": group["x"][:1], "spread": [int(group["y"].ptp()) if
            ...     hasattr(group["y"], "ptp") else int(group["y"].max() - group["y"].min())]}).take_all()
            [{'x': 'a', 'spread': 0}, {'x': 'b', 'spread': 2}]
        """
        form = blocks.check_format(batch_format)
        call = calls.read_call("map_groups", fn, how, ("batch_format", "zero_copy_batch"))
        op = call.build(steps.MapGroups, keys=self._keys, batch_format=form, is_shared=zero_copy_batch)
        found: Any = self._dataset
        if self._keys:
            engine.load("groupby()")
            query = relations.Sort(self._keys, (False,) * len(self._keys), groups=True)
            found = found._then(plan.Relation(query=query))
        else:
            found = found._then(plan.Repartition(1))
        made: D = found._then(op)
        return made


def _aggregate_nothing(one: Aggregate) -> object:
    """Return the aggregate of no rows."""
    if isinstance(one, aggregates.Accumulating):
        return one.finish(one.begin(None))
    return 0 if one.word == "count" else None


def _check_keys(verb: str, key: object) -> tuple[str, ...]:
    keys = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Iterable) else ()
    if not keys or len(set(keys)) < len(keys) or not all(isinstance(one, str) and one for one in keys):
        raise ValueError(
            f"{verb}() takes the name of a column or a list of them, each once, but received {key!r}. Write "
            f"{verb}('x')."
        )
    return keys


def _has_plan(value: object) -> bool:
    return isinstance(getattr(value, "_plan", None), plan.Plan)


def _list_plans(verb: str, others: Sequence[Planned]) -> tuple[plan.Plan, ...]:
    for other in others:
        if not _has_plan(other):
            raise TypeError(
                f"{verb}() takes data sets, but received {other!r:.80}. Make one, for example with from_pandas()."
            )
    reading.check_count(f"the number of data sets of {verb}()", len(others), 1)
    return tuple(other._plan for other in others)
