"""Tasks that make blocks, in every kind of execution, and how many of them run ahead of the reader."""

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
from hocket.data import block_reads, blocks, plan, scans, settings
from hocket.data import steps as steps_module
from hocket.engine import contract

MOST_AHEAD: Final = 4
"""How many objects of a task that makes several blocks wait for their reader: two blocks and their sizes. A guess."""


class Task(Protocol):
    """A remote function as `make_task` makes it: how many references a call returns is not in its type."""

    def remote(self, *args: Any) -> Any:
        """Start a call."""


@final
@dataclass(frozen=True, slots=True)
class Size:
    """A task's record of its block."""

    num_rows: int
    num_bytes: int
    types: blocks.Types
    """What its columns hold."""
    left_out: tuple[str, ...] = ()
    """Files that could not be read for it, and that the program does not want to hear of."""
    number: int = 0
    """Of a read that gives several blocks: which one it is, among those of all reads."""


def measure(block: blocks.Block) -> Size:
    """Return the record of a block."""
    return Size(block.num_rows, block.count_bytes(), block.find_types())


@final
@dataclass(frozen=True, slots=True)
class _Work:
    """The operations that tasks carry out on blocks."""

    steps: tuple[plan.Step, ...]
    context: settings.DataContext
    """The settings that the plan is executed with."""

    def take(self, block: blocks.Block, number: int) -> tuple[blocks.Block, Size]:
        """Return what becomes of a block."""
        for step in self.steps:
            block = step.take(block, number)
        if self.context.execution_options.memory_limit is not None:
            give_memory_back()
        return block, measure(block)


def _run(
    read: block_reads.Read | blocks.Block, part: tuple[int, int] | None, number: int, work: _Work
) -> tuple[blocks.Block, Size]:
    """Read a block and take its steps. Runs in a task."""
    with settings.lend(work.context), settings.collect_left_out() as left_out:
        found = _scan(read, work.steps) if part is None else None
        if found is not None:
            block, size = replace(work, steps=work.steps[found[1] :]).take(found[0], number)
        else:
            block = read if isinstance(read, blocks.Block) else read()
            block, size = work.take(block if part is None else block.cut(*part), number)
        return block, replace(size, left_out=tuple(left_out))


def _scan(read: block_reads.Read | blocks.Block, steps: Sequence[plan.Step]) -> tuple[blocks.Block, int] | None:
    """Return what the first steps make of a read, and how many they are, if the engine for tables does all of them, and
    reads the file itself."""
    at = next((at for at, step in enumerate(steps) if step.take_scan is not None), None)
    if at is None or isinstance(read, blocks.Block):
        return None
    scan = plan.scan_steps(scans.open_scan([read]), steps[:at])
    take = steps[at].take_scan
    return None if scan is None or take is None else (take(scan), at + 1)


def _run_all(read: block_reads.ManyRead, number: int, work: _Work) -> Iterator[blocks.Block | Size]:
    """Read all blocks and take the steps of each; each is followed by its size. Runs in a task."""
    found = read.iter_blocks()
    for at in itertools.count():
        with (
            settings.lend(work.context),
            settings.collect_left_out() as left_out,
        ):  # not while it waits: its reader has its own
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
    """The results of a function for the groups of a block, in blocks of about the usual size: only one of these, or the
    result of one group, is in memory at once."""

    read: block_reads.Read
    step: plan.Step
    context: settings.DataContext

    num_rows: None = None
    num_bytes: None = None

    def __call__(self) -> blocks.Block:
        return blocks.join(list(self.iter_blocks()) or [blocks.Block({}, 0)])

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Give them, in order."""
        there = block_reads.Held | block_reads.Stored | block_reads.Filed
        block = fetch(self.read) if isinstance(self.read, there) else self.read()
        made: list[blocks.Block] = []
        num_bytes = 0
        for group in steps_module.iter_groups(block, self.step.apply):
            made.append(self.step.take(group, 0))
            num_bytes += made[-1].count_bytes()
            if num_bytes >= self.context.get_block_bytes():
                yield blocks.join(made)
                made, num_bytes = [], 0
        if made or not block.num_rows:
            yield blocks.join(made or [self.step.take(block, 0)])


def give_memory_back() -> None:
    """Give the system back what this process has freed and keeps for later."""
    pa = sys.modules.get("pyarrow")
    if pa is not None:
        pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def fetch(found: block_reads.Held | block_reads.Stored | block_reads.Filed) -> blocks.Block:
    """Return a block. Its columns look into the engine's memory where they can."""
    if not isinstance(found, block_reads.Stored):
        return found()
    block: blocks.Block = api.get(found.ref)
    return block.cut(found.start, found.stop)


