"""The callbacks of 2022, for `Trainer.run`: they run in the driver, while the ranks wait in ``report``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from hocket._base import addresses
from hocket.train.tracking import mlflow, tensorboard, values

TAG_PREFIX = "ray/train/"
"""The prefix of TensorBoard's tags, the same as Ray's, so that old and new runs share charts."""


class TrainingCallback:
    """The base class of callbacks. Override the methods that you need, and pass an instance to `Trainer.run`.

    The order of calls is: `start_training`, for each report `process_results`, `finish_training`.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> from hocket.train.callbacks import TrainingCallback
        >>> class Shout(TrainingCallback):
        ...     def handle_result(self, results, **info):
        ...         print([result["loss"] for result in results])
        >>> trainer = train.Trainer(backend="none", num_workers=1, logdir=tempfile.mkdtemp())
        >>> trainer.start()
        >>> trainer.run(lambda: train.report(loss=0.5), callbacks=[Shout()])
        [0.5]
        [None]
        >>> trainer.shutdown()
    """

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        """Called before the first report is taken.

        Args:
            logdir: The run's folder.
            config: The training function's configuration.
            **info: Nothing yet.
        """

    def process_results(self, results: list[dict[str, Any]], **info: Any) -> None:
        """Called with each report; calls `handle_result`, the method to override."""
        self.handle_result(results, **info)

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        """Called with each report.

        Args:
            results: The ranks' metrics, by rank.
            **info: Nothing yet.
        """

    def finish_training(self, error: bool = False, **info: object) -> None:
        """Called when the run is over.

        Args:
            error: Whether the run has failed. Ray of 2022 always passed False.
            **info: Nothing yet.
        """


@final
class PrintCallback(TrainingCallback):
    """A callback that prints each report as JSON, as a list by rank.

    Example:
        >>> from hocket.train.callbacks import PrintCallback
        >>> PrintCallback().handle_result([{"loss": 0.5}])
        [
            {
                "loss": 0.5
            }
        ]
    """

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        """Print the report."""
        sys.stdout.write(f"{values.encode(results, indent=4)}\n")


class _FileCallback(TrainingCallback):
    """A callback that writes into a folder: the user's, or by default the run's."""

    def __init__(self, logdir: str | Path | None) -> None:
        if logdir is not None:
            addresses.refuse(logdir, "logdir")
        self._given = None if logdir is None else Path(logdir).expanduser()
        self._folder: Path | None = self._given

    @property
    def logdir(self) -> Path | None:
        """The output folder; None before the first run, if no folder was given."""
        return self._folder

    def _choose_folder(self, run_dir: str) -> Path:
        self._folder = self._given if self._given is not None else Path(run_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder


@final
class JsonLoggerCallback(_FileCallback):
    """A callback that writes a JSON file: for each report, a list with the metrics of each logged rank.

    The file is valid JSON after each report.

    Args:
        logdir: The output folder. Default: the run's folder.
        filename: The file's name. Default: ``results.json``.
        workers_to_log: The rank or the ranks to log. None logs all ranks.

    Raises:
        TypeError: `workers_to_log` is neither a rank nor a list of ranks.

    Example:
        >>> import tempfile
        >>> from hocket.train.callbacks import JsonLoggerCallback
        >>> callback = JsonLoggerCallback()
        >>> callback.start_training(logdir=tempfile.mkdtemp(), config={})
        >>> callback.handle_result([{"loss": 0.5}, {"loss": 0.7}])
        >>> callback.log_path.read_text()
        '[[{"loss": 0.5}]]'
    """

    def __init__(
        self,
        logdir: str | Path | None = None,
        filename: str | None = None,
        workers_to_log: int | Sequence[int] | None = 0,
    ) -> None:
        super().__init__(logdir)
        self._filename = filename or "results.json"
        self._ranks = _list_ranks(workers_to_log)
        self._is_empty = True

    @property
    def log_path(self) -> Path | None:
        """The file; None before the first run, if `logdir` was not given."""
        return None if self.logdir is None else self.logdir / self._filename

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        """Start the file anew."""
        (self._choose_folder(logdir) / self._filename).write_text("[]", encoding="utf-8")
        self._is_empty = True

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        """Write the report over the file's last bracket."""
        assert self.log_path is not None, "start_training comes first"
        chosen = results if self._ranks is None else [_pick(results, rank) for rank in self._ranks]
        text = f"{'' if self._is_empty else ', '}{values.encode(chosen)}]"
        with self.log_path.open("r+b") as file:
            file.seek(-1, 2)
            file.write(text.encode())
        self._is_empty = False


@final
class TBXLoggerCallback(_FileCallback):
    """A callback that writes the numbers of one rank for TensorBoard, with tags such as ``ray/train/loss``.

    Args:
        logdir: The output folder. Default: the run's folder.
        worker_to_log: The rank to log.

    Raises:
        ImportError: Neither tensorboardX nor torch with tensorboard is installed.

    Example:
        >>> from hocket import train
        >>> from hocket.train.callbacks import TBXLoggerCallback
        >>> def watch(trainer: train.Trainer, train_func):
        ...     return trainer.run(train_func, callbacks=[TBXLoggerCallback()])
    """

    def __init__(self, logdir: str | Path | None = None, worker_to_log: int = 0) -> None:
        super().__init__(logdir)
        self._rank = worker_to_log
        self._writer_class = tensorboard.find_writer_class()
        self._writer: Any = None

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        """Open the event file."""
        self._writer = tensorboard.open_writer(self._writer_class, self._choose_folder(logdir))

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        """Write the report's numbers."""
        step, metrics = _split(_pick(results, self._rank))
        for key, number in values.list_numbers(metrics).items():
            self._writer.add_scalar(f"{TAG_PREFIX}{key}", number, global_step=step)
        self._writer.flush()

    def finish_training(self, error: bool = False, **info: object) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


@final
class MLflowLoggerCallback(_FileCallback):
    """A callback that sends the configuration and the numbers of one rank to MLflow, as a run of its own.

    Args:
        tracking_uri: The server or folder. Default: the value of MLFLOW_TRACKING_URI, or MLflow's own default.
        registry_uri: For programs written for Ray; nothing is registered.
        experiment_id: The id of an existing experiment.
        experiment_name: The experiment's name, if the id is not given. A missing experiment is created.
        tags: The run's tags.
        save_artifact: Whether the files in the run's folder are copied to MLflow at the end.
        logdir: The folder of these files. Default: the run's folder.
        worker_to_log: The rank to log.

    Raises:
        ImportError: mlflow is missing.

    Example:
        >>> from hocket import train
        >>> from hocket.train.callbacks import MLflowLoggerCallback
        >>> def watch(trainer: train.Trainer, train_func):
        ...     return trainer.run(train_func, callbacks=[MLflowLoggerCallback(experiment_name="digits")])
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        registry_uri: str | None = None,
        experiment_id: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, object] | None = None,
        save_artifact: bool = False,
        logdir: str | Path | None = None,
        worker_to_log: int = 0,
    ) -> None:
        super().__init__(logdir)
        self._mlflow = mlflow.import_client()
        self._where = {
            "tracking_uri": tracking_uri,
            "experiment_id": experiment_id,
            "experiment_name": experiment_name,
        }
        self._tags = tags
        self._saves_files = save_artifact
        self._rank = worker_to_log
        self._run: mlflow.MLflowRun | None = None

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        """Start a run of MLflow."""
        folder = self._choose_folder(logdir)
        self._run = mlflow.MLflowRun(
            self._mlflow, **self._where, run_name=folder.name, tags=self._tags, parameters=config
        )

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        """Log the report's numbers."""
        assert self._run is not None, "start_training comes first"
        step, metrics = _split(_pick(results, self._rank))
        self._run.log(metrics, step)

    def finish_training(self, error: bool = False, **info: object) -> None:
        """End the run, as failed if the training has failed."""
        run, self._run = self._run, None
        if run is None:
            return
        if self._saves_files and self.logdir is not None:
            run.save_files(self.logdir)
        run.close(has_failed=error)


def _split(metrics: dict[str, Any]) -> tuple[int, dict[str, object]]:
    """Return the report's number and its other metrics."""
    return int(metrics["_training_iteration"]), {k: v for k, v in metrics.items() if k != "_training_iteration"}


def _list_ranks(given: object) -> list[int] | None:
    if given is None:
        return None
    ranks = [given] if isinstance(given, int) else list(given) if isinstance(given, list | tuple) else [None]
    if not all(isinstance(rank, int) for rank in ranks):
        raise TypeError(
            f"workers_to_log must be a rank, a list of ranks, or None for all, but received {given!r}. Write "
            "workers_to_log=[0, 1]."
        )
    return ranks  # type: ignore[return-value]  # all are ints


def _pick(results: list[dict[str, object]], rank: int) -> dict[str, object]:
    if not 0 <= rank < len(results):
        raise ValueError(
            f"There is no rank {rank} to log: the run has {len(results)} ranks, counted from 0. Name another rank in "
            "worker_to_log or workers_to_log."
        )
    return results[rank]
