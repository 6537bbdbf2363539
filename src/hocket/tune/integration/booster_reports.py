"""What callbacks of XGBoost and LightGBM share: which metrics they report, and when with the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from hocket import tune
from hocket.tune import checks
from hocket.tune.integration import metric_choice
from hocket.tune.worker import trial_session

Change: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


class BoosterReports:
    """Reports of one training. Meant for subclassing, with a `CHECKPOINT_NAME`.

    Args:
        metrics: See `metric_choice.Choice`.
        filename: The model's, in the folder of a checkpoint. Default: `CHECKPOINT_NAME`.
        frequency: After how many iterations each the model is saved; 0 for never before the end.
        checkpoint_at_end: Whether it is at the end.
        results_postprocessing_fn: Called with what is to be reported; returns what is.

    Raises:
        TypeError: The metrics are no names, the frequency is no whole number, or the function cannot be called.
        ValueError: The file's name is none, or the frequency is less than 0.
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
        checks.check_int("frequency", frequency, rule, least=0)
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
