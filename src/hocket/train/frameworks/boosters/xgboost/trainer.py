"""The trainer for XGBoost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from hocket import data
from hocket.train import configs, data_parallel_trainer, validation
from hocket.train.frameworks.boosters import joined
from hocket.train.frameworks.boosters.xgboost import communicator, config
from hocket.train.rank import datasets as datasets_module


@final
@data_parallel_trainer.explained(xgboost_config=config.XGBoostConfig)
class XGBoostTrainer(data_parallel_trainer.DataParallelTrainer):
    """A trainer that runs a function in ranks where XGBoost trains one model from all ranks' rows.

    Args:
        train_loop_per_worker: The training function. It takes no argument, or one: the configuration. It calls
            ``xgboost.train`` with the rows of its rank, and a `RayTrainReportCallback`.
        train_loop_config: The configuration for the function, if it takes an argument.
        xgboost_config: How the ranks are joined.
        scaling_config: The number of ranks, and each rank's resources. Default: one rank, with a CPU.
        run_config: Name, storage, failures, checkpoints, callbacks.
        validation_config: How a checkpoint is validated if its report requests that.
        datasets: Datasets by name. `get_dataset_shard` gives each rank its part:
            ``get_dataset_shard("train").materialize().to_pandas()``.
        dataset_config: Which datasets are split among the ranks.
        metadata: For programs written for Ray; must be None.
        resume_from_checkpoint: See `metadata`.
        label_column: For programs written for Ray; must be None. Write a training function instead.
        params: See `label_column`.
        num_boost_round: See `label_column`.

    Raises:
        TypeError: The function cannot be called, or a configuration has the wrong type.
        ValueError: The function needs more than one argument, or a configuration is given that it does not take.
        DeprecationWarning: An argument is given that Ray Train has removed too.

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
        train_loop_config: Mapping[str, object] | None = None,
        xgboost_config: config.XGBoostConfig | None = None,
        scaling_config: configs.ScalingConfig | None = None,
        run_config: configs.RunConfig | None = None,
        validation_config: validation.ValidationConfig | None = None,
        datasets: Mapping[str, data.Dataset] | None = None,
        dataset_config: datasets_module.DataConfig | None = None,
        metadata: None = None,
        resume_from_checkpoint: None = None,
        label_column: None = None,
        params: None = None,
        num_boost_round: None = None,
    ) -> None:
        joined.refuse_old("XGBoostTrainer", label_column=label_column, params=params, num_boost_round=num_boost_round)
        data_parallel_trainer.check_type("xgboost_config", xgboost_config, config.XGBoostConfig)
        super().__init__(
            joined.add(train_loop_per_worker, communicator.join),
            train_loop_config=train_loop_config,
            backend_config=xgboost_config or config.XGBoostConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
            validation_config=validation_config,
            datasets=datasets,
            dataset_config=dataset_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )
