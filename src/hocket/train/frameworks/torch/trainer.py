"""The trainer for PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack, final

from hocket.train import data_parallel_trainer, strategies
from hocket.train.frameworks.torch import config, framework
from hocket.train.strategies import hosting


@final
@data_parallel_trainer.explained(torch_config=config.TorchConfig)
class TorchTrainer(data_parallel_trainer.DataParallelTrainer):
    """A trainer that runs a function in ranks which are joined in a torch process group.

    Args:
        train_loop_per_worker: The training function. It takes no argument, or one: the configuration. It calls
            `prepare_model` and `prepare_data_loader`, and `hocket.train.report`.
        strategy: How updates travel between the ranks. Default: `AllReduce()`. The training function is the same for
            every strategy.
        torch_config: Backend and time-out of the process group.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., object],
        *,
        strategy: strategies.Strategy | None = None,
        torch_config: config.TorchConfig | None = None,
        **options: Unpack[data_parallel_trainer.TrainerOptions],
    ) -> None:
        train_loop_per_worker = hosting.add_strategy(train_loop_per_worker, strategy, framework.FRAMEWORK.use_strategy)
        super().__init__(
            train_loop_per_worker,
            backend_config=data_parallel_trainer.choose("torch_config", torch_config, config.TorchConfig),
            **options,
        )
