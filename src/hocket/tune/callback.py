"""Events of a search while it runs: the base of loggers, displays and a user's own callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.tune import trial as trials


class Callback:
    """Told of what happens in a search, in the process that called `fit`, in the thread that called it.

    Each method does nothing by default. What one raises ends the search with that error. ``iteration`` is how many
    events the search has handled, ``trials`` are all that were proposed, in their order.

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
        """Return what this callback is to know when the search is restored; None: nothing.

        It is kept in the log every ten seconds and when the search ends, also by an error: what happened in the last
        seconds before a kill is not in it.
        """
        return None

    def set_state(self, state: Any) -> None:
        """Take what `get_state` returned. Called after `setup` where a search goes on, unless there was nothing."""

    def on_step_begin(self, iteration: int, trials: Sequence[trials.Trial], **info: Any) -> None:
        """Called before the search waits for something to happen."""

    def on_step_end(self, iteration: int, trials: Sequence[trials.Trial], **info: Any) -> None:
        """Called when that is handled."""

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
        """Called when a trial has ended, not by an error."""

    def on_trial_recover(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: Any
    ) -> None:
        """Called when a trial failed and will be tried again."""

    def on_trial_error(self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, **info: Any) -> None:
        """Called when a trial failed for good."""

    def on_checkpoint(
        self, iteration: int, trials: Sequence[trials.Trial], trial: trials.Trial, checkpoint: object, **info: Any
    ) -> None:
        """Called when a trial has saved a checkpoint, with the checkpoint."""

    def on_experiment_end(self, trials: Sequence[trials.Trial], **info: Any) -> None:
        """Called once, after the last trial."""
