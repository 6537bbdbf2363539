"""Searches in the dashboard, read from their logs, also while these are written.

A viewer never unpickles a log, so it runs no other user's code.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from hocket._base import texts
from hocket.observe import sessions
from hocket.observe.runs import history, lines

NAME: Final = "search.jsonl"
"""The name of a search's log; `hocket.tune.log` describes its contents."""

LOOK_SECONDS = 1.0
"""Seconds for which a list of searches is reused."""

MOST_TRIALS = 1000
"""The most trials shown: running ones first, then the best of the others."""

MOST_ITERATIONS = 10_000_000
"""The most iterations believed; a log with more is damaged."""

MOST_CURVES = 30
"""The most trials with a curve of the metric."""

MOST_GROUPS = 6
"""The number of groups of equal size into which numbers are cut, to compare a metric between them."""

_STATES: Final = {"start": "running", "process": "running", "pause": "paused", "retry": "waits", "revive": "waits"}

Plain = float | int | bool | str | None


@dataclass
class Trial:
    """A trial's state, as read from the log."""

    number: int
    trial_id: str
    config: dict[str, Plain]
    state: str = "waits"
    pid: int | None = None
    iterations: int = 0
    seconds: float = 0.0
    error: str | None = None
    reason: str | None = None
    exploits: int = 0
    """The number of times that the trial took over another's state."""
    curves: dict[str, list[float]] = field(default_factory=dict)
    """The trial's numeric metrics, by report."""


