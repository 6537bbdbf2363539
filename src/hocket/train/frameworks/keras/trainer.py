"""The trainer for Keras 3."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Unpack, final

from hocket.train import data_parallel_trainer, strategies
from hocket.train.frameworks.keras import config, framework, sharding
from hocket.train.strategies import hosting


@final
@data_parallel_trainer.explained(keras_config=config.KerasConfig)
class KerasTrainer(data_parallel_trainer.DataParallelTrainer):
    """A trainer that runs a function in ranks which train Keras models as one.

    Args:
        train_loop_per_worker: The training function. It takes no argument, or one: the configuration. It calls
            `prepare_model`, and ``model.fit`` with the result of `prepare_arrays`.
        strategy: How updates travel between the ranks. Default: `AllReduce()`. The training function is the same for
            every strategy.
        keras_config: Keras's backend, and the time-out.

    Raises:
        TypeError: The function cannot be called, or a configuration or the strategy has the wrong type.
        ValueError: The function needs more than one argument, or a configuration is given that it does not take; or the
            backend does not support the strategy.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., object],
        *,
        strategy: strategies.Strategy | None = None,
        keras_config: config.KerasConfig | None = None,
        **options: Unpack[data_parallel_trainer.TrainerOptions],
    ) -> None:
        train_loop_per_worker = hosting.add_strategy(train_loop_per_worker, strategy, framework.FRAMEWORK.use_strategy)
        backend_config = data_parallel_trainer.choose("keras_config", keras_config, config.KerasConfig)
        if isinstance(strategy, strategies.Sharded):
            sharding.check_backend(strategy, backend_config.choose_backend())
            backend_config = dataclasses.replace(backend_config, distributed=True)
        super().__init__(train_loop_per_worker, backend_config=backend_config, **options)
