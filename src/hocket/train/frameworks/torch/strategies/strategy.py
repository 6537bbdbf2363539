"""The base of a strategy's override in PyTorch: its effect on a model, on an optimizer, and at a step.

The training function does not call it: `prepare_model`, `prepare_optimizer` and the optimizer's own ``step`` do.
All-reduce wraps the model. Local SGD leaves the model alone and works after the step. A parameter server fetches before
the forward pass (a hook that `adapt_model` sets) and pushes in place of the step (hooks that `adapt_optimizer` sets). A
strategy without an override works on host arrays (`on_arrays`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hocket.train import strategies


class TorchStrategy(strategies.NativeStrategy):
    """A strategy at work in one rank, on torch's own objects.

    `hocket.train.strategies.Strategy.open` of a strategy for PyTorch alone returns one.

    If there are several ranks, they are joined in ``torch.distributed``'s default group. `before_step` and `after_step`
    are called around each ``step()`` of an optimizer that `adapt_optimizer` has received, and of no other. A strategy
    may keep references to its arguments until `close`. Each method's default does nothing.
    """

    averages_others: bool = False
    """Whether optimizers of no prepared model get the mean of all ranks' gradients too, once a model is prepared."""

    def adapt_model(
        self, model: torch.nn.Module, parallel_strategy: str, options: Mapping[str, object], device: torch.device
    ) -> torch.nn.Module:
        """Return the model that the rank trains: equal in all ranks if it is not split.

        Args:
            model: A model on its device. A model that the user wants left alone is not passed.
            parallel_strategy: ``"ddp"``, which also stands for the strategy's own way, or ``"fsdp"``.
            options: The user's keyword arguments for it.
            device: The rank's device.

        Raises:
            ValueError: The strategy does not support that.
        """
        return model

    def adapt_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer with which the rank steps.

        Raises:
            ValueError: The optimizer steps a model that the strategy must know and does not.
        """
        return optimizer

    def begin_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Begin a step of any optimizer that this rank steps, prepared or not. As a hook of torch's, return other
        arguments for the step, or None."""
        return None

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Work on the gradients, which are there, before a step is taken."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Work on the parameters after a step is taken."""

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the strategy has made an optimizer for itself. Default: no."""
        return False

    def synchronize(self) -> None:
        """Make the ranks' models equal, if they may differ now."""


def require_whole(name: str, where: str, parallel_strategy: str, options: Mapping[str, object]) -> None:
    """Refuse to wrap or to shard a model.

    Args:
        name: The strategy's name.
        where: The place where it keeps the model, for the message.
        parallel_strategy: The user's choice.
        options: The user's keyword arguments for it.

    Raises:
        ValueError: The user has chosen something else.
    """
    if parallel_strategy != "ddp" or options:
        raise ValueError(
            f"{name} keeps {where}, but received parallel_strategy={parallel_strategy!r} with "
            f"parallel_strategy_kwargs={dict(options)!r}. Leave both out, or use the strategy AllReduce."
        )
