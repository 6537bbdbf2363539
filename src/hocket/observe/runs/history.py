"""The history of a run, read from its log step by step."""

from __future__ import annotations

import bisect
import contextlib
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

from hocket._base import spending
from hocket.engine import descendants
from hocket.observe.runs import lines, log
from hocket.stores import local_files

Floats = npt.NDArray[np.float64]

MOST_RANKS: Final = 1 << 12
"""The most ranks believed; a log with more is damaged."""

_RUN: Final = b'{"is":"run",'

_ATTEMPT: Final = b'\n{"is":"attempt",'

_ROW: Final = b'\n{"is":"row",'


@dataclass
class Failure:
    """A failure of ranks, with their errors."""

    at: float
    errors: dict[int, str]


@dataclass
class Facts:
    """The facts of a run beside its rows. Each line of the log may change them."""

    name: str = ""
    started: float = 0.0
    called: float = 0.0
    """The time of the latest call of `fit`. A run that goes on from a checkpoint started before it."""
    pid: int = 0
    """The process that called `fit`."""
    config: dict[str, Any] = field(default_factory=dict)
    ranks: int = 0
    pids: list[int] = field(default_factory=list)
    """The ranks' processes, 0 for those on other nodes; empty until the log has them."""
    counts: list[int] = field(default_factory=list)
    """The number of reports of each rank in this attempt."""
    attempts: int = 0
    """The number of times that ranks were started."""
    failures: list[Failure] = field(default_factory=list)
    behind: float = 0.0
    """Seconds from a row's last report until the driver took the row. The clocks may be of different machines."""
    checkpoints: dict[str, int] = field(default_factory=dict)
    """The row of each checkpoint, by name."""
    ended: float | None = None
    error: str | None = None
    """The error that `fit` raised, if it raised one."""
    last: float = 0.0
    """The time of the last line."""
    damaged: int = 0
    """The number of unreadable lines."""


