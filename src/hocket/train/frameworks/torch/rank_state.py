"""What one rank has prepared, from the start of its training function to the end.

See `hocket.train.frameworks.contract`.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
import weakref
from typing import final

import torch
import torch.distributed as dist
from torch.optim import optimizer as torch_optimizer

from hocket.collective import torch as collective_torch
from hocket.collective.torch import traffic
from hocket.train import strategies
from hocket.train.frameworks.torch import precision
from hocket.train.frameworks.torch import strategies as torch_strategies
from hocket.train.rank import rank_info


@final
class RankState:
    """Prepared models and optimizers of a rank, and its strategy at work.

    Args:
        info: The rank's place.
        strategy: How updates travel.
    """

    def __init__(self, info: rank_info.RankInfo, strategy: strategies.Strategy) -> None:
        self._info = info
        self.strategy = strategy
        self.exchange = torch_strategies.open_exchange(strategy, strategies.Ranks(info.rank, info.world_size))
        self.precision: precision.Precision | None = None
        """What `accelerate` was asked for; None if it was not called."""
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._prepared: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._unrelated: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._closing = contextlib.ExitStack()
        self._closing.callback(self.exchange.close)
        if self.exchange.needs_optimizer:
            hook = torch_optimizer.register_optimizer_step_pre_hook(self._check_step)
            self._closing.callback(hook.remove)
        self._smallest = 0
        """How many numbers the smallest parameter has of the optimizer that has made the first step."""
        if info.rank == 0 and info.world_size > 1:
            self._closing.callback(torch_optimizer.register_optimizer_step_post_hook(self._note_step).remove)
            traffic.forget_sizes()

    @property
    def has_prepared(self) -> bool:
        """Whether a model or an optimizer was prepared."""
        return bool(self._models) or len(self._prepared) > 0

    def add_model(self, model: torch.nn.Module) -> None:
        """Note that a model was prepared."""
        self._models.append(weakref.ref(model))
        self._unrelated.clear()

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Have an optimizer's steps go through the strategy."""
        if optimizer in self._prepared:
            raise ValueError(
                f"prepare_optimizer() received the same {type(optimizer).__name__} twice. Prepare it once, and use "
                "what that returns."
            )
        self._prepared.add(optimizer)
        exchange = self.exchange
        before = optimizer.register_step_pre_hook(lambda stepped, args, kwargs: exchange.before_step(stepped))
        after = optimizer.register_step_post_hook(lambda stepped, args, kwargs: exchange.after_step(stepped))
        self._closing.callback(before.remove)
        self._closing.callback(after.remove)

    def close(self) -> None:
        """Give everything back. If the training function has ended well, say what it has forgotten."""
        self._closing.close()
        if sys.exception() is None and self._trains_apart():
            warnings.warn(
                "The training function has taken steps of an optimizer, but no model was prepared, and the "
                f"{self._info.world_size} ranks have exchanged nothing as large as a parameter: each has trained a "
                "model of its own. Write model = hocket.train.torch.prepare_model(model) before the optimizer is made.",
                stacklevel=2,
            )

    def _list_parameters(self) -> set[int]:
        models = [model for model in (ref() for ref in self._models) if model is not None]
        return {id(parameter) for model in models for parameter in model.parameters()}

    def _note_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """Called after each step of any optimizer in this process."""
        if not self._smallest:
            sizes = [parameter.numel() for group in optimizer.param_groups for parameter in group["params"]]
            self._smallest = min(sizes, default=0)

    def _trains_apart(self) -> bool:
        """Tell whether the ranks have trained without each other, as far as our own process group can know."""
        if self._models or self._info.local_world_size < self._info.world_size:
            return False
        is_ours = dist.is_initialized() and dist.get_backend() == collective_torch.NAME
        return is_ours and traffic.find_largest() < self._smallest

    def _check_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """Called before each step of any optimizer in this process."""
        if optimizer in self._prepared or optimizer in self._unrelated:
            return
        known = self._list_parameters()
        if any(id(p) in known for group in optimizer.param_groups for p in group["params"]):
            raise RuntimeError(
                f"{type(self.strategy).__name__} works in the optimizer's step, but this {type(optimizer).__name__} "
                "was not prepared. Write optimizer = hocket.train.torch.prepare_optimizer(optimizer) before the "
                "first step."
            )
        self._unrelated.add(optimizer)
