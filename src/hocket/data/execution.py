"""Executes a plan: streams blocks through tasks, in order, and never many at once.

The reader pulls. Each time it asks for a block, as many tasks are started as the limits allow (`ExecutionOptions`), and
the oldest one is waited for. So a reader that is slow holds the tasks up, and memory is bounded by the limits whatever
the size of the data: with blocks of very different sizes, roughly, because a task is judged by the largest block that
came before it.

A task returns its block and, apart, how large it is: who counts or plans need not fetch blocks. A plan without steps
needs no task, and over blocks that this process holds, no session.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from hocket.core import api, remote_function
from hocket.data import blocks, plan, settings
from hocket.engine import contract

GROUPS_IN_FLIGHT = 4
"""What part of the bytes in flight a group of a shuffle's new blocks may have: some tasks look at a group's rows at
once, and each makes a block."""

MOST_GROUPS = 256
"""Of a shuffle: each block is cut into so many parts, and each part costs a message."""


@final
@dataclass(frozen=True, slots=True)
class Size:
    """What a task tells of its block."""

    num_rows: int
    num_bytes: int


def _run(
    read: plan.Read | blocks.Block, part: tuple[int, int] | None, steps: Sequence[plan.Step]
) -> tuple[blocks.Block, Size]:
    """Read a block and take its steps. Runs in a task."""
    block = read if isinstance(read, blocks.Block) else read()
    if part is not None:
        block = block.cut(*part)
    for step in steps:
        block = step.apply(block)
    return block, Size(block.num_rows, block.count_bytes())


def _gather(rows: plan.Rows, parts: Sequence[tuple[int, int]], *whole: blocks.Block) -> tuple[blocks.Block, Size]:
    """Make a block of rows of several. Runs in a task."""
    starts = np.cumsum([0, *(stop - start for start, stop in parts)])[:-1]
    block = blocks.gather(np.asarray(rows, np.int64), starts, lambda at: whole[at].cut(*parts[at]))
    return block, Size(block.num_rows, block.count_bytes())


def stream(whole: plan.Plan, options: settings.ExecutionOptions) -> Iterator[plan.Held | plan.Stored]:
    """Give the blocks of a plan, one by one, while later ones are worked on.

    Raises:
        TaskError: A step failed. It is also an instance of what was raised.
    """
    for last, barrier in reversed(list(enumerate(whole.ops))):
        if not isinstance(barrier, plan.Step):
            before = plan.Plan(whole.reads, whole.ops[:last])
            return _take_steps(_rearrange(store(before, options), barrier, options), whole.ops[last + 1 :], options)
    return _take_steps(iter(whole.reads), whole.ops, options)


def store(whole: plan.Plan, options: settings.ExecutionOptions) -> list[plan.Stored]:
    """Execute a plan, keep its blocks in the engine, and return what stands for them. Empty ones are left out."""
    return [
        found
        if isinstance(found, plan.Stored)
        else plan.Stored(api.put(found.block), found.num_bytes, 0, found.num_rows)
        for found in stream(whole, options)
        if found.num_rows
    ]


def fetch(found: plan.Held | plan.Stored) -> blocks.Block:
    """Return a block. Its columns look into the engine's memory where they can."""
    if isinstance(found, plan.Held):
        return found.block
    block: blocks.Block = api.get(found.ref)
    return block.cut(found.start, found.stop)


def find_block(whole: plan.Plan, options: settings.ExecutionOptions) -> blocks.Block:
    """Return the first block of a plan that has rows; one without columns if none has."""
    if whole.get_optional_count() and not any(isinstance(op, plan.Shuffle) for op in whole.ops):
        whole = plan.Plan(whole.reads[:1], whole.ops)
    for found in stream(whole, options):
        if found.num_rows:
            return fetch(found)
    return blocks.Block({}, 0)


@final
class Source:
    """Rows that are there, in blocks that can be read in any order.

    Args:
        parts: The blocks.
        shuffle_seed: Which orders the epochs have; None: that of the blocks.
    """

    def __init__(self, parts: Sequence[plan.Held | plan.Stored], shuffle_seed: int | None) -> None:
        self.parts = tuple(parts)
        self.shuffle_seed = shuffle_seed
        ends = np.cumsum([0, *(part.num_rows for part in parts)])
        self.starts = ends[:-1]
        self.num_rows = int(ends[-1])


def build_source(whole: plan.Plan, options: settings.ExecutionOptions, *, stays_here: bool) -> Source:
    """Execute a plan; see `Dataset.build_source`."""
    seed = None
    if whole.ops and isinstance(whole.ops[-1], plan.Shuffle):
        seed, whole = whole.ops[-1].seed, plan.Plan(whole.reads, whole.ops[:-1])
    if stays_here:
        return Source([found for found in stream(whole, options) if found.num_rows], seed)
    return Source(store(whole, options), seed)


