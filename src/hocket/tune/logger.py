"""Files for other tools, in each trial's folder, under Ray's names.

The search's own log (`hocket.tune.log`) has all their data, so Hocket writes them only if the user passes a callback.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import cloudpickle

from hocket.train.tracking import tensorboard
from hocket.train.tracking import values as flat_values
from hocket.tune import callback
from hocket.tune import trial as trials

RESULT_NAME: Final = "result.json"
PROGRESS_NAME: Final = "progress.csv"
PARAMS_NAME: Final = "params.json"


class LoggerCallback(callback.Callback):
    """The base of callbacks that write a file for each trial. Its methods do nothing by default."""

    def log_trial_start(self, trial: trials.Trial) -> None:
        """Called when a trial begins."""

    def log_trial_restore(self, trial: trials.Trial) -> None:
        """Called when a trial goes on from a checkpoint."""

    def log_trial_save(self, trial: trials.Trial) -> None:
        """Called when a trial has saved a checkpoint."""

    def log_trial_result(self, iteration: int, trial: trials.Trial, result: dict[str, Any]) -> None:
        """Called with each report."""

    def log_trial_end(self, trial: trials.Trial, failed: bool = False) -> None:
        """Called when a trial has ended."""

    def on_trial_start(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: object
    ) -> None:
        """See `log_trial_start`."""
        self.log_trial_start(trial)

    def on_trial_restore(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: object
    ) -> None:
        """See `log_trial_restore`."""
        self.log_trial_restore(trial)

    def on_trial_save(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: object
    ) -> None:
        """See `log_trial_save`."""
        self.log_trial_save(trial)

    def on_trial_result(
        self,
        iteration: int,
        trials: Sequence[trials.Trial],
        trial: trials.Trial,
        result: Mapping[str, object],
        **info: object,
    ) -> None:
        """See `log_trial_result`."""
        self.log_trial_result(iteration, trial, dict(result))

    def on_trial_complete(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: object
    ) -> None:
        """See `log_trial_end`."""
        self.log_trial_end(trial)

    def on_trial_error(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: object
    ) -> None:
        """See `log_trial_end`."""
        self.log_trial_end(trial, failed=True)


class _FileLogger(LoggerCallback):
    """A callback that keeps a file open for each running trial."""

    _name: str

    def __init__(self) -> None:
        self._files: dict[str, TextIO] = {}

    def log_trial_start(self, trial: trials.Trial) -> None:
        """Open the trial's file for appending."""
        folder = Path(trial.path)
        folder.mkdir(parents=True, exist_ok=True)
        self._close(trial)
        self._files[trial.trial_id] = (folder / self._name).open("a", encoding="utf-8", newline="")

    def log_trial_end(self, trial: trials.Trial, failed: bool = False) -> None:
        """Close the trial's file."""
        self._close(trial)

    def _close(self, trial: trials.Trial) -> None:
        file = self._files.pop(trial.trial_id, None)
        if file is not None:
            file.close()


class JsonLoggerCallback(_FileLogger):
    """A writer of ``result.json``, a line for each report, and the configuration's ``params.json``, ``params.pkl``."""

    _name = RESULT_NAME

    def log_trial_start(self, trial: trials.Trial) -> None:
        """Open the file, and write the configuration."""
        super().log_trial_start(trial)
        folder = Path(trial.path)
        (folder / PARAMS_NAME).write_text(json.dumps(trial.config, indent=2, sort_keys=True, default=repr))
        (folder / PARAMS_NAME).with_suffix(".pkl").write_bytes(cloudpickle.dumps(trial.config))

    def log_trial_result(self, iteration: int, trial: trials.Trial, result: dict[str, Any]) -> None:
        """Write a line."""
        file = self._files[trial.trial_id]
        file.write(json.dumps(result, default=repr) + "\n")
        file.flush()


class CSVLoggerCallback(_FileLogger):
    """A writer of ``progress.csv``, a row for each report. The trial's first report determines the columns."""

    _name = PROGRESS_NAME

    def __init__(self) -> None:
        super().__init__()
        self._writers: dict[str, csv.DictWriter[str]] = {}

    def log_trial_start(self, trial: trials.Trial) -> None:
        """Open the file. If it has rows, keep its columns."""
        super().log_trial_start(trial)
        self._writers.pop(trial.trial_id, None)
        with Path(trial.path, self._name).open(encoding="utf-8", newline="") as file:
            columns = next(csv.reader(file), None)
        if columns is not None:
            self._writers[trial.trial_id] = self._build_writer(trial, columns)

    def _build_writer(self, trial: trials.Trial, columns: list[str]) -> csv.DictWriter[str]:
        return csv.DictWriter(self._files[trial.trial_id], columns, extrasaction="ignore")

    def log_trial_result(self, iteration: int, trial: trials.Trial, result: dict[str, Any]) -> None:
        """Write a row."""
        row = {name: value for name, value in flat_values.flatten(result) if not name.startswith("config/")}
        file = self._files[trial.trial_id]
        writer = self._writers.get(trial.trial_id)
        if writer is None:
            writer = self._writers[trial.trial_id] = self._build_writer(trial, list(row))
            writer.writeheader()
        writer.writerow(row)
        file.flush()

    def log_trial_end(self, trial: trials.Trial, failed: bool = False) -> None:
        """Close the file."""
        self._writers.pop(trial.trial_id, None)
        super().log_trial_end(trial, failed)


class TBXLoggerCallback(LoggerCallback):
    """A writer of TensorBoard event files, one run for each trial, with the numbers of each report.

    Raises:
        ImportError: No writer is installed (`torch.utils.tensorboard` or `tensorboardX`).
    """

    def __init__(self) -> None:
        self._writer_class = tensorboard.find_writer_class()
        self._writers: dict[str, Any] = {}

    def log_trial_start(self, trial: trials.Trial) -> None:
        """Open the trial's writer."""
        if trial.trial_id not in self._writers:
            self._writers[trial.trial_id] = self._writer_class(trial.path)

    def log_trial_result(self, iteration: int, trial: trials.Trial, result: dict[str, Any]) -> None:
        """Write the numbers of a report."""
        step = result["training_iteration"]
        for name, value in flat_values.flatten(result):
            if isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith("config/"):
                self._writers[trial.trial_id].add_scalar(f"tune/{name}", value, step)
        self._writers[trial.trial_id].flush()

    def log_trial_end(self, trial: trials.Trial, failed: bool = False) -> None:
        """Close the trial's writer."""
        writer = self._writers.pop(trial.trial_id, None)
        if writer is not None:
            writer.close()
