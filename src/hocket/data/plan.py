"""What a data set is before it is executed: where blocks come from, and what is done to each.

A *read* gives one block. A *step* makes a block of a block, and steps that follow one another run in one task. A
*rearrangement* needs all blocks before it: the new order of rows is computed from their numbers, and each new block
gathers its rows. Joins, groups, sorting and writing will be steps and rearrangements too.

Everything here is pickled and sent to tasks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket.data import blocks, order
from hocket.engine import contract


class Read(Protocol):
    """Where a block comes from. Runs in a task."""

    @property
    def num_rows(self) -> int | None:
        """How many rows the block has; None if that is known only when it is read."""

    @property
    def num_bytes(self) -> int | None:
        """About how much memory it takes; None if nothing is known."""

    def __call__(self) -> blocks.Block:
        """Read it."""


@final
@dataclass(frozen=True)
class Held:
    """A block that this process has."""

    block: blocks.Block

    @property
    def num_rows(self) -> int:
        return self.block.num_rows

    @property
    def num_bytes(self) -> int:
        return self.block.count_bytes()

    def __call__(self) -> blocks.Block:
        return self.block


@final
@dataclass(frozen=True)
class Stored:
    """Rows of a block that the engine has."""

    ref: contract.ObjectRef[blocks.Block]
    num_bytes: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    def __call__(self) -> blocks.Block:
        raise AssertionError("the engine hands the block to the task")


@final
@dataclass(frozen=True)
class RangeRead:
    """Numbers in a row."""

    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    @property
    def num_bytes(self) -> int:
        return 8 * self.num_rows

    def __call__(self) -> blocks.Block:
        return blocks.Block({"id": np.arange(self.start, self.stop)}, self.num_rows)


# --- steps ------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class Step:
    """Something that is done to each block alone."""

    apply: Callable[[blocks.Block], blocks.Block]
    name: str
    keeps_rows: bool
    """Whether a block has as many rows afterwards."""
    num_cpus: float = 1.0
    """How many CPUs the task holds that does it."""


def name_function(function: Callable[..., object]) -> str:
    """Return how a user's function is called in messages."""
    return str(getattr(function, "__qualname__", None) or repr(function)).replace("<locals>.", "")


