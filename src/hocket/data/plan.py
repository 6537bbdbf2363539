"""The plan of a dataset: the sources of its blocks, and the operations on them.

A *read* supplies one block (`block_reads`). A *step* makes one block from one block. One task runs successive steps. A
*pool* is a step that actors run. A *rearrangement* needs all blocks before it: it computes the new order of rows from
their numbers, and each new block gathers its rows. A *relation* needs all blocks too, also of other plans: the table
engine (DuckDB) sorts, joins or groups them (`relations`).

Everything here is pickled and sent to tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket.data import block_reads, blocks, order, relations, steps
from hocket.data.sources import scans

BLOCKS_PER_ACTOR: Final = 2
"""How many blocks an actor has at a time: the current and the next."""

# --- steps ------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """An operation on each block alone."""

    work: steps.Work
    name: str
    num_cpus: float = 1.0
    """How many CPUs a task of the step holds."""
    concurrency: int | None = None
    """Largest number of tasks of the step at a time."""
    resources: Mapping[str, object] = field(default_factory=dict)
    """Further resources that a task holds, as options of a task."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that the step reads, if its result has no others; None: unknown."""
        match self.work:
            case steps.SelectColumns(names):
                return names
            case steps.Summarize(columns=names):
                return names
            case _:
                return None

    def take(self, block: blocks.Block, number: int) -> blocks.Block:
        """Return the step's result for a block."""
        return steps.take(self.work, block, number)

    def extend(self, scan: scans.Scan) -> scans.Scan | None:
        """Return the scan that follows from one before the step; None where SQL has no equivalent."""
        match self.work:
            case steps.SelectColumns(names):
                found = scan.select(names)
            case steps.FilterExpression(expression):
                found = scan.filter(expression)
            case _:
                return None
        return None if found is None else found.then(self)


@final
@dataclass(frozen=True, kw_only=True)
class Pool:
    """A step whose function takes long to make, such as a model. Each actor of the pool makes it once."""

    make: Callable[[], Callable[..., object]]
    """Makes the function."""
    work: steps.Call
    """The step that calls the function, which an actor binds to it."""
    name: str
    least: int
    most: int
    """Largest number of actors; `least` is the smallest."""
    resources: Mapping[str, object]
    """Resources that each actor holds besides CPUs, as options of an actor."""
    num_cpus: float
    """How many CPUs each actor holds."""
    blocks_per_actor: int = BLOCKS_PER_ACTOR
    """How many blocks each actor has at a time."""


# --- rearrangements ---------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Drawn:
    """The rows of a part of an order. They are computed where they are needed.

    Args:
        seed: Selects the order.
        num_rows: Number of rows of the order.
        start: First position of the part.
        stop: Position after the part.
    """

    seed: int
    num_rows: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def open_order(self) -> order.Order:
        """Return the whole order."""
        return order.Order(self.num_rows, seed=self.seed, epoch=0)

    def list_rows(self) -> npt.NDArray[np.int64]:
        """Return the rows of the part."""
        return self.open_order().rows(np.arange(self.start, self.stop))


Rows: TypeAlias = Drawn | range
"""The numbers of the rows of a new block."""


@final
@dataclass(frozen=True)
class Shuffle:
    """All rows in another order."""

    seed: int

    def rearrange(self, sizes: Sequence[int]) -> list[Drawn]:
        """Return the rows of each new block. They are as many and as large as the old blocks that have rows."""
        ends = np.cumsum([0, *(size for size in sizes if size)]).tolist()
        return [Drawn(self.seed, ends[-1], start, stop) for start, stop in itertools.pairwise(ends)]


@final
@dataclass(frozen=True)
class Repartition:
    """The same rows in another number of blocks that differ by at most one row, or in blocks of a given length.

    Args:
        num_blocks: Number of blocks.
        num_rows: Number of rows of each block but the last. Replaces `num_blocks`.
        least_rows: Smallest number of rows of each block but the last. Whole blocks are put together to reach it.
    """

    num_blocks: int | None = None
    num_rows: int | None = None
    least_rows: int | None = None

    def rearrange(self, sizes: Sequence[int]) -> list[range]:
        """Return the rows of each new block."""
        total = sum(sizes)
        if self.least_rows is not None:
            return list(_put_together(sizes, self.least_rows))
        if self.num_rows is not None:
            return [range(start, min(start + self.num_rows, total)) for start in range(0, total, self.num_rows)]
        return [range(start, stop) for start, stop in block_reads.cut_evenly(total, self.num_blocks or 1)]


@final
@dataclass(frozen=True)
class BlockOrder:
    """The same blocks in another order. The rows of each block stay where they are."""

    seed: int


# --- more than one plan -----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Limit:
    """The first rows. Work on later rows is not begun, except by tasks that run ahead."""

    num_rows: int


@final
@dataclass(frozen=True)
class Union:
    """The rows of this plan, and then those of other plans."""

    others: tuple[Plan, ...]


