"""JAX's implementation of the framework contract."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import experimental

from hocket import ps
from hocket.collective.world import World
from hocket.train import strategies
from hocket.train.frameworks import contract, weights
from hocket.train.frameworks.jax import checkpoints, config, host_calls, trees
from hocket.train.frameworks.jax import strategies as jax_strategies
from hocket.train.rank import worker_session, world

_CAUSES: Final = {
    "parameter": (
        "Likely causes: each rank made or loaded its own parameters (give them to prepare_params()); or one rank alone "
        "took or skipped a step because of its own loss or gradients (decide by the result of average_gradients())."
    ),
    "optimizer": (
        "Likely causes: each rank has its own optimizer state or learning rate (give the state to prepare_params()); "
        "or one rank alone skipped a step (decide by the result of average_gradients())."
    ),
}
"""Likely causes and remedies when ranks differ, by the kind of tensor that differs first."""

_DETERMINISTIC: Final = "--xla_gpu_deterministic_ops=true"


@final
class JaxFramework(contract.Framework[jax_strategies.JaxStrategy]):
    """JAX: trees of immutable arrays, and compiled steps that call the host."""

    name = "jax"
    limits: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("float64", "int64"), "JAX computes with 64 bits only if jax_enable_x64 is set"),
        "taken steps": "A strategy that takes steps needs the learning rate, which optimizers of optax do not expose",
    }

    @property
    def overrides(self) -> Mapping[type[strategies.Strategy], object]:
        return jax_strategies.OVERRIDES

    def build_config(self) -> config.JaxConfig:
        return config.JaxConfig()

    def open(
        self, session: worker_session.WorkerSession, strategy: strategies.Strategy, caller: str
    ) -> jax_strategies.JaxStrategy:
        opened = jax_strategies.open_exchange(strategy, strategies.Ranks(session.info.rank, session.info.world_size))
        if strategies.Alike.OPTIMIZERS in opened.alike and session.info.world_size > 1:
            session.watch.add(lambda: host_calls.list_watched(world.get_world("jax.JaxTrainer")), _CAUSES)
        return opened

    def leave(self) -> None:
        """Leave the ranks' collectives. A rank that still waits for this one gets an error and does not hang."""
        host_calls.wait_for_steps()
        worker_session.get_session("jax.JaxTrainer").watch.end()
        world.get_world("jax.JaxTrainer").close()

    def get_collectives(self, caller: str) -> strategies.Collectives:
        if worker_session.get_optional_session() is None:
            return World(0, [[0]])
        host_calls.wait_for_steps()
        return world.get_world(f"jax.{caller}")

    def to_host(self, values: object, caller: str) -> strategies.Array:
        if isinstance(values, jax.core.Tracer):
            raise TypeError(
                f"{caller} was called inside jax.jit or another transformation of JAX, where there are no numbers "
                "yet. Return the values from the jitted function, and use them outside."
            )
        if not isinstance(values, jax.Array | np.ndarray):
            raise TypeError(f"{caller} takes an array, but received {values!r}. Write jnp.array(values).")
        if trees.is_spread(values):
            raise trees.build_spread_error(caller, "")
        array = np.asarray(values)
        return array.astype(np.float32) if array.dtype.kind == "V" else array

    def from_host(self, array: strategies.Array) -> jax.Array:
        return jnp.asarray(array)

    def cross(self, arrays: Sequence[Any], change: contract.Change) -> list[object]:
        def visit(*given: object) -> list[strategies.Array]:
            on_host = [np.array(array) for array in given]
            change([array.reshape(-1) for array in on_host])
            return on_host

        sent = [jnp.asarray(array, host_calls.widen(array.dtype)) for array in arrays]
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in sent]
        found = experimental.io_callback(visit, shapes, *sent, ordered=True)
        return [new.astype(array.dtype) for new, array in zip(found, arrays, strict=True)]

    def list_weights(self, model: object) -> list[tuple[str, strategies.Array]]:
        leaves, values, _ = trees.list_leaves(model, "list_weights")
        return [
            (leaf.name, np.array(self.to_host(value, "list_weights()")))
            for leaf, value in zip(leaves, values, strict=True)
        ]

    def set_weights(self, model: object, arrays: Sequence[strategies.Array]) -> object:
        _, values, structure = trees.list_leaves(model, "set_weights")
        made = [jnp.asarray(array, value.dtype) for array, value in zip(arrays, values, strict=True)]
        return jax.tree_util.tree_unflatten(structure, made)

    def save_weights(self, model: object, folder: str | os.PathLike[str]) -> None:
        checkpoints.save_pytree(Path(folder, weights.FILE_NAME), model)

    def load_weights(self, model: object, folder: str | os.PathLike[str]) -> object:
        return checkpoints.load_pytree(Path(folder, weights.FILE_NAME), model)

    def convert_optimizer(self, optimizer: object, parameter: object) -> ps.Optimizer:
        if isinstance(optimizer, ps.Optimizer):
            return optimizer
        raise jax_strategies.build_conversion_error()

    def seed(self, seed: int) -> Any:
        flags = os.environ.get("XLA_FLAGS", "")
        if "xla_gpu_deterministic_ops" not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {_DETERMINISTIC}".strip()
        return jax.random.key(seed)


FRAMEWORK: Final = JaxFramework()