def map_batches(
    block: blocks.Block,
    *,
    function: Callable[..., object],
    batch_size: int | None,
    batch_format: str,
    is_shared: bool,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> blocks.Block:
    """Call a user's function with batches of a block."""
    size = batch_size or max(1, block.num_rows)
    what = f"What map_batches(`{name_function(function)}`) returns"
    made: list[blocks.Block] = []
    for start in range(0, block.num_rows, size):
        part = block.cut(start, start + size)
        if not is_shared:
            part = blocks.join([part])
        result = function(part.to_batch(batch_format, is_owned=not is_shared), *args, **kwargs)
        results = result if isinstance(result, Iterator) else (result,)
        made += [blocks.build_from_batch(one, what) for one in results]
    return blocks.join(made) if len(made) > 1 else made[0] if made else blocks.Block({}, 0)


def map_rows(function: Callable[..., object], block: blocks.Block) -> blocks.Block:
    """Call a user's function with each row."""
    rows = [function(row) for row in block.list_rows()]
    return blocks.build_from_rows(rows, f"What map(`{name_function(function)}`) returns")


def flat_map_rows(function: Callable[..., object], block: blocks.Block) -> blocks.Block:
    """Call a user's function with each row, and take all rows that it returns."""
    what = f"What flat_map(`{name_function(function)}`) returns"
    rows: list[object] = []
    for row in block.list_rows():
        result = function(row)
        if not isinstance(result, Sequence) or isinstance(result, str):
            raise TypeError(
                f"{what} must be a list of rows, but is a {type(result).__name__}: {result!r:.80}. Write return [row]."
            )
        rows += result
    return blocks.build_from_rows(rows, what)


def filter_rows(function: Callable[..., object], block: blocks.Block) -> blocks.Block:
    """Keep the rows of which a user's function says so."""
    kept = [at for at, row in enumerate(block.list_rows()) if _says_yes(function, row)]
    return block.pick(np.array(kept, np.int64))


def _says_yes(function: Callable[..., object], row: blocks.Row) -> bool:
    answer = function(row)
    if not isinstance(answer, bool | np.bool_):
        raise TypeError(
            f"What filter(`{name_function(function)}`) returns must be True or False, but is a "
            f"{type(answer).__name__}: {answer!r:.80}. Write for example return row['x'] > 0."
        )
    return bool(answer)


def select_columns(names: tuple[str, ...], block: blocks.Block) -> blocks.Block:
    """Keep some columns."""
    return block.select(names) if block.columns else block


def drop_columns(names: tuple[str, ...], block: blocks.Block) -> blocks.Block:
    """Leave some columns out."""
    if not block.columns:
        return block
    blocks.check_columns(names, list(block.columns))
    kept = [name for name in block.columns if name not in names]
    if not kept:
        raise ValueError(
            f"drop_columns({list(names)!r}) leaves no column, and rows cannot be counted without one. Keep at least "
            "one."
        )
    return block.select(kept)


def rename_columns(names: Mapping[str, str], block: blocks.Block) -> blocks.Block:
    """Give columns other names."""
    if not block.columns:
        return block
    blocks.check_columns(list(names), list(block.columns))
    renamed = [names.get(name, name) for name in block.columns]
    if len(set(renamed)) < len(renamed):
        raise ValueError(f"rename_columns({dict(names)!r}) gives two columns one name: {renamed}. Choose other names.")
    return blocks.Block(dict(zip(renamed, block.columns.values(), strict=True)), block.num_rows)


def add_column(block: blocks.Block, *, name: str, function: Callable[..., object], batch_format: str) -> blocks.Block:
    """Add what a user's function makes of a block."""
    if not block.columns:
        return block
    what = f"add_column({name!r}, `{name_function(function)}`)"
    added = blocks.build({name: function(block.to_batch(batch_format))}, what)
    if added.num_rows != block.num_rows:
        raise ValueError(f"{what} returned {added.num_rows} values for {block.num_rows} rows. Return one for each row.")
    return blocks.Block({**block.columns, **added.columns}, block.num_rows)


def cut_rows(limit: int, block: blocks.Block) -> blocks.Block:
    """Leave the first rows of a block."""
    return block.cut(0, limit)


_ROW_BY_ROW = (map_rows, select_columns, drop_columns, rename_columns)


# --- rearrangements ---------------------------------------------------------------------------------------------------

Rows: TypeAlias = npt.NDArray[np.int64] | range
"""The numbers of the rows of a new block."""


@final
@dataclass(frozen=True)
class Shuffle:
    """All rows in another order."""

    seed: int

    def rearrange(self, sizes: Sequence[int]) -> list[Rows]:
        """Return which rows the new blocks have, of blocks of these sizes. There are as many, and as large."""
        total = sum(sizes)
        if not total:
            return []
        shuffled = order.Order(total, seed=self.seed, epoch=0)
        ends = np.cumsum(sizes)
        return [shuffled.rows(np.arange(end - size, end)) for size, end in zip(sizes, ends, strict=True) if size]


@final
@dataclass(frozen=True)
class Repartition:
    """The same rows in another number of blocks, which differ by a row at most."""

    num_blocks: int

    def rearrange(self, sizes: Sequence[int]) -> list[Rows]:
        """Return which rows the new blocks have."""
        return [range(start, stop) for start, stop in cut_evenly(sum(sizes), self.num_blocks)]


Op: TypeAlias = Step | Shuffle | Repartition


@final
@dataclass(frozen=True)
class Plan:
    """Where the blocks of a data set come from, and what is done to them."""

    reads: tuple[Read, ...]
    ops: tuple[Op, ...]

    def get_optional_count(self) -> int | None:
        """Return how many rows there will be; None if that is known only when it is executed."""
        sizes = [read.num_rows for read in self.reads]
        changes = any(isinstance(op, Step) and not op.keeps_rows for op in self.ops)
        return None if changes or None in sizes else sum(size or 0 for size in sizes)

    def limit_rows(self, limit: int) -> Plan:
        """Return a plan that has the same first rows, up to `limit`, without work on rows of a block that come later.

        Only the steps at the end that make each row from one row, in order, can do with fewer.
        """
        at = len(self.ops)
        while at and _is_row_by_row(self.ops[at - 1]):
            at -= 1
        if at == len(self.ops):
            return self
        step = Step(apply=functools.partial(cut_rows, limit), name="take", keeps_rows=False)
        return Plan(self.reads, (*self.ops[:at], step, *self.ops[at:]))


def _is_row_by_row(op: Op) -> bool:
    return isinstance(op, Step) and isinstance(op.apply, functools.partial) and op.apply.func in _ROW_BY_ROW


def cut_evenly(num_rows: int, count: int) -> list[tuple[int, int]]:
    """Return where parts begin and end that differ by a row at most. Empty ones are left out."""
    ends = [num_rows * number // count for number in range(count + 1)]
    return [(start, stop) for start, stop in itertools.pairwise(ends) if stop > start]


def cut_block(block: blocks.Block, most_bytes: int, num_blocks: int | None = None) -> list[Held]:
    """Return a block in parts that tasks work on alone.

    Args:
        block: The block.
        most_bytes: How large a part may be.
        num_blocks: How many parts; None: as many as the bytes say, and at least 8 if each still has a few thousand rows
            or 1 MiB.
    """
    if num_blocks is None:
        size = block.count_bytes()
        num_blocks = max(1, -(-size // most_bytes), min(8, max(size >> 20, block.num_rows >> 12)))
    return [Held(block.cut(start, stop)) for start, stop in cut_evenly(block.num_rows, num_blocks)] or [Held(block)]
