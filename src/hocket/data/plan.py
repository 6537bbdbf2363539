"""The plan of a data set: the sources of its blocks, and the operations on each.

A *read* gives one block (`block_reads`). A *step* makes a block of a block, and steps that follow one another run in
one task; a *pool* is a step that actors do. A *rearrangement* needs all blocks before it: the new order of rows is
computed from their numbers, and each new block gathers its rows. A *relation* needs all blocks too, also of other
plans: an engine for tables sorts, joins or groups them (`relations`).

Everything here is pickled and sent to tasks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket.data import block_reads, blocks, order, relations, scans, steps

BLOCKS_PER_ACTOR: Final = 2
"""How many blocks an actor has at once: the one that it works on, and the next."""

# --- steps ------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """Something that is done to each block alone."""

    apply: Callable[..., blocks.Block]
    name: str
    keeps_rows: bool
    """Whether a block has as many rows afterwards."""
    num_cpus: float = 1.0
    """How many CPUs the task holds that does it."""
    is_numbered: bool = False
    """Whether `apply` takes the number of the block, too."""
    concurrency: int | None = None
    """How many tasks do it at once at most."""
    resources: Mapping[str, object] = field(default_factory=dict)
    """What the task holds besides: options of a task."""
    columns: tuple[str, ...] | None = None
    """The columns that it looks at, if it leaves no other; None: nobody knows."""
    calls_function: bool = False
    """Whether it calls a function of the program's."""
    scan: Callable[[Any], scans.Scan | None] | None = None
    """Returns what it makes of a scan; None where that is no scan."""
    take_scan: Callable[[scans.Scan], blocks.Block] | None = None
    """Returns what it makes of the one block that a scan reads, in place of `apply`."""

    def take(self, block: blocks.Block, number: int) -> blocks.Block:
        """Return what becomes of a block."""
        if self.calls_function:
            return steps.call(self.apply, block)
        return self.apply(block, number) if self.is_numbered else self.apply(block)


@final
@dataclass(frozen=True, kw_only=True)
class Pool:
    """A step that needs something which takes long to make, such as a model: actors make it once each."""

    make: Callable[[], Callable[..., object]]
    """Makes the function."""
    bind: Callable[[Callable[..., object]], Callable[[blocks.Block], blocks.Block]]
    """Returns what is done to a block with it."""
    name: str
    keeps_rows: bool
    least: int
    most: int
    """How many actors there are."""
    resources: Mapping[str, object]
    """What each holds: options of an actor."""
    num_cpus: float
    """How many CPUs are among it."""
    blocks_per_actor: int = BLOCKS_PER_ACTOR
    """How many blocks each has at once."""


# --- rearrangements ---------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Drawn:
    """Which rows stand in a part of an order. They are computed where they are needed.

    Args:
        seed: Which order.
        num_rows: How many rows there are.
        start: Where the part begins.
        stop: Where it ends.
    """

    seed: int
    num_rows: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def open_order(self) -> order.Order:
        """Return the order."""
        return order.Order(self.num_rows, seed=self.seed, epoch=0)

    def list_rows(self) -> npt.NDArray[np.int64]:
        """Return the rows."""
        return self.open_order().rows(np.arange(self.start, self.stop))


Rows: TypeAlias = Drawn | range
"""The numbers of the rows of a new block."""


@final
@dataclass(frozen=True)
class Shuffle:
    """All rows in another order."""

    seed: int

    def rearrange(self, sizes: Sequence[int]) -> list[Drawn]:
        """Return which rows the new blocks have, of blocks of these sizes. There are as many, and as large."""
        ends = np.cumsum([0, *(size for size in sizes if size)]).tolist()
        return [Drawn(self.seed, ends[-1], start, stop) for start, stop in itertools.pairwise(ends)]


@final
@dataclass(frozen=True)
class Repartition:
    """The same rows in another number of blocks, which differ by a row at most; or in blocks of so many rows.

    Args:
        num_blocks: How many blocks.
        num_rows: How many rows a block has, but for the last; in the place of `num_blocks`.
        least_rows: How many rows a block has at least, but for the last: whole blocks are put together for it.
    """

    num_blocks: int | None = None
    num_rows: int | None = None
    least_rows: int | None = None

    def rearrange(self, sizes: Sequence[int]) -> list[range]:
        """Return which rows the new blocks have."""
        total = sum(sizes)
        if self.least_rows is not None:
            return list(_put_together(sizes, self.least_rows))
        if self.num_rows is not None:
            return [range(start, min(start + self.num_rows, total)) for start in range(0, total, self.num_rows)]
        return [range(start, stop) for start, stop in block_reads.cut_evenly(total, self.num_blocks or 1)]


@final
@dataclass(frozen=True)
class BlockOrder:
    """The same blocks in another order; the rows of each stay where they are."""

    seed: int


# --- more than one plan -----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Limit:
    """The first rows. What makes the others is not begun, but for what runs ahead."""

    num_rows: int


@final
@dataclass(frozen=True)
class Union:
    """The rows of other plans after those before."""

    others: tuple[Plan, ...]


