"""All-reduce in PyTorch: DistributedDataParallel averages the gradients while the backward pass still runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, final

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import parallel

from hocket.train import strategies
from hocket.train.frameworks.torch.strategies import averaging, closures, sharding, strategy

_HOOKS: Final[Mapping[str, Callable[..., object]]] = {
    "fp16": default_hooks.fp16_compress_hook,
    # DistributedDataParallel refuses this one by its name where there is no NCCL, but it works with every backend that
    # adds bfloat16.
    "bf16": lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket),  # noqa: PLW0108 (so it has no name)
}

_BUFFERS: Final = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(parallel.DistributedDataParallel).parameters  # new in torch 2.13
    else "broadcast_buffers"
)


@final
class Exchange(strategy.Exchange):
    """DistributedDataParallel does everything in the backward pass."""

    def __init__(self, settings: strategies.AllReduce, ranks: strategies.Ranks) -> None:
        self._settings = settings
        self._ranks = ranks
        self._hooks: list[Any] = []
        self._alike = strategies.Alike.ALL

    def adapt_model(
        self, model: torch.nn.Module, parallel_strategy: str, options: Mapping[str, Any], device: torch.device
    ) -> torch.nn.Module:
        if parallel_strategy == "fsdp":
            if self._settings != strategies.AllReduce():
                raise ValueError(
                    f"parallel_strategy='fsdp' takes no {self._settings}: its gradients travel in parts. Leave the "
                    "strategy out, and give parallel_strategy_kwargs={'mp_policy': "
                    "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)} to send fewer bytes."
                )
            return sharding.shard(model, self._ranks, options, device)
        if self._ranks.world_size == 1:
            return model
        options = {
            "gradient_as_bucket_view": True,
            **options,
        }  # measured: a tenth of a step less, and a copy of the gradients
        shares = all(options.get(name) in (None, True) for name in ("forward_sync_buffers", "broadcast_buffers"))
        if shares:  # after a forward pass, and not before the next
            options = {**options, "broadcast_buffers": None, _BUFFERS: False}
        if self._settings.bucket_mb is not None:
            options = {"bucket_cap_mb": self._settings.bucket_mb, **options}
        wrapped = parallel.DistributedDataParallel(model, **options)
        if shares:
            averaging.copy_from_first(model.buffers())
            averaging.share_buffers(wrapped, lambda: wrapped.require_backward_grad_sync)
        else:
            self._alike &= ~strategies.Alike.BUFFERS
        self._compress(wrapped)
        return wrapped

    def _compress(self, wrapped: parallel.DistributedDataParallel) -> None:
        compression = self._settings.compression
        if isinstance(compression, strategies.PowerSGD):
            state = powerSGD_hook.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=compression.rank,
                start_powerSGD_iter=compression.begin_after,
            )
            wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif compression is not None:
            wrapped.register_comm_hook(None, _HOOKS[compression])

    @property
    def alike(self) -> strategies.Alike:
        return self._alike

    def adapt_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        if isinstance(optimizer, torch.optim.LBFGS) and self._ranks.world_size > 1:
            self._hooks.append(optimizer.register_step_pre_hook(self._share_loss))
        return optimizer

    def _share_loss(self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        """Have LBFGS decide by the mean loss how far to go: by its own each rank would go another way, with the same
        gradients. Called before ``step``."""
        closure = closures.get_optional_closure(args, kwargs)
        if closure is None:
            return None
        device = optimizer.param_groups[0]["params"][0].device
        return closures.replace_closure(
            args, kwargs, lambda: closures.average_loss(closure(), device, self._ranks.world_size)
        )

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