@final
class Column:
    """A column of values for some rows. A row may have none; a value may be NaN."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values)

    def put(self, row: int, value: float) -> None:
        """Add the value of a row later than all rows so far."""
        self._rows.append(row)
        self._values.append(value)

    def cut(self, count: int) -> None:
        """Forget the rows from `count` on."""
        kept = bisect.bisect_left(self._rows, count)
        del self._rows[kept:], self._values[kept:]

    def fill(self, count: int) -> Floats:
        """Return a value for each of the first `count` rows; NaN for rows without one."""
        found = np.full(count, math.nan)
        if self._rows:
            found[np.frombuffer(self._rows, np.int64)] = np.frombuffer(self._values)
        return found

    def get_last(self) -> float | None:
        """Return the last value, even if it is not finite; None if there is none."""
        return self._values[-1] if self._values else None

    def find_unfit(self) -> int | None:
        """Return the row after the last finite value; None if the last value is finite."""
        if not self._values or math.isfinite(self._values[-1]):
            return None
        finite = np.flatnonzero(np.isfinite(np.frombuffer(self._values)))
        return self._rows[int(finite[-1]) + 1 if len(finite) else 0]


@final
class RunHistory:
    """The rows of a run, as columns.

    Args:
        folder: The run's folder.

    Raises:
        FileNotFoundError: The folder has no log.
        PermissionError: This user may not read the log.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder)
        self._file = self.path / log.NAME
        if not self._file.is_file():
            raise FileNotFoundError(f"There is no {log.NAME} in {str(self.path)!r}. Give the folder of a run.")
        if not os.access(self._file, os.R_OK):
            raise PermissionError(f"{str(self._file)!r} belongs to another user, and you may not read it.")
        self._lines = lines.Lines(self._file)
        self._begin()

    def close(self) -> None:
        """Close the file, which is open while the run goes on."""
        self._lines.close()

    def _begin(self) -> None:
        #: The first row since the latest call of `fit`, and since the latest start of the ranks.
        self._run_start = self._attempt_start = 0
        self.facts = Facts()
        self.times = array("d")
        #: The columns of each metric, by rank.
        self._metrics: dict[str, list[Column]] = {}
        #: The row and the text of each metric that is a text.
        self._texts: dict[str, tuple[int, str]] = {}
        self._late: list[Column] = []
        #: The columns of each rank, by part of `spending.Spent`.
        self._spent: list[list[Column]] = []
        #: The row from which rows repeat. Old rows stay visible until the first repeated one comes.
        self._repeated_from: int | None = None

    def __len__(self) -> int:
        return len(self.times)

    def update(self) -> bool:
        """Read the new lines; return whether there were any."""
        is_new = False
        for line in self._lines.read(self._begin):
            is_new = True
            self._take(line)
        if self.state != "running":  # until now the open file gives the rest of a log that a failed run removes
            self.close()
        return is_new

    def _take(self, line: bytes) -> None:
        try:
            found = json.loads(line)
            found["at"] = self.facts.last = read_time(found["at"])
            take = _TAKERS.get(found["is"])
            if take is not None:  # a later version may write other lines
                take(self, found)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            self.facts.damaged += 1

    def _take_run(self, line: dict[str, Any]) -> None:
        facts = self.facts
        start = line["start"]
        kept = facts.checkpoints[start] + 1 if start in facts.checkpoints else 0
        self._repeat_from(kept)
        facts.name, facts.pid, facts.config = str(line["name"]), int(line["pid"]), dict(line["config"])
        if not kept:  # earlier failures do not belong to a new run
            facts.started, facts.attempts, facts.failures = line["at"], 0, []
        facts.called, facts.ended, facts.error = line["at"], None, None
        self._run_start = self._attempt_start = kept

    def _take_attempt(self, line: dict[str, Any]) -> None:
        facts = self.facts
        self._repeat_from(self._run_start + max(0, int(line["kept"])))
        self._attempt_start = len(self) if self._repeated_from is None else self._repeated_from
        facts.attempts += 1
        facts.ranks = min(int(line["ranks"]), MOST_RANKS)
        facts.pids, facts.counts = [], [0] * facts.ranks

    def _take_places(self, line: dict[str, Any]) -> None:
        pids, here = [int(pid) for pid in line["pids"]], line.get("node")
        self.facts.pids = [pid if here in (None, at) else 0 for pid, at in zip(pids, line["nodes"], strict=True)]

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
        if self._repeated_from is not None:
            self._cut(self._repeated_from)
            self._repeated_from = None
        row = len(self)
        self.times.append(line["at"])
        for rank, one in enumerate(metrics):
            for name, value in one.items():
                if isinstance(value, str):
                    self._texts[name] = row, value
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

    def _repeat_from(self, count: int) -> None:
        """Note that the rows from `count` on will be repeated."""
        if count < (len(self) if self._repeated_from is None else self._repeated_from):
            self._repeated_from = count

    def _cut(self, count: int) -> None:
        """Forget the rows from `count` on."""
        del self.times[count:]
        for ranks in [*self._metrics.values(), self._late, *self._spent]:
            for column in ranks:
                column.cut(count)
            while ranks and not len(ranks[-1]):  # there may be fewer ranks now
                ranks.pop()
        while self._spent and not self._spent[-1]:
            self._spent.pop()
        self._metrics = {name: ranks for name, ranks in self._metrics.items() if ranks}
        self._texts = {name: one for name, one in self._texts.items() if one[0] < count}
        self.facts.checkpoints = {name: row for name, row in self.facts.checkpoints.items() if row < count}

    # --- answers ------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of the numeric metrics."""
        return list(self._metrics)

    @property
    def texts(self) -> Mapping[str, str]:
        """The metrics that are texts, with their latest values."""
        return {name: text for name, (_, text) in self._texts.items()}

    @property
    def state(self) -> str:
        """``"running"``, ``"finished"``, ``"failed"``, or ``"interrupted"``: by Ctrl-C, or the process is gone."""
        if self.facts.ended is not None:
            return name_end(self.facts.error)
        return "running" if self._is_written() else "interrupted"

    def _is_written(self) -> bool:
        """Return whether the log's writer lives. Another user's process counts if it is as old as the run."""
        if self.facts.pid and descendants.is_another_users(self.facts.pid):
            import psutil  # here: every training loads this module, and psutil takes 10 ms

            with contextlib.suppress(psutil.Error):  # ended in the meantime
                return psutil.Process(self.facts.pid).create_time() <= self.facts.called
        return self._file.resolve() in lines.list_open(self.facts.pid, log.NAME)

    def get_curve(self, name: str) -> list[Floats]:
        """Return a metric as an array for each rank, with a value for each row."""
        return [column.fill(len(self)) for column in self._metrics[name]]

    def get_first_curve(self, name: str) -> Floats:
        """Return a metric in the first rank that has it, with a value for each row."""
        return next(column.fill(len(self)) for column in self._metrics[name] if len(column))

    def get_last(self, name: str) -> float | None:
        """Return the last value of a metric in the first rank that has it. It may be NaN."""
        return next((column.get_last() for column in self._metrics[name] if len(column)), None)

    def count_values(self, name: str) -> int:
        """Return the number of values of a metric in the first rank that has it."""
        return next((len(column) for column in self._metrics[name] if len(column)), 0)

    def find_unfit(self) -> dict[str, tuple[int, int]]:
        """Return metrics that are NaN or infinite up to the last value, each with the first such row and its rank."""
        found: dict[str, tuple[int, int]] = {}
        for name, columns in self._metrics.items():
            since = [(row, rank) for rank, column in enumerate(columns) if (row := column.find_unfit()) is not None]
            if since:
                found[name] = min(since)
        return found

    def get_late(self) -> list[Floats]:
        """Return how many seconds each rank's report came after the first rank's, as an array for each rank."""
        return [column.fill(len(self)) for column in self._late]

    def sum_spent(self, rows: int) -> list[spending.Spent]:
        """Return the time that each rank has spent, by part, in the last `rows` rows; empty if unknown."""
        start = max(0, len(self) - rows)
        sums = [[float(np.nansum(part.fill(len(self))[start:])) for part in parts] for parts in self._spent]
        return [
            spending.Spent._make([*parts[:5], int(parts[5]), int(parts[6])])
            for parts in sums
            if len(parts) == len(spending.Spent._fields)
        ]


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
    """Return the rows with the least and the greatest value of each stretch of a curve, and these values."""
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
    """Return a number from a log; raise ValueError if it is not finite."""
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(value)
    return found


