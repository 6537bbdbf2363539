"""The callbacks of a search: the user's, and what shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from hocket.tune import callback
from hocket.tune import trial as trials


@final
class Watchers:
    """Calls the same method of all callbacks, in their order.

    Args:
        callbacks: The user's.
        get_trials: Returns the trials that are not finished.
    """

    def __init__(
        self, callbacks: Sequence[callback.Callback], get_trials: Callable[[], Sequence[trials.Trial]]
    ) -> None:
        self._callbacks, self._get_trials = list(callbacks), get_trials

    def add(self, one: callback.Callback) -> None:
        """Call this one too, after the others."""
        self._callbacks.append(one)

    def call(self, name: str, iteration: int, *about: trials.Trial, **more: Any) -> None:
        """Call a method that gets the search's events so far and its trials."""
        if self._callbacks:
            listed = self._get_trials()
            for one in self._callbacks:
                getattr(one, name)(iteration, listed, *about, **more)

    def call_once(self, name: str, **info: Any) -> None:
        """Call a method of the search's begin or end."""
        for one in self._callbacks:
            getattr(one, name)(**info)
