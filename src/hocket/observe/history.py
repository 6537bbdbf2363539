"""A session's events, kept in columns by a viewer, and drawings of a window of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.engine.events import layout, reader

RECORD = np.dtype([("started", "<f8"), ("seconds", "<f8"), ("subject", "<u8"), ("word", "<u8")])
"""A record as it is in memory; see `layout.RECORD`."""

LIMIT = 2_000_000
"""The default limit of kept records; 64 MB."""

SPANS_IN_FULL = 2_000
"""The most spans in a window that are drawn one by one. With more, a density is drawn, and only spans longer than a
pixel: a screen has no more pixels in a row, and drawing takes processor time."""

CHUNK = 16_384
"""The least number of records that are sorted together."""

SHOWN_NAMES = 20
"""The number of names with sums."""

Records = npt.NDArray[np.void]


@dataclass
class _Chunk:
    """Some records of a process, sorted by start."""

    records: Records
    start: float
    end: float
    """The latest end of a record."""

    @classmethod
    def build(cls, records: Records) -> _Chunk:
        ordered: Records = records[np.argsort(records["started"], kind="stable")]
        return cls(ordered, float(ordered["started"][0]), float((ordered["started"] + ordered["seconds"]).max()))


@dataclass
class Lane:
    """The records of one process."""

    worker_id: int
    pid: int
    names: list[str]
    """The names by their numbers."""
    missed: int = 0
    """The number of records that were overwritten before they could be read."""
    dropped: int = 0
    """The number of records that were read and dropped to keep the limit."""
    chunks: list[_Chunk] = field(default_factory=list)
    """The chunks, oldest first. Chunks keep the cost of a view to the new records and those in its window."""

    def add(self, batch: reader.Batch) -> None:
        """Add the records of a batch."""
        self.names = batch.names
        self.missed += batch.missed
        if not batch.records:
            return
        records = np.frombuffer(batch.records, RECORD)
        if self.chunks and len(self.chunks[-1].records) < CHUNK:
            records = np.concatenate([self.chunks.pop().records, records])
        self.chunks.append(_Chunk.build(records))

    def __len__(self) -> int:
        return sum(len(chunk.records) for chunk in self.chunks)

    def choose(self, start: float, end: float) -> Records:
        """Return the records between two moments, sorted by start within each chunk."""
        found = [np.empty(0, RECORD)]
        for chunk in self.chunks:
            if chunk.start < end and chunk.end > start:
                upto = chunk.records[: np.searchsorted(chunk.records["started"], end)]
                found.append(upto[upto["started"] + upto["seconds"] > start])
        return np.concatenate(found)

    def drop(self) -> None:
        """Drop the oldest chunk."""
        self.dropped += len(self.chunks.pop(0).records)


class History:
    """The events of one session that were read so far."""

    def __init__(self, events: reader.EventReader, limit: int = LIMIT) -> None:
        self._reader = events
        self._limit = limit
        self.lanes: dict[tuple[int, int], Lane] = {}

    def update(self) -> None:
        """Read the new events."""
        for batch in self._reader.read():
            key = batch.worker_id, batch.pid
            lane = self.lanes.get(key)
            if lane is None:
                lane = self.lanes[key] = Lane(*key, batch.names)
            lane.add(batch)
        while sum(map(len, self.lanes.values())) > self._limit:
            max(self.lanes.values(), key=len).drop()

    def count(self) -> dict[str, int]:
        """Return the numbers of written, kept, missed and dropped records: ``written = kept + missed + dropped``."""
        lanes = self.lanes.values()
        kept, missed, dropped = (
            sum(map(len, lanes)),
            sum(lane.missed for lane in lanes),
            sum(lane.dropped for lane in lanes),
        )
        return {"kept": kept, "missed": missed, "dropped": dropped, "written": kept + missed + dropped}

    def find_end(self) -> float:
        """Return the end of the latest span that was read; 0 if there is none."""
        return max((chunk.end for lane in self.lanes.values() for chunk in lane.chunks), default=0.0)

    def find_start(self) -> float:
        """Return the start of the earliest kept span; 0 if there is none."""
        return min((chunk.start for lane in self.lanes.values() for chunk in lane.chunks), default=0.0)

    def draw(self, start: float, end: float, width: int) -> dict[str, Any]:
        """Return the spans between two moments, as plain data.

        Args:
            start: The window's start, by `time.perf_counter`.
            end: The window's end, by `time.perf_counter`.
            width: The window's width in pixels.

        Returns:
            ``lanes``: one for each process. With at most `SPANS_IN_FULL` spans in all, each has ``spans``: rows of
            start, seconds, number of name, kind, state, attempt (number of runs if merged), subject. With more, it has
            ``busy``: for each pixel the share of time with work, from 0 to 255; ``most``: the number of the name with
            most time in it; and ``spans`` longer than a pixel only. ``names``: sums for the names with most time.
            ``runs``: the number of runs of tasks, calls and constructors, of all names.
        """
        chosen = [(lane, lane.choose(start, end)) for _, lane in sorted(self.lanes.items())]
        total = sum(len(records) for _, records in chosen)
        lanes = []
        for lane, records in chosen:
            row = {
                "worker_id": lane.worker_id,
                "pid": lane.pid,
                "names": lane.names,
                "count": len(records),
                "missed": lane.missed,
                "dropped": lane.dropped,
            }
            if total > SPANS_IN_FULL:
                row |= _draw_density(records, start, end, width)
            else:
                row["spans"] = _list_spans(records)
            lanes.append(row)
        return {
            "start": start,
            "end": end,
            "total": total,
            "is_dense": total > SPANS_IN_FULL,
            "lanes": lanes,
            "names": _sum_up(chosen, start, end),
            "runs": sum(_count_runs(records) for _, records in chosen),
        }


def _count_runs(records: Records) -> int:
    kinds = records["word"] >> layout.KIND_SHIFT & 0xFF
    return int(_read_runs(records)[np.isin(kinds, [int(kind) for kind in layout.RUNS])].sum())


def _read_runs(records: Records) -> npt.NDArray[np.int64]:
    """Return the number of runs in each record."""
    states = records["word"] >> layout.STATE_SHIFT & 0xFF
    attempts = (records["word"] >> layout.ATTEMPT_SHIFT).astype(np.int64)
    return np.where(states == layout.State.MERGED, attempts, 1)


def _sum_up(lanes: Sequence[tuple[Lane, Records]], start: float, end: float) -> list[dict[str, object]]:
    """Return each name's time between two moments, the longest first. ``mean`` and ``longest`` count whole runs."""
    found: dict[str, dict[str, Any]] = {}
    for lane, records in lanes:
        numbers = (records["word"] & 0xFFFFFFFF).astype(np.int64)
        states = records["word"] >> layout.STATE_SHIFT & 0xFF
        runs = _read_runs(records)
        ends = records["started"] + records["seconds"]
        inside = np.minimum(ends, end) - np.maximum(records["started"], start)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            name = lane.names[number] if number < len(lane.names) else lane.names[0]
            one = found.setdefault(
                name, {"name": name, "runs": 0, "seconds": 0.0, "longest": 0.0, "failed": 0, "mean": 0.0}
            )
            one["runs"] += int(runs[mine].sum())
            one["seconds"] += float(inside[mine].sum())
            one["mean"] += float(records["seconds"][mine].sum())
            one["longest"] = max(one["longest"], float((records["seconds"][mine] / runs[mine]).max()))
            one["failed"] += int((states[mine] == layout.State.FAILED).sum())
    for one in found.values():
        one["mean"] /= max(1, one["runs"])
    return sorted(found.values(), key=lambda one: -one["seconds"])[:SHOWN_NAMES]


