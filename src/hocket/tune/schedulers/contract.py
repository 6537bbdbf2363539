"""The contract of schedulers, which decide after each report of a trial whether it goes on.

A scheduler is a state machine: it has no clock, no thread, no files and no randomness but what it is seeded with, and
it acts on trials only by what it returns and by the `TrialControls` that it is handed. So the same reports in the same
order give the same decisions: in a search, when a search is resumed (all reports in its log are shown to a new
scheduler again), and in simulated time over recorded curves (`hocket.tune.simulation`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

from hocket.train.tracking import plain
from hocket.tune import trial as trials

Decision: TypeAlias = Literal["CONTINUE", "PAUSE", "STOP", "NOOP"]


class TrialControls(Protocol):
    """A scheduler's actions on trials besides its decision about the one that reported.

    The search and the simulation have one each. While a log is read again its actions do nothing, because what came of
    them is in the log.
    """

    def get_trials(self) -> Sequence[trials.Trial]:
        """Return the trials that are not finished, in the order in which they were proposed."""

    def stop_trial(self, trial: trials.Trial) -> None:
        """End a trial that is paused, pending or running. One that runs ends at its next report."""

    def save_trial(self, trial: trials.Trial) -> None:
        """Have the trial that has just reported save a checkpoint before it goes on.

        Functions save when they want, so this does nothing for them: their latest checkpoint counts.
        """

    def exploit(self, trial: trials.Trial, source: trials.Trial, config: dict[str, Any], tag: str = "") -> None:
        """Have a trial go on from another one's latest checkpoint, with a new configuration.

        If it is the one that has just reported, this is the decision about it, which `on_trial_result` can only
        put off, by PAUSE. If it is paused it becomes runnable (`TrialScheduler.choose_trial_to_run`).

        Args:
            trial: It gives up its own state.
            source: It has a checkpoint.
            config: What `trial` goes on with.
            tag: What is appended to the tag that `trial` began with; it begins with ``@``.
        """


class TrialScheduler:
    """Decides which trials go on; this one lets all do.

    Reports come one at a time, in the order in which they arrive. A metric may be missing from a report, or be NaN: NaN
    counts as worse than any number, and a report without the metric or the time is left alone (CONTINUE).
    """

    CONTINUE: Final = "CONTINUE"
    """The trial goes on."""
    PAUSE: Final = "PAUSE"
    """It is set aside with a checkpoint, and its place is free."""
    STOP: Final = "STOP"
    """It is ended."""
    NOOP: Final = "NOOP"
    """Nothing; `CONTINUE` for one that runs."""

    metric: str | None = None
    """The metric that counts; nested ones with ``/``. None until the search says it."""
    mode: str | None = None
    """``"max"`` or ``"min"``."""
    looks_ahead: bool = True
    """Whether a trial waits whenever another begins, as long as there are more, so that the choice is between it and
    those that are paused, and none takes itself for the last. False for a scheduler that pauses none: then a trial is
    proposed only when it can begin."""

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: object) -> bool:
        """Take the search's metric and mode.

        Returns:
            False if the scheduler was made with others, so that both cannot hold.
        """
        if (self.metric and metric and metric != self.metric) or (self.mode and mode and mode != self.mode):
            return False
        self.metric, self.mode = self.metric or metric, self.mode or mode
        return True

    def on_trial_add(self, controls: TrialControls, trial: trials.Trial) -> None:
        """Note a new trial, before it begins."""

    def on_trial_error(self, controls: TrialControls, trial: trials.Trial) -> None:
        """Note that a trial failed for good."""

    def on_trial_result(self, controls: TrialControls, trial: trials.Trial, result: Mapping[str, Any]) -> Decision:
        """Decide about a trial that has reported, which is `RUNNING`."""
        return self.CONTINUE

    def on_trial_complete(self, controls: TrialControls, trial: trials.Trial, result: Mapping[str, Any]) -> None:
        """Note that a trial has ended by itself, or by a stop rule or stopper of the search; with its last report."""

    def on_trial_remove(self, controls: TrialControls, trial: trials.Trial) -> None:
        """Note that a trial was ended from outside while it was paused or pending."""

    def choose_trial_to_run(self, controls: TrialControls) -> trials.Trial | None:
        """Return the trial that is to begin, or to go on, next: one that is `PENDING` or `PAUSED`; None if none is.

        If it returns None and nothing runs and no trial can be proposed any more, the search ends the paused ones.
        """
        for trial in controls.get_trials():
            if trial.status is trials.Status.PENDING:
                return trial
        return None

    def debug_string(self) -> str:
        """Return a line about its state."""
        return type(self).__name__

    # --- for those who write one --------------------------------------------------------------------------------------

    def get_score(self, result: Mapping[str, Any]) -> float | None:
        """Return the metric so that more is better; NaN becomes minus infinity. None if the report does not have it."""
        value: Any = plain.get_metric(result, self.metric) if self.metric else None
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            return None
        number = float(value)
        if math.isnan(number):
            return -math.inf
        return -number if self.mode == "min" else number
