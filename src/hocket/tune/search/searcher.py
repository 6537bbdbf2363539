"""The protocol of searchers, which propose configurations; samplers of other libraries are adapted to it."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, Final


class Searcher(abc.ABC):
    """Proposes one configuration for each trial, and hears what became of it.

    The search calls it from one thread. What it proposes may depend on its seed, on the trials that it has proposed and
    on the results that it got, and on nothing else: then a search that was killed goes on as if it had not been, since
    a new searcher is shown what the log says, in that order, by `on_trial_restored`, `on_trial_result` and
    `on_trial_complete`.

    Args:
        metric: The metric to optimize; the search's, if it is left out.
        mode: ``"max"`` or ``"min"``.
    """

    FINISHED: Final = "FINISHED"
    """What `suggest` returns when it will never propose another configuration."""

    counts_trials: bool = False
    """Whether it takes ``num_samples`` by itself, and says `FINISHED`; else the search counts."""

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
                was given a space of its own.
            **spec: ``num_samples`` (-1: without end) and ``seed`` (an int) of the search.

        Returns:
            False if the searcher was made with others, so that both cannot hold.
        """
        return False

    @abc.abstractmethod
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the configuration of a new trial; None if there is none now; `FINISHED` if there will be none."""

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Note a report."""

    @abc.abstractmethod
    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Note that a trial has ended, with its last report; None if it has made none."""

    def on_trial_restored(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Note a trial that this searcher's predecessor has proposed. Default: propose it again, and forget that."""
        self.suggest(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Write the state to a file. Not called by a search, whose log is enough; for programs written for Ray."""
        raise NotImplementedError(f"{type(self).__name__} does not save its state.")

    def restore(self, checkpoint_path: str) -> None:
        """Take the state from what `save` wrote."""
        raise NotImplementedError(f"{type(self).__name__} does not restore its state.")

    def add_evaluated_point(self, parameters: Mapping[str, Any], value: float, error: bool = False) -> None:
        """Take a configuration whose result is known."""
        raise NotImplementedError(f"{type(self).__name__} does not take points that were evaluated before.")

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Take how many trials may run at once; return whether the searcher keeps to it by itself."""
        return False