@final
@dataclass(frozen=True)
class Zip:
    """The columns of other plans beside those before: they have as many rows."""

    others: tuple[Plan, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Relation:
    """A query of an engine for tables over all rows."""

    query: relations.Query
    others: tuple[Plan, ...] = ()
    """The other tables, if the query has more than one."""


Op: TypeAlias = Step | Pool | Shuffle | Repartition | BlockOrder | Limit | Union | Zip | Relation


def describe(op: Op) -> str:
    """Return what an operation is called where a plan is shown."""
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
    """Return whether it is known that an operation makes the same rows of the same rows each time: of a function of the
    program's, which may draw numbers or ask another machine, nobody knows it."""
    match op:
        case Step():
            return not op.calls_function
        case Pool():
            return False
        case Union() | Zip() | Relation():
            return all(is_exact(inner) for other in op.others for inner in other.ops)
        case _:
            return True


@final
@dataclass(frozen=True)
class Plan:
    """Where the blocks of a data set come from, and what is done to them."""

    reads: tuple[block_reads.Read, ...]
    ops: tuple[Op, ...]

    def get_optional_count(self) -> int | None:
        """Return how many rows there will be; None if that is known only when it is executed."""
        sizes = [read.num_rows for read in self.reads]
        if None in sizes:
            return None
        count: int | None = sum(size or 0 for size in sizes)
        for op in self.ops:
            count = _count_after(op, count)
        return count

    def get_optional_sizes(self) -> list[int | None] | None:
        """Return how many rows each block will have, None of those of which that is not known; None if not even the
        number of blocks is known before the plan is executed. A read that gives several counts as one."""
        sizes: _Sizes = [None if block_reads.gives_many(read) else read.num_rows for read in self.reads]
        for at, op in enumerate(self.ops):
            sizes = _list_sizes_after(op, sizes, Plan(self.reads, self.ops[:at]).get_optional_count())
        return sizes

    def list_reads(self) -> Iterator[block_reads.Read]:
        """Give all reads, also those of other plans that operations join to this one."""
        yield from self.reads
        for op in self.ops:
            if isinstance(op, Union | Zip | Relation):
                yield from itertools.chain.from_iterable(other.list_reads() for other in op.others)

    def find_scan(self) -> tuple[scans.Scan, int] | None:
        """Return what the engine for tables can read itself of the tables of this plan, up to its first operation that
        is no step, and how many operations that is; None if it cannot."""
        count = sum(1 for _ in itertools.takewhile(lambda op: isinstance(op, Step), self.ops))
        found = scan_steps(scans.open_scan(self.reads), [op for op in self.ops[:count] if isinstance(op, Step)])
        return None if found is None else (found, count)

    def narrow(self) -> Plan:
        """Return a plan that reads only the columns that its first operation looks at, if it is known which."""
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
        """Return a plan that has the same first rows, up to `limit`, without work on rows of a block that come later.

        Only the steps at the end that make each row from one row, in order, can do with fewer.
        """
        at = len(self.ops)
        while at and _is_row_by_row(self.ops[at - 1]):
            at -= 1
        if at == len(self.ops):
            return self
        step = Step(apply=functools.partial(steps.cut_rows, limit), name="take", keeps_rows=False)
        return Plan(self.reads, (*self.ops[:at], step, *self.ops[at:]))


def scan_steps(scan: scans.Scan | None, taken: Sequence[Step]) -> scans.Scan | None:
    """Return what steps make of a scan; None if that is none."""
    for step in taken:
        if scan is None or step.scan is None:
            return None
        found = step.scan(scan)
        scan = None if found is None else found.then(step)
    return scan


def _is_row_by_row(op: Op) -> bool:
    return isinstance(op, Step) and isinstance(op.apply, functools.partial) and op.apply.func in steps.ROW_BY_ROW


def _count_after(op: Op, count: int | None) -> int | None:
    """Return how many rows an operation leaves of so many; None if that is not known."""
    match op:
        case Step() | Pool():
            return count if op.keeps_rows else None
        case Limit():
            return None if count is None else min(count, op.num_rows)
        case Union():
            counts = [count, *(other.get_optional_count() for other in op.others)]
            return None if None in counts else sum(one or 0 for one in counts)
        case Zip():
            different = {count, *(other.get_optional_count() for other in op.others)}
            return count if len(different) == 1 else None  # of others nobody knows whether they have as many rows
        case Relation():
            return count if op.query.keeps_rows else None
        case _:
            return count


_Sizes: TypeAlias = list[int | None] | None
"""The sizes of blocks, as `Plan.get_optional_sizes` returns them."""


def _list_sizes_after(op: Op, sizes: _Sizes, count: int | None) -> _Sizes:
    """Return the sizes of the blocks that an operation makes of some, which have so many rows together."""
    match op:
        case Repartition() if op.least_rows is None:
            return None if count is None else [len(rows) for rows in op.rearrange([count])]
        case Step() | Pool():
            return sizes if sizes is None or op.keeps_rows else [None for _ in sizes]
        case Union():
            others = [sizes, *(other.get_optional_sizes() for other in op.others)]
            return None if None in others else [size for one in others for size in one or ()]
        case Relation():
            return None
    if sizes is None or None in sizes:  # which blocks are empty, and are left out, is not known
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
    """Give which rows parts have that are whole blocks, and so many of them that they have enough rows."""
    start = stop = 0
    for size in sizes:
        stop += size
        if stop - start >= least:
            yield range(start, stop)
            start = stop
    if stop > start:
        yield range(start, stop)
