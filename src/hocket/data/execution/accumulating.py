"""Aggregates of Python functions: what is made of the groups of each block, and then of all blocks. Runs in tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from hocket.data import aggregate as aggregates
from hocket.data import blocks, columns, relations, steps
from hocket.data.execution import relations as engine


def accumulate(
    keys: Sequence[str], aggregations: Sequence[aggregates.Accumulating], block: blocks.Block
) -> blocks.Block:
    """Return a row for each group of a block: its key, and what is made of its rows."""
    if not block.num_rows:
        return blocks.Block({}, 0)
    groups = list(_list_groups(block, keys))
    made = [[one.add(one.begin(_read_key(group, keys)), group) for group in groups] for one in aggregations]
    found = blocks.join([group.select(keys).cut(0, 1) for group in groups]).columns if keys else {}
    held = {_name(number): _hold(values) for number, values in enumerate(made)}
    return blocks.Block({**found, **held}, len(groups))


def merge(keys: Sequence[str], aggregations: Sequence[aggregates.Accumulating], block: blocks.Block) -> blocks.Block:
    """Return a row for each group, in the order of the keys, of what was made of all blocks."""
    if not block.num_rows:
        return blocks.Block({}, 0)
    groups = list(_list_groups(block, keys))
    found = dict(blocks.join([group.select(keys).cut(0, 1) for group in groups]).columns) if keys else {}
    for number, one in enumerate(aggregations):
        values = []
        for group in groups:
            first, *others = group.columns[_name(number)]
            for other in others:
                first = one.merge(first, other)
            values.append(one.finish(first))
        found[one.name] = columns.build_from_values(values)
    return blocks.Block(found, len(groups))


def _list_groups(block: blocks.Block, keys: Sequence[str]) -> Iterator[blocks.Block]:
    """Give the rows of each group, in the order of the keys."""
    if not keys:
        yield block
        return
    rows = blocks.Block({**block.select(keys).columns, "\0row": np.arange(block.num_rows)}, block.num_rows)
    ordered = engine.apply(relations.Sort(tuple(keys), (False,) * len(keys)), rows)
    chosen = block.pick(columns.to_numpy(ordered.columns["\0row"]))
    starts = steps.find_groups(ordered.select(keys), keys).tolist()
    for start, stop in itertools.pairwise([*starts, block.num_rows]):
        yield chosen.cut(start, stop)


def _read_key(group: blocks.Block, keys: Sequence[str]) -> object:
    if not keys:
        return None
    (row,) = group.select(keys).cut(0, 1).list_rows()
    return row[keys[0]] if len(keys) == 1 else tuple(row.values())


def _name(number: int) -> str:
    """Return the name of a column of what was made. No user's column begins so."""
    return f"\0{number}"


def _hold(values: Sequence[object]) -> object:
    found = np.empty(len(values), object)
    for at, value in enumerate(values):
        found[at] = value
    return found
