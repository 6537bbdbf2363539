"""Facts that an engine knows of its session, and the words that all rows share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from hocket import exceptions
from hocket.engine.events import Kind, reader
from hocket.kernel import machine, resources
from hocket.kernel.records import WorkerRecord

Row = dict[str, Any]


class LostWorker(NamedTuple):
    """A worker process that has ended."""

    worker_id: int
    death: exceptions.Death
    ended_at: float
    """Unix time."""
    was_asked: bool
    """Whether we wanted it to end."""


OwnSpan: TypeAlias = tuple[Kind, str, float, float, int]
"""Something that the driver itself spent time on: kind, name, start, seconds, and how many references it waited for or
bytes it put. A plain tuple: each `get` that waits makes one."""


@dataclass(kw_only=True, eq=False, repr=False)
class Facts:
    """The facts that an engine knows besides its kernel. Its callables are called with the engine's lock held."""

    kernel: machine.Kernel
    job_id: str
    node_id: str
    namespace: str
    labels: Mapping[str, str]
    driver_pid: int
    entrypoint: str
    """The driver's command line."""
    opened_at: float
    """Unix time."""
    get_pid: Callable[[int], int]
    """The pid of a worker, dead ones included; 0 if it is not known."""
    find_running: Callable[[WorkerRecord], tuple[int, float]]
    """The task that a worker started last, and when, by `time.perf_counter`; zeros where unknown."""
    measure: Callable[[tuple[object, ...]], int]
    """Bytes of a payload."""
    locate: Callable[[tuple[object, ...]], str]
    """The source line that made a payload, where known."""
    errors: Collection[exceptions.ErrorRecord]
    """Oldest first."""
    count_errors: Callable[[], int]
    """Returns how many there were, with those that are no longer remembered."""
    starts: Mapping[int, float] = field(default_factory=dict)
    """When each task that runs was started, by `time.perf_counter`, where the engine itself runs them; first asked."""
    lost: Iterable[LostWorker] = ()
    """Oldest first."""
    spans: Iterable[OwnSpan] = ()
    """Oldest first."""
    read_events: Callable[[], list[reader.Batch]] | None = None
    """Returns the events of all processes, where they are written down; else runs are known from the kernel alone."""


def to_amounts(demand: resources.Demand) -> dict[str, float]:
    """Return a demand as people write it."""
    return {name: units / resources.UNIT for name, units in demand}
