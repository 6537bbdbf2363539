"""The contract of schedulers, which decide after each report of a trial whether it goes on.

A scheduler is a state machine: it has no clock, no thread, no files, and no randomness except from its seed. It acts on
trials only by its decisions and through `TrialControls`. So the same reports in the same order give the same decisions:
in a search, in a resumed search (a new scheduler sees all reports in the log again), and in simulated time over
recorded curves (`hocket.tune.simulation`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

from hocket.train.tracking import plain
from hocket.tune import trial as trials

Decision: TypeAlias = Literal["CONTINUE", "PAUSE", "STOP", "NOOP"]


class TrialControls(Protocol):
    """A scheduler's actions on trials besides its decision about the trial that reported.

    The search and the simulation each have one. During the replay of a log they do nothing: the log has their effects.
    """

    def get_trials(self) -> Sequence[trials.Trial]:
        """Return the unfinished trials, in the order of their proposal."""

    def stop_trial(self, trial: trials.Trial) -> None:
        """End a paused, pending or running trial. A running one ends at its next report."""

    def save_trial(self, trial: trials.Trial) -> None:
        """Let the trial that has just reported save a checkpoint before it goes on.

        This has no effect on functions, which save when they want: their latest checkpoint counts.
        """

    def exploit(self, trial: trials.Trial, source: trials.Trial, config: dict[str, Any], tag: str = "") -> None:
        """Let a trial go on from another trial's latest checkpoint, with a new configuration.

        For the trial that has just reported, this is the decision; `on_trial_result` can only delay it, by PAUSE. A
        paused trial becomes runnable (`TrialScheduler.choose_trial_to_run`).

        Args:
            trial: The trial that gives up its own state.
            source: The trial with the checkpoint.
            config: The new configuration of `trial`.
            tag: A suffix for the original tag of `trial`; it begins with ``@``.
        """


class TrialScheduler:
    """The base of schedulers, which decide which trials go on. This class lets all trials go on.

    Reports come one at a time, in the order of their arrival. A metric may be missing or NaN. NaN counts as worse than
    any number; a report without the metric or the time gets CONTINUE.
    """

    CONTINUE: Final = "CONTINUE"
    """The trial goes on."""
    PAUSE: Final = "PAUSE"
    """The trial is paused with a checkpoint, and frees its place."""
    STOP: Final = "STOP"
    """The trial ends."""
    NOOP: Final = "NOOP"
    """No decision; the same as `CONTINUE` for a running trial."""

    metric: str | None = None
    """The metric to compare by; nested ones with ``/``. None until the search sets it."""
    mode: str | None = None
    """``"max"`` or ``"min"``."""
    looks_ahead: bool = True
    """Whether to propose another trial whenever one begins, as long as there are more. The scheduler then chooses
    between a new trial and paused ones, and no trial seems to be the last. A scheduler that pauses none needs no
    waiting trial: with False, trials are proposed only when they can begin."""

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: object) -> bool:
        """Take the search's metric and mode.

        Returns:
            False if the scheduler has others of its own, so that both cannot hold.
        """
        if (self.metric and metric and metric != self.metric) or (self.mode and mode and mode != self.mode):
            return False
        self.metric, self.mode = self.metric or metric, self.mode or mode
        return True

    def on_trial_add(self, controls: TrialControls, trial: trials.Trial) -> None:
        """Handle a new trial, before it begins."""

    def on_trial_error(self, controls: TrialControls, trial: trials.Trial) -> None:
        """Handle a trial's final failure."""

    def on_trial_result(self, controls: TrialControls, trial: trials.Trial, result: Mapping[str, Any]) -> Decision:
        """Decide about a `RUNNING` trial that has reported."""
        return self.CONTINUE

    def on_trial_complete(self, controls: TrialControls, trial: trials.Trial, result: Mapping[str, Any]) -> None:
        """Handle the last report of a trial that ended by itself, or by a stop rule or stopper of the search."""

    def on_trial_remove(self, controls: TrialControls, trial: trials.Trial) -> None:
        """Handle the end, from outside, of a trial that was paused or pending."""

    def choose_trial_to_run(self, controls: TrialControls) -> trials.Trial | None:
        """Return the `PENDING` or `PAUSED` trial that runs next; None if there is none.

        If it returns None, nothing runs, and no more trials can be proposed, the search ends the paused trials.
        """
        for trial in controls.get_trials():
            if trial.status is trials.Status.PENDING:
                return trial
        return None

    def debug_string(self) -> str:
        """Return a line about the scheduler's state."""
        return type(self).__name__

    # --- for subclasses -----------------------------------------------------------------------------------------------

    def get_score(self, result: Mapping[str, Any]) -> float | None:
        """Return the metric, negated for ``"min"``; NaN becomes minus infinity. None if the report lacks it."""
        value: Any = plain.get_metric(result, self.metric) if self.metric else None
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            return None
        number = float(value)
        if math.isnan(number):
            return -math.inf
        return -number if self.mode == "min" else number
