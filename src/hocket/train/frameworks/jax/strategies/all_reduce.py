"""Synchronous data parallelism: the optimizer gets the mean of all ranks' gradients, so all ranks take the same
step."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import jax
import jax.numpy as jnp

from hocket.train import strategies
from hocket.train.frameworks.jax import trees
from hocket.train.frameworks.jax.strategies import averaging, strategy

_SHORT: Final[Mapping[str, object]] = {"fp16": jnp.float16, "bf16": jnp.bfloat16}


@final
class JaxAllReduce(strategy.JaxStrategy):
    """`AllReduce` at work in JAX: all gradients of a step travel in one call."""

    def __init__(self, settings: strategies.AllReduce, ranks: strategies.Ranks) -> None:
        if isinstance(settings.compression, strategies.PowerSGD):
            raise ValueError(
                f"JaxTrainer cannot compress with {settings.compression}, which works in PyTorch only. Use "
                "compression='bf16', or leave it out."
            )
        if settings.bucket_mb is not None:
            warnings.warn(
                f"bucket_mb={settings.bucket_mb} is ignored: in JAX the gradients of a step travel together. Leave it "
                "out.",
                stacklevel=2,
            )
        self._travel_as = None if settings.compression is None else functools.partial(_shorten, settings.compression)
        self._world_size = ranks.world_size
        self._warns = ranks.world_size > 1 and ranks.rank == 0
        self._has_placed = self._has_averaged = False

    @property
    def alike(self) -> strategies.Alike:
        return strategies.Alike.ALL

    def close(self) -> None:
        if self._warns and self._has_placed and not self._has_averaged and sys.exception() is None:
            warnings.warn(
                "The training function called prepare_params(), but neither prepare_optimizer() nor "
                f"average_gradients(): if it trains, each of the {self._world_size} ranks has trained a model of its "
                "own. Write optimizer = hocket.train.jax.prepare_optimizer(optimizer).",
                stacklevel=2,
            )

    def place_params(self, leaves: Sequence[trees.Leaf], values: Sequence[object]) -> list[Any]:
        self._has_placed = True
        return super().place_params(leaves, values)

    def average(self, gradients: object, caller: str) -> Any:
        self._has_averaged = True
        return averaging.compute_means(gradients, self._world_size, caller, self._travel_as)

    def adapt_optimizer(self, optimizer: Any) -> Any:
        self._has_averaged = True
        trained: list[tuple[int, ...]] = []

        def init(params: Any) -> Any:
            trained[:] = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
            return optimizer.init(params)

        def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            losses = averaging.pick_losses(extra, self._world_size)
            if losses:
                extra.update(averaging.compute_means(losses, self._world_size, "prepare_optimizer"))
            if self._world_size > 1:
                _check_rows(
                    updates, trained if params is None else [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
                )
            watched = {"optimizer": state} if params is None else {"parameter": params, "optimizer": state}
            means = averaging.compute_means(
                updates, self._world_size, "prepare_optimizer", self._travel_as, watched=watched
            )
            return optimizer.update(means, state, params, **extra)

        return optimizer._replace(init=init, update=update)


def _check_rows(updates: object, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise for gradients of single rows, which an optimizer clips one by one, as differential privacy does."""
    given = [jnp.shape(leaf) for leaf in jax.tree.leaves(updates)]
    if any(len(one) == len(other) + 1 and one[1:] == other for one, other in zip(given, shapes, strict=False)):
        raise ValueError(
            "optimizer.update() received gradients with one axis more than the parameters, so they are gradients of "
            "single rows. Each rank has different rows, so the mean of these gradients over the ranks has no meaning. "
            "Clip them first, and step with their mean: optax.per_example_global_norm_clip(gradients, norm), then the "
            "prepared optimizer."
        )


def _shorten(compression: str, dtype: object) -> object:
    return _SHORT[compression] if jnp.issubdtype(dtype, jnp.floating) else dtype
