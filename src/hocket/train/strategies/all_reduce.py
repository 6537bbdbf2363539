"""Synchronous data parallelism: after each backward pass the gradients are averaged, so all ranks take the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from hocket.train.strategies import strategy

_SHORT: Final = ("fp16", "bf16")


@final
@dataclass(frozen=True, kw_only=True)
class PowerSGD:
    """Gradients of matrices travel as products of two thin ones; what that loses is added to the next step's.

    After Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (2019). torch computes it; PyTorch only.

    Raises:
        ValueError: A number is too small.

    Example:
        >>> from hocket.train.strategies import AllReduce, PowerSGD
        >>> AllReduce(compression=PowerSGD(rank=2)).compression
        PowerSGD(rank=2, begin_after=1000)
    """

    rank: int = 1
    """The rank of the product. 1 to 4 are usual; more keeps more."""
    begin_after: int = 1000
    """How many steps travel uncompressed first; 2 or more. torch's default: early gradients compress badly. A tenth of all steps is usual."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"PowerSGD's rank must be 1 or more, but received {self.rank!r}. 1 compresses most.")
        if self.begin_after < 2:
            raise ValueError(
                f"PowerSGD's begin_after must be 2 or more, but received {self.begin_after!r}: torch arranges the gradients anew after the first step."
            )


@final
@dataclass(frozen=True, kw_only=True)
class AllReduce(strategy.Strategy):
    """Gradients are averaged over all ranks while the backward pass still runs. The default; right for dense models on equal workers.

    In PyTorch `prepare_model` wraps the model in DistributedDataParallel, with ``gradient_as_bucket_view=True`` unless
    ``parallel_strategy_kwargs`` says otherwise, or shards it with ``parallel_strategy="fsdp"``. Elsewhere the optimizer averages.

    Compression saves bytes and costs time and accuracy. It pays on a slow network; on one machine it does not.

    Raises:
        ValueError: The compression is unknown, or `bucket_mb` is not positive.

    Example:
        >>> from hocket.train.strategies import AllReduce
        >>> AllReduce(compression="bf16", bucket_mb=10)
        AllReduce(compression='bf16', bucket_mb=10)
    """

    compression: str | PowerSGD | None = None
    """How gradients travel: ``"fp16"`` or ``"bf16"`` (half the bytes; bf16 keeps the range, fp16 the digits), a `PowerSGD`, or as they are."""
    bucket_mb: float | None = None
    """How many megabytes of gradients travel together. Default: the framework's; torch's is 25, and 1 for the first."""

    def __post_init__(self) -> None:
        if not (self.compression is None or isinstance(self.compression, PowerSGD) or self.compression in _SHORT):
            raise ValueError(
                f"compression must be None, 'fp16', 'bf16' or a PowerSGD, but received {self.compression!r}. Leave it out to send gradients as they are."
            )
        if self.bucket_mb is not None and not self.bucket_mb > 0:
            raise ValueError(
                f"bucket_mb must be more than 0, but received {self.bucket_mb!r}. Leave it out for the framework's own."
            )
