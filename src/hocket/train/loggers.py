"""Where the metrics of ``fit()`` may go besides the `Result`: pass these in ``RunConfig(callbacks=[...])``.

They run in the process that called `fit`, and add to what an earlier run of the same name has written. After a failure the reports since the
last commit come again, and are logged again, under the same steps.
"""

from __future__ import annotations

import abc
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from hocket import addresses
from hocket.train import user_callback
from hocket.train.checkpoints import checkpoint
from hocket.train.tracking import mlflow, plots, tables, tensorboard, values
from hocket.train.tracking.plots import save_curve as save_curve

Where = str | os.PathLike[str] | None


class _TableLogger(user_callback.UserCallback, abc.ABC):
    """Adds a row to a file for each report."""

    def __init__(self, path: Where = None, *, all_ranks: bool = False) -> None:
        self._path = _check_path(path)
        self._has_all_ranks = all_ranks
        self._table: tables.JsonLines | tables.Csv | None = None
        self._count = 0

    @abc.abstractmethod
    def _open(self, given: Path | None, folder: Path) -> tables.JsonLines | tables.Csv:
        """Open the file."""

    def after_report(
        self,
        run_context: user_callback.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: checkpoint.Checkpoint | None,
    ) -> None:
        """Write the report."""
        if self._table is None:
            self._table = self._open(self._path, run_context.path)
        self._count += 1
        now = round(time.time(), 3)
        for rank, values_of_rank in enumerate(metrics if self._has_all_ranks else metrics[:1]):
            self._table.add({"_report": self._count, "_time": now, "_rank": rank, **values_of_rank})

    def after_run(self, run_context: user_callback.TrainRunContext, error: BaseException | None) -> None:
        """Close the file."""
        table, self._table, self._count = self._table, None, 0
        if table is not None:
            table.close()


@final
class JsonLinesLogger(_TableLogger):
    """Writes a line of JSON for each report, which can be read at once.

    Each line has the metrics, and ``_report`` (its number in this `fit`), ``_time`` (seconds since 1970) and ``_rank``. NaN and infinities,
    which JSON lacks, are null.

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

    def _open(self, given: Path | None, folder: Path) -> tables.JsonLines:
        return tables.JsonLines(given or folder / "metrics.jsonl")


@final
class CsvLogger(_TableLogger):
    """Writes a line of comma-separated values for each report, which can be read at once, under a header.

    The columns are ``_report`` (its number in this `fit`), ``_time`` (seconds since 1970), ``_rank`` and the metrics; those of nested ones
    are called ``val/loss``. A metric that comes later gets a column then.

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

    def _open(self, given: Path | None, folder: Path) -> tables.Csv:
        return tables.Csv(given or folder / "metrics.csv")


@final
class TensorBoardLogger(user_callback.UserCallback):
    """Writes rank 0's numbers for TensorBoard, with the writer of tensorboardX, or of torch if tensorboard is installed.

    Args:
        folder: Where to. Default: ``tensorboard`` in the run's folder.
        step_key: The metric that is the step. Default: ``"step"`` if it is reported, else the number of the report.

    Raises:
        ImportError: Neither is installed.
        TypeError: The folder is no path.

    Example:
        >>> from hocket import train
        >>> from hocket.train import loggers
        >>> def watched(storage_path: str) -> train.RunConfig:
        ...     return train.RunConfig(storage_path=storage_path, callbacks=[loggers.TensorBoardLogger()])
    """

    def __init__(self, folder: Where = None, *, step_key: str | None = None) -> None:
        self._folder = _check_path(folder)
        self._steps = _Steps(step_key)
        self._writer_class = tensorboard.find_writer_class()
        self._writer: Any = None

    def after_report(
        self,
        run_context: user_callback.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: checkpoint.Checkpoint | None,
    ) -> None:
        """Write the numbers."""
        if self._writer is None:
            folder = self._folder or run_context.path / "tensorboard"
            self._writer = tensorboard.open_writer(self._writer_class, folder)
        step = self._steps.count(metrics[0])
        for key, number in values.list_numbers(metrics[0]).items():
            self._writer.add_scalar(key, number, global_step=step)

    def after_run(self, run_context: user_callback.TrainRunContext, error: BaseException | None) -> None:
        """Close the file."""
        writer, self._writer = self._writer, None
        self._steps.reset()
        if writer is not None:
            writer.close()


