"""What is known of a run from its log, read on from where it was read last."""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from hocket import spending
from hocket.observe.runs import lines, log

Floats = npt.NDArray[np.float64]

MOST_RANKS: Final = 1 << 12
"""More are not believed: the log is damaged."""


@dataclass
class Failure:
    """Ranks that have failed."""

    at: float
    errors: dict[int, str]


@dataclass
class Facts:
    """What changes with each line, except for the rows."""

    name: str = ""
    started: float = 0.0
    pid: int = 0
    """Of the process that called `fit`."""
    config: dict[str, Any] = field(default_factory=dict)
    ranks: int = 0
    pids: list[int] = field(default_factory=list)
    """Of the ranks; empty where nobody has said."""
    counts: list[int] = field(default_factory=list)
    """How many reports each rank has made in this attempt."""
    attempts: int = 0
    """How often ranks have been started."""
    failures: list[Failure] = field(default_factory=list)
    behind: float = 0.0
    """How many seconds the driver took a row after its last report was made. On other machines' clocks, too."""
    checkpoints: dict[str, int] = field(default_factory=dict)
    """The row that each was committed with, by name."""
    ended: float | None = None
    error: str | None = None
    """Why it has ended, if `fit` raised."""
    last: float = 0.0
    """When the last line was written."""
    damaged: int = 0
    """How many lines cannot be read."""


@final
class RunHistory:
    """The rows of a run, as columns.

    Args:
        folder: The run's folder.

    Raises:
        FileNotFoundError: There is no log in it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder)
        self._file = self.path / log.NAME
        if not self._file.is_file():
            raise FileNotFoundError(f"There is no {log.NAME} in {str(self.path)!r}. Give the folder of a run.")
        self._lines = lines.Lines(self._file)
        self._begin()

    def close(self) -> None:
        """Give back what is open as long as the run goes on."""
        self._lines.close()

    def _begin(self) -> None:
        #: The first row that was reported since `fit` was called last, and since the ranks were started last.
        self._run_start = self._attempt_start = 0
        self.facts = Facts()
        self.times = array("d")
        #: By name, and then by rank. A rank that did not report it has NaN.
        self._metrics: dict[str, list[array[float]]] = {}
        self._texts: dict[str, str] = {}
        self._late: list[array[float]] = []
        #: By rank, and then by part of `spending.Spent`.
        self._spent: list[list[array[float]]] = []

    def __len__(self) -> int:
        return len(self.times)

    def update(self) -> bool:
        """Read what is new; return whether there was something."""
        is_new = False
        for line in self._lines.read(self._begin):
            is_new = True
            self._take(line)
        if self.state != "running":  # a log that is removed when its run fails is read to its end
            self.close()
        return is_new

    def _take(self, line: bytes) -> None:
        try:
            found = json.loads(line)
            found["at"] = self.facts.last = read_finite(found["at"])
            take = _TAKERS.get(found["is"])
            if take is not None:  # a later version may write more
                take(self, found)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            self.facts.damaged += 1

    def _take_run(self, line: dict[str, Any]) -> None:
        facts = self.facts
        start = line["start"]
        self._cut(facts.checkpoints[start] + 1 if start in facts.checkpoints else 0)
        facts.name, facts.pid, facts.config = str(line["name"]), int(line["pid"]), dict(line["config"])
        facts.started = facts.started or line["at"]
        facts.ended = facts.error = None
        self._run_start = self._attempt_start = len(self)

    def _take_attempt(self, line: dict[str, Any]) -> None:
        facts = self.facts
        self._cut(self._run_start + max(0, int(line["kept"])))
        self._attempt_start = len(self)
        facts.attempts += 1
        facts.ranks = min(int(line["ranks"]), MOST_RANKS)
        facts.pids, facts.counts = [], [0] * facts.ranks

    def _take_places(self, line: dict[str, Any]) -> None:
        self.facts.pids = [int(pid) for pid in line["pids"]]

    def _take_ahead(self, line: dict[str, Any]) -> None:
        self.facts.counts = [int(count) for count in line["counts"]]

    def _take_row(self, line: dict[str, Any]) -> None:
        metrics, late = list(line["metrics"]), [float(one) for one in line["late"]]
        spent = [[read_finite(part) for part in one[: len(spending.Spent._fields)]] for one in line.get("spent", [])]
        behind = read_finite(line.get("behind", 0.0))
        is_sound = max(len(metrics), len(late), len(spent)) <= MOST_RANKS
        is_sound &= all(isinstance(one, dict) for one in metrics)
        is_sound &= all(len(one) == len(spending.Spent._fields) for one in spent)
        if not is_sound:
            raise ValueError(line)
        row = len(self)
        self.times.append(line["at"])
        for rank, one in enumerate(metrics):
            for name, value in one.items():
                if isinstance(value, str):
                    self._texts[name] = value
                elif isinstance(value, bool | int | float):
                    _put(self._metrics.setdefault(name, []), rank, row, read_number(value))
        for rank, seconds in enumerate(late):
            _put(self._late, rank, row, seconds)
        for rank, parts in enumerate(spent):
            if rank == len(self._spent):
                self._spent.append([])
            for part, seconds in enumerate(parts):
                _put(self._spent[rank], part, row, seconds)
        self.facts.behind = behind
        if "checkpoint" in line:
            self.facts.checkpoints[str(line["checkpoint"])] = row
        complete = len(self) - self._attempt_start
        self.facts.counts = [max(count, complete) for count in self.facts.counts]

    def _take_failure(self, line: dict[str, Any]) -> None:
        errors = {int(rank): str(text) for rank, text in line["errors"].items()}
        self.facts.failures.append(Failure(line["at"], errors))

    def _take_end(self, line: dict[str, Any]) -> None:
        self.facts.ended = line["at"]
        self.facts.error = None if line["error"] is None else str(line["error"])

    def _cut(self, count: int) -> None:
        """Forget the rows from a number on: they are repeated."""
        columns = [column for ranks in [*self._metrics.values(), self._late, *self._spent] for column in ranks]
        for column in [self.times, *columns]:
            del column[count:]
        self.facts.checkpoints = {name: row for name, row in self.facts.checkpoints.items() if row < count}

    # --- what is asked ------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The metrics that are numbers."""
        return list(self._metrics)

    @property
    def texts(self) -> Mapping[str, str]:
        """The metrics that are texts, as they were reported last."""
        return self._texts

    @property
    def state(self) -> str:
        """``"running"``, ``"finished"``, ``"failed"``, or ``"interrupted"``: its process is gone without a word."""
        if self.facts.ended is not None:
            return "finished" if self.facts.error is None else "failed"
        return "running" if self._is_written() else "interrupted"

    def _is_written(self) -> bool:
        """Tell whether the process that writes the log lives."""
        return self._file.resolve() in lines.list_open(self.facts.pid, log.NAME)

    def get_curve(self, name: str) -> list[Floats]:
        """Return a metric: an array for each rank, with a value for each row."""
        return [self._fill(column) for column in self._metrics[name]]

    def get_last(self, name: str) -> float | None:
        """Return rank 0's last finite value of a metric."""
        curve = self.get_curve(name)[0]
        known = curve[np.isfinite(curve)]
        return float(known[-1]) if len(known) else None

    def get_late(self) -> list[Floats]:
        """Return by how many seconds each rank's report came later than the first: an array for each rank."""
        return [self._fill(column) for column in self._late]

    def sum_spent(self, rows: int) -> list[spending.Spent]:
        """Return on what each rank has spent its time in the last so many rows; nothing where nobody knows."""
        start = max(0, len(self) - rows)
        sums = [[float(np.nansum(self._fill(part)[start:])) for part in parts] for parts in self._spent]
        return [
            spending.Spent._make([*parts[:5], int(parts[5]), int(parts[6])])
            for parts in sums
            if len(parts) == len(spending.Spent._fields)
        ]

    def _fill(self, column: array[float]) -> Floats:
        found = np.full(len(self), math.nan)
        found[: len(column)] = column
        return found