@final
class SearchHistory:
    """The trials of a search, as read from its log so far.

    Args:
        folder: The search's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._lines = lines.Lines(folder / NAME)
        self._forget()

    def _forget(self) -> None:
        self.trainable = ""
        self.metric: str | None = None
        self.mode = "max"
        self.started = self.last = 0.0
        self.damaged = 0
        self.trials: dict[str, Trial] = {}

    def update(self) -> None:
        """Read the new lines."""
        with contextlib.closing(self._lines):
            for line in self._lines.read(self._forget):
                try:
                    self._take(json.loads(line))
                except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
                    self.damaged += 1

    def _take(self, line: dict[str, Any]) -> None:
        event = line["event"]
        if event == "session":
            self.trainable = str(line.get("name") or "")
            metric = line.get("metric")
            self.metric, self.mode = None if metric is None else str(metric), str(line.get("mode") or "max")
            self.last = history.read_time(line["time"])
            self.started = self.started or self.last
            for trial in self.trials.values():  # they ran when the last session was killed
                if trial.state == "running":
                    trial.state = "waits"
        elif event == "trial":
            trial_id = str(line["id"])
            self.trials[trial_id] = Trial(int(line["number"]), trial_id, dict(_flatten(line["config"])))
        elif "id" in line:
            self._take_trial(self.trials[str(line["id"])], event, line)

    def _take_trial(self, trial: Trial, event: str, line: dict[str, Any]) -> None:
        trial.state = _STATES.get(event, trial.state)
        if event == "start":
            trial.iterations = min(int(line["iteration"]), MOST_ITERATIONS)
            trial.error = None
            for curve in trial.curves.values():
                del curve[trial.iterations :]
        elif event == "process":
            trial.pid = int(line["pid"])
        elif event == "report":
            self.last = history.read_time(line["time"])
            trial.seconds += history.read_finite(line["seconds"])
            for name, value in _flatten(line["metrics"]):
                if isinstance(value, int | float):
                    curve = trial.curves.setdefault(name, [])
                    curve.extend([math.nan] * (trial.iterations - len(curve)))
                    curve.append(history.read_number(value))
            trial.iterations += 1
        elif event == "exploit":
            trial.config = dict(_flatten(line["config"]))
            trial.exploits += 1
        elif event == "end":
            trial.state = str(line["status"]).lower()
            trial.reason = None if line.get("reason") is None else texts.cut(str(line["reason"]), 500)
            trial.error = None if line.get("error") is None else _find_last_line(str(line["error"]))

    @property
    def state(self) -> str:
        """``"running"``, ``"finished"``, or ``"interrupted"``: trials are unfinished, and no process runs the
        search."""
        if lines.is_locked(self.path / NAME):
            return "running"
        is_over = all(one.state in ("terminated", "error") for one in self.trials.values())
        return "finished" if is_over else "interrupted"

    def list_states(self) -> dict[str, str]:
        """Return the state of each trial, by its id. If no process runs the search, running ones are interrupted."""
        states = {name: one.state for name, one in self.trials.items()}
        if self.state == "running":
            return states
        return {name: "interrupted" if state == "running" else state for name, state in states.items()}

    def list_metrics(self) -> list[str]:
        """Return the names of the numeric metrics."""
        return list(dict.fromkeys(name for one in self.trials.values() for name in one.curves))


def _flatten(found: object, prefix: str = "") -> Iterator[tuple[str, Plain]]:
    if not isinstance(found, Mapping):
        return
    for key, given in found.items():
        name = texts.cut(f"{prefix}{key}", 200)
        is_pickled = isinstance(given, Mapping) and "!pickle" in given
        value = given.get("!shown", given) if is_pickled else given
        if value is None or isinstance(value, bool | int | float):
            yield name, value
        elif isinstance(value, str):
            yield name, texts.cut(value, 200)
        elif isinstance(value, Mapping) and "!pickle" not in value:
            yield from _flatten(value, f"{name}/")
        else:
            yield name, "an object" if isinstance(value, Mapping) else texts.cut(json.dumps(value), 200)


def _find_last_line(text: str) -> str:
    told = text.strip().splitlines()
    return texts.cut(told[-1].strip() if told else "", 500)


@final
class Searches:
    """The searches of a folder, or those of sessions. Several threads may use it.

    Args:
        folder: The folder; None for the searches of sessions.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, SearchHistory] = {}
        self._listed_at = -math.inf
        #: The driver of the session that runs a search.
        self._drivers: dict[str, int] = {}

    def list_searches(self, driver_pids: Iterable[int]) -> list[dict[str, Any]]:
        """Return a line for each search, the latest first."""
        with self._lock:
            if time.monotonic() - self._listed_at > LOOK_SECONDS:
                self._find(driver_pids)
                self._listed_at = time.monotonic()
            found = [
                _describe(path, one) | {"driver_pid": self._drivers.get(path)} for path, one in self._known.items()
            ]
        return sorted(found, key=lambda line: -line["started"])

    def _find(self, driver_pids: Iterable[int]) -> None:
        if self._folder is not None:
            logs = lines.find_logs(self._folder, NAME)
        else:
            owned = sessions.find_logs(driver_pids, NAME)
            self._drivers |= {str(path.parent): pid for path, pid in owned.items()}
            logs = list(owned)
        for path in logs:
            self._known.setdefault(str(path.parent), SearchHistory(path.parent))
        for one in self._known.values():
            with contextlib.suppress(OSError):  # removed in the meantime
                one.update()

    def describe(self, path: str, metric: str | None, width: int) -> dict[str, Any] | None:
        """Return a search's data for viewers; None if it is not in the list of searches.

        Args:
            path: The search's folder.
            metric: The metric to show. Default: the search's.
            width: The width of a plot in pixels.
        """
        with self._lock:
            search = self._known.get(path)
            if search is None:
                return None
            with contextlib.suppress(OSError):
                search.update()
            metrics = search.list_metrics()
            shown = (
                metric if metric in metrics else search.metric if search.metric in metrics else next(iter(metrics), "")
            )
            better = search.mode == "max"
            rows = sorted((_score(one, shown, better=better) for one in search.trials.values()), key=_rank)
            chosen, states = rows[:MOST_TRIALS], search.list_states()
            return _describe(path, search) | {
                "metric": shown,
                "metrics": metrics,
                "mode": search.mode,
                "damaged": search.damaged,
                "left_out": len(rows) - len(chosen),
                "parameters": _list_parameters(search),
                "trials": [_describe_trial(one, value, states[one.trial_id]) for one, value in chosen],
                "associations": measure_associations(search, shown),
                "curves": [
                    {"number": one.number, "points": _thin(one.curves.get(shown, []), width)}
                    for one, _ in chosen[:MOST_CURVES]
                    if len(one.curves.get(shown, [])) > 1
                ],
            }


