"""Conversion of torch's optimizers to the servers' own. A rank's optimizer then only keeps its parameter groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from hocket import ps

_LR: Final = 1.0
"""The servers' learning rate. A group's own is sent with each step, since schedulers change it."""


def convert(optimizer: torch.optim.Optimizer, group: Mapping[str, object]) -> ps.Optimizer:
    """Return the servers' equivalent of an optimizer for a group's parameters, with a learning rate of 1.

    Raises:
        ValueError: Servers have no equivalent.
    """
    rule = _RULES.get(type(optimizer))
    if rule is None:
        raise ValueError(
            f"With ParameterServer the servers apply the updates, but they have no {type(optimizer).__name__}. Use one "
            f"of torch.optim: {', '.join(kind.__name__ for kind in _RULES)}."
        )
    for name in ("maximize", "amsgrad", "dampening", "lr_decay"):
        if group.get(name):
            raise ValueError(
                "With ParameterServer the servers apply the updates, but they have no "
                f"{type(optimizer).__name__}({name}={group[name]!r}). Leave {name} out."
            )
    return rule(group)


def _convert_sgd(group: Mapping[str, Any]) -> ps.Optimizer:
    return ps.SGD(
        lr=_LR, momentum=group["momentum"], nesterov=group["nesterov"], weight_decay=float(group["weight_decay"])
    )


def _convert_adam(group: Mapping[str, object]) -> ps.Optimizer:
    return _build_adam(group, is_decoupled=bool(group.get("decoupled_weight_decay")))


def _convert_adamw(group: Mapping[str, object]) -> ps.Optimizer:
    return _build_adam(group, is_decoupled=True)


def _convert_sparse_adam(group: Mapping[str, object]) -> ps.Optimizer:
    return _build_adam(
        group, is_decoupled=False, is_eps_hat=True
    )  # unlike its Adam, torch's SparseAdam adds eps before the root is corrected


def _build_adam(group: Mapping[str, Any], *, is_decoupled: bool, is_eps_hat: bool = False) -> ps.Optimizer:
    beta1, beta2 = (float(beta) for beta in group["betas"])
    decay = float(group.get("weight_decay", 0.0))
    return ps.Adam(
        lr=_LR,
        beta1=beta1,
        beta2=beta2,
        eps=group["eps"],
        weight_decay=decay,
        decoupled=is_decoupled,
        is_eps_hat=is_eps_hat,
    )


def _convert_adagrad(group: Mapping[str, Any]) -> ps.Optimizer:
    return ps.Adagrad(
        lr=_LR,
        initial_accumulator=float(group["initial_accumulator_value"]),
        eps=group["eps"],
        weight_decay=float(group["weight_decay"]),
    )


_RULES: Final[Mapping[type, Callable[[Mapping[str, object]], ps.Optimizer]]] = {
    torch.optim.SGD: _convert_sgd,
    torch.optim.Adam: _convert_adam,
    torch.optim.AdamW: _convert_adamw,
    torch.optim.Adagrad: _convert_adagrad,
    torch.optim.SparseAdam: _convert_sparse_adam,
}
