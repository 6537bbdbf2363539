"""The log of a run: a file of lines, each a JSON object, in the run's folder.

Each line is written at once and never changed, so readers see all events so far, also after a kill. The log has the
data for plots and the facts that distinguish runs, but not the objects that the program reported.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import stat
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from hocket import _base
from hocket._base import showing, spending, texts

NAME: Final = "run.jsonl"
"""The file's name."""

MOST_METRICS = 500
"""The most metrics written of a rank's report. A plot of more is useless."""

MOST_LETTERS = 200
"""The most characters of a text."""

MOST_DEPTH = 4
"""The depth to which dicts are read; a metric's name then has its keys, joined by slashes."""

MOST_BITS = 1023
"""The most bits of an integer: a longer one is too large for a float, and is written as infinite."""

MOST_TIME: Final = 1e11
"""The latest time believed, in seconds since 1970: it is in the year 5138, and Python's calendars end in 9999."""

AHEAD_SECONDS = 0.2
"""The least seconds between two lines that say that some ranks are ahead of others."""

Plain = float | int | bool | str


@final
class RunLog:
    """The writer of a run's log. One thread uses it.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._file: int | None = None
        self._is_new = False
        self._has_failed = False
        self._rows = 0
        self._attempts = 0
        self._coming: list[deque[float]] = []
        self._ahead_at = 0.0

    def begin(self, name: str, config: object, start: str | None) -> None:
        """Open the file, and write the begin of a run or of its continuation.

        Args:
            name: The run's name.
            config: The training function's configuration.
            start: The name of the checkpoint that the run goes on from; None if it begins anew.
        """
        self._is_new = not self._path.exists()
        try:
            self._file = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666
            )
        except OSError as problem:
            self._warn(problem)
            return
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            os.close(self._file)
            self._file = None
            self._warn("it is not a regular file")
            return
        showing.note_log(self._path)
        plain = dict(_flatten(config)) if isinstance(config, Mapping) else {}
        facts = {"name": name, "pid": os.getpid(), "hocket": _base.__version__, "config": plain, "start": start}
        self._write("run", facts)

    def begin_attempt(self, size: int, kept: int) -> None:
        """Write that the ranks are started.

        Args:
            size: The number of ranks.
            kept: The number of rows that stay valid: reports after the last checkpoint are repeated.
        """
        self._coming = [deque() for _ in range(size)]
        self._write("attempt", {"number": self._attempts, "ranks": size, "kept": kept})
        self._attempts += 1

    def place(self, pids: Sequence[int], nodes: Sequence[str], node: str) -> None:
        """Write the ranks' processes and nodes, and this process's node, as a pid is valid on its own node only."""
        self._write("places", {"pids": list(pids), "nodes": list(nodes), "node": node})

    def arrive(self, rank: int, count: int) -> None:
        """Note the arrival of `count` reports of a rank."""
        self._coming[rank].extend(itertools.repeat(time.time(), count))

    def note_ahead(self, counts: Sequence[int]) -> None:
        """Write each rank's number of reports if these differ, as rows have to wait for the slowest rank."""
        now = time.monotonic()
        if now - self._ahead_at >= AHEAD_SECONDS and max(counts) > min(counts):
            self._ahead_at = now
            self._write("ahead", {"counts": list(counts)})

    def add_row(
        self,
        metrics: Sequence[Mapping[str, object]],
        spent: Sequence[spending.Spent | None],
        made_at: float,
        checkpoint: str | None,
    ) -> None:
        """Write the n-th report of each rank.

        Args:
            metrics: The reports' metrics, by rank.
            spent: The time that each rank has spent since its last report, by part.
            made_at: When the last of the reports was made, by its rank's `time.time`.
            checkpoint: The name of the checkpoint committed with it, if any.
        """
        arrived = [line.popleft() for line in self._coming]
        first = min(arrived)
        row: dict[str, Any] = {
            "metrics": [dict(_flatten(one)) for one in metrics],
            "late": [round(at - first, 6) for at in arrived],
            "behind": round(max(0.0, time.time() - made_at), 6),
        }
        if all(one is not None for one in spent):
            row["spent"] = [[round(part, 6) for part in one] for one in spent if one is not None]
        if checkpoint is not None:
            row["checkpoint"] = checkpoint
        self._write("row", row)
        self._rows += 1

    def fail(self, errors: Mapping[int, BaseException]) -> None:
        """Write which ranks have failed, and why."""
        self._write("failure", {"errors": {str(rank): _describe(error) for rank, error in errors.items()}})

    def end(self, error: BaseException | None) -> None:
        """Write the run's end, and close the file. Remove a new log if the run failed before its first report."""
        self._write("end", {"error": None if error is None else _describe(error)})
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
            if error is not None and self._is_new and not self._rows:
                self._path.unlink(missing_ok=True)

    def _write(self, what: str, facts: Mapping[str, object]) -> None:
        if self._file is None or (self._has_failed and what != "end"):  # later rows would have wrong numbers
            return
        line = json.dumps({"is": what, "at": round(time.time(), 6), **facts}, separators=(",", ":")) + "\n"
        rest = memoryview((b"\n" if self._has_failed else b"") + line.encode())  # ends a torn line
        try:
            while rest:  # a nearly full disk takes a part before it raises
                rest = rest[os.write(self._file, rest) :]
        except OSError as problem:
            self._warn(problem)

    def _warn(self, problem: OSError | str) -> None:
        """Warn once of a problem such as a full disk, and go on: training matters more than its log."""
        if not self._has_failed:
            self._has_failed = True
            warnings.warn(
                f"The log of this run, {str(self._path)!r}, is not written any more: {problem}. The training goes on.",
                stacklevel=2,
            )


def _describe(error: BaseException) -> str:
    return texts.describe(error, 2_000)


def _flatten(found: Mapping[Any, object]) -> Iterator[tuple[str, Plain]]:
    """Yield numbers and short texts by name; join the names in nested dicts.

    An error of the user's own mappings and keys ends it: training matters more than its log.
    """
    with contextlib.suppress(Exception):
        yield from itertools.islice(_walk(found, "", 1), MOST_METRICS)


def _walk(found: Mapping[object, object], prefix: str, depth: int) -> Iterator[tuple[str, Plain]]:
    for key, given in found.items():
        name = texts.cut(f"{prefix}{key}", MOST_LETTERS)
        value = given.item() if isinstance(given, np.generic) else given  # most of NumPy's numbers are not Python's
        if isinstance(value, int) and value.bit_length() > MOST_BITS:  # it would have thousands of digits
            yield name, math.inf if value > 0 else -math.inf
        elif isinstance(value, bool | int | float):
            yield name, value
        elif isinstance(value, str):
            yield name, texts.cut(value, MOST_LETTERS)
        elif isinstance(value, Mapping) and depth < MOST_DEPTH:
            yield from _walk(value, f"{name}/", depth + 1)
