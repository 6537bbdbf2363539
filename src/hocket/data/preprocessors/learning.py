"""Categories learnt from a data set, by counting its values in bounded memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hocket.data import blocks, columns, dataset, reading
from hocket.data.preprocessors import base, categories, inputs, scalers


def count_values(
    who: base.Preprocessor,
    ds: dataset.Dataset,
    column: str,
    list_values: Callable[[blocks.Block], Sequence[object]] | None = None,
) -> dict[object, int]:
    """Count the values of a column. The values are in order; missing ones count as None.

    Args:
        who: The preprocessor that learns, for errors.
        ds: The data set.
        column: The column.
        list_values: Returns the values of a block to count. Default: the column's values.
    """
    read = list_values or functools.partial(inputs.get_values, name=column)
    step = base.NamedStep(f"values of {column}", functools.partial(_list, column, read))
    listed = base.add_step(ds, f"{type(who).__name__}.fit", step, keeps_rows=False)
    found: dict[Any, int] = {}
    for row in listed.groupby("value").count().take_all():
        value = categories.freeze(row["value"])
        if isinstance(value, dict):
            raise TypeError(
                f"{type(who).__name__} needs categories, but column {column!r} holds dicts, such as {value!r:.80}. "
                "Convert each dict to a text or a number with map_batches()."
            )
        found[None if columns.is_missing(value) else value] = row["count()"]
    if not found and not ds.count():
        raise scalers.build_empty(type(who).__name__)
    return found


def _list(column: str, read: Callable[[blocks.Block], Sequence[object]], block: blocks.Block) -> blocks.Block:
    if not block.num_rows:
        return blocks.Block({}, 0)
    blocks.check_columns([column], list(block.columns))
    values = list(read(block))
    return blocks.build({"value": values}, "A column") if values else blocks.Block({}, 0)


def split_lists(block: blocks.Block, name: str) -> list[object]:
    """Return the elements of a column's lists, and other values unchanged."""
    found: list[Any] = []
    for value in inputs.get_values(block, name):
        found.extend(value if isinstance(value, list) else [value])
    return found


def learn_index(
    who: base.Preprocessor,
    ds: dataset.Dataset,
    column: str,
    *,
    splits_lists: bool = False,
    most: int | None = None,
) -> categories.Index:
    """Return a number for each value of a column, in the order of the values.

    Args:
        who: The preprocessor that learns, for errors.
        ds: The data set.
        column: The column.
        splits_lists: Whether to count the elements of lists.
        most: How many values to keep at most: the most frequent ones, and of equally frequent ones the first.
    """
    counts = count_values(who, ds, column, functools.partial(split_lists, name=column) if splits_lists else None)
    if None in counts:
        raise ValueError(
            f"{type(who).__name__} cannot learn categories from missing values, but {counts[None]} values of column "
            f"{column!r} are None or NaN. Fill them first: SimpleImputer([{column!r}], strategy='most_frequent')."
        )
    kept = set(keep_most(counts, most))
    return {value: number for number, value in enumerate(value for value in counts if value in kept)}


def keep_most(counts: Mapping[object, int], most: int | None) -> list[object]:
    """Return the most frequent values, the most frequent first. Equally frequent values stay in their order."""
    ranked = sorted(counts, key=lambda value: -counts[value])
    return ranked if most is None else ranked[:most]


def check_limits(what: str, limits: Mapping[str, int] | None, names: Sequence[str]) -> dict[str, int]:
    """Check how many values of each column to keep, and return these numbers as a dict."""
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        raise TypeError(f"{what} must be a dict of numbers by column, but received {limits!r:.80}. Write {{'x': 10}}.")
    for name, most in limits.items():
        if name not in names:
            raise ValueError(
                f"{what} names the column {name!r}, which is not one of columns={list(names)}. Name one of these."
            )
        reading.check_count(f"{what}[{name!r}]", most, 1)
    return dict(limits)
