"""Where the metrics of ``fit()`` may go besides the `Result`: pass these in ``RunConfig(callbacks=[...])``.

They run in the process that called `fit`, and add to what an earlier run of the same name has written. After a failure
the reports since the last commit come again, and are logged again, under the same steps.
"""

from __future__ import annotations

import abc
import json
import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from hocket import extras
from hocket._base import addresses, texts
from hocket.train import user_callback
from hocket.train.checkpoints import checkpoint
from hocket.train.tracking import mlflow, plots, tables, tensorboard, values
from hocket.train.tracking.plots import save_curve as save_curve

Where = str | os.PathLike[str] | None


class _Logger(user_callback.UserCallback, abc.ABC):
    """Opens what it writes to with the first report, and closes it when the run is over."""

    def __init__(self, step_key: str | None = None) -> None:
        self._step_key = step_key if step_key is not None else "step"
        self._opened: Any = None
        self._count = 0
        """The number of the report in this run; after a failure numbers come again, with their reports."""
        self._has_failed = False

    @abc.abstractmethod
    def _open(self, run_context: user_callback.TrainRunContext) -> object:
        """Return what `_close` closes."""

    @abc.abstractmethod
    def _add(self, metrics: list[dict[str, object]]) -> None:
        """Write the report of number `_count`."""

    def _close(self, opened: Any, error: BaseException | None) -> None:
        opened.close()

    def _find_step(self, metrics: Mapping[str, object]) -> int:
        step = values.list_numbers(metrics).get(self._step_key)
        return self._count if step is None or not math.isfinite(step) else int(step)

    def after_report(
        self,
        run_context: user_callback.TrainRunContext,
        metrics: list[dict[str, object]],
        checkpoint: checkpoint.Checkpoint | None,
    ) -> None:
        """Write the report."""
        if self._has_failed:
            return
        if self._opened is None:
            self._opened = self._open(run_context)
        self._count = run_context.report_count
        try:
            self._add(metrics)
        except OSError as problem:
            self._give_up(problem)

    def after_run(self, run_context: user_callback.TrainRunContext, error: BaseException | None) -> None:
        """Close what was opened."""
        opened, self._opened, self._count = self._opened, None, 0
        if opened is not None:
            try:
                self._close(opened, error)
            except OSError as problem:
                self._give_up(problem)
        self._has_failed = False

    def _give_up(self, problem: OSError) -> None:
        """Warn once, such as of a full disk: a training is worth more than its log."""
        if not self._has_failed:
            self._has_failed = True
            warnings.warn(
                f"{type(self).__name__} writes nothing more of this run, and the training goes on: {problem}.",
                stacklevel=2,
            )


class _TableLogger(_Logger):
    """Adds a row to a file for each report."""

    def __init__(self, path: Where = None, *, all_ranks: bool = False) -> None:
        super().__init__()
        self._path = _check_path(path)
        self._has_all_ranks = all_ranks

    def _add(self, metrics: list[dict[str, object]]) -> None:
        now = round(time.time(), 3)
        for rank, values_of_rank in enumerate(metrics if self._has_all_ranks else metrics[:1]):
            self._opened.add({"_report": self._count, "_time": now, "_rank": rank, **values_of_rank})


@final
class JsonLinesLogger(_TableLogger):
    """Writes a line of JSON for each report, which can be read at once.

    Each line has the metrics, and ``_report`` (its number in this `fit`), ``_time`` (seconds since 1970) and ``_rank``.
    NaN and infinities, which JSON lacks, are null.

    Args:
        path: The file. Default: ``metrics.jsonl`` in the run's folder.
        all_ranks: Whether there is a line for each rank, and not only for rank 0.

    Raises:
        TypeError: The path is none.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hocket import train
        >>> from hocket.train import loggers
        >>> folder = Path(tempfile.mkdtemp())
        >>> trainer = train.DataParallelTrainer(
        ...     lambda: train.report({"loss": 0.5}),
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(
        ...         storage_path=folder, callbacks=[loggers.JsonLinesLogger(folder / "all.jsonl")]
        ...     ),
        ... )
        >>> result = trainer.fit()
        >>> (folder / "all.jsonl").read_text()  # doctest: +ELLIPSIS
        '{"_report": 1, "_time": ..., "_rank": 0, "loss": 0.5}\\n'
    """

    def _open(self, run_context: user_callback.TrainRunContext) -> tables.JsonLines:
        return tables.JsonLines(self._path or run_context.path / "metrics.jsonl")


