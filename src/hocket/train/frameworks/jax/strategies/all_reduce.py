"""Synchronous data parallelism: the optimizer gets the mean of all ranks' gradients, so all ranks take the same
step."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any, Final, final

import jax.numpy as jnp

from hocket.train import strategies
from hocket.train.frameworks.jax.strategies import averaging, strategy

_SHORT: Final[Mapping[str, object]] = {"fp16": jnp.float16, "bf16": jnp.bfloat16}


@final
class Exchange(strategy.Exchange):
    """All gradients of a step travel in one call."""

    def __init__(self, settings: strategies.AllReduce, ranks: strategies.Ranks) -> None:
        if isinstance(settings.compression, strategies.PowerSGD):
            raise ValueError(
                f"JaxTrainer cannot compress with {settings.compression}, which torch computes. Use "
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

    @property
    def alike(self) -> strategies.Alike:
        return strategies.Alike.ALL

    def average(self, gradients: object, caller: str) -> Any:
        return averaging.compute_means(gradients, self._world_size, caller, self._travel_as)

    def adapt_optimizer(self, optimizer: Any) -> Any:
        def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            losses = averaging.pick_losses(extra, self._world_size)
            if losses:
                extra.update(averaging.compute_means(losses, self._world_size, "prepare_optimizer"))
            watched = {"optimizer": state} if params is None else {"parameter": params, "optimizer": state}
            means = averaging.compute_means(
                updates, self._world_size, "prepare_optimizer", self._travel_as, watched=watched
            )
            return optimizer.update(means, state, params, **extra)

        return optimizer._replace(update=update)


def _shorten(compression: str, dtype: object) -> object:
    return _SHORT[compression] if jnp.issubdtype(dtype, jnp.floating) else dtype
