"""Tasks that make blocks, for every kind of execution, and the number that runs ahead of the reader."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, final

from hocket.core import api, scopes, session
from hocket.data import block_reads, blocks, plan, settings
from hocket.data import steps as steps_module
from hocket.data.sources import scans
from hocket.engine import contract

MOST_AHEAD: Final = 4
"""How many objects of a task with several blocks wait for their reader: two blocks and their sizes. A guess."""


class Task(Protocol):
    """A remote function of `make_task`. Its type does not show how many references a call returns."""

    def remote(self, *args: Any) -> Any:
        """Start a call."""


@final
@dataclass(frozen=True, slots=True)
class Size:
    """A task's record of its block."""

    num_rows: int
    num_bytes: int
    types: blocks.Types
    """Names and types of the block's columns."""
    left_out: tuple[str, ...] = ()
    """Files that could not be read, and that the program has chosen to skip."""
    number: int = 0
    """Number of the block among the blocks of all reads, if its read supplies several."""


def measure(block: blocks.Block) -> Size:
    """Return the record of a block."""
    return Size(block.num_rows, block.count_bytes(), block.find_types())


@final
@dataclass(frozen=True, slots=True)
class _Work:
    """The steps that a task runs on a block."""

    steps: tuple[plan.Step, ...]
    context: settings.DataContext
    """The settings of the plan's execution."""

    def take(self, block: blocks.Block, number: int) -> tuple[blocks.Block, Size]:
        """Return the steps' result for a block, and its size."""
        for step in self.steps:
            block = step.take(block, number)
        if self.context.execution_options.memory_limit is not None:
            give_memory_back()
        return block, measure(block)


def _run(
    read: block_reads.Read | blocks.Block, part: tuple[int, int] | None, number: int, work: _Work
) -> tuple[blocks.Block, Size]:
    """Read a block and run its steps. Runs in a task."""
    with settings.lend(work.context), settings.collect_left_out() as left_out:
        found = _scan(read, work.steps) if part is None else None
        if found is not None:
            block, size = replace(work, steps=work.steps[found[1] :]).take(found[0], number)
        else:
            block = read if isinstance(read, blocks.Block) else read()
            block, size = work.take(block if part is None else block.cut(*part), number)
        return block, replace(size, left_out=tuple(left_out))


def _scan(read: block_reads.Read | blocks.Block, steps: Sequence[plan.Step]) -> tuple[blocks.Block, int] | None:
    """Return the block that DuckDB makes of a read and the first steps, and the number of these steps; None if it
    cannot do all of that."""
    for at, step in enumerate(steps):
        if isinstance(step.work, steps_module.Summarize) and not isinstance(read, blocks.Block):
            scan = plan.scan_steps(scans.open_scan([read]), steps[:at])
            return None if scan is None else (step.work.take_scan(scan), at + 1)
    return None


def _run_all(read: block_reads.ManyRead, number: int, work: _Work) -> Iterator[blocks.Block | Size]:
    """Read all blocks, and yield the steps' result for each, followed by its size. Runs in a task."""
    found = read.iter_blocks()
    for at in itertools.count():
        with (
            settings.lend(work.context),
            settings.collect_left_out() as left_out,
        ):  # not across a yield: the reader has its own settings
            block = next(found, None)
            if block is None and not left_out:
                return
            own = (number << 20) + at
            taken = (blocks.Block({}, 0), Size(0, 0, ())) if block is None else work.take(block, own)
        yield taken[0]
        yield replace(taken[1], left_out=tuple(left_out), number=own)
        del taken
        if block is None:
            return


