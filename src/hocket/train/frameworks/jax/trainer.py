"""The trainer for JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import final

from hocket import data
from hocket.train import configs, data_parallel_trainer, strategies, validation
from hocket.train.frameworks.jax import config, framework
from hocket.train.rank import datasets as datasets_module
from hocket.train.strategies import hosting


@final
@data_parallel_trainer.explained(jax_config=config.JaxConfig)
class JaxTrainer(data_parallel_trainer.DataParallelTrainer):
    """A trainer that runs a function in ranks which average JAX's gradients.

    Args:
        train_loop_per_worker: The training function. It takes no argument, or one: the configuration. It calls
            `prepare_params` and `prepare_optimizer` (or `average_gradients`), `prepare_arrays`, and
            `hocket.train.report`.
        train_loop_config: The configuration for the function, if it takes an argument.
        strategy: How updates travel between the ranks. Default: `AllReduce()`. The training function is the same for
            every strategy.
        jax_config: How the ranks are joined.
        scaling_config: The number of ranks, and each rank's resources. Default: one rank, with a CPU.
        run_config: Name, storage, failures, checkpoints, callbacks.
        validation_config: How a checkpoint is validated if its report requests that.
        datasets: Datasets by name. `get_dataset_shard` gives each rank its part.
        dataset_config: Which datasets are split among the ranks.
        metadata: For programs written for Ray; must be None.
        resume_from_checkpoint: See `metadata`.

    Raises:
        TypeError: The function cannot be called, or a configuration has the wrong type.
        ValueError: The function needs more than one argument, or a configuration is given that it does not take.

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
        train_loop_config: Mapping[str, object] | None = None,
        strategy: strategies.Strategy | None = None,
        jax_config: config.JaxConfig | None = None,
        scaling_config: configs.ScalingConfig | None = None,
        run_config: configs.RunConfig | None = None,
        validation_config: validation.ValidationConfig | None = None,
        datasets: Mapping[str, data.Dataset] | None = None,
        dataset_config: datasets_module.DataConfig | None = None,
        metadata: None = None,
        resume_from_checkpoint: None = None,
    ) -> None:
        train_loop_per_worker = hosting.add_strategy(train_loop_per_worker, strategy, framework.FRAMEWORK.use_strategy)
        data_parallel_trainer.check_type("jax_config", jax_config, config.JaxConfig)
        backend_config = jax_config or config.JaxConfig()
        if isinstance(strategy, strategies.Sharded):
            backend_config = dataclasses.replace(backend_config, distributed=True)
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=backend_config,
            scaling_config=scaling_config,
            run_config=run_config,
            validation_config=validation_config,
            datasets=datasets,
            dataset_config=dataset_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )
