"""A trainer as a trial: it is fitted in the trial's process, with a gang of its own."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any, final

from hocket import train
from hocket.train.run import runner
from hocket.tune import errors
from hocket.tune.worker import trial_session

_TAKEN = ("train_loop_config", "scaling_config", "datasets")


@final
class TrainerProgram:
    """Fits copies of a trainer, whose configurations the trial's values are put into.

    Args:
        trainer: What is fitted.
    """

    def __init__(self, trainer: train.DataParallelTrainer) -> None:
        self._trainer = trainer

    def run(self, session: trial_session.TrialSession) -> None:
        """Run a trial until it ends."""
        run = self._trainer.run_config
        own = train.RunConfig(
            name="trainer",
            storage_path=session.trial_storage.path,
            failure_config=run.failure_config,
            checkpoint_config=run.checkpoint_config,
            callbacks=[*run.callbacks, TuneReportCallback()],
            worker_runtime_env=run.worker_runtime_env,
            logging_config=run.logging_config,
            divergence_config=run.divergence_config,
        )
        trainer = self._derive(session.assignment.config).derive(run_config=own)
        # A search knows which of its trials go on, so each of them need not warn of it.
        trainer.fit_with(runner.choose(trainer.scaling_config), logging.INFO)

    def _derive(self, config: Mapping[str, Any]) -> train.DataParallelTrainer:
        unknown = sorted(set(config) - set(_TAKEN))
        if unknown:
            raise errors.TuneError(
                f"The space of a trainer has the keys {list(_TAKEN)}, but received {unknown}. Put what the training "
                "function takes into param_space={'train_loop_config': {...}}."
            )
        return self._trainer.derive(**config)

    def request(self, config: dict[str, object]) -> dict[str, float]:
        """Return what a trial holds: what its ranks hold together."""
        return dict(self._derive(config).scaling_config.total_resources)


@final
class TuneReportCallback(train.UserCallback):
    """Makes each report of a trainer's run one of the trial in whose function it is fitted.

    The trial's decision ends the run, if it is to end.

    Example:
        >>> import hocket
        >>> from hocket import train, tune
        >>> from hocket.tune.integration.ray_train import TuneReportCallback
        >>> context = hocket.init(num_cpus=2)
        >>> def objective(config):
        ...     trainer = train.DataParallelTrainer(
        ...         lambda: train.report({"loss": config["lr"]}),
        ...         run_config=train.RunConfig(
        ...             callbacks=[TuneReportCallback()], storage_path=tune.get_context().get_trial_dir()
        ...         ),
        ...     )
        ...     trainer.fit()
        >>> tuner = tune.Tuner(objective, param_space={"lr": 0.5}, run_config=tune.RunConfig(verbose=0))
        >>> tuner.fit()[0].metrics["loss"]
        0.5
    """

    def after_report(
        self,
        run_context: train.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: train.Checkpoint | None,
    ) -> None:
        """Report rank 0's metrics."""
        session = trial_session.get_session("TuneReportCallback")
        if checkpoint is None or checkpoint.place is None:
            session.report_now(copy.copy(metrics[0]), checkpoint)
            return
        with checkpoint.as_directory() as folder:  # a trial's own are in its folder
            session.report_now(copy.copy(metrics[0]), train.Checkpoint(folder))