def check_store(options: settings.ExecutionOptions) -> None:
    """Raise if the session's store may hold more than the limit leaves for rows that are kept."""
    most = options.get_store_memory()
    if most is None:
        return
    held = int(session.get_engine().resources.get_total_resources().get("object_store_memory", 0))
    if held > most:
        raise ValueError(
            f"ExecutionOptions(memory_limit={options.memory_limit}) was given, but this keeps rows in the session's "
            f"store, which may have {held:,} bytes in memory, and a sixth of the limit is {most:,}. Start the "
            f"session with hocket.init(object_store_memory={most}), or raise the limit to {6 * held}."
        )


def count_cpus() -> float:
    """Return how many CPUs the session has, opening a session if there is none."""
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
    """Return a function as tasks that are called by what they do, and that end with their scope."""
    if api.get_runtime_context().get_actor_id() is not None:
        # the actor keeps its CPUs while it waits, as a training rank does: were there no others, it would wait for ever
        num_cpus = 0
    made: Task = api.remote(num_returns=num_returns, num_cpus=num_cpus, name=f"data: {name}", **more)(function)
    return made if scope is None else scope.bind(made)


def make_many(scope: scopes.Scope, function: object, name: str, num_cpus: float = 1.0, **more: object) -> Task:
    """Return a function that gives blocks, each before its size, as tasks that wait for their reader."""
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
    """Give what steps make of blocks.

    Args:
        reads: The blocks. Those that are there already are given as they are, if there is no step.
        steps: What is done to each.
        options: The limits.
        scope: Of the execution.
        keeps_numbers: Whether steps are given the numbers that blocks have as those of reads. If not, blocks are
            counted.
    """
    if not steps:
        first = next(reads, None)
        if first is None:
            return
        reads = itertools.chain((first,), reads)
        if isinstance(first, block_reads.Held | block_reads.Stored):  # a source is of one kind
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
    if steps and steps_module.takes_groups(steps[0].apply):
        reads = map(functools.partial(_GroupsRead, step=steps[0], context=context), reads)
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
    """Give the blocks of a task that yields each before its size."""
    for ref in made:
        size: Size = api.get(next(made, ref))  # the last of a task that failed is its error, alone
        yield block_reads.Stored(ref, size.num_bytes, 0, size.num_rows, size.types, size.left_out, size.number)
    scope.release(made)


def read_ahead(
    tasks: Iterator[object], options: settings.ExecutionOptions, scope: scopes.Scope, most: int | None = None
) -> Iterator[block_reads.Stored]:
    """Give the blocks of tasks that make several each, in order. Some tasks run ahead, and wait for the reader when
    they have made two blocks.

    Args:
        tasks: Starts one each time that it is asked for one.
        options: The limits.
        scope: Has started them.
        most: How many run at once. Default: as many as there are CPUs, but two at least.
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
    """Start tasks as the limits allow, and give what they make, in order.

    Args:
        tasks: Starts one each time that it is asked for one; it returns the references on its block and its size.
        options: The limits.
        scope: Has started them.
    """
    for (ref,), size in run_ahead(tasks, options, scope):
        yield block_reads.Stored(ref, size.num_bytes, 0, size.num_rows, size.types, size.left_out)


def run_ahead(
    tasks: Iterator[list[contract.AnyRef]], options: settings.ExecutionOptions, scope: scopes.Scope
) -> Iterator[tuple[list[contract.AnyRef], Size]]:
    """Start tasks as the limits allow, and give what each of them returns, with its size, in order. The size is the
    last of a task's references."""
    most = options.max_blocks_in_flight or max(2, 2 * int(count_cpus()))
    running: deque[list[Any]] = deque()
    largest = 0
    is_over = False
    while True:
        # Before anything is known of sizes, two are enough to learn it.
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
