"""Synchronous data parallelism: gradients are averaged after each backward pass, and all ranks take the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from hocket import keywords
from hocket.collective.arithmetic import ReduceOp
from hocket.train.strategies import strategy

_SHORT: Final = {"fp16": "float16", "bf16": "bfloat16"}


@final
@keywords.explained()
@dataclass(frozen=True, kw_only=True)
class PowerSGD:
    """A compression that sends a matrix's gradient as a product of two thin matrices, and carries the error over.

    The error is added to the next step's gradient: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank
    Gradient Compression for Distributed Optimization" (2019). torch computes it, so this is for PyTorch only.

    Raises:
        ValueError: A number is too small.

    Example:
        >>> from hocket.train.strategies import AllReduce, PowerSGD
        >>> AllReduce(compression=PowerSGD(rank=2)).compression
        PowerSGD(rank=2, begin_after=1000)
    """

    rank: int = 1
    """The rank of the product. 1 to 4 are usual; a higher rank loses less."""
    begin_after: int = 1000
    """The number of first steps without compression, 2 or more, because early gradients compress badly. The default is
    torch's. A tenth of all steps is usual."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"PowerSGD's rank must be 1 or more, but received {self.rank!r}. 1 compresses most.")
        if self.begin_after < 2:
            raise ValueError(
                f"PowerSGD's begin_after must be 2 or more, but received {self.begin_after!r}: torch arranges the "
                "gradients anew after the first step."
            )


@final
@keywords.explained()
@dataclass(frozen=True, kw_only=True)
class AllReduce(strategy.Strategy):
    """The strategy that averages gradients over all ranks, in PyTorch while the backward pass still runs.

    This is the default. It is right for dense models on equal workers.

    In PyTorch `prepare_model` wraps the model in DistributedDataParallel, by default with
    ``gradient_as_bucket_view=True`` (see ``parallel_strategy_kwargs``), or shards it with
    ``parallel_strategy="fsdp"``. In other frameworks the optimizer averages.

    Compression saves bytes and costs time and accuracy. It pays on a slow network; on one machine it does not.

    Raises:
        ValueError: The compression is unknown, or `bucket_mb` is not positive.

    Example:
        >>> from hocket.train.strategies import AllReduce
        >>> AllReduce(compression="bf16", bucket_mb=10)
        AllReduce(compression='bf16', bucket_mb=10)
    """

    compression: str | PowerSGD | None = None
    """The compression of gradients: ``"fp16"`` or ``"bf16"`` (half the bytes; bf16 keeps the range, fp16 the digits),
    a `PowerSGD`, or none."""
    bucket_mb: float | None = None
    """Megabytes of gradients in one message. Default: the framework's; torch's is 25, and 1 for the first."""

    def __post_init__(self) -> None:
        if not (self.compression is None or isinstance(self.compression, PowerSGD) or self.compression in _SHORT):
            raise ValueError(
                f"compression must be None, 'fp16', 'bf16' or a PowerSGD, but received {self.compression!r}. Leave it "
                "out to send gradients as they are."
            )
        if self.bucket_mb is not None and not self.bucket_mb > 0:
            raise ValueError(
                f"bucket_mb must be more than 0, but received {self.bucket_mb!r}. Leave it out for the framework's own."
            )

    def open(self, ranks: strategy.Ranks) -> strategy.StrategyRuntime:
        """Return the strategy's runtime on host arrays.

        Raises:
            TypeError: The compression is a `PowerSGD`, which only PyTorch computes.
            ValueError: `bucket_mb` is given, but gradients travel in one array.
        """
        if isinstance(self.compression, PowerSGD):
            raise TypeError(
                f"compression={self.compression!r} works in PyTorch only: this framework's gradients travel as one "
                "array. Use 'bf16' or 'fp16', or leave it out."
            )
        if self.bucket_mb is not None:
            raise ValueError(
                f"bucket_mb={self.bucket_mb!r} has no meaning here: this framework's gradients travel as one array. "
                "Leave it out."
            )
        return _Runtime(ranks.world, self.compression)


@final
class _Runtime(strategy.StrategyRuntime):
    """The runtime that takes each step with the mean gradient of all ranks' rows."""

    averages_rows = True

    def __init__(self, joined: strategy.Collectives, compression: str | None) -> None:
        self._world = joined
        self._short = None if compression is None else _find_dtype(_SHORT[compression])
        self.averages_gradients = joined.size > 1

    @property
    def alike(self) -> strategy.Alike:
        return strategy.Alike.ALL

    def average(self, flat: strategy.Array, rows: float) -> None:
        average_rows(self._world, flat, rows, self._short)

    def gather(self, slices: Sequence[strategy.Slices], rows: float) -> Sequence[strategy.Slices]:
        return gather_slices(self._world, slices, rows, self._short)


def average_rows(
    joined: strategy.Collectives, flat: strategy.Array, rows: float, short: np.dtype[Any] | None = None
) -> None:
    """Replace this rank's mean gradients by the mean over all ranks' rows. The last element is free for use.

    Ranks may have different numbers of rows, as in the last batch of an epoch. So one collective adds up the ranks'
    sums, together with the numbers of rows.

    Args:
        joined: The ranks' collectives.
        flat: The mean gradients of this rank's rows; changed.
        rows: The number of this rank's rows. With 0 rows the gradients do not count, whatever they are.
        short: The dtype of compressed gradients, if any. Then the numbers of rows travel first, because sums would
            leave the dtype's range.
    """
    values = flat[:-1]
    if not rows:
        values[:] = 0
    if short is None:
        values *= rows
        flat[-1] = rows
        joined.all_reduce(flat)
        values /= flat[-1]
        return
    total = np.array([rows], np.float64)
    joined.all_reduce(total)
    values *= rows * joined.size / total[0]
    wire = values.astype(short)
    joined.all_reduce(wire, ReduceOp.MEAN)
    values[:] = wire


def gather_slices(
    joined: strategy.Collectives, slices: Sequence[strategy.Slices], rows: float, short: np.dtype[Any] | None = None
) -> list[strategy.Slices]:
    """Return the slices of all ranks, concatenated. Their sum is the mean over all rows.

    Args:
        joined: The ranks' collectives.
        slices: The mean gradients of this rank's rows.
        rows: The number of this rank's rows. With 0 rows the slices do not count.
        short: The dtype of compressed gradients, if any.
    """
    sent = [(indices, values if short is None else values.astype(short)) for indices, values in slices]
    ranks = [(theirs, given) for theirs, given in joined.all_gather_object((rows, sent)) if theirs]
    total = sum(theirs for theirs, _ in ranks)
    found = []
    for number, (indices, values) in enumerate(slices):
        parts = [given[number][1].astype(values.dtype) * values.dtype.type(theirs / total) for theirs, given in ranks]
        found.append(
            (
                np.concatenate([indices[:0], *(given[number][0] for _, given in ranks)]),
                np.concatenate([values[:0], *parts]),
            )
        )
    return found


def _find_dtype(name: str) -> np.dtype[Any]:
    if name == "float16":
        return np.dtype(np.float16)
    import ml_dtypes  # Keras needs it too

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
