"""The session's events, in the trace format of Chrome and Perfetto."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from hocket._base import texts
from hocket.core import session
from hocket.stores import local_files

Event = dict[str, Any]
"""One trace event: ``name``, ``cat``, ``ph``, ``ts`` and ``dur`` (microseconds), ``pid``, ``tid``, ``args``."""

_CATEGORIES = {
    "NORMAL_TASK": "task",
    "ACTOR_TASK": "call",
    "ACTOR_CREATION_TASK": "constructor",
    "DRIVER": "driver",
}

_COLORS = {"RUNNING": "thread_state_runnable", "FAILED": "terrible"}
"""Chrome's names for colors, by a task's state. For finished tasks Chrome chooses the color by the task's name."""


def timeline(filename: str | os.PathLike[str] | None = None) -> list[Event] | None:
    """Return the session's events, or write them to a file for chrome://tracing or https://ui.perfetto.dev.

    Each process has a line of events:

    - for a worker: tasks, calls and constructors;
    - for the driver: waits in `get`, large values in `put`, deaths of workers, and values that were spilled to files;
    - for a rank of a training: steps and reports;
    - for each process: slow pushes to parameter servers.

    Calls that an actor ran at the same time have further lines. Each process keeps its last 32,768 events; a mark at
    the beginning of its line gives the number of earlier ones. After the first 1,000 runs of a name, runs under 0.1 ms
    that follow each other within a millisecond become one event, which gives their number. With
    ``engine="inprocess"`` there are the last 10,000 tasks: of runs under a millisecond, the first 1,000 of each
    function, and then one in 64.

    Args:
        filename: The file to write. Default: none; the events are returned.

    Returns:
        The events, or None if they were written to a file.

    Raises:
        SessionClosedError: No session is open.
        TypeError: `filename` is no path.
        OSError: The file cannot be written.

    Example:
        >>> import hocket
        >>> @hocket.remote
        ... def double(x):
        ...     return 2 * x
        >>> hocket.get(double.remote(3))
        6
        >>> [event["name"] for event in hocket.timeline() if event["cat"] == "task"]
        ['double']
    """
    given: object = filename
    if given is not None and not isinstance(given, str | os.PathLike):
        raise TypeError(f"filename must be a path, but received {texts.safe_repr(given)}. Write 'trace.json'.")
    events = build_events(session.get_open_engine().view.list_records("spans"))
    if filename is None:
        return events
    from pathlib import Path

    local_files.write(Path(filename), json.dumps(events))
    return None


def build_events(spans: Iterable[dict[str, Any]]) -> list[Event]:
    """Return the trace of these spans: the names of the processes' lines first, then the spans by start."""
    by_process: dict[tuple[int, int], list[dict[str, object]]] = {}
    missed: list[Event] = []
    for span in spans:
        if span["type"] == "MISSED":
            missed.append(_build_missed(span))
            continue
        by_process.setdefault((span["worker_id"], span["pid"]), []).append(span)
    names: list[Event] = []
    events: list[Event] = []
    for (worker_id, pid), found in sorted(by_process.items()):
        names += _name_row(worker_id, pid)
        events += [_build_event(span, lane) for span, lane in assign_lanes(found)]
    events.sort(key=lambda event: event["ts"])
    start = events[0]["ts"] if events else 0
    return names + [event | {"ts": start} for event in missed] + events


def _build_missed(span: dict[str, object]) -> Event:
    """Return a mark for the beginning of a line that lacks its oldest events."""
    name = f"{span['count']} earlier events were overwritten"
    args = {"count": span["count"]}
    return {"name": name, "cat": "missed", "ph": "i", "s": "p", "pid": span["pid"], "tid": 0, "args": args}


def _name_row(worker_id: int, pid: int) -> Iterator[Event]:
    label = f"worker {worker_id}" if worker_id else "driver"
    common = {"cat": "__metadata", "ph": "M", "ts": 0, "pid": pid, "tid": 0}
    yield {**common, "name": "process_name", "args": {"name": label}}
    yield {**common, "name": "process_sort_index", "args": {"sort_index": worker_id}}


def _build_event(span: dict[str, Any], lane: int) -> Event:
    known = ("task_id", "attempt_number", "state", "error_type", "amount", "count")
    event: Event = {
        "name": f"{span['count']} runs of {span['name']}" if "count" in span else span["name"],
        "cat": _CATEGORIES.get(span["type"], span["type"].lower()),
        "ph": "X",
        "ts": round(span["started"] * 1e6, 3),
        "dur": round(span["seconds"] * 1e6, 3),
        "pid": span["pid"],
        "tid": lane,
        "args": {name: span[name] for name in known if span.get(name) is not None},
    }
    if span.get("state") in _COLORS:
        event["cname"] = _COLORS[span["state"]]
    return event


def assign_lanes(spans: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, object], int]]:
    """Yield each span of a process with a lane. Two spans of a lane are disjoint or nested, as viewers require."""
    lanes: list[list[float]] = []  # for each lane, the ends of the spans that are open in it, innermost last
    for span in sorted(spans, key=lambda span: (span["started"], -span["seconds"])):
        end = span["started"] + span["seconds"]
        for number, open_ends in enumerate(lanes):
            while open_ends and open_ends[-1] <= span["started"]:
                open_ends.pop()
            if not open_ends or end <= open_ends[-1]:
                open_ends.append(end)
                yield span, number
                break
        else:
            lanes.append([end])
            yield span, len(lanes) - 1
