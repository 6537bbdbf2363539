"""The trainer for LightGBM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack, final

from hocket.train import data_parallel_trainer
from hocket.train.frameworks.boosters import joined
from hocket.train.frameworks.boosters.lightgbm import config, network


@final
@data_parallel_trainer.explained(lightgbm_config=config.LightGBMConfig)
class LightGBMTrainer(data_parallel_trainer.DataParallelTrainer):
    """A trainer that runs a function in ranks where LightGBM trains one model from all ranks' rows.

    Args:
        train_loop_per_worker: The training function. It takes no argument, or one: the configuration. It calls
            ``lightgbm.train`` with the rows of its rank, `get_network_params`, and a `RayTrainReportCallback`.
        lightgbm_config: How the ranks are joined.
        datasets: Datasets by name. `get_dataset_shard` gives each rank its part:
            ``get_dataset_shard("train").materialize().to_pandas()``.
        label_column: For programs written for Ray; must be None. Write a training function instead.
        params: See `label_column`.
        num_boost_round: See `label_column`.

    Example:
        >>> import tempfile, numpy as np, lightgbm
        >>> from hocket import train
        >>> from hocket.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, get_network_params
        >>> def train_loop():
        ...     x = np.arange(100.0).reshape(-1, 1)
        ...     rows = lightgbm.Dataset(x, label=x[:, 0] + 1, params={"verbose": -1})
        ...     lightgbm.train(
        ...         {"tree_learner": "data_parallel", "pre_partition": True, "verbose": -1, **get_network_params()},
        ...         rows, 10, valid_sets=[rows], valid_names=["train"], callbacks=[RayTrainReportCallback()],
        ...     )
        >>> result = LightGBMTrainer(
        ...     train_loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),  # in this process
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit()
        >>> sorted(result.metrics)
        ['train-l2']
        >>> RayTrainReportCallback.get_model(result.checkpoint).current_iteration()
        10
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., object],
        *,
        lightgbm_config: config.LightGBMConfig | None = None,
        label_column: None = None,
        params: None = None,
        num_boost_round: None = None,
        **options: Unpack[data_parallel_trainer.TrainerOptions],
    ) -> None:
        joined.refuse_old("LightGBMTrainer", label_column=label_column, params=params, num_boost_round=num_boost_round)
        super().__init__(
            joined.add(train_loop_per_worker, network.join),
            backend_config=data_parallel_trainer.choose("lightgbm_config", lightgbm_config, config.LightGBMConfig),
            **options,
        )