@final
class MLflowLogger(user_callback.UserCallback):
    """Logs the configuration and rank 0's numbers to MLflow, as a run of its own.

    What the program does with MLflow itself, such as a run that it has opened, is not touched.

    Args:
        tracking_uri: The server or folder. Default: what MLFLOW_TRACKING_URI says, or MLflow's own default.
        experiment_name: The experiment; made if need be.
        experiment_id: Its id, in place of the name; it must be there.
        tags: What the run is marked with.
        step_key: The metric that is the step. Default: ``"step"`` if it is reported, else the number of the report.

    Raises:
        ImportError: mlflow is missing.
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
        tags: Mapping[str, Any] | None = None,
        step_key: str | None = None,
    ) -> None:
        if experiment_name is not None and experiment_id is not None:
            raise ValueError(
                f"experiment_name and experiment_id cannot both be given, but received {experiment_name!r} and {experiment_id!r}. Leave "
                "one out."
            )
        self._mlflow = mlflow.import_client()
        self._where = {
            "tracking_uri": tracking_uri,
            "experiment_id": experiment_id,
            "experiment_name": experiment_name,
        }
        self._tags = tags
        self._steps = _Steps(step_key)
        self._run: mlflow.MLflowRun | None = None

    def after_report(
        self,
        run_context: user_callback.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: checkpoint.Checkpoint | None,
    ) -> None:
        """Log the numbers."""
        if self._run is None:
            config = run_context.train_loop_config
            self._run = mlflow.MLflowRun(
                self._mlflow,
                **self._where,
                run_name=run_context.experiment_name,
                tags=self._tags,
                parameters=config if isinstance(config, Mapping) else {},
            )
        self._run.log(metrics[0], self._steps.count(metrics[0]))

    def after_run(self, run_context: user_callback.TrainRunContext, error: BaseException | None) -> None:
        """End the run, as failed if it has."""
        run, self._run = self._run, None
        self._steps.reset()
        if run is not None:
            run.close(has_failed=error is not None)


@final
class LossCurve(user_callback.UserCallback):
    """Draws rank 0's loss over the run in a picture, when the run is over, also if it has failed.

    For a picture of a run that is over already: ``save_curve(result.metrics_history, "loss.png")``.

    Args:
        path: The file; its suffix says which format. Default: ``loss.png`` in the run's folder.
        keys: Which metrics. Default: those whose name ends in ``loss``.
        step_key: The metric on the horizontal axis. Default: ``"step"`` if every report has it, else the number of the report.

    Raises:
        ImportError: matplotlib is missing.
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
        self._path = _check_path(path)
        self._keys = keys
        self._step_key = step_key
        self._history: list[dict[str, Any]] = []
        plots.import_figure()  # its absence is told before the training, not after it

    def after_report(
        self,
        run_context: user_callback.TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: checkpoint.Checkpoint | None,
    ) -> None:
        """Keep the numbers."""
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


class _Steps:
    """Counts reports, and finds their steps."""

    def __init__(self, key: str | None) -> None:
        self._key = key if key is not None else "step"
        self._count = 0

    def count(self, metrics: Mapping[str, Any]) -> int:
        """Return the step of the next report."""
        self._count += 1
        step = values.list_numbers(metrics).get(self._key)
        return self._count if step is None else int(step)

    def reset(self) -> None:
        """Begin again."""
        self._count = 0


def _check_path(path: object) -> Path | None:
    if path is not None and not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"A logger's path must be a str or a Path, but received {path!r}. Leave it out for the run's folder."
        )
    if path is None:
        return None
    addresses.refuse(path, "A logger's path")
    return Path(path).expanduser()
