"""Callbacks that log the metrics of ``fit()`` to files and services: pass them in ``RunConfig(callbacks=[...])``.

Loggers run in the process that called `fit`, and append to the output of an earlier run of the same name. After a
failure the reports since the last commit come again, and are logged again under the same steps.
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
    """A logger that opens its output at the first report, and closes it when the run is over."""

    def __init__(self, step_key: str | None = None) -> None:
        self._step_key = step_key if step_key is not None else "step"
        self._opened: Any = None
        self._count = 0
        """The number of the report in this run. Reports that come again after a failure keep their numbers."""
        self._has_failed = False

    @abc.abstractmethod
    def _open(self, run_context: user_callback.TrainRunContext) -> object:
        """Open the output, and return the object that `_close` closes."""

    @abc.abstractmethod
    def _add(self, metrics: list[dict[str, object]]) -> None:
        """Write report number `_count`."""

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
        """Close the output."""
        opened, self._opened, self._count = self._opened, None, 0
        if opened is not None:
            try:
                self._close(opened, error)
            except OSError as problem:
                self._give_up(problem)
        self._has_failed = False

    def _give_up(self, problem: OSError) -> None:
        """Warn once of an error such as a full disk, and let the training go on: it is worth more than its log."""
        if not self._has_failed:
            self._has_failed = True
            warnings.warn(
                f"{type(self).__name__} could not write, so it logs nothing more of this run: {problem}. The training "
                "goes on.",
                stacklevel=2,
            )


class _TableLogger(_Logger):
    """A logger that adds a line to a file for each report."""

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
    """A logger that writes a line of JSON for each report, readable at once.

    Each line has the metrics, ``_report`` (the report's number in this `fit`), ``_time`` (seconds since 1970) and
    ``_rank``. NaN and infinities, which JSON lacks, are null.

    Args:
        path: The file. Default: ``metrics.jsonl`` in the run's folder.
        all_ranks: Whether there is a line for each rank, and not only for rank 0.

    Raises:
        TypeError: `path` is not a path.

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
    """A logger that writes a line of comma-separated values for each report, readable at once, under a header.

    The columns are ``_report`` (the report's number in this `fit`), ``_time`` (seconds since 1970), ``_rank`` and the
    metrics. Nested metrics have names like ``val/loss``. A metric that first appears later gets its column then.

    Args:
        path: The file. Default: ``metrics.csv`` in the run's folder.
        all_ranks: Whether there is a line for each rank, and not only for rank 0.

    Raises:
        TypeError: `path` is not a path.

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
    """A logger that writes rank 0's numbers for TensorBoard, with tensorboardX or with torch and tensorboard.

    Args:
        folder: The output folder. Default: ``tensorboard`` in the run's folder.
        step_key: The metric that is the step. Default: ``"step"`` if it is reported, else the number of the report.

    Raises:
        MissingExtraError: Neither tensorboardX nor torch with tensorboard is installed.
        TypeError: `folder` is not a path.

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
    """A logger that sends the configuration and rank 0's numbers to MLflow, as a run of its own.

    A run that the program itself has opened in MLflow is not touched.

    Args:
        tracking_uri: The server or folder. Default: the value of MLFLOW_TRACKING_URI, or MLflow's own default.
        experiment_name: The experiment's name. A missing experiment is created.
        experiment_id: The id of an existing experiment, in place of the name.
        tags: The run's tags.
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
    """A logger that sends the configuration and rank 0's numbers to Weights & Biases, as a run of its own.

    wandb's files are in the run's folder. A run that the program itself has opened in wandb is not touched.

    Args:
        project: The project. Default: the value of WANDB_PROJECT, or wandb's own default.
        step_key: The metric that is the step. Default: ``"step"`` if it is reported, else the number of the report.
        **settings: More arguments of ``wandb.init``, such as ``entity``, ``group``, ``tags``, ``mode="offline"``.

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
    """A logger that sends the configuration and rank 0's numbers to Comet.

    Args:
        experiment: A comet_ml experiment, which stays open. Default: a new one for each `fit`.
        step_key: The metric that is the step. Default: ``"step"`` if it is reported, else the number of the report.
        **settings: Arguments of a new ``comet_ml.Experiment``, such as ``project_name``. With ``offline_directory`` the
            experiment is an ``OfflineExperiment``.

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
    """A callback that draws rank 0's loss in a picture when the run is over, even after a failure.

    To draw the loss of a finished run, call ``save_curve(result.metrics_history, "loss.png")``.

    Args:
        path: The file. Its suffix selects the format. Default: ``loss.png`` in the run's folder.
        keys: The metrics to draw. Default: all with a name that ends in ``loss``.
        step_key: The metric on the horizontal axis. Default: ``"step"`` if every report has it, else the number of the
            report.

    Raises:
        MissingExtraError: matplotlib is missing.
        TypeError: `path` is not a path, or `keys` is not a list.

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
        plots.import_figure()  # a missing plotting library must raise before the training, not after it

    def after_report(
        self,
        run_context: user_callback.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: checkpoint.Checkpoint | None,
    ) -> None:
        """Keep the report's numbers. A report that comes again replaces its earlier numbers."""
        del self._history[run_context.report_count - 1 :]
        self._history.append(dict(values.list_numbers(metrics[0])))

    def after_run(self, run_context: user_callback.TrainRunContext, error: BaseException | None) -> None:
        """Draw the curve. A run without a loss causes only a warning."""
        history, self._history = self._history, []
        if not history:
            return
        try:
            plots.save_curve(history, self._path or run_context.path / "loss.png", self._keys, step_key=self._step_key)
        except ValueError as problem:
            warnings.warn(f"No curve was drawn. {problem}", stacklevel=2)


def _read_config(run_context: user_callback.TrainRunContext) -> dict[str, Any]:
    """Return the run's configuration if it is a mapping, else an empty dict."""
    config = run_context.train_loop_config
    return dict(config) if isinstance(config, Mapping) else {}


def _make_plain(value: object) -> object:
    """Return the value if JSON can hold it, else its text."""
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
