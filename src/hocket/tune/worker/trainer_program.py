"""A trainer as a trial: `fit` runs in the trial's process, with a gang of ranks of its own.

The trainer's run is in the trial's folder, and would go on from its own newest checkpoint. But the search decides where
the trial goes on: from another trial's checkpoint, or from none. So the run gets that checkpoint before each `fit`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from hocket import train
from hocket.train.checkpoints import kept, storage
from hocket.train.run import runner
from hocket.tune import errors
from hocket.tune.worker import trial_session

_NAME: Final = "trainer"
"""The run's name."""

_TAKEN = ("train_loop_config", "scaling_config", "datasets")


@final
class TrainerProgram:
    """A program that fits copies of a trainer, with the trial's configuration in their arguments.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: train.DataParallelTrainer) -> None:
        self._trainer = trainer

    def run(self, session: trial_session.TrialSession) -> None:
        """Run a trial until it ends."""
        run = self._trainer.run_config
        own = train.RunConfig(
            name=_NAME,
            storage_path=session.trial_storage.path,
            failure_config=run.failure_config,
            checkpoint_config=run.checkpoint_config,
            callbacks=[*run.callbacks, TuneReportCallback()],
            worker_runtime_env=run.worker_runtime_env,
            logging_config=run.logging_config,
            divergence_config=run.divergence_config,
        )
        trainer = self._derive(session.assignment.config).derive(run_config=own)
        _give_start(session)
        # Pass a log level: the search knows that this trial goes on, so a warning of each trial would be noise.
        trainer.fit_with(runner.choose(trainer.scaling_config), logging.INFO)

    def _derive(self, config: Mapping[str, Any]) -> train.DataParallelTrainer:
        unknown = sorted(set(config) - set(_TAKEN))
        if unknown:
            raise errors.TuneError(
                f"The space of a trainer may have only the keys {list(_TAKEN)}, but received {unknown}. Put the "
                "arguments of the training function into param_space={'train_loop_config': {...}}."
            )
        return self._trainer.derive(**config)

    def request(self, config: dict[str, object]) -> dict[str, float]:
        """Return the resources of a trial: the sum of its ranks'."""
        return dict(self._derive(config).scaling_config.total_resources)


def _give_start(session: trial_session.TrialSession) -> None:
    """Let the trainer's run go on from the trial's checkpoint, or begin anew if the trial has none."""
    run, start = storage.Storage(str(session.trial_storage.path), _NAME), session.checkpoint
    found: list[tuple[int, Path]] = []
    for folder in run.path.iterdir() if run.path.is_dir() else ():
        if folder.name.endswith(kept.DAMAGED_SUFFIX):  # the run ignores it, too
            continue
        if kept.OWN_NAME.fullmatch(folder.name):
            found.append((int(folder.name.rpartition("_")[2]), folder))
        elif type(number := (storage.get_optional_manifest(folder) or {}).get("number")) is int:
            found.append((number, folder))
    if start is None:
        for _, folder in found:
            storage.remove(run, folder)
        storage.close_storage(run)
        return
    newest, folder = max(found, default=(-1, run.path))
    has = storage.get_optional_manifest(folder) if found else None
    wanted = storage.get_optional_manifest(Path(start.path)) or {}
    if has is not None and storage.read_records(has) == storage.read_records(wanted):
        return
    storage.open_storage(run)
    name = f"checkpoint_{newest + 1:06d}"
    facts = {"number": newest + 1, "score": None, "metrics": {}, "positions": session.rank.info.start_positions}
    storage.commit(run, name, [storage.stage(run, name, start.path)], {**facts, "validation": None})


@final
class TuneReportCallback(train.UserCallback):
    """A callback that turns each report of a trainer's run into a report of the trial that fits it.

    If the search ends the trial, the run ends too. Reports that ranks repeat after a failure are passed on once, and
    again only if a checkpoint comes with a repetition for the first time.

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

    def __init__(self) -> None:
        self._have_saved: list[bool] = []
        """For each report passed on, whether it had a checkpoint."""

    def before_run(self, run_context: train.TrainRunContext) -> None:
        """Forget the reports of an earlier run."""
        self._have_saved = []

    def after_report(
        self,
        run_context: train.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: train.Checkpoint | None,
    ) -> None:
        """Report rank 0's metrics to the search."""
        place, saves = run_context.report_count - 1, checkpoint is not None
        if self._have_saved[place:] and (self._have_saved[place] or not saves):
            return
        self._have_saved[place : place + 1] = [saves]
        session = trial_session.get_session("TuneReportCallback")
        if checkpoint is None or checkpoint.place is None:
            _report(session, metrics[0], checkpoint)
            return
        with checkpoint.as_directory() as folder:  # the trial's own checkpoints are in its folder
            _report(session, metrics[0], train.Checkpoint(folder))


def _report(
    session: trial_session.TrialSession, metrics: Mapping[str, object], checkpoint: train.Checkpoint | None
) -> None:
    if checkpoint is not None:
        manifest = storage.get_optional_manifest(Path(checkpoint.path)) or {}
        session.rank.keep_positions(manifest.get("positions", {}))
    session.report_now(copy.copy(metrics), checkpoint)
