"""The display of a search while it runs, and its last line at the end.

In a terminal it has the last rows, and the output of trials scrolls above. Elsewhere it shows nothing. A
`ProgressReporter` replaces it. ``RunConfig(verbose=0)`` or the environment variable ``HOCKET_PROGRESS=off`` turns it
off.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, final

from hocket.train.progress import display as train_display
from hocket.train.progress import terminal
from hocket.train.tracking import plain
from hocket.tune import callback, progress_reporter
from hocket.tune import trial as trials
from hocket.tune.run import search as searches

_DRAW_SECONDS: Final = 0.25
"""Seconds between two drawings of the rows, as in training."""

_MOST_ROWS: Final = 5
"""The most trials shown. A guess: a glance takes in no more."""


@contextlib.contextmanager
def shown(search: searches.Search) -> Iterator[None]:
    """Show a search during the block, if there is a reporter or a terminal."""
    given = search.settings
    reporter = given.run.progress_reporter
    if given.run.verbose and isinstance(reporter, progress_reporter.ProgressReporter):
        search.watchers.add(progress_reporter.Following(reporter, given.metric, given.mode))
        yield
        return
    descriptor = None if given.run.verbose == 0 else _find_terminal()
    if descriptor is None:
        yield
        return
    follower = Display(search, terminal.StatusArea(descriptor))
    search.watchers.add(follower)
    try:
        yield
    finally:
        follower.close()


def _find_terminal() -> int | None:
    return None if train_display.read_switch() in ("off", "plain") else train_display.find_terminal()


@final
class Display(callback.Callback):
    """The rows of a terminal that show a search.

    Args:
        search: The search to show.
        area: The terminal's rows.
    """

    def __init__(self, search: searches.Search, area: terminal.StatusArea) -> None:
        self._search, self._area = search, area
        self._best: list[tuple[float, trials.Trial, dict[str, object]]] = []
        self._started = self._drawn = time.monotonic()

    def on_trial_result(
        self,
        iteration: int,
        trials: Sequence[trials.Trial],
        trial: trials.Trial,
        result: Mapping[str, object],
        **info: object,
    ) -> None:
        """Take a report into the list of the best."""
        score = self._find_score(result)
        if score is not None:
            self._best = [entry for entry in self._best if entry[1] is not trial]
            self._best.append((score, trial, dict(result)))
            self._best.sort(key=lambda entry: -entry[0])
            del self._best[_MOST_ROWS:]

    def _find_score(self, result: Mapping[str, object]) -> float | None:
        given = self._search.settings
        value = plain.get_metric(result, given.metric) if given.metric else None
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            return None
        return float(-value if given.mode == "min" else value)

    def on_step_end(self, iteration: int, trials: Sequence[trials.Trial], **info: object) -> None:
        """Draw the rows, if it is time."""
        now = time.monotonic()
        if now - self._drawn >= _DRAW_SECONDS:
            self._drawn = now
            width = self._area.width
            self._area.draw([line[:width] for line in self.build_lines()])

    def build_lines(self) -> list[str]:
        """Return the lines to draw."""
        return [build_summary(self._search, time.monotonic() - self._started)] + [
            self._describe(trial, result) for _, trial, result in self._best
        ]

    def _describe(self, trial: trials.Trial, result: Mapping[str, object]) -> str:
        metric = self._search.settings.metric or ""
        value = plain.get_metric(result, metric)
        state = trial.status.value.lower()
        return f"  {metric} {value:.6g} at {result['training_iteration']}  {trial.experiment_tag}  {state}"

    def close(self) -> None:
        """Release the rows, and leave one line."""
        self._area.close()
        line = build_summary(self._search, time.monotonic() - self._started)
        if self._best:
            line += f"; best:{self._describe(self._best[0][1], self._best[0][2])}"
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), f"{line}\n".encode())


def build_summary(search: searches.Search, seconds: float) -> str:
    """Return one line about a search."""
    counts = search.counts
    running = sum(live.trial.status is trials.Status.RUNNING for live in search.live.values())
    paused = sum(live.trial.status is trials.Status.PAUSED for live in search.live.values())
    parts = [
        (counts[trials.Status.TERMINATED], "ended"),
        (counts[trials.Status.ERROR], "failed"),
        (running, "running"),
        (paused, "paused"),
    ]
    told = ", ".join(f"{count} {what}" for count, what in parts if count or what == "ended")
    return f"{search.settings.folder.name}: {search.source.num_proposed} trials ({told}) in {seconds:.0f} s"
