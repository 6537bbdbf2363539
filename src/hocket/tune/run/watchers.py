"""The callbacks of a search: the user's, and what shows it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, final

from hocket.tune import callback
from hocket.tune import trial as trials

STATE_SECONDS: Final = 10.0
"""How often the states of callbacks are kept, as Ray does. They may be large, and most callbacks have none."""


@final
class Watchers:
    """Calls the same method of all callbacks, in their order.

    Args:
        callbacks: The user's.
        keeps_trials: Whether somebody looks at all trials: the user's callbacks, or a reporter. A display does not.
    """

    def __init__(self, callbacks: Sequence[callback.Callback], *, keeps_trials: bool) -> None:
        self._callbacks, self._keeps = list(callbacks), keeps_trials
        self._users = tuple(callbacks)
        self._states_at = time.monotonic()
        self._trials: list[trials.Trial] = []

    def add(self, one: callback.Callback) -> None:
        """Call this one too, after the others."""
        self._callbacks.append(one)

    def note(self, trial: trials.Trial) -> None:
        """Take a trial into what callbacks are given, if somebody looks at it."""
        if self._keeps:
            self._trials.append(trial)

    @property
    def states_are_due(self) -> bool:
        """Whether the states of the user's callbacks have not been listed for a while."""
        return bool(self._users) and time.monotonic() - self._states_at > STATE_SECONDS

    def list_states(self) -> list[list[object]]:
        """Return the class and the state of each of the user's callbacks; nothing if none has one."""
        self._states_at = time.monotonic()
        states = [[type(one).__qualname__, one.get_state()] for one in self._users]
        return states if any(state is not None for _, state in states) else []

    def set_states(self, states: Sequence[Sequence[object]]) -> None:
        """Give callbacks what those of the same place and class returned."""
        for one, (name, state) in zip(self._users, states, strict=False):
            if state is not None and name == type(one).__qualname__:
                one.set_state(state)

    def call(self, name: str, iteration: int, *about: trials.Trial, **more: object) -> None:
        """Call a method that gets the search's events so far and its trials."""
        for one in self._callbacks:
            getattr(one, name)(iteration, self._trials, *about, **more)

    def call_once(self, name: str, **info: object) -> None:
        """Call a method of the search's begin."""
        for one in self._callbacks:
            getattr(one, name)(**info)

    def call_at_end(self) -> None:
        """Call what is called after the last trial."""
        self.call_once("on_experiment_end", trials=self._trials)
