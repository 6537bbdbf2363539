"""A line in the terminal that says how far a data set is, if reading it takes long."""

from __future__ import annotations

import sys
import time
from typing import Any, Final, final

from hocket.data import settings

AFTER_S: Final = 2.0
"""How long nothing is shown. A guess: shorter reads need no line."""

EACH_S: Final = 0.2
"""How often it is written anew."""


@final
class Line:
    """How many rows there are, of how many, and how many a second. Nothing where nobody looks: only in a terminal.

    Args:
        total: How many rows there will be; None if nobody knows.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._began = self._shown = time.perf_counter()
        self._bar: Any = None
        self._is_wanted = sys.stderr is not None and sys.stderr.isatty()

    def update(self, name: str, done: int) -> None:
        """Say how far it is."""
        now = time.perf_counter()
        if not self._is_wanted or now - self._began < AFTER_S or now - self._shown < EACH_S:
            return
        if not settings.DataContext.get_current().enable_progress_bars:
            return
        self._shown = now
        if self._bar is None:
            self._bar = _make_bar()
            self._bar.add_task(name, total=self._total, rate="0")
            self._bar.start()
        rate = f"{done / (now - self._began):,.0f}"
        self._bar.update(self._bar.task_ids[0], description=name, completed=done, rate=rate, refresh=True)

    def close(self) -> None:
        """Remove it."""
        if self._bar is not None:
            self._bar.stop()


def _make_bar() -> object:
    from rich import console, progress  # 50 ms, so only when there is something to show

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.completed:,} rows, {task.fields[rate]} a second"),
        progress.TimeElapsedColumn(),
        console=console.Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