_TAKERS: Final = {
    "run": RunHistory._take_run,
    "attempt": RunHistory._take_attempt,
    "places": RunHistory._take_places,
    "ahead": RunHistory._take_ahead,
    "row": RunHistory._take_row,
    "failure": RunHistory._take_failure,
    "end": RunHistory._take_end,
}


def _keep_extremes(parts: Floats, values: Floats) -> tuple[npt.NDArray[np.int64], list[Floats]]:
    """Return where the least and the greatest value of each stretch of one curve are, and these."""
    known = np.isfinite(parts)
    least = np.where(known, parts, math.inf).argmin(axis=1)
    most = np.where(known, parts, -math.inf).argmax(axis=1)
    starts = np.arange(len(parts)) * parts.shape[1]
    rows = np.sort(np.stack([starts + least, starts + most], axis=1), axis=1).reshape(-1)
    rows = np.minimum(rows, len(values) - 1)
    return rows, [values[rows]]


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of the runs in a folder, by name; the folder itself if it is a run's."""
    return [path.parent for path in lines.find_logs(folder, log.NAME)]


def read_finite(value: Any) -> float:
    """Return a number of a log.

    Raises:
        ValueError: It is none.
    """
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(value)
    return found


def read_number(value: float) -> float:
    """Return a metric; an integer beyond all floats is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _put(columns: list[array[float]], at: int, row: int, value: float) -> None:
    """Put a value into a row of a column. What is missing before it is NaN."""
    while len(columns) <= at:
        columns.append(array("d"))
    column = columns[at]
    column.extend([math.nan] * (row - len(column)))
    column.append(value)


def thin(values: Sequence[Floats], bins: int) -> tuple[npt.NDArray[np.int64], list[Floats]]:
    """Return which rows to draw, and the curves there: of each stretch the least and the greatest of each curve.

    The values of one curve stay where they are; those of several share a place in each stretch.

    Args:
        values: Curves with a value for each row.
        bins: How many stretches there are at most; each is two points.
    """
    count = len(values[0]) if values else 0
    if count <= 2 * bins:
        return np.arange(count), list(values)
    size = -(-count // bins)
    used = -(-count // size)
    padded = np.full((len(values), used * size), math.nan)
    padded[:, :count] = values
    parts = padded.reshape(len(values), used, size)
    if len(values) == 1:
        return _keep_extremes(parts[0], values[0])
    starts = np.arange(used) * size
    rows = np.stack([starts, np.minimum(starts + size // 2, count - 1)], axis=1).reshape(-1)
    with np.errstate(invalid="ignore"):
        least = np.fmin.reduce(parts, axis=2)
        most = np.fmax.reduce(parts, axis=2)
    drawn = np.stack([least, most], axis=2).reshape(len(values), -1)
    return rows, list(drawn)