@final
class CsvLogger(_TableLogger):
    """Writes a line of comma-separated values for each report, which can be read at once, under a header.

    The columns are ``_report`` (its number in this `fit`), ``_time`` (seconds since 1970), ``_rank`` and the metrics;
    those of nested ones are called ``val/loss``. A metric that comes later gets a column then.

    Args:
        path: The file. Default: ``metrics.csv`` in the run's folder.
        all_ranks: Whether there is a line for each rank, and not only for rank 0.

    Raises:
        TypeError: The path is none.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hocket import train
        >>> from hocket.train import loggers
        >>> trainer = train.DataParallelTrainer(
        ...     lambda: train.report({"loss": 0.5}),
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp(), callbacks=[loggers.CsvLogger()]),
        ... )
        >>> Path(trainer.fit().path, "metrics.csv").read_text()  # doctest: +ELLIPSIS
        '_report,_time,_rank,loss\\n1,...,0,0.5\\n'
    """

    def _open(self, run_context: user_callback.TrainRunContext) -> tables.Csv:
        return tables.Csv(self._path or run_context.path / "metrics.csv")


@final
class TensorBoardLogger(_Logger):
    """Writes rank 0's numbers for TensorBoard, with the writer of tensorboardX, or of torch if tensorboard is
    installed.

    Args:
        folder: Where to. Default: ``tensorboard`` in the run's folder.
        step_key: The metric that is the step. Default: ``"step"`` if it is reported, else the number of the report.

    Raises:
        MissingExtraError: Neither is installed.
        TypeError: The folder is no path.

    Example:
        >>> from hocket import train
        >>> from hocket.train import loggers
        >>> def watched(storage_path: str) -> train.RunConfig:
        ...     return train.RunConfig(storage_path=storage_path, callbacks=[loggers.TensorBoardLogger()])
    """

    def __init__(self, folder: Where = None, *, step_key: str | None = None) -> None:
        super().__init__(step_key)
        self._folder = _check_path(folder)
        self._writer_class = tensorboard.find_writer_class()

    def _open(self, run_context: user_callback.TrainRunContext) -> object:
        return tensorboard.open_writer(self._writer_class, self._folder or run_context.path / "tensorboard")

    def _add(self, metrics: list[dict[str, object]]) -> None:
        step = self._find_step(metrics[0])
        for key, number in values.list_numbers(metrics[0]).items():
            self._opened.add_scalar(key, number, global_step=step)


