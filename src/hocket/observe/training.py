"""The training runs of a viewer: those of a folder, or those of sessions."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hocket.engine import descendants, stack_questions
from hocket.observe import frames, sessions
from hocket.observe.runs import advice, history, log

LOOK_SECONDS = 1.0
"""Seconds for which a list of runs is reused."""

STACK_SECONDS = 2.0
"""Seconds between two reads of ranks' stacks while a page is open. A rank that has stopped can no longer answer."""

RECENT_SECONDS = 30.0
"""The length, in seconds, of the recent stretch for which time spent is shown."""

MOST_CURVES = 60
"""The most metrics drawn."""


class Runs:
    """Training runs and their histories, as read so far. Several threads may use them."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, history.RunHistory] = {}
        #: Ended runs that viewers have seen only as a line so far.
        self._over: dict[str, history.Glimpse] = {}
        self._listed_at = -math.inf
        self._stacks: dict[int, tuple[str, float]] = {}
        self._asked_at: dict[str, float] = {}
        #: The driver of the session that runs a run.
        self._drivers: dict[str, int] = {}

    def list_runs(self, driver_pids: Iterable[int]) -> list[dict[str, Any]]:
        """Return a line for each run, the latest first.

        Args:
            driver_pids: The drivers of sessions, whose runs are listed unless a folder is given.
        """
        with self._lock:
            if time.monotonic() - self._listed_at > LOOK_SECONDS:
                self._find(driver_pids)
                self._listed_at = time.monotonic()
            found = [_describe(path, run) for path, run in self._known.items()]
            found += [_describe_over(path, one) for path, one in self._over.items()]
            for line in found:
                line["driver_pid"] = self._drivers.get(line["path"])
        return sorted(found, key=lambda line: -line["started"])

    def close(self) -> None:
        """Close the descriptors."""
        with self._lock:
            for run in self._known.values():
                run.close()

    def _find(self, driver_pids: Iterable[int]) -> None:
        if self._folder is not None:
            folders = history.find_runs(self._folder)
        else:
            owned = sessions.find_logs(driver_pids, log.NAME)
            self._drivers |= {str(path.parent): pid for path, pid in owned.items()}
            folders = [path.parent for path in owned]
        for folder in folders:
            with contextlib.suppress(OSError):  # removed in the meantime
                self._meet(folder)
        for run in self._known.values():
            run.update()

    def _meet(self, folder: Path) -> None:
        """Add a run: a glimpse of an ended one, or the full history of one that may go on."""
        path, file = str(folder), folder / log.NAME
        known = self._over.get(path)
        if path in self._known or (known is not None and file.stat().st_size == known.size):
            return
        seen = history.take_glimpse(file) if known is None else None
        if seen is not None:
            self._over[path] = seen
        else:
            self._open(path)

    def _open(self, path: str) -> None:
        self._over.pop(path, None)
        self._known[path] = history.RunHistory(path)

    def describe(self, path: str, width: int) -> dict[str, Any] | None:
        """Return a run's data for viewers; None if it is not in the list of runs.

        Args:
            path: The run's folder.
            width: The width of a plot in pixels.
        """
        with self._lock:
            if path in self._over:
                with contextlib.suppress(OSError):  # removed in the meantime
                    self._open(path)
            run = self._known.get(path)
            if run is None:
                return None
            run.update()
            recent = _count_recent(run)
            spent = run.sum_spent(recent)
            return _describe(path, run) | {
                "now": time.time(),
                "config": run.facts.config,
                "texts": dict(run.texts),
                "failures": [{"at": one.at, "errors": one.errors} for one in run.facts.failures],
                "behind": run.facts.behind,
                "attempts": run.facts.attempts,
                "checkpoints": list(run.facts.checkpoints),
                "ranks": self._describe_ranks(path, run, recent),
                "spent": [[*one, one.compute] for one in spent],
                "advice": [*advice.explain_values(run.find_unfit()), *advice.explain(spent, run.facts.behind)],
                **_draw(run, width),
            }

    def _describe_ranks(self, path: str, run: history.RunHistory, recent: int) -> list[dict[str, object]]:
        late = [column[-recent:] for column in run.get_late()]
        now, runs = time.monotonic(), run.state == "running"
        asks = runs and now - self._asked_at.get(path, -math.inf) > STACK_SECONDS
        if asks:
            self._asked_at[path] = now
        rows = []
        for rank in range(run.facts.ranks):
            pid = run.facts.pids[rank] if rank < len(run.facts.pids) else 0
            status = _find_status(pid) if runs and run.facts.pids else "starts" if runs else "ended"
            if asks and status == "runs":
                self._look(pid)
            seen = self._stacks.get(pid)
            lag = late[rank] if rank < len(late) else np.empty(0)
            rows.append(
                {
                    "rank": rank,
                    "pid": pid,
                    "status": status,
                    "reports": run.facts.counts[rank] if rank < len(run.facts.counts) else 0,
                    "late": float(np.nanmean(lag)) if np.isfinite(lag).any() else None,
                    "stack": seen[0] if seen else None,
                    "stack_age": time.time() - seen[1] if seen else None,
                }
            )
        return rows

    def _look(self, pid: int) -> None:
        probe = stack_questions.find_probe(pid)
        if probe is not None:
            self._stacks[pid] = frames.trim(stack_questions.fetch(pid, probe)), time.time()


def _find_status(pid: int) -> str:
    if not pid or not Path(f"/proc/{pid}").exists():
        return "gone" if pid else "elsewhere"
    return "stopped" if descendants.is_stopped(pid) else "runs"


def _describe(path: str, run: history.RunHistory) -> dict[str, Any]:
    facts = run.facts
    return {
        "path": path,
        "name": facts.name,
        "state": run.state,
        "started": facts.started,
        "ended": facts.ended,
        "last": facts.last,
        "rows": len(run),
        "size": facts.ranks,
        "error": facts.error,
    }


def _describe_over(path: str, run: history.Glimpse) -> dict[str, object]:
    return {
        "path": path,
        "name": run.name,
        "state": history.name_end(run.error),
        "started": run.started,
        "ended": run.ended,
        "last": run.ended,
        "rows": run.rows,
        "size": run.ranks,
        "error": run.error,
    }


def _count_recent(run: history.RunHistory) -> int:
    """Return the number of rows within `RECENT_SECONDS` before the last row; at least 1."""
    times = np.frombuffer(run.times) if len(run) else np.empty(0)
    return max(1, int((times > times[-1] - RECENT_SECONDS).sum())) if len(times) else 1


def _draw(run: history.RunHistory, width: int) -> dict[str, object]:
    """Return the curves. ``rows_drawn`` and ``seconds`` are the choices for the horizontal axis."""
    names = run.names[:MOST_CURVES]
    curves = {name: run.get_curve(name) for name in names}
    labels = [(name, rank) for name, columns in curves.items() for rank in range(len(columns))]
    late = run.get_late()
    rows, drawn = history.thin([curves[name][rank] for name, rank in labels] + late, width)
    times = np.frombuffer(run.times) if len(run) else np.empty(0)
    found: dict[str, list[list[float | None]]] = {name: [] for name in names}
    lasts = {name: run.get_last(name) for name in names}
    for (name, _), values in zip(labels, drawn, strict=False):
        found[name].append(_round(values))
    return {
        "rows_drawn": rows.tolist(),
        "seconds": [round(one, 3) for one in (times[rows] - run.facts.started).tolist()] if len(times) else [],
        "curves": found,
        "lasts": {name: _show_last(value) for name, value in lasts.items()},
        "late": [_round(values) for values in drawn[len(labels) :]],
        "left_out": max(0, len(run.names) - MOST_CURVES),
    }


def _round(values: history.Floats) -> list[float | None]:
    """Return values rounded to a hundred thousandth of the curve's height. None replaces values that are not finite."""
    known = np.isfinite(values)
    height = float(np.ptp(values[known])) if known.any() else 0.0
    if 1e-9 < height < math.inf:
        values = np.round(values, 5 - math.floor(math.log10(height)))
    return [value if is_known else None for value, is_known in zip(values.tolist(), known.tolist(), strict=True)]


def _show_last(value: float | None) -> float | str | None:
    """Return a value that JSON can hold."""
    return value if value is None or math.isfinite(value) else str(value)
