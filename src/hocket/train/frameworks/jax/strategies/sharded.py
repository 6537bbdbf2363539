"""`hocket.train.strategies.Sharded` in JAX: one program over the devices of all ranks.

Parameters and batches are global arrays, and each rank has its part of them. XLA decides what a step computes with
parts, and which collectives that takes. A loss is then the mean over the rows of the whole batch in every rank, and the
gradient is that of this mean. So an optimizer has nothing to average. This module only says how values are spread:
parameters once, and in a compiled step gradients, updates and the optimizer's state, which XLA would otherwise spread
as it likes.

A value of an optimizer's state belongs to a parameter if it has the parameter's shape, and its path ends with the
parameter's: ``0/mu/dense/kernel`` belongs to ``dense/kernel``. Others, such as the number of steps, are replicated.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, final

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from hocket import mesh as meshes
from hocket.mesh.backends import jax as backend
from hocket.train import strategies
from hocket.train.frameworks import spread_usage, spreading
from hocket.train.frameworks.jax import trees
from hocket.train.frameworks.jax.strategies import strategy


@final
class JaxSharded(strategy.JaxStrategy):
    """`Sharded` at work in JAX, with the sharding of each parameter."""

    needs_equal_rows = True

    def __init__(self, settings: strategies.Sharded, ranks: strategies.Ranks) -> None:
        self._settings = settings
        self._parts = settings.locate_batch(ranks.rank, ranks.world_size)[1]
        self._known: dict[tuple[str, tuple[int, ...]], NamedSharding] = {}
        """The shardings of parameters, by name and shape."""
        self._account = spread_usage.Account(settings)

    @functools.cached_property
    def _mesh(self) -> meshes.Mesh:
        kind = jax.local_devices()[0].platform.upper()
        return meshes.create_distributed_mesh(self._settings.mesh, device_type=kind, framework="jax")

    @property
    def random_rank(self) -> int:
        return 0

    def place_params(self, leaves: Sequence[trees.Leaf], values: Sequence[object]) -> list[Any]:
        shapes = {leaf.name: leaf.shape for leaf in leaves if self._find(leaf.name, leaf.shape) is None}
        layouts = self._plan(shapes)
        if not self._known:
            self._account.predict(
                (layouts[leaf.name], leaf.shape, np.dtype(leaf.dtype).itemsize, True)
                for leaf, value in zip(leaves, values, strict=True)
                if not trees.is_key(value)
            )
        for name, layout in layouts.items():
            self._known[name, shapes[name]] = backend.find_sharding(layout)
        return [
            self._spread(value, self._find(leaf.name, leaf.shape)) for leaf, value in zip(leaves, values, strict=True)
        ]

    def _plan(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, meshes.Layout]:
        """Return the layouts of values that are not known yet. A parameter's rule may not fit a value that an optimizer
        keeps of it, such as sums over its rows; that value is replicated."""
        beside = {name for name in shapes if any(name.endswith(f"/{known}") for known, _ in self._known)}
        ruled = {name: shape for name, shape in shapes.items() if name not in beside}
        layouts = spreading.plan(self._settings, self._mesh, ruled, is_first=not self._known) if ruled else {}
        for name in beside:
            try:
                layouts |= spreading.plan(self._settings, self._mesh, {name: shapes[name]}, is_first=False)
            except ValueError:
                layouts[name] = meshes.Layout.replicated(self._mesh, len(shapes[name]))
        return layouts

    @staticmethod
    def _spread(value: object, sharding: NamedSharding | None) -> object:
        assert sharding is not None
        if trees.is_key(value):
            data = backend.place(jax.random.key_data(value), NamedSharding(sharding.mesh, PartitionSpec()))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
        return backend.place(value, sharding)

    def place_batch(self, arrays: Sequence[Any], device: Any) -> list[Any]:
        self._account.count_step()
        axes = spreading.list_batch_dims(self._settings)
        sharding = NamedSharding(backend.get_mesh(self._mesh), PartitionSpec(tuple(axes) or None))
        return [
            jax.make_array_from_single_device_arrays(
                (array.shape[0] * self._parts, *array.shape[1:]), sharding, [jax.device_put(array, device)]
            )
            for array in arrays
        ]

    def average(self, gradients: object, caller: str) -> Any:
        self._check_prepared()
        return self._constrain(gradients)

    def adapt_optimizer(self, optimizer: Any) -> Any:
        def init(params: Any) -> Any:
            self._check_prepared()
            state = jax.jit(lambda params: self._constrain(optimizer.init(params), rest=True))(params)
            self._account.optimizer = spread_usage.count_kept(jax.tree.leaves(state))
            return state

        def update(updates: Any, state: Any, params: object = None, **extra: object) -> object:
            steps, state = optimizer.update(self._constrain(updates), state, params, **extra)
            return self._constrain(steps), self._constrain(state)

        return optimizer._replace(init=init, update=update)

    def _check_prepared(self) -> None:
        if not self._known:
            raise ValueError(
                "Sharded must know the parameters before the optimizer does. Write params = prepare_params(params) "
                "before optimizer.init(params), or before the first step."
            )

    def _constrain(self, tree: object, *, rest: bool = False) -> Any:
        """Constrain how a tree's values are spread: those that belong to parameters or, with `rest`, all."""

        def constrain(path: Any, value: object) -> object:
            if not hasattr(value, "shape") or trees.is_key(value):
                return value
            sharding = self._find(trees.name_path(path), tuple(value.shape))
            if sharding is None and rest:
                sharding = NamedSharding(backend.get_mesh(self._mesh), PartitionSpec())
            return value if sharding is None else jax.lax.with_sharding_constraint(value, sharding)

        return jax.tree_util.tree_map_with_path(constrain, tree)

    def _find(self, name: str, shape: tuple[int, ...]) -> NamedSharding | None:
        """Return the sharding of the parameter with whose name a name ends; None if there is none."""
        while True:
            if (name, shape) in self._known:
                return self._known[name, shape]
            if not name:
                return None
            name = name.partition("/")[2]

    def close(self) -> None:
        self._account.note()

    def read_rows(self, array: Any) -> Any:
        if not trees.is_global(array) or not array.ndim:
            return array
        axes = spreading.list_batch_dims(self._settings)
        sharding = NamedSharding(backend.get_mesh(self._mesh), PartitionSpec(tuple(axes) or None))
        if not array.sharding.is_equivalent_to(sharding, array.ndim):
            array = jax.device_put(array, sharding)
        return np.asarray(array.addressable_data(0))


def gather(value: object) -> Any:
    """Return a spread array as a whole numpy array, and any other value unchanged."""
    return backend.gather(value) if trees.is_spread(value) else value
