"""The searcher, and the order in which results reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from hocket.tune import errors
from hocket.tune import trial as trials
from hocket.tune.search import searcher as searchers


@dataclass(slots=True)
class _Heard:
    """The reports and the end of a trial that the searcher has not heard of."""

    trial_id: str
    results: list[Mapping[str, Any]] = field(default_factory=list)
    last: Mapping[str, Any] | None = None
    is_error: bool = False
    has_ended: bool = False


@final
class Proposals:
    """The link to the searcher: it gets configurations from it, and passes on their results.

    Args:
        searcher: The searcher, which knows the space, the metric and the mode.
        window: If given, results go to the searcher in the order of trials. At the proposal of trial n it then knows
            trials 0 to n - window, and no others, whatever else has ended. A searcher that proposes nothing gets more
            results, one by one, until it does. None: results go to the searcher as they come.
    """

    def __init__(self, searcher: searchers.Searcher, window: int | None) -> None:
        self.searcher, self._window = searcher, window
        self._heard: dict[int, _Heard] = {}
        self._told = 0
        self.is_finished = False
        """Whether there will be no more trials."""

    def can_propose(self, number: int) -> bool:
        """Return whether a trial can be proposed now."""
        if self.is_finished or self._window is None:
            return not self.is_finished
        needed = range(self._told, number - self._window + 1)
        return all(earlier in self._heard and self._heard[earlier].has_ended for earlier in needed)

    def propose(self, number: int, trial_id: str) -> dict[str, object] | None:
        """Return the configuration of a new trial; None if there is none now."""
        self._tell_before(number)
        found = self.searcher.suggest(trial_id)
        while found is None and self._tell(1):  # the searcher allows fewer unfinished trials than the window
            found = self.searcher.suggest(trial_id)
        if found is None:
            return None
        if isinstance(found, str) and found == self.searcher.FINISHED:
            self.is_finished = True
            return None
        if not isinstance(found, dict):
            raise errors.TuneError(
                f"{type(self.searcher).__name__}.suggest() must return a dict, None or Searcher.FINISHED, but returned "
                f"{found!r} for trial {trial_id}."
            )
        self._expect(number, trial_id)
        return found

    def restore(self, number: int, trial_id: str, config: Mapping[str, object]) -> None:
        """Take in a trial that was proposed before the search was resumed."""
        self._tell_before(number)
        self.searcher.on_trial_restored(trial_id, config)
        self._expect(number, trial_id)

    def _expect(self, number: int, trial_id: str) -> None:
        if self._window is not None:
            self._heard[number] = _Heard(trial_id)

    def hear_report(self, trial: trials.Trial, result: Mapping[str, object]) -> None:
        """Take in a report."""
        if self._window is None:
            self.searcher.on_trial_result(trial.trial_id, result)
        elif trial.number in self._heard:  # else a failed trial, which the searcher has heard of, goes on
            self._heard[trial.number].results.append(result)

    def hear_end(self, trial: trials.Trial, *, is_error: bool) -> None:
        """Take in a trial's end."""
        last = dict(trial.last_result) or None
        if self._window is None:
            self.searcher.on_trial_complete(trial.trial_id, last, error=is_error)
            return
        heard = self._heard.get(trial.number)
        if heard is None:
            return
        heard.last, heard.is_error, heard.has_ended = last, is_error, True

    def finish(self) -> None:
        """Pass on the withheld results: the search has ended."""
        self._tell(len(self._heard))

    def _tell_before(self, number: int) -> None:
        if self._window is not None:
            self._tell(number - self._window + 1 - self._told)

    def _tell(self, most: int) -> bool:
        """Pass on at most `most` trials in order, up to the first unfinished; return whether there were any."""
        begun = self._told
        for _ in range(most):
            first = self._heard.get(self._told)
            if first is None or not first.has_ended:
                break
            for result in first.results:
                self.searcher.on_trial_result(first.trial_id, result)
            self.searcher.on_trial_complete(first.trial_id, first.last, error=first.is_error)
            del self._heard[self._told]
            self._told += 1
        return self._told > begun
