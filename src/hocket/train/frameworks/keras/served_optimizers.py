"""Conversion of Keras's optimizers to the servers' own.

A rank's optimizer then only counts its steps and keeps its learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import keras

from hocket import ps
from hocket._base.internals import keras as keras_internals

_LR: Final = 1.0
"""The servers' learning rate. The optimizer's own is sent with each step, since schedules change it."""

_WITHOUT: Final = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
    "amsgrad",
)
"""Options by which an optimizer changes gradients or weights before or after its rule. Servers do not have them."""


def convert(optimizer: Any, variable: Any) -> ps.Optimizer:
    """Return the servers' equivalent of Keras's optimizer for a variable, with a learning rate of 1.

    Raises:
        ValueError: Servers have no equivalent.
    """
    rule = _find_rule(type(optimizer))
    if rule is None:
        raise ValueError(
            f"With ParameterServer the servers apply the updates, but they have no {type(optimizer).__name__}. Use one "
            f"of keras.optimizers: {', '.join(kind.__name__ for kind in _RULES)}."
        )
    for name in _WITHOUT:
        if getattr(optimizer, name, None):
            raise ValueError(
                "With ParameterServer the servers apply the updates, but they have no "
                f"{type(optimizer).__name__}({name}={getattr(optimizer, name)!r}). Leave {name} out."
            )
    if variable.constraint is not None:
        raise ValueError(
            f"With ParameterServer the servers apply the updates, but they have no constraints, and `{variable.path}` "
            f"has {variable.constraint!r}. Leave the constraint out."
        )
    config = optimizer.get_config()
    decays = config.get("weight_decay") and keras_internals.uses_weight_decay(optimizer, variable)
    return rule(config, float(config["weight_decay"]) if decays else 0.0)


def _find_rule(kind: type) -> Callable[[Mapping[str, object], float], ps.Optimizer] | None:
    if not kind.__module__.startswith("keras."):
        return None  # the user's own may compute anything
    return next((_RULES[one] for one in kind.__mro__ if one in _RULES), None)  # on torch Keras derives from them


def _convert_sgd(config: Mapping[str, Any], decay: float) -> ps.Optimizer:
    if decay and config["momentum"]:
        raise ValueError(
            "With ParameterServer the servers apply the updates, but they have no SGD with both "
            f"momentum={config['momentum']!r} and weight_decay={decay!r}, as Keras computes it. Use AdamW, or leave "
            "one of the two out."
        )
    return ps.SGD(lr=_LR, momentum=config["momentum"], nesterov=config["nesterov"], weight_decay=decay)


def _convert_adam(config: Mapping[str, Any], decay: float) -> ps.Optimizer:
    return ps.Adam(
        lr=_LR,
        beta1=config["beta_1"],
        beta2=config["beta_2"],
        eps=config["epsilon"],
        weight_decay=decay,
        decoupled=True,
        is_eps_hat=True,
    )


def _convert_adagrad(config: Mapping[str, Any], decay: float) -> ps.Optimizer:
    if decay:
        raise ValueError(
            f"With ParameterServer the servers apply the updates, but they have no Adagrad(weight_decay={decay!r}), as "
            "Keras computes it. Leave weight_decay out."
        )
    return ps.Adagrad(lr=_LR, initial_accumulator=config["initial_accumulator_value"], eps=config["epsilon"])


_RULES: Final[Mapping[type, Callable[[Mapping[str, object], float], ps.Optimizer]]] = {
    keras.optimizers.SGD: _convert_sgd,
    keras.optimizers.Adam: _convert_adam,
    keras.optimizers.AdamW: _convert_adam,
    keras.optimizers.Adagrad: _convert_adagrad,
}
