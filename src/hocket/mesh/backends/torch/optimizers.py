"""Optimizers of PyTorch as named values: their state for parameters, and the settings that schedules change.

`state/<number>/<name>` is state of the parameter with that number among all parameters: a tensor spread like the
parameter, or a number of steps. `groups/<number>/<name>` is a setting of a group of parameters that schedules change: a
learning rate, momentum, betas, a weight decay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.distributed import tensor as torch_tensor

from hocket._base import texts
from hocket.mesh.backends.torch import values

_SETTINGS: Final = ("lr", "momentum", "betas", "weight_decay")


def list_values(optimizer: torch.optim.Optimizer) -> list[tuple[str, object]]:
    """Return an optimizer's values with their names."""
    found: list[tuple[str, Any]] = []
    for number, parameter in enumerate(_list_parameters(optimizer)):
        for key, value in optimizer.state.get(parameter, {}).items():
            name = f"state/{number}/{key}"
            if value is None:
                continue
            if not isinstance(value, (torch.Tensor, int, float)):
                raise TypeError(
                    f"{type(optimizer).__name__} keeps {name!r}, {texts.name_kind(value)}, which cannot be saved in "
                    "parts. Leave the optimizer out, or use one that keeps tensors, such as AdamW."
                )
            found.append((name, values.adopt(value) if isinstance(value, torch_tensor.DTensor) else _to_value(value)))
    for number, group in enumerate(optimizer.param_groups):
        found += [(f"groups/{number}/{key}", _to_value(group[key])) for key in _SETTINGS if group.get(key) is not None]
    return found


def fill(optimizer: torch.optim.Optimizer, given: Sequence[object]) -> torch.optim.Optimizer:
    """Put other values into an optimizer, in the order of `list_values`; return the optimizer."""
    parameters = _list_parameters(optimizer)
    for (name, _), value in zip(list_values(optimizer), given, strict=True):
        kind, number, key = name.split("/", 2)
        place: Any = (
            optimizer.state[parameters[int(number)]] if kind == "state" else optimizer.param_groups[int(number)]
        )
        place[key] = _convert(value, place[key])
    return optimizer


def _list_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _to_value(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach()
    return np.asarray(value, np.float64)


def _convert(value: Any, like: Any) -> object:
    """Return a value in the form of the value that it replaces."""
    if isinstance(like, torch_tensor.DTensor):
        native = value.native if isinstance(value, values.TorchTensor) else value
        with torch.no_grad():
            like.to_local().copy_(native.to_local())
        return like
    whole = value.local if isinstance(value, values.TorchTensor) else value
    if isinstance(like, torch.Tensor):
        with torch.no_grad():
            return like.copy_(torch.as_tensor(whole))
    if isinstance(like, (tuple, list)):
        return type(like)([float(one) for one in whole])
    return type(like)(whole.item() if hasattr(whole, "item") else whole)


# --- the state of a new optimizer -------------------------------------------------------------------------------------


def prepare(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> None:
    """Let an optimizer that has taken no step create the state that a checkpoint has.

    The optimizer takes a step of length 0 with gradients of 0, which leaves the parameters unchanged.

    Args:
        optimizer: The optimizer.
        names: The names in the checkpoint, as in `list_values`.
    """
    numbers = {int(name.split("/")[1]) for name in names if name.startswith("state/")}
    parameters = _list_parameters(optimizer)
    lacking = [one for number, one in enumerate(parameters) if number in numbers and not optimizer.state.get(one)]
    if not lacking:
        return
    step: Callable[..., Any] = type(optimizer).step
    step = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step  # no hooks
    with _standing_still(optimizer), _gradients(parameters, lacking):
        step(optimizer)


@contextlib.contextmanager
def _standing_still(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Make steps have length 0 for a block."""
    before: list[dict[str, object]] = [
        {key: group[key] for key in ("lr", "weight_decay") if key in group} for group in optimizer.param_groups
    ]
    for group, settings in zip(optimizer.param_groups, before, strict=True):
        group.update(
            {key: torch.zeros_like(one) if isinstance(one, torch.Tensor) else 0.0 for key, one in settings.items()}
        )
    try:
        yield
    finally:
        for group, settings in zip(optimizer.param_groups, before, strict=True):
            group.update(settings)


@contextlib.contextmanager
def _gradients(parameters: Sequence[torch.Tensor], zero: Sequence[torch.Tensor]) -> Iterator[None]:
    """Give some parameters gradients of 0, and the others none, for a block."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    for parameter in zero:
        parameter.grad = torch.zeros_like(parameter)
    try:
        yield
    finally:
        for parameter, slope in zip(parameters, before, strict=True):
            parameter.grad = slope
