"""Synchronous data parallelism: after each backward pass the gradients are averaged, so all ranks take the same step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import parallel

from hocket.train.torch.strategies import sharding, strategy


@final
@dataclass(frozen=True, kw_only=True)
class PowerSGD:
    """Gradients of matrices travel as products of two thin ones; what that loses is added to the next step's.

    After Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (2019). torch computes it.

    Raises:
        ValueError: A number is too small.

    Example:
        >>> from hocket.train.torch import AllReduce, PowerSGD
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


_HOOKS: Final[Mapping[str, Callable[..., Any]]] = {
    "fp16": default_hooks.fp16_compress_hook,
    # DistributedDataParallel refuses this one by its name where there is no NCCL, but it works with every backend that adds bfloat16.
    "bf16": lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket),  # noqa: PLW0108 (so it has no name)
}


@final
@dataclass(frozen=True, kw_only=True)
class AllReduce(strategy.Strategy):
    """Gradients are averaged over all ranks while the backward pass still runs. The default; right for dense models on equal workers.

    With it `prepare_model` wraps the model in torch's DistributedDataParallel, with ``gradient_as_bucket_view=True`` unless
    ``parallel_strategy_kwargs`` says otherwise, or shards it with ``parallel_strategy="fsdp"``.

    Compression saves bytes and costs time and accuracy. It pays on a slow network; on one machine it does not.

    Raises:
        ValueError: The compression is unknown, or `bucket_mb` is not positive.

    Example:
        >>> from hocket.train.torch import AllReduce
        >>> AllReduce(compression="bf16", bucket_mb=10)
        AllReduce(compression='bf16', bucket_mb=10)
    """

    compression: str | PowerSGD | None = None
    """How gradients travel: ``"fp16"`` or ``"bf16"`` (half the bytes; bf16 keeps the range, fp16 the digits), a `PowerSGD`, or as they are."""
    bucket_mb: float | None = None
    """How many megabytes of gradients travel together. Default: torch's, 25, and 1 for the first."""

    def __post_init__(self) -> None:
        if not (self.compression is None or isinstance(self.compression, PowerSGD) or self.compression in _HOOKS):
            raise ValueError(
                f"compression must be None, 'fp16', 'bf16' or a PowerSGD, but received {self.compression!r}. Leave it out to send gradients as they are."
            )
        if self.bucket_mb is not None and not self.bucket_mb > 0:
            raise ValueError(
                f"bucket_mb must be more than 0, but received {self.bucket_mb!r}. Leave it out for torch's 25."
            )

    def open(self, ranks: strategy.Ranks) -> strategy.Exchange:
        """Begin in one rank."""
        return _Exchange(self, ranks)


@final
class _Exchange(strategy.Exchange):
    """DistributedDataParallel does everything in the backward pass."""

    def __init__(self, settings: AllReduce, ranks: strategy.Ranks) -> None:
        self._settings = settings
        self._ranks = ranks

    def adapt_model(
        self, model: torch.nn.Module, parallel_strategy: str, options: Mapping[str, Any], device: torch.device
    ) -> torch.nn.Module:
        if parallel_strategy == "fsdp":
            if self._settings != AllReduce():
                raise ValueError(
                    f"parallel_strategy='fsdp' takes no {self._settings}: its gradients travel in parts. Leave the strategy out, and give "
                    "parallel_strategy_kwargs={'mp_policy': MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)} to send fewer bytes."
                )
            return sharding.shard(model, self._ranks, options, device)
        if self._ranks.world_size == 1:
            return model
        options = {
            "gradient_as_bucket_view": True,
            **options,
        }  # measured: a tenth of a step less, and a copy of the gradients
        if self._settings.bucket_mb is not None:
            options = {"bucket_cap_mb": self._settings.bucket_mb, **options}
        wrapped = parallel.DistributedDataParallel(model, **options)
        self._compress(wrapped)
        return wrapped

    def _compress(self, wrapped: parallel.DistributedDataParallel) -> None:
        compression = self._settings.compression
        if isinstance(compression, PowerSGD):
            state = powerSGD_hook.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=compression.rank,
                start_powerSGD_iter=compression.begin_after,
            )
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif compression is not None:
            wrapped.register_comm_hook(None, _HOOKS[compression])

    def adapt_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return optimizer

    def before_step(self, optimizer: torch.optim.Optimizer) -> None: ...

    def after_step(self, optimizer: torch.optim.Optimizer) -> None: ...

    def synchronize(self) -> None: ...

    def close(self) -> None: ...
