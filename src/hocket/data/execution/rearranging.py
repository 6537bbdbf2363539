"""Rows in an order that is known beforehand: shuffles, and other cuts between blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hocket.core import api, scopes, session
from hocket.data import block_reads, blocks, plan, settings
from hocket.data.execution import tasks

MOST_GROUPS = 256
"""Largest number of groups of a shuffle: each block is cut into this many pieces, and each piece costs a message."""

MOST_PARTS = 64
"""Largest number of blocks that a task of a shuffle reads, however small they are. For each new block, each block that
the task reads costs a message."""

LEAST_PIECE = 320 << 10
"""Bytes. A piece below 256 KiB travels in messages through the driver instead of in shared memory, and the store's
limit does not cover it. The sizes of pieces vary."""


def rearrange(
    parts: list[block_reads.Stored],
    barrier: plan.Shuffle | plan.Repartition,
    options: settings.ExecutionOptions,
    scope: scopes.Scope,
) -> Iterator[block_reads.Stored]:
    """Yield the new blocks of a plan's barrier. Empties `parts` one by one, to free the blocks."""
    name = type(barrier).__name__.lower()
    sizes = [part.num_rows for part in parts]
    num_bytes = sum(part.num_bytes for part in parts)
    by_bytes = -(-num_bytes // _choose_group_bytes(num_bytes, options))
    by_count = math.isqrt(len(parts)) if len(parts) > MOST_PARTS else 1
    num_groups = min(max(by_bytes, by_count), len(parts), MOST_GROUPS)
    if isinstance(barrier, plan.Shuffle) and num_groups > 1:
        return _exchange(name, parts, barrier.rearrange(sizes), num_groups, options, scope)
    task = tasks.make_task(scope, _gather, name, tasks.choose_cpus(options))
    return tasks.pump((_submit_gather(task, parts, rows) for rows in barrier.rearrange(sizes)), options, scope)


def _choose_group_bytes(num_bytes: int, options: settings.ExecutionOptions) -> int:
    """Return how many bytes of rows a task of a shuffle may read. If memory is limited, both passes read equally many,
    and pieces are large enough for the limit of the store."""
    if options.memory_limit is None:
        return options.max_bytes_in_flight // 4 + 1
    return math.isqrt(num_bytes * LEAST_PIECE) + 1


def _submit_gather(task: tasks.Task, parts: Sequence[block_reads.Stored], rows: plan.Rows) -> list[Any]:
    """Submit a task that makes a block from rows of any of the parts."""
    first, last = 0, len(parts)
    if isinstance(rows, range):  # the task needs only the blocks that have these rows
        starts = np.cumsum([0, *(part.num_rows for part in parts)])
        first = int(np.searchsorted(starts, rows.start, side="right")) - 1
        last = int(np.searchsorted(starts, rows.stop - 1, side="right"))
        rows = range(rows.start - int(starts[first]), rows.stop - int(starts[first]))
    chosen = parts[first:last]
    refs: list[object] = task.remote(rows, [(part.start, part.stop) for part in chosen], *(part.ref for part in chosen))
    return refs


def _gather(rows: plan.Rows, parts: Sequence[tuple[int, int]], *whole: blocks.Block) -> tuple[blocks.Block, tasks.Size]:
    """Make a block from rows of several blocks. Runs in a task."""
    starts = np.cumsum([0, *(stop - start for start, stop in parts)])[:-1]
    numbers = np.asarray(rows, np.int64) if isinstance(rows, range) else rows.list_rows()
    block = blocks.gather(numbers, starts, lambda at: whole[at].cut(*parts[at]))
    return block, tasks.measure(block)


# --- a shuffle of more blocks than a task can read --------------------------------------------------------------------


def _exchange(
    name: str,
    parts: list[block_reads.Stored],
    wanted: Sequence[plan.Drawn],
    num_groups: int,
    options: settings.ExecutionOptions,
    scope: scopes.Scope,
) -> Iterator[block_reads.Stored]:
    """Yield the blocks of a shuffle that has too many parts for one task to read.

    A first pass sorts the rows of some parts at a time by groups of new blocks. A second pass makes the new blocks of
    each group from the group's pieces of all parts. So every row is written and read twice, however many blocks there
    are. No process holds a list of all rows: tasks compute the order of their own rows.
    """
    groups = [wanted[first:last] for first, last in block_reads.cut_evenly(len(wanted), num_groups)]
    borders = (wanted[0].start, *(group[-1].stop for group in groups))
    bundles = _bundle(parts, LEAST_PIECE * len(groups))
    parts.clear()
    # Where the engine can read a part of a spilled object alone, all pieces of a bundle are one object: each object
    # costs the driver a descriptor, and it may have some thousands. Elsewhere each piece is an object.
    are_apart = not session.get_engine().reads_parts
    how = _Exchange(borders, are_apart=are_apart, is_tight=options.memory_limit is not None)
    num_returns = len(groups) + 1 if are_apart else 3
    cutter = tasks.make_task(scope, _sort_by_group, name, tasks.choose_cpus(options), num_returns)

    def cut() -> Iterator[list[Any]]:
        start = 0
        while bundles:
            bundle = bundles.pop(0)
            spans = [(part.start, part.stop) for part in bundle]
            yield cutter.remote(how, wanted[0], start, spans, *(part.ref for part in bundle))
            start += sum(part.num_rows for part in bundle)

    made = [refs for refs, _ in tasks.run_ahead(cut(), options, scope)]
    ends = [] if are_apart else api.get([refs[1] for refs in made])
    task = tasks.make_many(scope, _gather_group, name, tasks.choose_cpus(options))

    def gather() -> Iterator[object]:
        for at, group in enumerate(groups):
            if are_apart:
                yield task.remote(how, group, None, *(_take(refs, at) for refs in made))
            else:
                yield task.remote(how, group, [(end[at], end[at + 1]) for end in ends], *(refs[0] for refs in made))

    # Each task holds a whole group. If memory is limited, only one task runs at a time.
    yield from tasks.read_ahead(gather(), options, scope, 1 if how.is_tight else None)


def _take(refs: list[Any], at: int) -> object:
    """Return a reference, and remove it from the list."""
    ref, refs[at] = refs[at], None
    return ref


def _bundle(parts: Sequence[block_reads.Stored], least_bytes: int) -> list[list[block_reads.Stored]]:
    """Return bundles of blocks. Each bundle but the last has at least this many bytes."""
    bundles: list[list[block_reads.Stored]] = []
    num_bytes = least_bytes
    for part in parts:
        if num_bytes >= least_bytes:
            bundles.append([])
            num_bytes = 0
        bundles[-1].append(part)
        num_bytes += part.num_bytes
    return bundles


@final
@dataclass(frozen=True)
class _Exchange:
    """Facts that all tasks of a shuffle share."""

    borders: tuple[int, ...]
    """The positions at which the groups begin, and the end of the last group."""
    are_apart: bool
    """Whether each piece is an object; if not, the pieces of a bundle are parts of one object."""
    is_tight: bool
    """Whether memory is limited."""


def _sort_by_group(
    how: _Exchange, drawn: plan.Drawn, start: int, spans: Sequence[tuple[int, int]], *whole: blocks.Block
) -> list[object]:
    """Return the rows of blocks, the first of which is row `start`, sorted by the groups of their new blocks. The size
    is the last element. If the pieces are one object, the ends of the groups come before it. Runs in a task."""
    parts = [block.cut(*span) for block, span in zip(whole, spans, strict=True)]
    num_rows = sum(part.num_rows for part in parts)
    positions = drawn.open_order().find_positions(np.arange(start, start + num_rows))
    group = np.searchsorted(how.borders, positions, side="right") - 1
    by_group = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[by_group], np.arange(len(how.borders)))
    if all(part.columns.keys() == parts[0].columns.keys() for part in parts):
        found: dict[str, Any] = {}
        for name in parts[0].columns:  # column by column: only one is in memory twice
            found |= blocks.join([part.select([name]) for part in parts]).pick(by_group).columns
        block = blocks.Block(found, num_rows)
    else:
        block = blocks.join(parts).pick(by_group)
    if how.is_tight:
        tasks.give_memory_back()
    size = tasks.measure(block)
    if how.are_apart:
        return [*(block.pick(np.arange(one, end)) for one, end in itertools.pairwise(ends)), size]
    return [block, ends.tolist(), size]


def _gather_group(
    how: _Exchange, group: Sequence[plan.Drawn], spans: Sequence[tuple[int, int]] | None, *whole: blocks.Block
) -> Iterator[blocks.Block | tasks.Size]:
    """Yield the blocks of a group, each followed by its size. `spans` are the group's rows in the blocks; None: all.
    Runs in a task."""
    pieces = whole if spans is None else [block.cut(*span) for block, span in zip(whole, spans, strict=True)]
    rows = np.concatenate([wanted.list_rows() for wanted in group])
    ranks = np.empty(len(rows), np.int64)
    ranks[np.argsort(rows)] = np.arange(len(rows))
    starts = np.cumsum([0, *(piece.num_rows for piece in pieces)])[:-1]
    done = 0
    for wanted in group:
        block = blocks.gather(ranks[done : done + len(wanted)], starts, pieces.__getitem__)
        yield block
        yield tasks.measure(block)
        done += len(wanted)
        if how.is_tight:
            tasks.give_memory_back()
