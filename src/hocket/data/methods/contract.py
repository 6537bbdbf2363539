"""The part of a dataset that its methods need.

Each method of `hocket.data.Dataset` is a function of a module in this package. The class holds the plan, binds the
functions, and supplies the blocks. The functions use nothing else of the class.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, final

from hocket.data import block_reads, blocks, execution, plan

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Batching:
    """The conversion of rows into batches: the arguments of `Dataset.iter_batches` that all formats share."""

    batch_size: int | None
    drop_last: bool
    shuffle_buffer: int | None
    shuffle_seed: int | None
    prefetch_batches: int


class Batched(Protocol):
    """Rows that come in batches: a dataset, or a rank's part of one."""

    _use_gpu: bool
    """Whether tensors go to a GPU unless the user names a device."""
    _may_lack_size: bool
    """Whether batches may be of any size."""
    _row_batch_size: int | None
    """Size of the batches in which `iter_rows` reads. None: blocks."""

    def _loop(self, convert: Callable[[blocks.Block], T], batching: Batching) -> Iterable[T]:
        """Return an iterable whose loops yield the converted batches. A batch's block belongs to `convert` alone. Wrong
        arguments raise here."""

    def _peek(self) -> blocks.Block:
        """Return the first block that has rows, for the types of its columns."""


class Planned(Batched, Protocol):
    """Rows with a plan that is executed when they are needed."""

    _plan: plan.Plan
    _record: execution.Record

    def _build(self, reads: Sequence[block_reads.Read]) -> typing.Self:
        """Return a dataset of these blocks."""

    def _then(self, op: plan.Op) -> typing.Self:
        """Return the dataset with one more operation."""

    def _store(self) -> list[block_reads.Stored]:
        """Execute the plan, and return its blocks in the engine."""

    def _stream(self) -> Iterator[block_reads.Held | block_reads.Stored]:
        """Execute the plan, and yield its blocks, in this process or in the engine."""

    def _stream_blocks(self) -> Iterator[blocks.Block]:
        """Execute the plan, and yield its blocks, fetched."""

    def _stream_first(self, limit: int) -> Iterator[blocks.Block]:
        """Yield blocks with at least `limit` rows together, if the dataset has as many."""


Self = TypeVar("Self", bound=Planned)
"""A dataset, of the same class as the argument."""