def cut_parts(parts: Sequence[plan.Held | plan.Stored], start: int, stop: int) -> list[plan.Held | plan.Stored]:
    """Return the part of some blocks that begins and ends at rows."""
    found: list[plan.Held | plan.Stored] = []
    at = 0
    for part in parts:
        low, high = max(start - at, 0), min(stop - at, part.num_rows)
        if high > low and isinstance(part, plan.Held):
            found.append(plan.Held(part.block.cut(low, high)))
        elif high > low and isinstance(part, plan.Stored):
            num_bytes = part.num_bytes * (high - low) // part.num_rows
            found.append(plan.Stored(part.ref, num_bytes, part.start + low, part.start + high))
        at += part.num_rows
    return found


def _take_steps(
    reads: Iterator[plan.Read], ops: Sequence[plan.Op], options: settings.ExecutionOptions
) -> Iterator[plan.Held | plan.Stored]:
    steps = [op for op in ops if isinstance(op, plan.Step)]
    if not steps:
        first = next(reads, None)
        if first is None:
            return
        reads = itertools.chain((first,), reads)
        if isinstance(first, plan.Held | plan.Stored):  # a source is of one kind
            yield from reads
            return
    num_cpus = max([step.num_cpus for step in steps], default=1.0)
    task = _make_task(_run, " -> ".join(step.name for step in steps) or "read", num_cpus)
    shared = api.put(steps)
    yield from _pump((_submit(task, read, shared) for read in reads), options)


def _make_task(
    function: object, name: str, num_cpus: float = 1.0, num_returns: int = 2
) -> remote_function.RemoteFunction[..., Any]:
    if api.get_runtime_context().get_actor_id() is not None:
        # the actor keeps its CPUs while it waits, as a training rank does: were there no others, it would wait for ever
        num_cpus = 0
    made: remote_function.RemoteFunction[..., Any] = api.remote(
        num_returns=num_returns, num_cpus=num_cpus, name=f"data: {name}"
    )(function)
    return made


def _submit(
    task: remote_function.RemoteFunction[..., object], read: plan.Read, steps: contract.ObjectRef[object]
) -> list[Any]:
    refs: list[Any]
    if isinstance(read, plan.Stored):
        refs = task.remote(read.ref, (read.start, read.stop), steps)
    else:
        refs = task.remote(read.block if isinstance(read, plan.Held) else read, None, steps)
    return refs


def _rearrange(
    parts: list[plan.Stored], barrier: plan.Shuffle | plan.Repartition, options: settings.ExecutionOptions
) -> Iterator[plan.Read]:
    """Give the new blocks of a plan's barrier. Takes `parts` away one by one, so that they can be forgotten."""
    name = type(barrier).__name__.lower()
    wanted = barrier.rearrange([part.num_rows for part in parts])
    num_bytes = sum(part.num_bytes for part in parts)
    num_groups = min(-(-num_bytes // (options.max_bytes_in_flight // GROUPS_IN_FLIGHT + 1)), len(wanted), MOST_GROUPS)
    task = _make_task(_gather, name)
    if isinstance(barrier, plan.Shuffle) and num_groups > 1:
        submitted = _submit_exchange(task, name, parts, wanted, num_groups, options)
    else:
        submitted = (_submit_gather(task, parts, rows) for rows in wanted)
    return _pump(submitted, options)


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

    cutter = _make_task(_cut_by_group, name, num_returns=len(groups) + 1)
    cuts = [refs[::-1] for refs, _ in _run_ahead(map(cut, range(len(parts))), options)]
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
) -> list[blocks.Block | Size]:
    """Give the rows of a block that each group has, and then their size. Runs in a task."""
    block = block.cut(*span)
    found = [block.pick(rows) for rows in picks]
    return [*found, Size(block.num_rows, block.count_bytes())]


def _pump(tasks: Iterator[list[object]], options: settings.ExecutionOptions) -> Iterator[plan.Stored]:
    """Start tasks as the limits allow, and give what they make, in order.

    Args:
        tasks: Starts one each time that it is asked for one; it returns the references on its block and its size.
        options: The limits.
    """
    for (ref,), size in _run_ahead(tasks, options):
        yield plan.Stored(ref, size.num_bytes, 0, size.num_rows)


def _run_ahead(
    tasks: Iterator[list[object]], options: settings.ExecutionOptions
) -> Iterator[tuple[list[contract.AnyRef], Size]]:
    """Start tasks as the limits allow, and give what each of them returns, with its size, in order.

    The size is the last of a task's references.
    """
    most = options.max_blocks_in_flight or max(2, 2 * int(api.cluster_resources().get("CPU", 1)))
    running: deque[list[Any]] = deque()
    largest = 0
    is_over = False
    while True:
        # Before anything is known of sizes, two are enough to learn it.
        allowed = most if largest else 2
        while (
            not is_over
            and len(running) < min(most, allowed)
            and (not running or largest * (len(running) + 1) <= options.max_bytes_in_flight)
        ):
            started = next(tasks, None)
            if started is None:
                is_over = True
            else:
                running.append(started)
        if not running:
            return
        *refs, size_ref = running.popleft()
        size: Size = api.get(size_ref)
        largest = max(largest, size.num_bytes, 1)
        yield refs, size
