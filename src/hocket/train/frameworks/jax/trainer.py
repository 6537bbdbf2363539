"""The trainer for JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Unpack, final

from hocket.train import data_parallel_trainer, strategies
from hocket.train.frameworks.jax import config, framework
from hocket.train.strategies import hosting


@final
@data_parallel_trainer.explained(jax_config=config.JaxConfig)
class JaxTrainer(data_parallel_trainer.DataParallelTrainer):
    """A trainer that runs a function in ranks which average JAX's gradients.

    Args:
        train_loop_per_worker: The training function. It takes no argument, or one: the configuration. It calls
            `prepare_params` and `prepare_optimizer` (or `average_gradients`), `prepare_arrays`, and
            `hocket.train.report`.
        strategy: How updates travel between the ranks. Default: `AllReduce()`. The training function is the same for
            every strategy.
        jax_config: How the ranks are joined.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp
        >>> from hocket import train
        >>> from hocket.train.jax import JaxTrainer, average_gradients, prepare_params
        >>> def train_loop():
        ...     weight = prepare_params(jnp.array(0.0))
        ...     @jax.jit
        ...     def step(weight, x):
        ...         gradient = jax.grad(lambda weight: (weight * x - 6.0) ** 2)(weight)
        ...         return weight - 0.1 * average_gradients(gradient)
        ...     for _ in range(20):
        ...         weight = step(weight, 2.0)
        ...     train.report({"weight": round(float(weight), 3)})
        >>> JaxTrainer(
        ...     train_loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),  # in this process
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().metrics
        {'weight': 3.0}
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., object],
        *,
        strategy: strategies.Strategy | None = None,
        jax_config: config.JaxConfig | None = None,
        **options: Unpack[data_parallel_trainer.TrainerOptions],
    ) -> None:
        train_loop_per_worker = hosting.add_strategy(train_loop_per_worker, strategy, framework.FRAMEWORK.use_strategy)
        backend_config = data_parallel_trainer.choose("jax_config", jax_config, config.JaxConfig)
        if isinstance(strategy, strategies.Sharded):
            backend_config = dataclasses.replace(backend_config, distributed=True)
        super().__init__(train_loop_per_worker, backend_config=backend_config, **options)
