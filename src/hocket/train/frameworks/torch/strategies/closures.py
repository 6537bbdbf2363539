"""Closures: functions that an optimizer's ``step`` is given and calls to compute gradients, once or, as LBFGS does,
several times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from hocket.train.frameworks.torch.strategies import averaging

Closure: TypeAlias = Callable[[], Any]


def get_optional_closure(args: tuple[object, ...], kwargs: Mapping[str, Any]) -> Closure | None:
    """Return the closure among the arguments of a step, as a hook before it sees them; None if there is none."""
    found: Closure | None = kwargs.get("closure", args[1] if len(args) > 1 else None)
    return found


def replace_closure(args: tuple[object, ...], kwargs: Mapping[str, object], closure: Closure) -> object:
    """Return the arguments of a step with another closure, as such a hook returns them."""
    return args[:1], {**kwargs, "closure": closure}


def average_loss(loss: object, device: torch.device, world_size: int) -> object:
    """Return the mean over all ranks of what a closure returns: a number, a tensor of one, or None in all of them."""
    if loss is None or world_size == 1:
        return loss
    (mean,) = averaging.compute_means([torch.as_tensor(loss, device=device)], world_size)
    return mean if isinstance(loss, torch.Tensor) else mean.item()