@final
@dataclass(frozen=True)
class _GroupsRead:
    """The results of a function for the groups of a block, in blocks of about the usual size. Only one such block, or
    one group's result, is in memory at a time."""

    read: block_reads.Read
    work: steps_module.MapGroups
    context: settings.DataContext

    num_rows: None = None
    num_bytes: None = None

    def __call__(self) -> blocks.Block:
        return blocks.join(list(self.iter_blocks()) or [blocks.Block({}, 0)])

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Yield the blocks, in order."""
        there = block_reads.Held | block_reads.Stored | block_reads.Filed
        block = fetch(self.read) if isinstance(self.read, there) else self.read()
        made: list[blocks.Block] = []
        num_bytes = 0
        for group in self.work.iter_groups(block):
            made.append(steps_module.call(self.work, group))
            num_bytes += made[-1].count_bytes()
            if num_bytes >= self.context.get_block_bytes():
                yield blocks.join(made)
                made, num_bytes = [], 0
        if made or not block.num_rows:
            yield blocks.join(made or [steps_module.call(self.work, block)])


def give_memory_back() -> None:
    """Release to the system the memory that this process has freed but keeps for later."""
    pa = sys.modules.get("pyarrow")
    if pa is not None:
        pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def fetch(found: block_reads.Held | block_reads.Stored | block_reads.Filed) -> blocks.Block:
    """Return a block. Its columns read the engine's memory where possible."""
    if not isinstance(found, block_reads.Stored):
        return found()
    block: blocks.Block = api.get(found.ref)
    return block.cut(found.start, found.stop)


def check_store(options: settings.ExecutionOptions) -> None:
    """Raise if the session's store may exceed the limit's share for kept rows."""
    most = options.get_store_memory()
    if most is None:
        return
    held = int(session.get_engine().resources.get_total_resources().get("object_store_memory", 0))
    if held > most:
        raise ValueError(
            f"memory_limit={options.memory_limit} of ExecutionOptions allows a sixth, {most:,} bytes, for the "
            f"session's object store, which keeps rows of this operation, but the store may take {held:,} bytes of "
            f"memory. Start the session with hocket.init(object_store_memory={most}), or raise the limit to "
            f"{6 * held}."
        )


def count_cpus() -> float:
    """Return the number of CPUs of the session. Opens a session if there is none."""
    return session.get_engine().resources.get_total_resources().get("CPU", 1.0)


def choose_cpus(options: settings.ExecutionOptions, wanted: float = 1.0) -> float:
    """Return how many CPUs a task holds."""
    return wanted if options.task_cpus is None else options.task_cpus


def make_task(
    scope: scopes.Scope | None,
    function: object,
    name: str,
    num_cpus: float = 1.0,
    num_returns: int | str = 2,
    **more: Any,
) -> Task:
    """Return a function as a remote function whose tasks have this name, and end with their scope."""
    if api.get_runtime_context().get_actor_id() is not None:
        # This actor keeps its CPUs while it waits, as a training rank does. Without others, a task would wait for ever.
        num_cpus = 0
    made: Task = api.remote(num_returns=num_returns, num_cpus=num_cpus, name=f"data: {name}", **more)(function)
    return made if scope is None else scope.bind(made)


def make_many(scope: scopes.Scope, function: object, name: str, num_cpus: float = 1.0, **more: object) -> Task:
    """Return a generator function of blocks and their sizes as a remote function, whose tasks wait for their reader."""
    more["_generator_backpressure_num_objects"] = MOST_AHEAD
    return make_task(scope, function, name, num_cpus, num_returns="streaming", **more)


def take_steps(
    reads: Iterator[block_reads.Read],
    steps: Sequence[plan.Step],
    options: settings.ExecutionOptions,
    scope: scopes.Scope,
    *,
    keeps_numbers: bool = False,
) -> Iterator[block_reads.Held | block_reads.Stored]:
    """Yield the steps' results for blocks.

    Args:
        reads: The blocks. Without steps, blocks that are present already are yielded unchanged.
        steps: The steps.
        options: The limits.
        scope: The scope of the execution.
        keeps_numbers: Whether steps receive the numbers that blocks have as those of reads. If not, blocks are counted
            from 0.
    """
    if not steps:
        first = next(reads, None)
        if first is None:
            return
        reads = itertools.chain((first,), reads)
        if isinstance(first, block_reads.Held | block_reads.Stored):  # all reads of a source are of one kind
            yield from reads
            return
    context = replace(settings.DataContext.get_current(), execution_options=options)
    num_cpus = choose_cpus(options, max([step.num_cpus for step in steps], default=1.0))
    limits = [step.concurrency for step in steps if step.concurrency is not None]
    if limits:
        most = min([*limits, options.max_blocks_in_flight or limits[0]])
        options = replace(options, max_blocks_in_flight=most)
    held: dict[str, Any] = {name: value for step in steps for name, value in step.resources.items()}
    name = " -> ".join(step.name for step in steps) or "read"
    task = make_task(scope, _run, name, num_cpus, **held)
    first_work = steps[0].work if steps else None
    if isinstance(first_work, steps_module.MapGroups):
        reads = map(functools.partial(_GroupsRead, work=first_work, context=context), reads)
        steps = steps[1:]
    shared = api.put(_Work(tuple(steps), context))
    numbered = ((getattr(read, "number", at) if keeps_numbers else at, read) for at, read in enumerate(reads))
    for is_many, group in itertools.groupby(numbered, key=lambda pair: block_reads.gives_many(pair[1])):
        if not is_many:
            yield from pump((_submit(task, read, number, shared) for number, read in group), options, scope)
            continue
        many = make_many(scope, _run_all, name, num_cpus, **held)
        yield from read_ahead((many.remote(read, number, shared) for number, read in group), options, scope)


