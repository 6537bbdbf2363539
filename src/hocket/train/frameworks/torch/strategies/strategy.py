"""The override of a strategy in PyTorch: its effect on a model, on an optimizer, and at a step.

The training function calls none of it: `prepare_model`, `prepare_optimizer` and the optimizer's own ``step`` do.
All-reduce wraps the model. Local SGD leaves the model alone and works after the step. A parameter server fetches before
the forward pass (a hook that `adapt_model` sets) and pushes in place of the step (hooks that `adapt_optimizer` sets).
What has no override works on host arrays (`on_arrays`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hocket.train import strategies


class Exchange(strategies.NativeStrategy):
    """A strategy at work in one rank, on torch's own objects.

    Returned by `hocket.train.strategies.Strategy.open` of a strategy for PyTorch alone.

    If there are several ranks they are joined: ``torch.distributed``'s default group is theirs. `before_step` and
    `after_step` are called around each ``step()`` of an optimizer that `adapt_optimizer` was given, and of no other. A
    strategy may keep references to what it is given until `close`. Each method's default does nothing.
    """

    averages_others: bool = False
    """Whether optimizers that step no prepared model get the mean of all ranks' gradients too, as soon as there is
    one."""

    def adapt_model(
        self, model: torch.nn.Module, parallel_strategy: str, options: Mapping[str, object], device: torch.device
    ) -> torch.nn.Module:
        """Return the model that the rank trains: equal in all ranks if it is not split.

        Args:
            model: On its device. Not called for one that the user wants to be left alone.
            parallel_strategy: ``"ddp"``, which stands for the strategy's own way too, or ``"fsdp"``.
            options: The user's keyword arguments for it.
            device: Where the rank computes.

        Raises:
            ValueError: The strategy cannot do that.
        """
        return model

    def adapt_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer that the rank steps with.

        Raises:
            ValueError: It steps a model that the strategy must know and does not.
        """
        return optimizer

    def begin_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Called before a step of any optimizer that this rank steps, prepared or not, as a hook of torch's: return
        other arguments for the step, or None."""
        return None

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Called when the gradients are there and the step is not taken yet."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Called when the step is taken."""

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether the strategy has made an optimizer for itself. Default: no."""
        return False

    def synchronize(self) -> None:
        """Make the ranks' models equal, where they may differ now."""


def require_whole(name: str, where: str, parallel_strategy: str, options: Mapping[str, object]) -> None:
    """Refuse to wrap or to shard a model.

    Args:
        name: The strategy's.
        where: Where it keeps the model.
        parallel_strategy: What the user asks for.
        options: The user's keyword arguments for it.

    Raises:
        ValueError: The user asks for something else.
    """
    if parallel_strategy != "ddp" or options:
        raise ValueError(
            f"{name} keeps {where}, but received parallel_strategy={parallel_strategy!r} with "
            f"parallel_strategy_kwargs={dict(options)!r}. Leave both out, or use the strategy AllReduce."
        )
