"""What callbacks of XGBoost and LightGBM share: which metrics they report, and when with the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from hocket import tune
from hocket.tune.integration import metric_choice
from hocket.tune.worker import trial_session

Change: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


class BoosterReports:
    """Reports of one training. Meant for subclassing.

    Args:
        metrics: See `metric_choice.Choice`.
        filename: The model's, in the folder of a checkpoint.
        frequency: After how many iterations each the model is saved; 0 for never before the end.
        checkpoint_at_end: Whether it is at the end.
        results_postprocessing_fn: Called with what is to be reported; returns what is.

    Raises:
        TypeError: The metrics are no names, or the function cannot be called.
        ValueError: The file's name is none, or the frequency is less than 0.
    """

    def __init__(
        self,
        metrics: metric_choice.Choice,
        filename: object,
        frequency: object,
        checkpoint_at_end: bool,
        results_postprocessing_fn: Change | None,
    ) -> None:
        self._names = metric_choice.read(metrics)
        if not isinstance(filename, str) or not filename or "/" in filename:
            raise ValueError(f"filename must be the name of a file, but received {filename!r}. Leave it out.")
        if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 0:
            raise ValueError(
                f"frequency must be a whole number of iterations, 0 or more, but received {frequency!r}. Write 0 to "
                "save the model at the end alone."
            )
        if results_postprocessing_fn is not None and not callable(results_postprocessing_fn):
            raise TypeError(
                "results_postprocessing_fn must be a function from a dict to a dict, but received "
                f"{results_postprocessing_fn!r}. Leave it out to report what there is."
            )
        self._filename, self._frequency = filename, frequency
        self._saves_at_end = checkpoint_at_end
        self._change = results_postprocessing_fn

    def is_due(self, iteration: int) -> bool:
        """Return whether the model is saved after an iteration, which counts from 0."""
        return self._frequency > 0 and (iteration + 1) % self._frequency == 0

    def report(self, found: Mapping[str, Any], save: Callable[[str], object] | None) -> None:
        """Report metrics, with the model if there is a function that saves it to a path."""
        metrics = metric_choice.choose(self._names, found)
        if self._change is not None:
            metrics = self._change(metrics)
        if save is None:
            tune.report(metrics)
            return
        with trial_session.get_session("report").open_folder() as folder:
            save(str(Path(folder, self._filename)))
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def join(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return metrics by data set and name as ``"eval-logloss"``."""
    return {f"{data}-{name}": value for data, named in found.items() for name, value in named.items()}
