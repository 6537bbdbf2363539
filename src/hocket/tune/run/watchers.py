"""The callbacks of a search: the user's, and what shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from hocket.tune import callback
from hocket.tune import trial as trials


@final
class Watchers:
    """Calls the same method of all callbacks, in their order.

    Args:
        callbacks: The user's.
        keeps_trials: Whether somebody looks at all trials: the user's callbacks, or a reporter. A display does not.
    """

    def __init__(self, callbacks: Sequence[callback.Callback], *, keeps_trials: bool) -> None:
        self._callbacks, self._keeps = list(callbacks), keeps_trials
        self._trials: list[trials.Trial] = []

    def add(self, one: callback.Callback) -> None:
        """Call this one too, after the others."""
        self._callbacks.append(one)

    def note(self, trial: trials.Trial) -> None:
        """Take a trial into what callbacks are given, if somebody looks at it."""
        if self._keeps:
            self._trials.append(trial)

    def call(self, name: str, iteration: int, *about: trials.Trial, **more: Any) -> None:
        """Call a method that gets the search's events so far and its trials."""
        for one in self._callbacks:
            getattr(one, name)(iteration, self._trials, *about, **more)

    def call_once(self, name: str, **info: Any) -> None:
        """Call a method of the search's begin."""
        for one in self._callbacks:
            getattr(one, name)(**info)

    def call_at_end(self) -> None:
        """Call what is called after the last trial."""
        self.call_once("on_experiment_end", trials=self._trials)
