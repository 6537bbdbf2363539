"""Events of a search while it runs: the base of loggers, displays and users' own callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.tune import trial as trials


class Callback:
    """A receiver of a search's events, in the process and the thread that called `fit`.

    Each method does nothing by default. An error that a method raises ends the search. ``iteration`` is the number of
    events that the search has handled; ``trials`` are all trials proposed so far, in their order.

    Example:
        >>> from hocket import tune
        >>> class Follow(tune.Callback):
        ...     def on_trial_complete(self, iteration, trials, trial, **info):
        ...         print(trial.number, trial.last_result["score"])
        >>> tuner = tune.Tuner(
        ...     lambda config: {"score": config["x"] ** 2},
        ...     param_space={"x": tune.grid_search([1, 2])},
        ...     tune_config=tune.TuneConfig(max_concurrent_trials=1),
        ...     run_config=tune.RunConfig(callbacks=[Follow()], verbose=0),
        ... )
        >>> results = tuner.fit()
        0 1
        1 4
    """

    def setup(
        self, stop: object = None, num_samples: int | None = None, total_num_samples: int | None = None, **info: Any
    ) -> None:
        """Called once, before the first trial."""

    def get_state(self) -> Any:
        """Return the state that a restored search gives back to this callback; None if there is none.

        The log stores the state every ten seconds and when the search ends, also by an error. Changes in the last
        seconds before a kill are not stored.
        """
        return None

    def set_state(self, state: Any) -> None:
        """Take the state that `get_state` returned. Called after `setup` if a search goes on and has a state."""

    def on_step_begin(self, iteration: int, trials: Sequence[trials.Trial], **info: Any) -> None:
        """Called before the search waits for the next event."""

    def on_step_end(self, iteration: int, trials: Sequence[trials.Trial], **info: Any) -> None:
        """Called when the search has handled that event."""

    def on_trial_start(self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: Any) -> None:
        """Called when a trial begins or goes on."""

    def on_trial_restore(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: Any
    ) -> None:
        """Called when a trial goes on from a checkpoint."""

    def on_trial_save(self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: Any) -> None:
        """Called when a trial has saved a checkpoint."""

    def on_trial_result(
        self,
        iteration: int,
        trials: Sequence[trials.Trial],
        trial: trials.Trial,
        result: Mapping[str, Any],
        **info: Any,
    ) -> None:
        """Called with each report."""

    def on_trial_complete(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: Any
    ) -> None:
        """Called when a trial has ended without an error."""

    def on_trial_recover(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: Any
    ) -> None:
        """Called when a trial failed and the search will try it again."""

    def on_trial_error(self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: Any) -> None:
        """Called when a trial failed for good."""

    def on_checkpoint(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, checkpoint: object, **info: Any
    ) -> None:
        """Called with the checkpoint that a trial has saved."""

    def on_experiment_end(self, trials: Sequence[trials.Trial], **info: Any) -> None:
        """Called once, after the last trial."""
