"""A framework that computes on the host: its arrays are numpy's, and its models are `HostModel`s.

Such a framework needs no code for strategies, checkpoints or collectives of its own: `HostFramework` has what
`contract.Framework` asks for, and a training step calls `share_gradients`. `tests/matrix/numpy_framework.py` is one in
a hundred lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.train import strategies
from hocket.train.frameworks import contract, rank_states
from hocket.train.rank import worker_session, world
from hocket.train.strategies import Array


class HostFramework(contract.Framework[rank_states.RuntimeState]):
    """The parts of a framework on the host that do not depend on its models. `name` and `seed` are left to it."""

    def open(
        self, session: worker_session.WorkerSession, strategy: strategies.Strategy, caller: str
    ) -> rank_states.RuntimeState:
        return rank_states.RuntimeState(world.get_world(caller), strategy)

    def to_host(self, values: object, caller: str) -> Array:
        if not isinstance(values, np.ndarray | np.generic):
            raise TypeError(f"{caller} takes an array, but received {values!r}. Write np.array(values).")
        return np.asarray(values)

    def from_host(self, array: Array) -> Array:
        return array.copy()

    def cross(self, arrays: Sequence[Array], change: contract.Change) -> list[Array]:
        found = [array.copy() for array in arrays]
        change([array.reshape(-1) for array in found])
        return found

    def list_weights(self, model: strategies.HostModel) -> list[tuple[str, Array]]:
        return [(name, array) for (name, _), array in zip(model.list_rules(), model.read(), strict=True)]

    def set_weights(self, model: strategies.HostModel, arrays: Sequence[Array]) -> strategies.HostModel:
        model.write(arrays)
        return model

    def prepare(self, model: strategies.HostModel) -> strategies.StrategyRuntime:
        """Give a model rank 0's parameters, and return the strategy that its steps go through (`share_gradients`)."""
        joined = world.get_world(f"{self.name}.prepare")
        flat = model.read_flat()
        joined.broadcast(flat)
        model.write_flat(flat)
        runtime = strategies.open_next(self.get_state("prepare").runtime)
        runtime.begin(model)
        return runtime


def share_gradients(
    runtime: strategies.StrategyRuntime,
    model: strategies.HostModel,
    gradients: Sequence[Array],
    rate: float,
    num_rows: float,
) -> list[Any]:
    """Return the gradients that a rank steps with. Call `StrategyRuntime.after_steps` after the step.

    Args:
        runtime: The strategy at work.
        model: The model that steps.
        gradients: The rank's own gradients, one for each parameter, in the model's order.
        rate: The optimizer's learning rate.
        num_rows: The number of rows of which the gradients are the mean; 0 if they must not count.

    Returns:
        An array for each parameter; nothing if the strategy took the step, and the model has its new parameters.
    """
    flat = strategies.flatten_gradients(gradients)
    if runtime.takes_steps:
        runtime.choose(range(len(gradients)))
        strategies.take_step(runtime, flat, rate, counts=num_rows > 0)
        model.write_flat(flat[:-1])
        return []
    if runtime.averages_gradients:
        strategies.average(runtime, flat, num_rows)
    return strategies.unflatten(flat[:-1], model.shapes)
