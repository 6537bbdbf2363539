"""All rows in another order, which is known before it is done: shuffles, and cuts in other places."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.core import remote_function
from hocket.data import blocks, plan, settings
from hocket.data.execution import tasks

GROUPS_IN_FLIGHT = 4
"""What part of the bytes in flight a group of a shuffle's new blocks may have: some tasks look at a group's rows at
once, and each makes a block."""

MOST_GROUPS = 256
"""Of a shuffle: each block is cut into so many parts, and each part costs a message."""


def _gather(rows: plan.Rows, parts: Sequence[tuple[int, int]], *whole: blocks.Block) -> tuple[blocks.Block, tasks.Size]:
    """Make a block of rows of several. Runs in a task."""
    starts = np.cumsum([0, *(stop - start for start, stop in parts)])[:-1]
    block = blocks.gather(np.asarray(rows, np.int64), starts, lambda at: whole[at].cut(*parts[at]))
    return block, tasks.measure(block)


def rearrange(
    parts: list[plan.Stored], barrier: plan.Shuffle | plan.Repartition, options: settings.ExecutionOptions
) -> Iterator[plan.Stored]:
    """Give the new blocks of a plan's barrier. Takes `parts` away one by one, so that they can be forgotten."""
    name = type(barrier).__name__.lower()
    wanted = barrier.rearrange([part.num_rows for part in parts])
    num_bytes = sum(part.num_bytes for part in parts)
    num_groups = min(-(-num_bytes // (options.max_bytes_in_flight // GROUPS_IN_FLIGHT + 1)), len(wanted), MOST_GROUPS)
    task = tasks.make_task(_gather, name, tasks.choose_cpus(options))
    if isinstance(barrier, plan.Shuffle) and num_groups > 1:
        submitted = _submit_exchange(task, name, parts, wanted, num_groups, options)
    else:
        submitted = (_submit_gather(task, parts, rows) for rows in wanted)
    return tasks.pump(submitted, options)


def _submit_gather(
    task: remote_function.RemoteFunction[..., object], parts: Sequence[plan.Stored], rows: plan.Rows
) -> list[Any]:
    """Have a block made of rows of any of the parts."""
    first, last = 0, len(parts)
    if isinstance(rows, range):  # only the blocks that it touches
        starts = np.cumsum([0, *(part.num_rows for part in parts)])
        first = int(np.searchsorted(starts, rows.start, side="right")) - 1
        last = int(np.searchsorted(starts, rows.stop - 1, side="right"))
        rows = range(rows.start - int(starts[first]), rows.stop - int(starts[first]))
    chosen = parts[first:last]
    refs: list[Any] = task.remote(rows, [(part.start, part.stop) for part in chosen], *(part.ref for part in chosen))
    return refs


def _submit_exchange(
    task: remote_function.RemoteFunction[..., object],
    name: str,
    parts: list[plan.Stored],
    wanted: Sequence[plan.Rows],
    num_groups: int,
    options: settings.ExecutionOptions,
) -> Iterator[list[Any]]:
    """Have blocks made of rows of all parts, where these are too many to look at for each: first each part is cut, by
    groups of new blocks, and then each new block is made of the cuts for its group. So every row is written and read
    twice, however many blocks there are.
    """
    groups = [
        np.concatenate([np.asarray(rows, np.int64) for rows in wanted[first:last]])
        for first, last in plan.cut_evenly(len(wanted), num_groups)
    ]
    starts = np.cumsum([0, *(part.num_rows for part in parts)])
    places = [np.searchsorted(starts, rows, side="right") - 1 for rows in groups]
    orders = [np.argsort(place, kind="stable") for place in places]
    ends = [
        np.searchsorted(place[by_part], np.arange(len(parts) + 1))
        for place, by_part in zip(places, orders, strict=True)
    ]

    def cut(at: int) -> list[Any]:
        part = parts[at]
        picks = [
            rows[by_part[end[at] : end[at + 1]]] - starts[at]
            for rows, by_part, end in zip(groups, orders, ends, strict=True)
        ]
        refs: list[Any] = cutter.remote((part.start, part.stop), picks, part.ref)
        return refs

    cutter = tasks.make_task(_cut_by_group, name, tasks.choose_cpus(options), num_returns=len(groups) + 1)
    cuts = [refs[::-1] for refs, _ in tasks.run_ahead(map(cut, range(len(parts))), options)]
    parts.clear()
    at = 0
    for number, by_part in enumerate(orders):
        pieces = [refs.pop() for refs in cuts]
        bounds = list(itertools.pairwise(ends[number].tolist()))
        back = np.empty(len(by_part), np.int64)
        back[by_part] = np.arange(len(by_part))
        used = [piece for piece, (start, stop) in zip(pieces, bounds, strict=True) if stop > start]
        spans = [(0, stop - start) for start, stop in bounds if stop > start]
        done = 0
        while done < len(back):
            size = len(wanted[at])
            yield task.remote(back[done : done + size], spans, *used)
            done += size
            at += 1


def _cut_by_group(
    span: tuple[int, int], picks: Sequence[npt.NDArray[np.int64]], block: blocks.Block
) -> list[blocks.Block | tasks.Size]:
    """Give the rows of a block that each group has, and then their size. Runs in a task."""
    block = block.cut(*span)
    found = [block.pick(rows) for rows in picks]
    return [*found, tasks.measure(block)]
