"""Parameter servers in Keras: a step pushes its gradients to the servers, and the variables become what the servers have then. See `hocket.train.strategies.ps_client`.

It happens where other strategies average, in ``Optimizer.apply``; the rank's optimizer counts its steps, keeps its learning rate, and computes nothing else. One
array goes to the host and one comes back, so each variable moves as a whole, those of ``keras.layers.Embedding``, too: in a compiled step shapes are fixed, and
how many rows a batch uses is not.

``fit`` evaluates and reports at the end of an epoch. There the ranks wait for each other, and all read the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import keras
import numpy as np
import numpy.typing as npt

from hocket import ps
from hocket.collective.world import World
from hocket.train.frameworks.keras import bridges, variables
from hocket.train.frameworks.keras.strategies import strategy
from hocket.train.strategies import ps_client

_LR: Final = 1.0
"""The learning rate that servers know. What the optimizer has is sent with each step, since schedules change it."""

_WITHOUT: Final = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
    "amsgrad",
)
"""What an optimizer does with gradients or weights before and after its rule, which is not there when the servers apply it."""


@strategy.open_exchange.register
def _(settings: ps_client.OpenParameterServer, joined: World) -> strategy.Exchange:
    return _Exchange(settings, joined)


@final
class _Exchange(strategy.Exchange):
    takes_steps = True

    def __init__(self, settings: ps_client.OpenParameterServer, joined: World) -> None:
        self._world = joined
        self._client = ps_client.open_client(settings, "keras.KerasTrainer")
        self._made: list[Any] = []
        """What the servers hold, in the order of the model's trainable variables."""
        self._chosen: Sequence[int] = ()
        self._has_model = False
        self._step = 0
        self._seen: npt.NDArray[Any] | None = None
        """What was pulled last, to see whether the model was given other weights since."""

    def follow_model(self) -> strategy.Exchange:
        if self._has_model:
            raise ValueError(
                "prepare_model() received a second model, but with ParameterServer the servers hold the weights of one in Keras. Make one keras.Model of both, or train "
                "the other one in a KerasTrainer of its own."
            )
        self._has_model = True
        return self

    def choose(self, numbers: Sequence[int]) -> None:
        self._chosen = tuple(numbers)

    def average(self, flat: npt.NDArray[Any], rows: float) -> None:
        """Turn gradients into new values; `rows` is the learning rate."""
        targets = [self._made[number] for number in self._chosen]
        parts = _split(flat[:-1], targets)
        if rows:
            self._step += 1
            gradients = [
                ps_client.Gradient(target, part.astype(target.dtype), ps_client.find_scale(rows, target.optimizer))
                for target, part in zip(targets, parts, strict=True)
            ]
            self._client.push(self._step, gradients)
            self._client.pass_turn()
            self._client.enter_early()
        for target, part in zip(targets, parts, strict=True):
            part[...] = self._client.read(target)

    def gather(self, slices: Sequence[bridges.Slices], rows: float) -> Sequence[bridges.Slices]:
        raise AssertionError("where steps are taken on servers gradients are whole")

    @property
    def has_begun(self) -> bool:
        return bool(self._made)

    def begin(self, model: Any) -> None:
        given = model.trainable_variables
        variables.attach(model)
        if not self._made:
            rules = [convert(model.optimizer, variable) for variable in given]
            if self._world.rank > 0:
                self._world.barrier()  # rank 0 makes them
            for number, (variable, rule) in enumerate(zip(given, rules, strict=True)):
                value = variables.read(variable)
                wide = value if value.dtype == np.float64 else value.astype(np.float32)
                self._made.append(
                    self._client.make_variable(f"{number}/{variable.path}", wide, rule, is_made=self._world.rank > 0)
                )
            if self._world.rank == 0:
                self._world.barrier()
        elif self._seen is not None and not np.array_equal(self._seen, variables.read_flat(given)):
            self._client.load(
                [(target, variables.read(variable)) for target, variable in zip(self._made, given, strict=True)]
            )
        self._step = int(keras.ops.convert_to_numpy(model.optimizer.iterations))

    def begin_epoch(self, model: Any) -> None:
        self._client.enter_early()
        self._pull(model)

    def after_steps(self, model: Any, count: int) -> None: ...

    def synchronize(self, model: Any) -> None:
        self._client.leave()
        if not self._made:
            return
        self._world.barrier()  # nobody pushes any more
        self._pull(model)
        self._world.barrier()

    def close(self) -> None:
        self._client.close()

    def _pull(self, model: Any) -> None:
        variables.attach(model)
        arrays = [self._client.read(target) for target in self._made]
        for variable, array in zip(model.trainable_variables, arrays, strict=True):
            variable.assign(array)
        self._seen = variables.read_flat(model.trainable_variables)


def _split(flat: npt.NDArray[Any], targets: Sequence[Any]) -> list[npt.NDArray[Any]]:
    sizes = [int(np.prod(target.shape, dtype=np.int64)) for target in targets]
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    return [part.reshape(target.shape) for part, target in zip(parts, targets, strict=True)]


# --- optimizers ------------------------------------------------------------------------------------------------------


def convert(optimizer: Any, variable: Any) -> ps.Optimizer:
    """Return what does on a server as Keras's optimizer does with a variable, with a learning rate of 1.

    Raises:
        ValueError: Servers cannot do it.
    """
    rule = _find_rule(type(optimizer))
    if rule is None:
        raise ValueError(
            f"Servers apply the updates with ParameterServer, and have no {type(optimizer).__name__}. Use one of keras.optimizers: "
            f"{', '.join(kind.__name__ for kind in _RULES)}."
        )
    for name in _WITHOUT:
        if getattr(optimizer, name, None):
            raise ValueError(
                f"Servers apply the updates with ParameterServer, and have no {type(optimizer).__name__}({name}={getattr(optimizer, name)!r}). Leave {name} out."
            )
    if variable.constraint is not None:
        raise ValueError(
            f"Servers apply the updates with ParameterServer, and have no constraints, but `{variable.path}` has {variable.constraint!r}. Leave it out."
        )
    config = optimizer.get_config()
    decays = config.get("weight_decay") and optimizer._use_weight_decay(variable)
    return rule(config, float(config["weight_decay"]) if decays else 0.0)


def _find_rule(kind: type) -> Callable[[Mapping[str, Any], float], ps.Optimizer] | None:
    if not kind.__module__.startswith("keras."):
        return None  # the user's own may compute anything
    return next((_RULES[one] for one in kind.__mro__ if one in _RULES), None)  # on torch Keras derives from them


def _convert_sgd(config: Mapping[str, Any], decay: float) -> ps.Optimizer:
    if decay and config["momentum"]:
        raise ValueError(
            f"Servers apply the updates with ParameterServer, and have no SGD with momentum={config['momentum']!r} and weight_decay={decay!r} as Keras has it. Use "
            "AdamW, or leave one of them out."
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
            f"Servers apply the updates with ParameterServer, and have no Adagrad(weight_decay={decay!r}) as Keras has it. Leave weight_decay out."
        )
    return ps.Adagrad(lr=_LR, initial_accumulator=config["initial_accumulator_value"], eps=config["epsilon"])


_RULES: Final[Mapping[type, Callable[[Mapping[str, Any], float], ps.Optimizer]]] = {
    keras.optimizers.SGD: _convert_sgd,
    keras.optimizers.Adam: _convert_adam,
    keras.optimizers.AdamW: _convert_adam,
    keras.optimizers.Adagrad: _convert_adagrad,
}