def _score(trial: Trial, metric: str, *, better: bool) -> tuple[Trial, float | None]:
    """Return a trial with its last value, negated if more is better; None if the value is not finite."""
    last = (trial.curves.get(metric) or [math.nan])[-1]
    return trial, (-last if better else last) if math.isfinite(last) else None


def _rank(row: tuple[Trial, float | None]) -> tuple[bool, bool, float, int]:
    trial, value = row
    return trial.state != "running", value is None, 0.0 if value is None else value, trial.number


def _describe(path: str, search: SearchHistory) -> dict[str, object]:
    return {
        "path": path,
        "name": Path(path).name,
        "trainable": search.trainable,
        "state": search.state,
        "started": search.started,
        "last": search.last,
        "states": dict(Counter(search.list_states().values())),
        "count": len(search.trials),
    }


def _describe_trial(trial: Trial, score: float | None, state: str) -> dict[str, object]:
    return {
        "number": trial.number,
        "id": trial.trial_id,
        "state": state,
        "reason": trial.reason,
        "error": trial.error,
        "config": trial.config,
        "iterations": trial.iterations,
        "seconds": round(trial.seconds, 3),
        "exploits": trial.exploits,
        "score": score,
        "metrics": {name: _round(curve[-1]) for name, curve in trial.curves.items() if curve},
    }


def _list_parameters(search: SearchHistory) -> list[str]:
    """Return the names of hyperparameters whose values differ between trials."""
    values: dict[str, set[str]] = {}
    for one in search.trials.values():
        for name, value in one.config.items():
            values.setdefault(name, set()).add(str(value))
    return [name for name, found in values.items() if len(found) > 1]


def measure_associations(search: SearchHistory, metric: str) -> list[dict[str, Any]]:
    """Return how much of a metric's variation goes with each hyperparameter alone, the greatest first.

    The measure is epsilon squared (T. L. Kelley, "An unbiased correlation ratio measure", 1935) of the metric's ranks
    between groups of trials with equal texts or neighbouring numbers. 0 means no more than chance. It does not find
    hyperparameters that matter only together.
    """
    scored = [(one, value) for one, value in (_score(one, metric, better=False) for one in search.trials.values())]
    known = [(one, value) for one, value in scored if value is not None]
    if len(known) < 2 * MOST_GROUPS:
        return []
    # Equal values share a rank; else the order of trials, which in a grid follows the values, would count.
    _, places, counts = np.unique([value for _, value in known], return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts + 1) / 2)[places]
    found = []
    for name in _list_parameters(search):
        groups = _group([one.config.get(name) for one, _ in known])
        found.append({"name": name, "share": _measure(ranks, groups)})
    return sorted(found, key=lambda one: -float(one["share"]))


def _group(values: list[Plain]) -> npt.NDArray[np.int64]:
    """Return the number of each value's group."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        numbers = np.array(values, np.float64)
        if len(np.unique(numbers)) > MOST_GROUPS:
            borders = np.quantile(numbers, np.linspace(0, 1, MOST_GROUPS + 1)[1:-1])
            return np.searchsorted(borders, numbers, side="right").astype(np.int64)
    _, groups = np.unique([str(value) for value in values], return_inverse=True)
    return groups.astype(np.int64)


def _measure(ranks: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]) -> float:
    count, kinds = len(ranks), len(np.unique(groups))
    total = float(((ranks - ranks.mean()) ** 2).sum())
    if total == 0 or kinds < 2 or count <= kinds:
        return 0.0
    within = sum(
        float(((part - part.mean()) ** 2).sum()) for part in (ranks[groups == one] for one in np.unique(groups))
    )
    return max(0.0, 1.0 - (within / (count - kinds)) / (total / (count - 1)))


def _thin(values: list[float], width: int) -> list[list[float | None]]:
    rows, drawn = history.thin([np.array(values)], width)
    return [[int(row), _round(value)] for row, value in zip(rows.tolist(), drawn[0].tolist(), strict=True)]


def _round(value: float) -> float | None:
    return float(f"{value:.12g}") if math.isfinite(value) else None
