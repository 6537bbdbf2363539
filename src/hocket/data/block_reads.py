"""Where blocks come from: *reads*, which tasks call.

Of files and tables `sources` has more.
"""

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
    """Where a block comes from. Runs in a task."""

    @property
    def num_rows(self) -> int | None:
        """How many rows the block has; None if that is known only when it is read."""

    @property
    def num_bytes(self) -> int | None:
        """About how much memory it takes; None if nothing is known."""

    def __call__(self) -> blocks.Block:
        """Read it."""


class ManyRead(Protocol):
    """Where several blocks come from, one after the other. Runs in a task."""

    @property
    def num_rows(self) -> int | None:
        """How many rows they have; None if that is known only when they are read."""

    @property
    def num_bytes(self) -> int | None:
        """About how much memory they take; None if nothing is known."""

    def __call__(self) -> blocks.Block:
        """Read all as one."""

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Read them one by one."""


@runtime_checkable
class NarrowRead(Read, Protocol):
    """A read that can leave out columns without reading them."""

    def narrow(self, names: Sequence[str]) -> Read | None:
        """Return what reads these columns alone; None if it cannot."""


def gives_many(read: Read | ManyRead) -> TypeGuard[ManyRead]:
    """Return whether a read gives several blocks."""
    return hasattr(read, "iter_blocks")


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
    types: blocks.Types
    """What its columns hold."""
    left_out: tuple[str, ...] = ()
    """Files that could not be read for it."""
    number: int = 0
    """If it is one of the blocks of a read: which one, among those of all reads."""

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    def __call__(self) -> blocks.Block:
        raise AssertionError("the engine hands the block to the task")


@final
@dataclass(frozen=True)
class Filed:
    """A block in a file, for ranks that have no engine."""

    path: str
    num_rows: int
    num_bytes: int

    def __call__(self) -> blocks.Block:
        with Path(self.path).open("rb") as file:
            block: blocks.Block = pickle.load(file)
        return block


def file_block(block: blocks.Block, path: str) -> Filed:
    """Write a block to a file, for a reader who trusts it."""
    with Path(path).open("wb") as file:
        pickle.dump(block, file, pickle.HIGHEST_PROTOCOL)
    return Filed(path, block.num_rows, block.count_bytes())


def store_block(ref: contract.ObjectRef[blocks.Block], held: Held) -> Stored:
    """Return a block that was given to the engine."""
    return Stored(ref, held.num_bytes, 0, held.num_rows, held.block.find_types())


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


def cut_evenly(num_rows: int, count: int) -> list[tuple[int, int]]:
    """Return where parts begin and end that differ by a row at most. Empty ones are left out."""
    count = min(count, max(num_rows, 1))
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