@final
class MLflowLogger(_Logger):
    """Logs the configuration and rank 0's numbers to MLflow, as a run of its own.

    What the program does with MLflow itself, such as a run that it has opened, is not touched.

    Args:
        tracking_uri: The server or folder. Default: what MLFLOW_TRACKING_URI says, or MLflow's own default.
        experiment_name: The experiment; made if need be.
        experiment_id: Its id, in place of the name; it must be there.
        tags: What the run is marked with.
        step_key: The metric that is the step. Default: ``"step"`` if it is reported, else the number of the report.

    Raises:
        MissingExtraError: mlflow is missing.
        ValueError: Both a name and an id are given.

    Example:
        >>> from hocket import train
        >>> from hocket.train import loggers
        >>> def watched(storage_path: str) -> train.RunConfig:
        ...     logger = loggers.MLflowLogger("http://127.0.0.1:5000", experiment_name="digits")
        ...     return train.RunConfig(storage_path=storage_path, callbacks=[logger])
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment_name: str | None = None,
        experiment_id: str | None = None,
        tags: Mapping[str, object] | None = None,
        step_key: str | None = None,
    ) -> None:
        if experiment_name is not None and experiment_id is not None:
            raise ValueError(
                f"experiment_name and experiment_id cannot both be given, but received {experiment_name!r} and "
                f"{experiment_id!r}. Leave one out."
            )
        super().__init__(step_key)
        self._mlflow = mlflow.import_client()
        self._where = {
            "tracking_uri": tracking_uri,
            "experiment_id": experiment_id,
            "experiment_name": experiment_name,
        }
        self._tags = tags

    def _open(self, run_context: user_callback.TrainRunContext) -> mlflow.MLflowRun:
        return mlflow.MLflowRun(
            self._mlflow,
            **self._where,
            run_name=run_context.experiment_name,
            tags=self._tags,
            parameters=_read_config(run_context),
        )

    def _add(self, metrics: list[dict[str, object]]) -> None:
        self._opened.log(metrics[0], self._find_step(metrics[0]))

    def _close(self, opened: mlflow.MLflowRun, error: BaseException | None) -> None:
        opened.close(has_failed=error is not None)


@final
class WandbLogger(_Logger):
    """Logs the configuration and rank 0's numbers to Weights & Biases, as a run of its own.

    Its files are in the run's folder. What the program does with wandb itself is not touched.

    Args:
        project: The project. Default: what WANDB_PROJECT says, or wandb's own default.
        step_key: The metric that is the step. Default: ``"step"`` if it is reported, else the number of the report.
        **settings: What ``wandb.init`` takes besides, such as ``entity``, ``group``, ``tags``, ``mode="offline"``.

    Raises:
        MissingExtraError: wandb is missing.

    Example:
        >>> from hocket import train
        >>> from hocket.train import loggers
        >>> def watched(storage_path: str) -> train.RunConfig:
        ...     logger = loggers.WandbLogger("digits", mode="offline")
        ...     return train.RunConfig(storage_path=storage_path, callbacks=[logger])
    """

    def __init__(self, project: str | None = None, *, step_key: str | None = None, **settings: object) -> None:
        super().__init__(step_key)
        self._wandb = extras.load("wandb", "WandbLogger()", "Weights & Biases", "Run pip install wandb.")
        self._settings = {"project": project, **settings}

    def _open(self, run_context: user_callback.TrainRunContext) -> object:
        given = {
            "name": run_context.experiment_name,
            "config": {name: _make_plain(value) for name, value in _read_config(run_context).items()},
            "dir": str(run_context.path),
            "reinit": "create_new",
            **self._settings,
        }
        return self._wandb.init(**given)

    def _add(self, metrics: list[dict[str, object]]) -> None:
        self._opened.log(dict(values.list_numbers(metrics[0])), step=self._find_step(metrics[0]))

    def _close(self, opened: Any, error: BaseException | None) -> None:
        opened.finish(exit_code=0 if error is None else 1)


@final
class CometLogger(_Logger):
    """Logs the configuration and rank 0's numbers to Comet.

    Args:
        experiment: An experiment of comet_ml's, which stays open. Default: a new one for each `fit`.
        step_key: The metric that is the step. Default: ``"step"`` if it is reported, else the number of the report.
        **settings: What a new ``comet_ml.Experiment`` takes, such as ``project_name``; with ``offline_directory`` it is
            an ``OfflineExperiment``.

    Raises:
        MissingExtraError: comet_ml is missing.
        ValueError: Both an experiment and settings are given.

    Example:
        >>> from hocket import train
        >>> from hocket.train import loggers
        >>> def watched(storage_path: str) -> train.RunConfig:
        ...     logger = loggers.CometLogger(project_name="digits", offline_directory=storage_path)
        ...     return train.RunConfig(storage_path=storage_path, callbacks=[logger])
    """

    def __init__(self, experiment: Any = None, *, step_key: str | None = None, **settings: Any) -> None:
        super().__init__(step_key)
        if experiment is not None and settings:
            raise ValueError(
                f"CometLogger() takes an experiment, or the settings of a new one, but received {experiment!r} and "
                f"{settings!r}. Leave one out."
            )
        self._comet = extras.load("comet_ml", "CometLogger()", "Comet", "Run pip install comet_ml.")
        self._given = experiment
        self._settings = settings

    def _open(self, run_context: user_callback.TrainRunContext) -> object:
        experiment = self._given
        if experiment is None:
            kind = "OfflineExperiment" if "offline_directory" in self._settings else "Experiment"
            experiment = getattr(self._comet, kind)(**self._settings)
            experiment.set_name(run_context.experiment_name)
        experiment.log_parameters(_read_config(run_context))
        return experiment

    def _add(self, metrics: list[dict[str, object]]) -> None:
        self._opened.log_metrics(dict(values.list_numbers(metrics[0])), step=self._find_step(metrics[0]))

    def _close(self, opened: Any, error: BaseException | None) -> None:
        opened.log_other("error", "" if error is None else texts.safe_text(error))
        if self._given is None:
            opened.end()


@final
class LossCurve(user_callback.UserCallback):
    """Draws rank 0's loss over the run in a picture, when the run is over, also if it has failed.

    For a picture of a run that is over already: ``save_curve(result.metrics_history, "loss.png")``.

    Args:
        path: The file; its suffix says which format. Default: ``loss.png`` in the run's folder.
        keys: Which metrics. Default: those whose name ends in ``loss``.
        step_key: The metric on the horizontal axis. Default: ``"step"`` if every report has it, else the number of the
            report.

    Raises:
        MissingExtraError: matplotlib is missing.
        TypeError: The path is none.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hocket import train
        >>> from hocket.train import loggers
        >>> trainer = train.DataParallelTrainer(
        ...     lambda: [train.report({"loss": 1 / step}) for step in range(1, 5)],
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp(), callbacks=[loggers.LossCurve()]),
        ... )
        >>> Path(trainer.fit().path, "loss.png").read_bytes()[1:4]
        b'PNG'
    """

    def __init__(self, path: Where = None, *, keys: Sequence[str] | None = None, step_key: str | None = None) -> None:
        given: object = keys
        if given is not None and (isinstance(given, str) or not isinstance(given, Sequence)):
            raise TypeError(
                f"keys must be a list of metrics' names, but received {texts.safe_repr(given)}. Write ['loss']."
            )
        self._path = _check_path(path)
        self._keys = keys
        self._step_key = step_key
        self._history: list[dict[str, object]] = []
        plots.import_figure()  # an absent plotting library is an error before the training, not after it

    def after_report(
        self,
        run_context: user_callback.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: checkpoint.Checkpoint | None,
    ) -> None:
        """Keep the numbers, in place of those of a report that comes again."""
        del self._history[run_context.report_count - 1 :]
        self._history.append(dict(values.list_numbers(metrics[0])))

    def after_run(self, run_context: user_callback.TrainRunContext, error: BaseException | None) -> None:
        """Draw. A run without a loss is no failure: that is a warning."""
        history, self._history = self._history, []
        if not history:
            return
        try:
            plots.save_curve(history, self._path or run_context.path / "loss.png", self._keys, step_key=self._step_key)
        except ValueError as problem:
            warnings.warn(f"No curve was drawn. {problem}", stacklevel=2)


def _read_config(run_context: user_callback.TrainRunContext) -> dict[str, Any]:
    """Return what the run was configured with, if that has names."""
    config = run_context.train_loop_config
    return dict(config) if isinstance(config, Mapping) else {}


def _make_plain(value: object) -> object:
    """Return what JSON can hold: the value, or else its text."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return texts.safe_repr(value, 200)
    return value


def _check_path(path: object) -> Path | None:
    if path is not None and not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"A logger's path must be a str or a Path, but received {path!r}. Leave it out for the run's folder."
        )
    if path is None:
        return None
    addresses.refuse(path, "A logger's path")
    return Path(path).expanduser()
