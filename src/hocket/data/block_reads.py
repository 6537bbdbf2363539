"""Reads: the sources of a plan's blocks, which tasks call. `sources` has the reads of files and tables."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeGuard, final, runtime_checkable

import numpy as np

from hocket.data import blocks
from hocket.engine import contract


class Read(Protocol):
    """The source of one block. A task calls it."""

    @property
    def num_rows(self) -> int | None:
        """Number of rows of the block; None if only reading finds out."""

    @property
    def num_bytes(self) -> int | None:
        """Approximate memory of the block in bytes; None if unknown."""

    def __call__(self) -> blocks.Block:
        """Read the block."""


class ManyRead(Protocol):
    """The source of several blocks, one after the other. A task calls it."""

    @property
    def num_rows(self) -> int | None:
        """Number of rows of all blocks; None if only reading finds out."""

    @property
    def num_bytes(self) -> int | None:
        """Approximate memory of all blocks in bytes; None if unknown."""

    def __call__(self) -> blocks.Block:
        """Read all blocks, and join them into one."""

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Yield the blocks one by one."""


@runtime_checkable
class NarrowRead(Read, Protocol):
    """A read that can skip columns."""

    def narrow(self, names: Sequence[str]) -> Read | None:
        """Return a read of these columns alone; None if the source cannot do that."""


def gives_many(read: Read | ManyRead) -> TypeGuard[ManyRead]:
    """Return whether a read supplies several blocks."""
    return hasattr(read, "iter_blocks")


@final
@dataclass(frozen=True)
class Held:
    """A block in this process's memory."""

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
    """Rows of a block that the engine holds."""

    ref: contract.ObjectRef[blocks.Block]
    num_bytes: int
    start: int
    stop: int
    types: blocks.Types
    """Names and types of its columns."""
    left_out: tuple[str, ...] = ()
    """Files that could not be read, and whose rows the block lacks."""
    number: int = 0
    """Number of the block among the blocks of all reads, if its read supplies several."""

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    def __call__(self) -> blocks.Block:
        raise AssertionError("the engine hands the block to the task")


@final
@dataclass(frozen=True)
class Filed:
    """A block in a file, for ranks without an engine."""

    path: str
    num_rows: int
    num_bytes: int

    def __call__(self) -> blocks.Block:
        with Path(self.path).open("rb") as file:
            block: blocks.Block = pickle.load(file)
        return block


def file_block(block: blocks.Block, path: str) -> Filed:
    """Write a block to a file. The reader has to trust the file, which is a pickle."""
    with Path(path).open("wb") as file:
        pickle.dump(block, file, pickle.HIGHEST_PROTOCOL)
    return Filed(path, block.num_rows, block.count_bytes())


def store_block(ref: contract.ObjectRef[blocks.Block], held: Held) -> Stored:
    """Return the read of a block that the engine holds."""
    return Stored(ref, held.num_bytes, 0, held.num_rows, held.block.find_types())


@final
@dataclass(frozen=True)
class RangeRead:
    """Consecutive whole numbers."""

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


def cut_evenly(num_rows: int, count: int) -> list[tuple[int, int]]:
    """Return the begin and end of parts whose sizes differ by at most one row. Empty parts are left out."""
    count = min(count, max(num_rows, 1))
    ends = [num_rows * number // count for number in range(count + 1)]
    return [(start, stop) for start, stop in itertools.pairwise(ends) if stop > start]


def cut_block(block: blocks.Block, most_bytes: int, num_blocks: int | None = None) -> list[Held]:
    """Cut a block into parts for separate tasks.

    Args:
        block: The block.
        most_bytes: Largest size of a part.
        num_blocks: Number of parts. None: as many as `most_bytes` requires, but at least 8 if each part then still has
            a few thousand rows or 1 MiB.
    """
    if num_blocks is None:
        size = block.count_bytes()
        num_blocks = max(1, -(-size // most_bytes), min(8, max(size >> 20, block.num_rows >> 12)))
    return [Held(block.cut(start, stop)) for start, stop in cut_evenly(block.num_rows, num_blocks)] or [Held(block)]
