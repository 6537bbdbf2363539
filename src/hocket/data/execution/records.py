"""What an execution did: counted where blocks pass from a stage to the next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, final

from hocket import showing
from hocket.data import block_reads
from hocket.data.execution import progress

_SHOWN: Final = 5
"""How many of the files that are left out are named."""


@final
@dataclass
class Stage:
    """What passed through a stage.

    Args:
        name: What it does.
    """

    name: str
    num_blocks: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    waited_s: float = 0.0
    """How long what follows waited for its blocks, what comes before it included."""
    held_s: float = 0.0
    """How long it had a block that what follows had not asked for: the time that it was held up."""

    has_ended: bool = False
    """Whether nothing more comes of it."""

    left_out: list[str] = field(default_factory=list)
    """Files that it could not read."""

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
    """What an execution did, while it goes on and afterwards.

    Args:
        num_rows: How many rows there will be; None if nobody knows.
    """

    num_rows: int | None = None
    stages: list[Stage] = field(default_factory=list)

    def watch(
        self, name: str, found: Iterator[block_reads.Held | block_reads.Stored]
    ) -> Iterator[block_reads.Held | block_reads.Stored]:
        """Give what a stage gives, and count it."""
        if not self.stages:
            showing.show("executions", self, Record._show)
        stage = Stage(name)
        self.stages.append(stage)
        return _count(stage, found)

    def show(
        self, found: Iterator[block_reads.Held | block_reads.Stored]
    ) -> Iterator[block_reads.Held | block_reads.Stored]:
        """Give the blocks of the last stage, and show how far it is if that takes long."""
        line = progress.Line(self.num_rows)
        done = 0
        try:
            for one in found:
                done += one.num_rows
                line.update(self.stages[-1].name, done)
                yield one
        finally:
            line.close()

    def describe(self) -> str:
        """Return a table of the stages, and of what held each up."""
        if not self.stages:
            return "Nothing was executed yet: read it, or call materialize()."
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
        """Return what viewers see of it."""
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
        """Give each stage, and how long was waited for it without what comes before it."""
        before = 0.0
        for stage in self.stages:
            yield stage, max(0.0, stage.waited_s - before)
            before = stage.waited_s

    def _list_left_out(self) -> list[str]:
        paths = [path for stage in self.stages[:1] for path in stage.left_out]
        if not paths:
            return []
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        return [f"Left out, because they cannot be read: {len(paths)} files: {', '.join(paths[:_SHOWN])}{more}."]

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
