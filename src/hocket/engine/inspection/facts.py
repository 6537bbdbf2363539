"""Facts that an engine has about its session, and types that all rows share."""

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
    """Whether Hocket itself ended it."""


OwnSpan: TypeAlias = tuple[Kind, str, float, float, int]
"""A span of the driver's own time: kind, name, start, seconds, and the number of references that it waited for or of
bytes that it put. A plain tuple, because each `get` that waits makes one."""


@dataclass(kw_only=True, eq=False, repr=False)
class Facts:
    """The kernel of an engine, and facts that the kernel does not know. Callables are called with the lock held."""

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
    """A function that returns the pid of a worker, living or dead; 0 if it is unknown."""
    find_running: Callable[[WorkerRecord], tuple[int, float]]
    """A function that returns the task that a worker started last, and its start by `time.perf_counter`; zeros if
    unknown."""
    measure: Callable[[tuple[object, ...]], int]
    """A function that returns the bytes of a payload."""
    locate: Callable[[tuple[object, ...]], str]
    """A function that returns the source line that made a payload, if known."""
    errors: Collection[exceptions.ErrorRecord]
    """The last failures, oldest first."""
    count_errors: Callable[[], int]
    """A function that returns how many failures there were, including those that have left `errors`."""
    starts: Mapping[int, float] = field(default_factory=dict)
    """The start of each running task, by `time.perf_counter`, if the engine itself runs the tasks. It comes before the
    result of `find_running`."""
    lost: Iterable[LostWorker] = ()
    """The workers that ended last, oldest first."""
    spans: Iterable[OwnSpan] = ()
    """The driver's own last spans, oldest first."""
    read_events: Callable[[], list[reader.Batch]] | None = None
    """A function that returns the events of all processes; None if they are not recorded: then only the kernel knows of
    runs."""


def to_amounts(demand: resources.Demand) -> dict[str, float]:
    """Return a demand as amounts by resource name."""
    return {name: units / resources.UNIT for name, units in demand}
