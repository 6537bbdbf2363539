"""A DataLoader's samplers of indices, and those of torch that a ledger can replace.

A sampler says in which order rows are read. A ledger can replace it only if that order is *each row of a known set
once*, as it stands or shuffled. Of torch's samplers these are `SequentialSampler`, `RandomSampler` without replacement,
`SubsetRandomSampler`, and `DistributedSampler`, whose work the ledger does. Any other sampler may repeat or weigh rows
on purpose; replacing it would silently train on other data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.utils import data
from torch.utils.data import distributed

from hocket.data import cursor as cursor_module
from hocket.data import ledger, order


@dataclass(frozen=True, kw_only=True)
class SamplerPlan:
    """The rows that a ledger gives in place of a sampler."""

    num_rows: int
    shuffle: bool
    seed: int
    rows: Sequence[int] | None = None
    """The rows for which the ledger's numbers stand; None if they are the rows' own numbers."""


@dataclass(frozen=True, kw_only=True)
class Batching:
    """A loader's way to make batches, by its own arguments or by torch's `BatchSampler`."""

    sampler: object
    batch_size: int | None
    """None if rows are given one by one, without a batch."""
    drop_last: bool


def read_batching(loader: data.DataLoader[Any]) -> Batching | None:
    """Return how a loader makes batches; None if a user's own batch sampler makes them."""
    given: Any = loader.batch_sampler
    if given is None:
        return Batching(sampler=loader.sampler, batch_size=None, drop_last=False)
    if type(given) is not data.BatchSampler:
        return None
    return Batching(sampler=given.sampler, batch_size=given.batch_size, drop_last=bool(given.drop_last))


def find_plan(
    loader: data.DataLoader[Any], batching: Batching | None, rank: int, world_size: int
) -> SamplerPlan | None:
    """Return the plan that replaces a loader's sampler; None if there is none."""
    if batching is None:
        return None
    sampler = batching.sampler
    generator = loader.generator or getattr(sampler, "generator", None)
    seed = generator.initial_seed() & order.MAX_SEED if isinstance(generator, torch.Generator) else 0
    if type(sampler) is data.SubsetRandomSampler:
        return SamplerPlan(num_rows=len(sampler.indices), shuffle=True, seed=seed, rows=sampler.indices)
    if type(sampler) is data.SequentialSampler:
        return SamplerPlan(num_rows=len(sampler.data_source), shuffle=False, seed=seed)
    if type(sampler) is data.RandomSampler:
        num_rows = len(sampler.data_source)
        is_whole = not sampler.replacement and sampler.num_samples == num_rows
        return SamplerPlan(num_rows=num_rows, shuffle=True, seed=seed) if is_whole else None
    if type(sampler) is distributed.DistributedSampler and (sampler.rank, sampler.num_replicas) == (rank, world_size):
        rows: Any = sampler.dataset
        return SamplerPlan(num_rows=len(rows), shuffle=sampler.shuffle, seed=sampler.seed & order.MAX_SEED)
    return None


def choose_indices(part: ledger.Slice) -> list[int]:
    """Return the rows that a rank reads for its slice: its own, or, if it has none, a row of weight 0."""
    return part.indices.tolist() or [part.filler]


@final
class LedgerSampler(data.Sampler[int]):
    """The rows that a rank still reads in the epoch. It replaces the sampler of a prepared loader.

    Reading it does not move the loader's position.

    Args:
        cursor: The loader's position.
        rows: The rows for which the ledger's numbers stand; None if they are the rows' own numbers.
    """

    def __init__(self, cursor: cursor_module.Cursor, rows: Sequence[int] | None) -> None:
        self._cursor = cursor
        self._rows = rows

    @property
    def epoch(self) -> int:
        """The epoch that a loop is in, otherwise the epoch that the next loop begins."""
        return self._cursor.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop begin an epoch; if the loader has just been resumed in that epoch, the loop goes on there.
        Calls are not needed."""
        self._cursor.set_epoch(epoch)

    def read_batches(self) -> Iterator[list[int]]:
        """Yield the indices of each batch that is left."""
        for part in self._cursor.read():
            indices = choose_indices(part)
            yield indices if self._rows is None else [self._rows[index] for index in indices]

    def __iter__(self) -> Iterator[int]:
        for indices in self.read_batches():
            yield from indices

    def __len__(self) -> int:
        """Return the number of rows that the rank reads in a whole epoch."""
        found, rank, world_size = self._cursor.ledger, self._cursor.rank, self._cursor.world_size
        whole, rest = divmod(found.num_rows, found.batch_size)
        first, end = ledger.cut(found.batch_size, rank, world_size)
        count = whole * (end - first)
        if found.steps_per_epoch > whole:
            first, end = ledger.cut(rest, rank, world_size)
            count += max(1, end - first)
        return count


@final
class LedgerBatchSampler(data.Sampler[list[int]]):
    """The batches that a rank still reads in the epoch. It replaces the batch sampler of a prepared loader.

    Args:
        sampler: The rows.
        batch_size: The number of rows in a whole batch of this rank.
        drop_last: Whether rows that fill no batch are left out.
    """

    def __init__(self, sampler: LedgerSampler, batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def set_epoch(self, epoch: int) -> None:
        """Call the sampler's `set_epoch`."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        return self.sampler.read_batches()

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, in each rank."""
        return self.sampler._cursor.ledger.steps_per_epoch