def _list_spans(records: Records) -> list[list[float]]:
    word = records["word"]
    columns = (
        records["started"].tolist(),
        records["seconds"].tolist(),
        (word & 0xFFFFFFFF).tolist(),
        (word >> layout.KIND_SHIFT & 0xFF).tolist(),
        (word >> layout.STATE_SHIFT & 0xFF).tolist(),
        (word >> layout.ATTEMPT_SHIFT).tolist(),
        [f"{subject:016x}" for subject in records["subject"].tolist()],
    )
    return [list(row) for row in zip(*columns, strict=True)]


def _draw_density(records: Records, start: float, end: float, width: int) -> dict[str, object]:
    pixel = (end - start) / width
    is_long = records["seconds"] >= pixel
    short = records[~is_long]
    places = np.clip(((short["started"] - start) / pixel).astype(np.int64), 0, width - 1)
    busy = np.bincount(places, weights=short["seconds"], minlength=width) / pixel
    numbers = (short["word"] & 0xFFFFFFFF).astype(np.int64)
    count = int(numbers.max(initial=0)) + 1
    by_name = np.bincount(places * count + numbers, weights=short["seconds"], minlength=width * count)
    most = by_name.reshape(width, count).argmax(axis=1)
    shown = np.ceil(np.minimum(busy, 1.0) * 255).astype(int)
    return {"busy": shown.tolist(), "most": most.tolist(), "spans": _list_spans(records[is_long])}
