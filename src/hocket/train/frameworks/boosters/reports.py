"""The common part of the callbacks for XGBoost and LightGBM: the metrics they report, and when they save the model."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from hocket.train.checkpoints import checkpoint as checkpoints
from hocket.train.frameworks.boosters import metric_choice
from hocket.train.rank import context, worker_session

Change: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

Save: TypeAlias = Callable[[str], object]
"""A function that saves a model to a path."""


class BoosterReports(abc.ABC):
    """Reports of one training. Meant for subclassing; a subclass sets `CHECKPOINT_NAME`.

    Args:
        metrics: See `metric_choice.Choice`.
        filename: The model's file name in a checkpoint's folder. Default: `CHECKPOINT_NAME`.
        frequency: The model is saved each time after so many iterations; 0 for never before the end.
        checkpoint_at_end: Whether the model is saved at the end.
        results_postprocessing_fn: Receives the chosen metrics; returns the metrics to report.

    Raises:
        TypeError: The metrics are not names, the frequency is no whole number, or the function cannot be called.
        ValueError: The file name is empty or contains a slash, or the frequency is less than 0.
    """

    CHECKPOINT_NAME: ClassVar[str]

    def __init__(
        self,
        metrics: metric_choice.Choice = None,
        filename: str | None = None,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Change | None = None,
    ) -> None:
        filename = self.CHECKPOINT_NAME if filename is None else filename
        self._names = metric_choice.read(metrics)
        if not filename or "/" in filename:
            raise ValueError(f"filename must be the name of a file, but received {filename!r}. Leave it out.")
        rule = "a whole number of iterations, 0 or more"
        given: object = frequency
        if isinstance(given, bool) or not isinstance(given, int):
            raise TypeError(f"frequency must be an int, {rule}, but received {frequency!r}. Leave it out for 0.")
        if frequency < 0:
            raise ValueError(f"frequency must be {rule}, but received {frequency}. Leave it out for 0.")
        if results_postprocessing_fn is not None and not callable(results_postprocessing_fn):
            raise TypeError(
                "results_postprocessing_fn must be a function from a dict to a dict, but received "
                f"{results_postprocessing_fn!r}. Leave it out to report the metrics as they are."
            )
        self._filename, self._frequency = filename, frequency
        self._saves_at_end = checkpoint_at_end
        self._change = results_postprocessing_fn

    def is_due(self, iteration: int) -> bool:
        """Return whether the model is saved after an iteration; iterations count from 0."""
        return self._frequency > 0 and (iteration + 1) % self._frequency == 0

    def report(self, found: Mapping[str, object], save: Save | None) -> None:
        """Report metrics, with the model if `save` is a function."""
        metrics = metric_choice.choose(self._names, found)
        if self._change is not None:
            metrics = self._change(metrics)
        self.send(metrics, self._filename, save)

    @abc.abstractmethod
    def send(self, metrics: dict[str, Any], filename: str, save: Save | None) -> None:
        """Send a report. If `save` is a function, attach a checkpoint that has the model in a file."""


class RankReports(BoosterReports):
    """Reports of a rank. All ranks have the same model, so rank 0 saves it."""

    def send(self, metrics: dict[str, Any], filename: str, save: Save | None) -> None:
        """Report the metrics as `hocket.train.report` does."""
        session = worker_session.get_session("report")
        if save is None or session.info.rank:
            context.report(metrics)
            return
        with session.open_folder() as folder:
            save(f"{folder}/{filename}")
            context.report(metrics, checkpoint=checkpoints.Checkpoint.from_directory(folder))


def join(found: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
    """Return metrics, given by data set and name, under joined names such as ``"eval-logloss"``."""
    return {f"{data}-{name}": value for data, named in found.items() for name, value in named.items()}