def list_blocks(made: Any, scope: scopes.Scope) -> Iterator[block_reads.Stored]:
    """Yield the blocks of a task that yields each block before its size."""
    for ref in made:
        size: Size = api.get(next(made, ref))  # a failed task's last object is its error, without a size
        yield block_reads.Stored(ref, size.num_bytes, 0, size.num_rows, size.types, size.left_out, size.number)
    scope.release(made)


def read_ahead(
    tasks: Iterator[object], options: settings.ExecutionOptions, scope: scopes.Scope, most: int | None = None
) -> Iterator[block_reads.Stored]:
    """Yield the blocks of tasks that make several each, in order. Some tasks run ahead, and wait for the reader after
    two blocks.

    Args:
        tasks: Starts the next task at each request.
        options: The limits.
        scope: The scope of the tasks.
        most: Largest number of tasks at a time. Default: the number of CPUs, but at least 2.
    """
    most = most or max(2, int(count_cpus()))
    if options.max_blocks_in_flight is not None:
        most = max(1, min(most, options.max_blocks_in_flight // (MOST_AHEAD // 2)))
    running: deque[Any] = deque(itertools.islice(tasks, most))
    while running:
        yield from list_blocks(running.popleft(), scope)
        running.extend(itertools.islice(tasks, 1))


def _submit(task: Task, read: block_reads.Read, number: int, work: contract.ObjectRef[_Work]) -> list[contract.AnyRef]:
    refs: list[contract.AnyRef]
    if isinstance(read, block_reads.Stored):
        refs = task.remote(read.ref, (read.start, read.stop), number, work)
    else:
        refs = task.remote(read.block if isinstance(read, block_reads.Held) else read, None, number, work)
    return refs


def pump(
    tasks: Iterator[list[contract.AnyRef]], options: settings.ExecutionOptions, scope: scopes.Scope
) -> Iterator[block_reads.Stored]:
    """Start tasks as the limits allow, and yield their blocks, in order.

    Args:
        tasks: Starts the next task at each request, and yields the references to its block and size.
        options: The limits.
        scope: The scope of the tasks.
    """
    for (ref,), size in run_ahead(tasks, options, scope):
        yield block_reads.Stored(ref, size.num_bytes, 0, size.num_rows, size.types, size.left_out)


def run_ahead(
    tasks: Iterator[list[contract.AnyRef]], options: settings.ExecutionOptions, scope: scopes.Scope
) -> Iterator[tuple[list[contract.AnyRef], Size]]:
    """Start tasks as the limits allow, and yield the references of each, in order, with its size. The size is a task's
    last reference."""
    most = options.max_blocks_in_flight or max(2, 2 * int(count_cpus()))
    running: deque[list[Any]] = deque()
    largest = 0
    is_over = False
    while True:
        # Two blocks are enough to learn the size.
        allowed = most if largest else 2
        while (
            not is_over
            and len(running) < min(most, allowed)
            and (not running or largest * (len(running) + 1) <= options.get_bytes_in_flight())
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
        scope.release(size_ref)
        largest = max(largest, size.num_bytes, 1)
        yield refs, size
