"""All-reduce in PyTorch: DistributedDataParallel averages the gradients while the backward pass still runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, final

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import parallel

from hocket.train import strategies
from hocket.train.frameworks.torch import devices
from hocket.train.frameworks.torch.strategies import closures, sharding, strategy, wrapping

_HOOKS: Final[Mapping[str, Callable[..., object]]] = {
    "fp16": default_hooks.fp16_compress_hook,
    # DistributedDataParallel refuses this hook, by its name, without NCCL, but it works with every backend that adds
    # bfloat16.
    "bf16": lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket),  # noqa: PLW0108 (so it has no name)
}


class _Plan(NamedTuple):
    """The parameters and wrappers in a step of an optimizer."""

    parameters: list[Any]
    """The parameters that it steps."""
    wrappers: list[wrapping.Wrapper]
    """The wrappers of models that it steps."""
    outside: list[torch.Tensor]
    """Its parameters that no wrapper covers: their gradients are averaged before the step."""
    is_sharded: bool
    """Whether it steps a sharded model."""


@final
class TorchAllReduce(strategy.TorchStrategy):
    """`AllReduce` at work: DistributedDataParallel averages gradients in the backward pass."""

    averages_others = True

    def __init__(self, settings: strategies.AllReduce, ranks: strategies.Ranks) -> None:
        self._settings = settings
        self._ranks = ranks
        self._sharing: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """The prepared optimizers that use the loss for decisions."""
        self._alike = strategies.Alike.ALL
        #: The wrappers, each as long as a program has it, and the sharded models.
        self._wrappers: list[weakref.ref[wrapping.Wrapper]] = []
        self._sharded: list[weakref.ref[torch.nn.Module]] = []
        #: The optimizers with a hook on `zero_grad`.
        self._zeroing: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._outside = closures.Outside(ranks.world_size)
        #: The plan of each optimizer, with the parameters and the wrappers' generations for which it was made.
        self._plans: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[object, _Plan]] = (
            weakref.WeakKeyDictionary()
        )

    def adapt_model(
        self, model: torch.nn.Module, parallel_strategy: str, options: Mapping[str, Any], device: torch.device
    ) -> torch.nn.Module:
        if parallel_strategy == "fsdp":
            if self._settings != strategies.AllReduce():
                raise ValueError(
                    f"parallel_strategy='fsdp' cannot use {self._settings}, because its gradients travel in parts. "
                    "Leave the strategy out; to send fewer bytes, pass parallel_strategy_kwargs={'mp_policy': "
                    "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)}."
                )
            if self._ranks.world_size > 1:
                self._sharded.append(weakref.ref(model))
            return sharding.shard(model, self._ranks, options, device)
        if self._ranks.world_size == 1:
            return model
        if isinstance(model, parallel.DistributedDataParallel):
            raise ValueError(
                "prepare_model() received a model that is in DistributedDataParallel already, but prepare_model() "
                "itself adds that. Prepare the model once, as it is built."
            )
        options = {
            "gradient_as_bucket_view": True,
            **options,
        }  # measured: a tenth of a step less, and a copy of the gradients
        options = {**devices.list_ddp_options(model.parameters(), device), **options}
        if self._settings.bucket_mb is not None:
            options = {"bucket_cap_mb": self._settings.bucket_mb, **options}
        made = wrapping.Wrapper(model, options, self._compress, self._ranks.world_size)
        self._wrappers.append(weakref.ref(made))
        if not made.shares_buffers:
            self._alike &= ~strategies.Alike.BUFFERS
        return made.wrapped

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
            self._sharing.add(optimizer)
        self._follow_zero_grad(optimizer)
        return optimizer

    def _follow_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        if self._sharded and optimizer not in self._zeroing:
            self._zeroing.add(optimizer)
            sharding.follow_zero_grad(
                optimizer,
                lambda: (one for group in optimizer.param_groups for one in group["params"]),
                self._list_sharded,
            )

    def _list_sharded(self) -> list[torch.nn.Module]:
        return [model for model in (ref() for ref in self._sharded) if model is not None]

    def begin_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        plan = self._find_plan(optimizer)
        has_none = all(one.grad is None for one in plan.parameters)
        if plan.is_sharded and has_none and closures.get_optional_closure(args, kwargs) is None:
            raise RuntimeError(
                f"This {type(optimizer).__name__} steps a sharded model, but no parameter has a gradient: all backward "
                "passes were in no_sync(). Run the last backward pass before the step outside of no_sync()."
            )
        for wrapper in plan.wrappers:
            wrapper.begin_step(plan.parameters)
        taken = self._outside.begin_step(optimizer, plan.outside, args, kwargs)
        if plan.wrappers or plan.outside or plan.is_sharded or optimizer in self._sharing:
            return closures.share_loss(optimizer, taken or (args, kwargs), self._ranks.world_size) or taken
        return taken

    def _find_plan(self, optimizer: torch.optim.Optimizer) -> _Plan:
        everyone = [wrapper for wrapper in (ref() for ref in self._wrappers) if wrapper is not None]
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        state = [*map(id, parameters)], [one.generation for one in everyone]
        known = self._plans.get(optimizer)
        if known is not None and known[0] == state:
            return known[1]
        wrappers = [one for one in everyone if any(map(one.covers, parameters))]
        for wrapper in wrappers:
            wrapper.check_current(parameters, type(optimizer).__name__)
        self._follow_zero_grad(optimizer)
        models = self._list_sharded()
        sharded = {one for model in models for one in model.parameters()}
        plan = _Plan(parameters, wrappers, [], not sharded.isdisjoint(parameters))
        if everyone or models:  # even if the optimizer steps none of them
            left = {one for wrapper in everyone for one in wrapper.list_ignored()}
            plan.outside.extend(
                one
                for one in parameters
                if one not in left and not hasattr(one, "placements") and not any(w.covers(one) for w in wrappers)
            )
        self._plans[optimizer] = state, plan
        return plan

    def close(self) -> None:
        for wrapper in filter(None, (ref() for ref in self._wrappers)):
            wrapper.close()
