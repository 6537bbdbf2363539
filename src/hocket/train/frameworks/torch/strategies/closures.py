"""Closures: functions with which an optimizer's ``step`` computes gradients, once or, as in LBFGS, several times; and
changes of gradients after each call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import torch

from hocket.train.frameworks.torch.strategies import averaging

Closure: TypeAlias = Callable[[], Any]
Arguments: TypeAlias = tuple[tuple[object, ...], dict[str, object]]
"""The arguments of a step, as a hook before it sees and returns them."""


def get_optional_closure(args: tuple[object, ...], kwargs: Mapping[str, Any]) -> Closure | None:
    """Return the closure among the arguments of a step, as a hook before it sees them; None if there is none."""
    found: Closure | None = kwargs.get("closure", args[1] if len(args) > 1 else None)
    return found


def replace_closure(args: tuple[object, ...], kwargs: Mapping[str, object], closure: Closure) -> Arguments:
    """Return the arguments of a step with another closure, in the form in which such a hook returns them."""
    return args[:1], {**kwargs, "closure": closure}


def run_closure(args: tuple[object, ...], kwargs: dict[str, object]) -> Arguments | None:
    """Call a step's closure, which computes the gradients; return the step's arguments with its loss, or None without a
    closure."""
    closure = get_optional_closure(args, kwargs)
    if closure is None:
        return None
    with torch.enable_grad():
        loss = closure()
    return replace_closure(args, kwargs, lambda: loss)


def follow_closure(
    args: tuple[object, ...], kwargs: Mapping[str, object], change: Callable[[], object]
) -> Arguments | None:
    """Call `change` each time that a step's closure has computed gradients; return the step's arguments for that, or
    None if there is no closure."""
    closure = get_optional_closure(args, kwargs)
    if closure is None:
        return None

    def compute() -> object:
        loss = closure()
        change()
        return loss

    return replace_closure(args, kwargs, compute)


def average_loss(loss: object, device: torch.device, world_size: int) -> object:
    """Return the mean over all ranks of a closure's result: a number, a tensor with one, or None in all ranks."""
    if loss is None or world_size == 1:
        return loss
    (mean,) = averaging.compute_means([torch.as_tensor(loss, device=device)], world_size)
    return mean if isinstance(loss, torch.Tensor) else mean.item()


def share_loss(optimizer: torch.optim.Optimizer, arguments: Arguments, world_size: int) -> Arguments | None:
    """Make LBFGS use the mean loss to decide how far to go. With its own loss each rank would go another way, with the
    same gradients.

    Args:
        optimizer: Any optimizer.
        arguments: The arguments of its step.
        world_size: The number of ranks.

    Returns:
        The new arguments; None if the optimizer does not decide by the loss.
    """
    closure = get_optional_closure(*arguments)
    if closure is None or world_size == 1 or not isinstance(optimizer, torch.optim.LBFGS):
        return None
    device = optimizer.param_groups[0]["params"][0].device
    return replace_closure(*arguments, lambda: average_loss(closure(), device, world_size))


@final
class Outside:
    """Parameters of optimizers that no prepared model has, such as a temperature beside the model. Their gradients are
    averaged before each step. They must begin equal in all ranks.

    Args:
        world_size: The number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._seen: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[torch.Tensor]] = weakref.WeakKeyDictionary()

    def begin_step(
        self,
        optimizer: torch.optim.Optimizer,
        outside: list[torch.Tensor],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Arguments | None:
        """Average the gradients; return new arguments for the step, or None, as a hook before it does."""
        if not outside:
            return None
        seen = self._seen.setdefault(optimizer, [])
        new = [one for one in outside if not any(one is other for other in seen)]
        averaging.require_equal(new, "parameters that no prepared model has")
        seen.extend(new)

        def average() -> None:
            averaging.average_gradients(outside, [True] * len(outside), self._world_size)

        replaced = follow_closure(args, kwargs, average)
        if replaced is None:
            average()
        return replaced