def read_time(value: Any) -> float:
    """Return a time from a log, in seconds since 1970; raise ValueError if it is impossible."""
    found = float(value)
    if not 0 <= found <= log.MOST_TIME:
        raise ValueError(value)
    return found


def read_number(value: float) -> float:
    """Return a metric as a float; an integer too large for one becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def name_end(error: str | None) -> str:
    """Return the state of an ended run, given its error."""
    if error is None:
        return "finished"
    return "interrupted" if error.startswith("KeyboardInterrupt") else "failed"


def _put(columns: list[Column], at: int, row: int, value: float) -> None:
    while len(columns) <= at:
        columns.append(Column())
    columns[at].put(row, value)


def thin(values: Sequence[Floats], bins: int) -> tuple[npt.NDArray[np.int64], list[Floats]]:
    """Return the rows to draw, and the curves there: the least and the greatest value of each stretch.

    The values of a single curve keep their rows; several curves share a place in each stretch.

    Args:
        values: Curves with a value for each row.
        bins: The most stretches, of two points each.
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


@dataclass(frozen=True)
class Glimpse:
    """The facts of an ended run whose ranks were started once. A viewer opens few of a hundred listed runs."""

    size: int
    """The log's size in bytes; it grows if the run goes on after all."""
    name: str
    started: float
    ended: float
    error: str | None
    rows: int
    ranks: int


def take_glimpse(file: Path) -> Glimpse | None:
    """Return the facts in the first lines and the last line of a `log.RunLog`; None if all lines must be read."""
    with local_files.open_regular(file) as opened:
        data = opened.read(local_files.MOST_BYTES)  # a longer file has no end here, and is read by lines
    if not data.startswith(_RUN) or data.count(b"\n" + _RUN) or data.count(_ATTEMPT) != 1 or not data.endswith(b"\n"):
        return None
    attempt_at = data.index(_ATTEMPT) + 1
    try:
        begun = json.loads(data[: data.index(b"\n")])
        attempt = json.loads(data[attempt_at : data.index(b"\n", attempt_at)])
        end = json.loads(data[data.rindex(b"\n", 0, -1) + 1 :])
        if end["is"] != "end":
            return None
        return Glimpse(
            size=len(data),
            name=str(begun["name"]),
            started=read_time(begun["at"]),
            ended=read_time(end["at"]),
            error=None if end["error"] is None else str(end["error"]),
            rows=data.count(_ROW),
            ranks=int(attempt["ranks"]),
        )
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
