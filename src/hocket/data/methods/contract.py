"""The part of a data set that its methods need.

Each method of `hocket.data.Dataset` is a function of a module here. The class has the plan, binds the functions, and
says how blocks come; the functions know nothing else of it.
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
    """How rows become batches: the arguments of `Dataset.iter_batches` that all forms of batches have."""

    batch_size: int | None
    drop_last: bool
    shuffle_buffer: int | None
    shuffle_seed: int | None
    prefetch_batches: int


class Batched(Protocol):
    """Rows that come in batches: a data set, or a rank's part of one."""

    _use_gpu: bool
    """Whether tensors go to a GPU unless the user says where."""
    _may_lack_size: bool
    """Whether batches may be of any size."""
    _row_batch_size: int | None
    """In batches of which size rows are read."""

    def _loop(self, convert: Callable[[blocks.Block], T], batching: Batching) -> Iterable[T]:
        """Return an iterable that gives the batches, converted, in each loop over it: blocks that are the caller's
        alone. Wrong arguments raise here."""

    def _peek(self) -> blocks.Block:
        """Return the first block that has rows, for the types of its columns."""


class Planned(Batched, Protocol):
    """Rows by a plan, which is executed when they are needed."""

    _plan: plan.Plan
    _record: execution.Record

    def _build(self, reads: Sequence[block_reads.Read]) -> typing.Self:
        """Return a data set of these blocks."""

    def _then(self, op: plan.Op) -> typing.Self:
        """Return the same with one thing more to do."""

    def _store(self) -> list[block_reads.Stored]:
        """Execute the plan, and return its blocks."""

    def _stream(self) -> Iterator[block_reads.Held | block_reads.Stored]:
        """Execute the plan, and give what stands for its blocks."""

    def _stream_blocks(self) -> Iterator[blocks.Block]:
        """Execute the plan, and give its blocks."""

    def _stream_first(self, limit: int) -> Iterator[blocks.Block]:
        """Give blocks that have so many rows at least, if there are so many."""


Self = TypeVar("Self", bound=Planned)
"""A data set, of the same kind as is given."""
