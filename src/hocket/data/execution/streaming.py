"""The stages of a plan, one after the other. Each yields blocks as the next one requests them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

import numpy as np

from hocket.core import api, scopes
from hocket.data import block_reads, blocks, order, plan, settings
from hocket.data.execution import pools, rearranging, records, relations, tasks
from hocket.data.sources import scans

Blocks: TypeAlias = Iterator[block_reads.Held | block_reads.Stored]


@final
class Stream(Iterator[block_reads.Held | block_reads.Stored]):
    """The blocks of a plan, one by one, while tasks work on later ones.

    The tasks end with the stream: after its last block, when an error or a signal passes through it, when any thread
    closes it, and when it is garbage-collected.

    Raises:
        TaskError: A step failed. It is also an instance of the error's class.
    """

    def __init__(self, found: Blocks, scope: scopes.Scope) -> None:
        self._found, self.close = found, scope.close

    def __next__(self) -> block_reads.Held | block_reads.Stored:
        try:
            return next(self._found)
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        self.close()


def stream(whole: plan.Plan, options: settings.ExecutionOptions, record: records.Record | None = None) -> Stream:
    """Execute a plan.

    Args:
        whole: The plan.
        options: The limits.
        record: Counts the blocks of each stage. None: no counts.
    """
    scope = scopes.Scope()
    return Stream(_stream(whole, options, record, scope), scope)


def _stream(
    whole: plan.Plan, options: settings.ExecutionOptions, record: records.Record | None, scope: scopes.Scope
) -> Blocks:
    if options.memory_limit is not None:
        options.check_memory(tasks.count_cpus())
    whole = whole.narrow()
    found_pools = [op for op in whole.ops if isinstance(op, plan.Pool)]
    held_by_tasks = max([op.num_cpus for op in whole.ops if isinstance(op, plan.Step)], default=1.0)
    allotment, index = pools.Allotment(found_pools, options, held_by_tasks), itertools.count()
    # Actors keep their CPUs while they live. A task that waited for one of these would never run.
    if allotment.holds_all:
        options = replace(options, task_cpus=0.0)
    watch = _pass_on if record is None else record.watch
    reads: Iterator[block_reads.Read] = iter(whole.reads)
    ops = list(whole.ops)
    while ops and isinstance(ops[0], plan.BlockOrder):  # nothing is read yet, so reads can be reordered
        reads = iter(_reorder(list(reads), ops[0].seed))
        del ops[0]
    are_few = _are_few(whole.reads)
    before = list(itertools.takewhile(lambda op: isinstance(op, plan.Step), ops))
    # A relation over files reads them itself, so no block is made for it.
    begins_relation = len(ops) == len(whole.ops) > len(before) and isinstance(ops[len(before)], plan.Relation)
    scan = plan.Plan(whole.reads, tuple(before)).find_scan() if begins_relation else None
    found: Any
    if scan is not None:
        first, found = _list_steps(before), scan
    else:
        # Few tasks that read many blocks each would leave CPUs idle, so other tasks run the steps.
        first = [] if are_few else _list_steps(itertools.takewhile(_is_step, ops))
        found = watch(_describe(first, "read"), tasks.take_steps(reads, first, options, scope))
    for is_step, group in itertools.groupby(ops[len(first) :], key=_is_step):
        if is_step:
            steps = _list_steps(group)
            keeps_numbers = are_few and steps[0] is ops[0]  # tasks other than the reads' must draw the same numbers
            taken = tasks.take_steps(found, steps, options, scope, keeps_numbers=keeps_numbers)
            found = watch(_describe(steps), taken)
            continue
        for op in group:
            if isinstance(op, plan.Pool):
                found = watch(op.name, pools.run_pool(found, allotment, next(index), options, scope))
            else:
                found = watch(plan.describe(op), _STAGES[type(op)](found, op, options, scope))
    return found if record is None else record.show(found)


def _pass_on(name: str, found: Blocks) -> Blocks:
    return found


def _is_step(op: plan.Op) -> bool:
    return isinstance(op, plan.Step)


def _list_steps(ops: Iterable[plan.Op]) -> list[plan.Step]:
    return [op for op in ops if isinstance(op, plan.Step)]


def _describe(steps: Sequence[plan.Step], *before: str) -> str:
    return " -> ".join([*before, *(step.name for step in steps)])


def _are_few(reads: Sequence[block_reads.Read]) -> bool:
    """Return whether there are so few reads of several blocks that other tasks should run the steps."""
    are_many = bool(reads) and all(map(block_reads.gives_many, reads))
    return are_many and len(reads) < 2 * tasks.count_cpus()


def store(
    whole: plan.Plan, options: settings.ExecutionOptions, record: records.Record | None = None
) -> list[block_reads.Stored]:
    """Execute a plan, keep its blocks in the engine, and return their reads. Empty blocks are left out."""
    return _store(stream(whole, options, record), options)


def _store(found: Blocks, options: settings.ExecutionOptions) -> list[block_reads.Stored]:
    tasks.check_store(options)
    return [
        one if isinstance(one, block_reads.Stored) else block_reads.store_block(api.put(one.block), one)
        for one in found
        if one.num_rows
    ]


def find_block(whole: plan.Plan, options: settings.ExecutionOptions) -> blocks.Block:
    """Return the first block of a plan that has rows; the first block if none has."""
    # Steps and pools work on each block alone, so one read is enough.
    if whole.get_optional_count() and all(isinstance(op, plan.Step | plan.Pool) for op in whole.ops):
        first_read = next(read for read in whole.reads if read.num_rows)
        whole = plan.Plan((first_read,), whole.ops)
    first: block_reads.Held | block_reads.Stored | None = None
    with contextlib.closing(stream(whole, options)) as found_blocks:
        for found in found_blocks:
            if found.num_rows:
                return tasks.fetch(found)
            first = first or found
    return blocks.Block({}, 0) if first is None else tasks.fetch(first)


# --- stages that are more than steps ----------------------------------------------------------------------------------


def _rearrange(
    found: Blocks, op: plan.Shuffle | plan.Repartition, options: settings.ExecutionOptions, scope: scopes.Scope
) -> Blocks:
    yield from rearranging.rearrange(_store(found, options), op, options, scope)


def _reorder(reads: Sequence[object], seed: int) -> list[Any]:
    shuffled = order.Order(len(reads), seed=seed, epoch=0).rows(np.arange(len(reads))) if reads else ()
    return [reads[at] for at in shuffled]


def _reorder_blocks(
    found: Blocks, op: plan.BlockOrder, options: settings.ExecutionOptions, scope: scopes.Scope
) -> Blocks:
    yield from _reorder(_store(found, options), op.seed)


def _limit(found: Blocks, op: plan.Limit, options: settings.ExecutionOptions, scope: scopes.Scope) -> Blocks:
    left = op.num_rows
    for one in found:
        if one.num_rows <= left:
            yield one
        elif not left:
            yield block_reads.Held(tasks.fetch(one).cut(0, 0))  # with limit 0, the result still has its columns
        else:
            yield from cut_parts([one], 0, left)
        left -= min(left, one.num_rows)
        if not left:
            return


def _unite(found: Blocks, op: plan.Union, options: settings.ExecutionOptions, scope: scopes.Scope) -> Blocks:
    yield from found
    for other in op.others:
        yield from _stream(other, options, None, scope)


def _zip(found: Blocks, op: plan.Zip, options: settings.ExecutionOptions, scope: scopes.Scope) -> Blocks:
    sides = [_store(each, options) for each in (found, *(_stream(other, options, None, scope) for other in op.others))]
    counts = [sum(part.num_rows for part in side) for side in sides]
    if len(set(counts)) > 1:
        raise ValueError(
            f"zip() puts columns beside each other, so all data sets need equally many rows, but received {counts} "
            f"rows. Cut them with limit({min(counts)}), or join() them by a key."
        )
    task = tasks.make_task(scope, _put_together, "zip", tasks.choose_cpus(options))
    start = 0

    def submit(part: block_reads.Stored) -> list[Any]:
        nonlocal start
        stop = start + part.num_rows
        cuts = [cut_parts(side, start, stop) for side in sides[1:]]
        start = stop
        pieces = [part, *itertools.chain.from_iterable(cuts)]
        spans = [(one.start, one.stop) for one in pieces if isinstance(one, block_reads.Stored)]
        refs: list[Any] = task.remote(
            [1, *map(len, cuts)], spans, *(one.ref for one in pieces if isinstance(one, block_reads.Stored))
        )
        return refs

    yield from tasks.pump(map(submit, sides[0]), options, scope)


def _put_together(
    counts: Sequence[int], spans: Sequence[tuple[int, int]], *whole: blocks.Block
) -> tuple[blocks.Block, tasks.Size]:
    """Make a block from the columns of several blocks. Runs in a task."""
    pieces = iter([block.cut(*span) for block, span in zip(whole, spans, strict=True)])
    sides = [list(itertools.islice(pieces, count)) for count in counts]
    block = blocks.put_beside([blocks.join(side) if len(side) > 1 else side[0] for side in sides])
    return block, tasks.measure(block)


def _relate(
    found: Blocks | scans.Scan, op: plan.Relation, options: settings.ExecutionOptions, scope: scopes.Scope
) -> Blocks:
    others = [other.find_scan() or _stream(other, options, None, scope) for other in op.others]
    yield from relations.relate([found, *others], op.query, options, scope)


_STAGES: dict[type, Callable[[Blocks, Any, settings.ExecutionOptions, scopes.Scope], Blocks]] = {
    plan.Shuffle: _rearrange,
    plan.Repartition: _rearrange,
    plan.BlockOrder: _reorder_blocks,
    plan.Limit: _limit,
    plan.Union: _unite,
    plan.Zip: _zip,
    plan.Relation: _relate,
}


def cut_parts(
    parts: Sequence[block_reads.Held | block_reads.Stored | block_reads.Filed], start: int, stop: int
) -> list[block_reads.Held | block_reads.Stored]:
    """Return the rows from `start` to `stop` of some blocks, as parts of the blocks."""
    found: list[block_reads.Held | block_reads.Stored] = []
    at = 0
    for part in parts:
        low, high = max(start - at, 0), min(stop - at, part.num_rows)
        if high > low and not isinstance(part, block_reads.Stored):
            found.append(block_reads.Held(part().cut(low, high)))
        elif high > low and isinstance(part, block_reads.Stored):
            num_bytes = part.num_bytes * (high - low) // part.num_rows
            found.append(block_reads.Stored(part.ref, num_bytes, part.start + low, part.start + high, part.types))
        at += part.num_rows
    return found


@final
class Source:
    """The blocks of an executed plan, for reads in any order.

    Args:
        parts: The blocks.
        shuffle_seed: Selects the orders of the epochs; None: the order of the blocks.
    """

    def __init__(
        self, parts: Sequence[block_reads.Held | block_reads.Stored | block_reads.Filed], shuffle_seed: int | None
    ) -> None:
        self.parts = tuple(parts)
        self.shuffle_seed = shuffle_seed
        ends = np.cumsum([0, *(part.num_rows for part in parts)])
        self.starts = ends[:-1]
        self.num_rows = int(ends[-1])


def file_source(source: Source, folder: str) -> Source:
    """Write the rows to files in an existing folder, and return these. For ranks that see the folder, but no engine."""
    parts = [
        block_reads.file_block(tasks.fetch(part), f"{folder}/{number}.block")
        for number, part in enumerate(source.parts)
    ]
    return Source(parts, source.shuffle_seed)


def build_source(whole: plan.Plan, options: settings.ExecutionOptions, *, stays_here: bool) -> Source:
    """Execute a plan. See `Dataset.build_source`."""
    seed = None
    if whole.ops and isinstance(whole.ops[-1], plan.Shuffle):
        # The ledger draws an order for each epoch, so this shuffle moves no rows.
        seed, whole = whole.ops[-1].seed, plan.Plan(whole.reads, whole.ops[:-1])
    if stays_here:
        return Source([found for found in stream(whole, options) if found.num_rows], seed)
    return Source(store(whole, options), seed)
