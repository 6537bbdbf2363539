"""Counts of an execution, taken where blocks pass from one stage to the next."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, final

from hocket._base import showing
from hocket.data import block_reads, settings

_SHOWN: Final = 5
"""How many of the files that are left out are named."""

_LINE_AFTER_S: Final = 2.0
"""Seconds before the first line of progress. A guess: shorter reads need none."""

_LINE_EACH_S: Final = 0.2
"""Seconds between two updates of the line."""


@final
@dataclass
class Stage:
    """Counts of the blocks that a stage has passed on.

    Args:
        name: Name of the stage.
    """

    name: str
    num_blocks: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    waited_s: float = 0.0
    """How long the next stage waited for blocks, including the time of earlier stages."""
    held_s: float = 0.0
    """How long the stage was held up: it had a block that the next stage had not requested."""

    has_ended: bool = False
    """Whether the stage yields no more blocks."""

    left_out: list[str] = field(default_factory=list)
    """Files that the stage could not read."""

    def add(self, block: block_reads.Held | block_reads.Stored) -> None:
        """Note that a block has passed."""
        if isinstance(block, block_reads.Stored):
            self.left_out += block.left_out
        self.num_blocks += 1
        self.num_rows += block.num_rows
        self.num_bytes += block.num_bytes


@final
@dataclass
class Record:
    """Counts of an execution, during and after it.

    Args:
        num_rows: Number of rows of the result; None if unknown.
    """

    num_rows: int | None = None
    stages: list[Stage] = field(default_factory=list)

    def watch(
        self, name: str, found: Iterator[block_reads.Held | block_reads.Stored]
    ) -> Iterator[block_reads.Held | block_reads.Stored]:
        """Return an iterator over a stage's blocks that counts them."""
        if not self.stages:
            showing.show("executions", self, Record._show)
        stage = Stage(name)
        self.stages.append(stage)
        return _count(stage, found)

    def show(
        self, found: Iterator[block_reads.Held | block_reads.Stored]
    ) -> Iterator[block_reads.Held | block_reads.Stored]:
        """Yield the blocks of the last stage, and show progress if that takes long."""
        line = _Line(self.num_rows)
        done = 0
        try:
            for one in found:
                done += one.num_rows
                line.update(self.stages[-1].name, done)
                yield one
        finally:
            line.close()

    def describe(self) -> str:
        """Return a table of the stages, and the cause of the longest wait."""
        if not self.stages:
            return "Nothing was executed yet. Read the data set, or call materialize()."
        rows = [("stage", "blocks", "rows", "bytes", "waited for", "held up")]
        for stage, own in self._list_stages():
            counts = (f"{stage.num_blocks:,}", f"{stage.num_rows:,}", f"{stage.num_bytes:,}")
            rows.append((stage.name, *counts, f"{own:.2f} s", f"{stage.held_s:.2f} s"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for name, *cells in rows:
            numbers = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *numbers]))
        return "\n".join([*lines, *self._list_left_out(), self._judge()])

    def _show(self) -> showing.Facts:
        """Return the facts for viewers."""
        stages = [
            {
                "name": stage.name,
                "blocks": stage.num_blocks,
                "rows": stage.num_rows,
                "bytes": stage.num_bytes,
                "waited": own,
                "held": stage.held_s,
            }
            for stage, own in self._list_stages()
        ]
        return {
            "rows": self.num_rows,
            "stages": stages,
            "has_ended": self.stages[-1].has_ended,
            "judgement": self._judge(),
        }

    def _list_stages(self) -> Iterator[tuple[Stage, float]]:
        """Yield each stage, and how long the next stage waited for it without the time of earlier stages."""
        before = 0.0
        for stage in self.stages:
            yield stage, max(0.0, stage.waited_s - before)
            before = stage.waited_s

    def _list_left_out(self) -> list[str]:
        paths = [path for stage in self.stages[:1] for path in stage.left_out]
        if not paths:
            return []
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        return [f"{len(paths)} files were left out, because they cannot be read: {', '.join(paths[:_SHOWN])}{more}."]

    def _judge(self) -> str:
        last = self.stages[-1]
        if last.held_s > last.waited_s:
            return f"The reader held the pipeline up for {last.held_s:.2f} s, and waited for {last.waited_s:.2f} s."
        slowest, _ = max(self._list_stages(), key=lambda pair: pair[1])
        return f"The reader waited for {last.waited_s:.2f} s, the longest for {slowest.name}."


def _count(
    stage: Stage, found: Iterator[block_reads.Held | block_reads.Stored]
) -> Iterator[block_reads.Held | block_reads.Stored]:
    try:
        while True:
            began = time.perf_counter()
            one = next(found, None)
            asked = time.perf_counter()
            stage.waited_s += asked - began
            if one is None:
                return
            stage.add(one)
            yield one
            stage.held_s += time.perf_counter() - asked
    finally:
        stage.has_ended = True


@final
class _Line:
    """A line in the terminal with the rows so far, the total (None: unknown), and the rows per second."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._began = self._shown = time.perf_counter()
        self._bar: Any = None
        self._is_wanted = sys.stderr is not None and sys.stderr.isatty()

    def update(self, name: str, done: int) -> None:
        now = time.perf_counter()
        if not self._is_wanted or now - self._began < _LINE_AFTER_S or now - self._shown < _LINE_EACH_S:
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
        if self._bar is not None:
            self._bar.stop()


def _make_bar() -> object:
    from rich import console, progress  # takes 50 ms, so only when there is something to show

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.completed:,} rows, {task.fields[rate]} a second"),
        progress.TimeElapsedColumn(),
        console=console.Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