@final
@dataclass(frozen=True)
class Zip:
    """The columns of this plan, and beside them those of other plans with equally many rows."""

    others: tuple[Plan, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Relation:
    """A query of the table engine over all rows."""

    query: relations.Query
    others: tuple[Plan, ...] = ()
    """The other tables, if the query has more than one."""


Op: TypeAlias = Step | Pool | Shuffle | Repartition | BlockOrder | Limit | Union | Zip | Relation


def describe(op: Op) -> str:
    """Return the name of an operation in a description of the plan."""
    match op:
        case Step() | Pool():
            return op.name
        case Relation():
            return op.query.name
        case Limit():
            return f"limit({op.num_rows})"
        case Shuffle() | BlockOrder():
            return f"{type(op).__name__.lower()}(seed={op.seed})"
        case _:
            return type(op).__name__.lower()


def is_exact(op: Op) -> bool:
    """Return whether an operation is known to make the same rows from the same rows each time. This is unknown for a
    user's function, which may draw random numbers or ask another machine."""
    match op:
        case Step():
            return not isinstance(op.work, steps.Call)
        case Pool():
            return False
        case Union() | Zip() | Relation():
            return all(is_exact(inner) for other in op.others for inner in other.ops)
        case _:
            return True


@final
@dataclass(frozen=True)
class Plan:
    """The sources of a dataset's blocks, and the operations on them."""

    reads: tuple[block_reads.Read, ...]
    ops: tuple[Op, ...]

    def get_optional_count(self) -> int | None:
        """Return the number of rows of the result; None if only execution finds out."""
        sizes = [read.num_rows for read in self.reads]
        if None in sizes:
            return None
        count: int | None = sum(size or 0 for size in sizes)
        for op in self.ops:
            count = _count_after(op, count)
        return count

    def get_optional_sizes(self) -> list[int | None] | None:
        """Return the number of rows of each block, None where unknown; None for the list if even the number of blocks
        is unknown before execution. A read that supplies several blocks counts as one."""
        sizes: _Sizes = [None if block_reads.gives_many(read) else read.num_rows for read in self.reads]
        for at, op in enumerate(self.ops):
            sizes = _list_sizes_after(op, sizes, Plan(self.reads, self.ops[:at]).get_optional_count())
        return sizes

    def list_reads(self) -> Iterator[block_reads.Read]:
        """Yield all reads, also those of other plans that operations join to this plan."""
        yield from self.reads
        for op in self.ops:
            if isinstance(op, Union | Zip | Relation):
                yield from itertools.chain.from_iterable(other.list_reads() for other in op.others)

    def find_scan(self) -> scans.Scan | None:
        """Return the scan that stands for this plan; None without one."""
        taken = [op for op in self.ops if isinstance(op, Step)]
        return scan_steps(scans.open_scan(self.reads), taken) if len(taken) == len(self.ops) else None

    def narrow(self) -> Plan:
        """Return a plan that reads only the columns that its first operation needs, if these are known."""
        first = self.ops[0] if self.ops else None
        names = (
            first.columns if isinstance(first, Step) else first.query.columns if isinstance(first, Relation) else None
        )
        if not names:
            return self
        reads = [read.narrow(names) if isinstance(read, block_reads.NarrowRead) else None for read in self.reads]
        found = [read for read in reads if read is not None]
        return Plan(tuple(found), self.ops) if len(found) == len(reads) else self

    def limit_rows(self, limit: int) -> Plan:
        """Return a plan with the same first `limit` rows. It does no work on later rows of a block.

        The limit is put before the row-by-row steps at the end. Each of these makes one row from one row, in order.
        """
        at = len(self.ops)
        while at and _is_row_by_row(self.ops[at - 1]):
            at -= 1
        if at == len(self.ops):
            return self
        step = Step(work=steps.CutRows(limit), name="take")
        return Plan(self.reads, (*self.ops[:at], step, *self.ops[at:]))


def scan_steps(scan: scans.Scan | None, taken: Sequence[Step]) -> scans.Scan | None:
    """Return the scan that follows from another one by steps; None without one."""
    for step in taken:
        if scan is None:
            return None
        scan = step.extend(scan)
    return scan


def _is_row_by_row(op: Op) -> bool:
    return isinstance(op, Step) and isinstance(op.work, steps.RowByRow)


def _count_after(op: Op, count: int | None) -> int | None:
    """Return the number of rows after an operation on `count` rows; None if unknown."""
    match op:
        case Step() | Pool():
            return count if steps.keeps_rows(op.work) else None
        case Limit():
            return None if count is None else min(count, op.num_rows)
        case Union():
            counts = [count, *(other.get_optional_count() for other in op.others)]
            return None if None in counts else sum(one or 0 for one in counts)
        case Zip():
            different = {count, *(other.get_optional_count() for other in op.others)}
            return count if len(different) == 1 else None  # an unknown count may differ from the others
        case Relation():
            return count if op.query.keeps_rows else None
        case _:
            return count


_Sizes: TypeAlias = list[int | None] | None
"""Sizes of blocks, as `Plan.get_optional_sizes` returns them."""


def _list_sizes_after(op: Op, sizes: _Sizes, count: int | None) -> _Sizes:
    """Return the sizes of the blocks after an operation on blocks of these sizes, which have `count` rows together."""
    match op:
        case Repartition() if op.least_rows is None:
            return None if count is None else [len(rows) for rows in op.rearrange([count])]
        case Step() | Pool():
            return sizes if sizes is None or steps.keeps_rows(op.work) else [None for _ in sizes]
        case Union():
            others = [sizes, *(other.get_optional_sizes() for other in op.others)]
            return None if None in others else [size for one in others for size in one or ()]
        case Relation():
            return None
    if sizes is None or None in sizes:  # empty blocks are left out, and which ones are empty is unknown
        return None
    known = [size for size in sizes if size is not None]
    if isinstance(op, Limit):
        return list(_cut_sizes(known, op.num_rows))
    if isinstance(op, Zip) and _count_after(op, count) is None:
        return None
    return [size for size in known if size]


def _cut_sizes(sizes: Sequence[int], left: int) -> Iterator[int]:
    for size in sizes:
        yield min(size, left)
        left -= min(size, left)
        if not left:
            return


def _put_together(sizes: Sequence[int], least: int) -> Iterator[range]:
    """Yield the rows of new blocks. Each joins whole blocks until it has enough rows."""
    start = stop = 0
    for size in sizes:
        stop += size
        if stop - start >= least:
            yield range(start, stop)
            start = stop
    if stop > start:
        yield range(start, stop)
