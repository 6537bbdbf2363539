"""The trainer for XGBoost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack, final

from hocket.train import data_parallel_trainer
from hocket.train.frameworks.boosters import joined
from hocket.train.frameworks.boosters.xgboost import communicator, config


@final
@data_parallel_trainer.explained(xgboost_config=config.XGBoostConfig)
class XGBoostTrainer(data_parallel_trainer.DataParallelTrainer):
    """A trainer that runs a function in ranks where XGBoost trains one model from all ranks' rows.

    Args:
        train_loop_per_worker: The training function. It takes no argument, or one: the configuration. It calls
            ``xgboost.train`` with the rows of its rank, and a `RayTrainReportCallback`.
        xgboost_config: How the ranks are joined.
        datasets: Datasets by name. `get_dataset_shard` gives each rank its part:
            ``get_dataset_shard("train").materialize().to_pandas()``.
        label_column: For programs written for Ray; must be None. Write a training function instead.
        params: See `label_column`.
        num_boost_round: See `label_column`.

    Example:
        >>> import tempfile, numpy as np, xgboost
        >>> from hocket import train
        >>> from hocket.train.xgboost import RayTrainReportCallback, XGBoostTrainer
        >>> def train_loop():
        ...     x = np.arange(32.0).reshape(-1, 1)
        ...     rows = xgboost.DMatrix(x, label=x[:, 0] + 1)
        ...     xgboost.train(
        ...         {"max_depth": 2}, rows, 10, evals=[(rows, "train")], verbose_eval=False,
        ...         callbacks=[RayTrainReportCallback()],
        ...     )
        >>> result = XGBoostTrainer(
        ...     train_loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),  # in this process
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit()
        >>> round(result.metrics["train-rmse"], 1)
        0.8
        >>> RayTrainReportCallback.get_model(result.checkpoint).num_boosted_rounds()
        10
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., object],
        *,
        xgboost_config: config.XGBoostConfig | None = None,
        label_column: None = None,
        params: None = None,
        num_boost_round: None = None,
        **options: Unpack[data_parallel_trainer.TrainerOptions],
    ) -> None:
        joined.refuse_old("XGBoostTrainer", label_column=label_column, params=params, num_boost_round=num_boost_round)
        super().__init__(
            joined.add(train_loop_per_worker, communicator.join),
            backend_config=data_parallel_trainer.choose("xgboost_config", xgboost_config, config.XGBoostConfig),
            **options,
        )
