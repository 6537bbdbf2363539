"""The interface of searchers, which propose configurations; other libraries' samplers are adapted to it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, Final


class Searcher(abc.ABC):
    """The base of searchers, which propose a configuration for each trial, and receive the results.

    The search calls a searcher from one thread. A searcher's proposals may depend only on its seed, on the trials it
    has proposed and on the results it got. A killed search then goes on as if it had run through: a new searcher gets
    the log's events in their order, by `on_trial_restored`, `on_trial_result` and `on_trial_complete`.

    Args:
        metric: The metric to optimize. Default: the search's.
        mode: ``"max"`` or ``"min"``.
    """

    FINISHED: Final = "FINISHED"
    """The result of `suggest` if there will be no more configurations."""

    counts_trials: bool = False
    """Whether the searcher counts ``num_samples`` itself and returns `FINISHED`; else the search counts."""

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        self.metric, self.mode = metric, mode

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take the search's metric, mode and space.

        Args:
            metric: The metric.
            mode: ``"max"`` or ``"min"``.
            config: `param_space`: constants, domains (`hocket.tune.search.space`), nested dicts. Empty if the searcher
                has its own.
            **spec: ``num_samples`` (-1: no end) and ``seed`` (an int) of the search.

        Returns:
            False if the searcher has others of its own, so that both cannot hold.
        """
        return False

    @abc.abstractmethod
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return a new trial's configuration; None if there is none now; `FINISHED` if there will be none."""

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Take in a report."""

    @abc.abstractmethod
    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Take in the end of a trial, with its last report; None if it made none."""

    def on_trial_restored(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Take in a trial that an earlier searcher proposed. Default: propose it again, and drop the proposal."""
        self.suggest(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Write the state to a file. For programs written for Ray; a search needs only its log."""
        raise NotImplementedError(f"{type(self).__name__} does not save its state.")

    def restore(self, checkpoint_path: str) -> None:
        """Restore the state from a file that `save` wrote."""
        raise NotImplementedError(f"{type(self).__name__} does not restore its state.")

    def add_evaluated_point(self, parameters: Mapping[str, Any], value: float, error: bool = False) -> None:
        """Take in a configuration with a known result."""
        raise NotImplementedError(f"{type(self).__name__} does not take points that were evaluated before.")

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Take the most trials that may run at once; return whether the searcher keeps to this limit itself."""
        return False
