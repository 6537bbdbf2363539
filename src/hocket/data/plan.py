"""What a data set is before it is executed: where blocks come from, and what is done to each.

A *read* gives one block. A *step* makes a block of a block, and steps that follow one another run in one task. A *rearrangement* needs all blocks before
it: the new order of rows is computed from their numbers, and each new block gathers its rows. Joins, groups, sorting and writing will be steps and
rearrangements too.

Everything here is pickled and sent to tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, final

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


def name_function(function: Callable[..., Any]) -> str:
    """Return how a user's function is called in messages."""
    return str(getattr(function, "__qualname__", None) or repr(function)).replace("<locals>.", "")


@final
@dataclass(frozen=True, kw_only=True)
class MapBatches:
    """Calls a user's function with batches of a block."""

    function: Callable[..., Any]
    batch_size: int | None
    batch_format: str
    is_shared: bool
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, block: blocks.Block) -> blocks.Block:
        size = self.batch_size or max(1, block.num_rows)
        parts = [
            part for start in range(0, block.num_rows, size) for part in self._call(block.cut(start, start + size))
        ]
        return blocks.join(parts) if len(parts) > 1 else parts[0] if parts else blocks.Block({}, 0)

    def _call(self, part: blocks.Block) -> Iterator[blocks.Block]:
        if not self.is_shared:
            part = blocks.join([part])
        name = name_function(self.function)
        result = self.function(part.to_batch(self.batch_format, is_owned=not self.is_shared), *self.args, **self.kwargs)
        what = f"What map_batches(`{name}`) returns"
        if isinstance(result, Iterator):
            for one in result:
                yield blocks.build_from_batch(one, what)
        else:
            yield blocks.build_from_batch(result, what)


@final
@dataclass(frozen=True)
class MapRows:
    """Calls a user's function with each row."""

    function: Callable[..., Any]

    def __call__(self, block: blocks.Block) -> blocks.Block:
        rows = [self.function(row) for row in block.list_rows()]
        return blocks.build_from_rows(rows, f"What map(`{name_function(self.function)}`) returns")


@final
@dataclass(frozen=True)
class FlatMapRows:
    """Calls a user's function with each row, and takes all rows that it returns."""

    function: Callable[..., Any]

    def __call__(self, block: blocks.Block) -> blocks.Block:
        what = f"What flat_map(`{name_function(self.function)}`) returns"
        rows: list[Any] = []
        for row in block.list_rows():
            result = self.function(row)
            if not isinstance(result, Sequence) or isinstance(result, str):
                raise TypeError(
                    f"{what} must be a list of rows, but is a {type(result).__name__}: {result!r:.80}. Write return [row]."
                )
            rows += result
        return blocks.build_from_rows(rows, what)


@final
@dataclass(frozen=True)
class FilterRows:
    """Keeps the rows of which a user's function says so."""

    function: Callable[..., Any]

    def __call__(self, block: blocks.Block) -> blocks.Block:
        kept = [at for at, row in enumerate(block.list_rows()) if self._asks(row)]
        return block.pick(np.array(kept, np.int64))

    def _asks(self, row: blocks.Row) -> bool:
        answer = self.function(row)
        if not isinstance(answer, bool | np.bool_):
            raise TypeError(
                f"What filter(`{name_function(self.function)}`) returns must be True or False, but is a {type(answer).__name__}: {answer!r:.80}. Write for "
                "example return row['x'] > 0."
            )
        return bool(answer)


@final
@dataclass(frozen=True)
class SelectColumns:
    """Keeps some columns."""

    names: tuple[str, ...]

    def __call__(self, block: blocks.Block) -> blocks.Block:
        return block.select(self.names) if block.columns else block


@final
@dataclass(frozen=True)
class DropColumns:
    """Leaves some columns out."""

    names: tuple[str, ...]

    def __call__(self, block: blocks.Block) -> blocks.Block:
        if not block.columns:
            return block
        blocks.check_columns(self.names, list(block.columns))
        kept = [name for name in block.columns if name not in self.names]
        if not kept:
            raise ValueError(
                f"drop_columns({list(self.names)!r}) leaves no column, and rows cannot be counted without one. Keep at least one."
            )
        return block.select(kept)


@final
@dataclass(frozen=True)
class RenameColumns:
    """Gives columns other names."""

    names: Mapping[str, str]

    def __call__(self, block: blocks.Block) -> blocks.Block:
        if not block.columns:
            return block
        blocks.check_columns(list(self.names), list(block.columns))
        renamed = [self.names.get(name, name) for name in block.columns]
        if len(set(renamed)) < len(renamed):
            raise ValueError(
                f"rename_columns({dict(self.names)!r}) gives two columns one name: {renamed}. Choose other names."
            )
        return blocks.Block(dict(zip(renamed, block.columns.values(), strict=True)), block.num_rows)


@final
@dataclass(frozen=True, kw_only=True)
class AddColumn:
    """Adds what a user's function makes of each block."""

    name: str
    function: Callable[..., Any]
    batch_format: str

    def __call__(self, block: blocks.Block) -> blocks.Block:
        if not block.columns:
            return block
        what = f"add_column({self.name!r}, `{name_function(self.function)}`)"
        added = blocks.build({self.name: self.function(block.to_batch(self.batch_format))}, what)
        if added.num_rows != block.num_rows:
            raise ValueError(
                f"{what} returned {added.num_rows} values for {block.num_rows} rows. Return one for each row."
            )
        return blocks.Block({**block.columns, **added.columns}, block.num_rows)


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


def cut_evenly(num_rows: int, count: int) -> list[tuple[int, int]]:
    """Return where parts begin and end that differ by a row at most. Empty ones are left out."""
    ends = [num_rows * number // count for number in range(count + 1)]
    return [(start, stop) for start, stop in itertools.pairwise(ends) if stop > start]


def cut_block(block: blocks.Block, most_bytes: int, num_blocks: int | None = None) -> list[Held]:
    """Return a block in parts that tasks work on alone.

    Args:
        block: The block.
        most_bytes: How large a part may be.
        num_blocks: How many parts; None: as many as the bytes say, and at least 8 if each still has a few thousand rows or 1 MiB.
    """
    if num_blocks is None:
        size = block.count_bytes()
        num_blocks = max(1, -(-size // most_bytes), min(8, max(size >> 20, block.num_rows >> 12)))
    return [Held(block.cut(start, stop)) for start, stop in cut_evenly(block.num_rows, num_blocks)] or [Held(block)]


_ROW_BY_ROW = (MapRows, SelectColumns, DropColumns, RenameColumns)


@final
@dataclass(frozen=True)
class Cut:
    """Leaves the first rows of each block."""

    limit: int

    def __call__(self, block: blocks.Block) -> blocks.Block:
        return block.cut(0, self.limit)


def limit_rows(ops: Sequence[Op], limit: int) -> list[Op]:
    """Return operations whose first rows, up to `limit`, are those of the given ones, without work on rows of a block that come later.

    Only the steps at the end that make each row from one row, in order, can do with fewer.
    """
    at = len(ops)
    while at and isinstance(ops[at - 1], Step) and isinstance(ops[at - 1].apply, _ROW_BY_ROW):  # type: ignore[union-attr]
        at -= 1
    if at == len(ops):
        return list(ops)
    return [*ops[:at], Step(apply=Cut(limit), name="take", keeps_rows=False), *ops[at:]]
