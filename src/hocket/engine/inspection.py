"""What an engine shows of itself: its kernel's records as plain rows, with Ray's names for kinds, fields and states.

Written once for all engines: an engine brings a `Scene`, which says what the kernel cannot know (pids, clocks, sizes).
Nothing here changes anything, and nothing is computed before somebody asks.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hocket import exceptions, version
from hocket.engine import node
from hocket.kernel import machine, records, resources
from hocket.kernel.records import ActorState, TaskKind, TaskRecord, TaskState, WorkerRecord

Row = dict[str, Any]

Filter = tuple[str, str, Any]
"""``(field, "=" or "!=", value)``"""

KINDS = (
    "actors",
    "cluster_events",
    "jobs",
    "nodes",
    "objects",
    "placement_groups",
    "runtime_envs",
    "spans",
    "task_counts",
    "tasks",
    "workers",
)
"""What can be listed. ``spans`` is what the timeline is drawn from; ``task_counts`` is tasks by function and state."""

SHOWN_ROWS = 500
"""Rows of one kind in a snapshot at most: more fill no screen. A guess."""

SHOWN_ERRORS = 5
"""Errors in a snapshot, the latest."""

TASK_TYPES = {
    TaskKind.FUNCTION: "NORMAL_TASK",
    TaskKind.CREATION: "ACTOR_CREATION_TASK",
    TaskKind.CALL: "ACTOR_TASK",
}
"""Ray's words for our kinds of task."""


class LostWorker(NamedTuple):
    """A worker process that has ended."""

    worker_id: int
    death: exceptions.Death
    ended_at: float
    """Unix time."""
    was_asked: bool
    """Whether we wanted it to end."""


class OwnSpan(NamedTuple):
    """Something that the driver itself spent time on."""

    name: str
    """``get`` or ``put``."""
    started: float
    seconds: float
    amount: int
    """References waited for, or bytes put."""


@dataclass(kw_only=True, eq=False, repr=False)
class Scene:
    """What an engine knows besides its kernel. Its callables are called with the engine's lock held."""

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
    measure: Callable[[tuple[Any, ...]], int]
    """Bytes of a payload."""
    locate: Callable[[tuple[Any, ...]], str]
    """The source line that made a payload, where known."""
    errors: Iterable[exceptions.ErrorRecord]
    starts: Mapping[int, float] = field(default_factory=dict)
    """When each task that runs was started, by `time.perf_counter`, where the engine itself runs them; first asked."""
    lost: Iterable[LostWorker] = ()
    """Oldest first."""
    spans: Iterable[OwnSpan] = ()
    """Oldest first."""
    _listers: dict[str, Callable[[], Iterator[Row]]] = field(init=False)

    def __post_init__(self) -> None:
        self._listers = {
            "actors": self._list_actors,
            "cluster_events": self._list_events,
            "jobs": self._list_jobs,
            "nodes": self._list_nodes,
            "objects": self._list_objects,
            "placement_groups": self._list_groups,
            "runtime_envs": lambda: iter(()),
            "spans": self._list_spans,
            "task_counts": self._count_tasks,
            "tasks": self._list_tasks,
            "workers": self._list_workers,
        }

    def list_records(self, kind: str, filters: Sequence[Filter] = (), limit: int | None = None) -> list[Row]:
        """Return the rows of a kind that pass all filters; what lives comes before what is over.

        Raises:
            ValueError: The kind is unknown.
        """
        if kind not in self._listers:
            raise ValueError(f"kind must be one of {list(KINDS)}, but received {kind!r}.")
        found: Iterator[Row] = self._listers[kind]()
        if filters:
            found = (row for row in found if all(matches(row, one) for one in filters))
        return list(itertools.islice(found, limit))

    def build_snapshot(self, statistics: Mapping[str, Any]) -> Row:
        """Return, as plain data, what `hocket status` shows of the session. Large sessions are cut, and say so."""
        pool = self.kernel.pool
        actors = self.list_records("actors", [("state", "!=", "DEAD")], SHOWN_ROWS)
        errors = list(self.errors)
        return {
            "version": version.__version__,
            "job_id": self.job_id,
            "namespace": self.namespace,
            "driver_pid": self.driver_pid,
            "opened_at": self.opened_at,
            "statistics": dict(statistics),
            "tasks": self.list_records("task_counts", limit=SHOWN_ROWS),
            "actors": actors,
            "workers": self.list_records(
                "workers", [("is_alive", "=", True), ("worker_type", "=", "WORKER")], SHOWN_ROWS
            ),
            "resources": {
                "total": {name: units / resources.UNIT for name, units in pool.total.items()},
                "free": {name: units / resources.UNIT for name, units in pool.free.items()},
            },
            "errors": {
                "count": len(errors),
                "last": [
                    {"name": error.name, "type": error.error_type, "message": error.message, "at": error.timestamp}
                    for error in errors[-SHOWN_ERRORS:]
                ],
            },
        }

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _list_tasks(self) -> Iterator[Row]:
        offset = time.time() - time.perf_counter()
        errors = {record.task_id: record for record in self.errors}
        for task in list(self.kernel.tasks.values()):
            yield self._describe_living(task, offset)
        failed_types: dict[int, str | None] = {}
        # The constructor of an actor that was built again is there more than once, and lives while it runs again.
        closed = list({task.id: task for task in self.kernel.closed_tasks if task.state == TaskState.DONE}.values())
        for task in closed:
            failed_types[task.id] = _find_error_type(task, failed_types)
        for task in reversed(closed):
            yield self._describe_closed(task, offset, failed_types[task.id], errors)

    def _describe_living(self, task: TaskRecord, offset: float) -> Row:
        state, started = self._find_state(task)
        worker_id = task.worker.id if task.worker is not None else 0
        return self._describe_task(task, worker_id) | {
            "state": state,
            "error_type": None,
            "start_time_ms": _to_ms(started, offset),
            "end_time_ms": None,
            "error_message": None,
        }

    def _describe_closed(
        self, task: TaskRecord, offset: float, error_type: str | None, errors: Mapping[str, exceptions.ErrorRecord]
    ) -> Row:
        worker_id, started, seconds, _ = task.outcome or (0, 0.0, 0.0, None)
        error = errors.get(f"{task.id:016x}")
        return self._describe_task(task, worker_id) | {
            "state": "FAILED" if error_type is not None else "FINISHED",
            "error_type": error_type,
            "start_time_ms": _to_ms(started, offset),
            "end_time_ms": _to_ms(started and started + seconds, offset),
            "error_message": error.message if error is not None else None,
        }

    def _describe_task(self, task: TaskRecord, worker_id: int) -> Row:
        options = task.options
        group_id = options.shape.group_id
        actor_id = task.id if task.kind == TaskKind.CREATION else task.actor.id if task.actor is not None else 0
        return {
            "task_id": f"{task.id:016x}",
            "attempt_number": task.attempt,
            "name": options.name,
            "job_id": self.job_id,
            "actor_id": f"{actor_id:016x}" if actor_id else None,
            "type": TASK_TYPES[task.kind],
            "func_or_class_name": _name_function(task),
            "parent_task_id": f"{task.parent:016x}",
            "node_id": self.node_id,
            "worker_id": f"{worker_id:016x}" if worker_id else None,
            "worker_pid": (self.get_pid(worker_id) or None) if worker_id else None,
            "required_resources": _to_amounts(options.shape.demand),
            "placement_group_id": f"{group_id:016x}" if group_id else None,
        }

    def _find_state(self, task: TaskRecord) -> tuple[str, float]:
        """Return Ray's word for how far a living task is, and when it was started."""
        if task.state == TaskState.WAITING:
            return "PENDING_ARGS_AVAIL", 0.0
        worker = task.worker
        if worker is None:
            if task.kind == TaskKind.CALL:
                return "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", 0.0
            return "PENDING_NODE_ASSIGNMENT", 0.0
        task_id, started = self.find_running(worker)
        if task.id in self.starts:
            task_id, started = task.id, self.starts[task.id]
        if task_id == task.id:
            return "RUNNING_IN_RAY_GET" if worker.blocked else "RUNNING", started
        at_once = _count_threads(worker.actor.options) if worker.actor is not None else 1
        if at_once > 1 and task.id in itertools.islice(worker.inflight, at_once):
            return "RUNNING", 0.0
        return "SUBMITTED_TO_WORKER", 0.0

    def _count_tasks(self) -> Iterator[Row]:
        counts: Counter[tuple[str, TaskKind, str]] = Counter()
        for task in self.kernel.tasks.values():
            counts[_name_function(task), task.kind, self._find_state(task)[0]] += 1
        unseen: dict[bytes, int] = {}
        names: dict[bytes, tuple[str, TaskKind]] = {}
        for task in self.kernel.closed_tasks:
            has_failed = _has_failed(task)
            counts[_name_function(task), task.kind, "FAILED" if has_failed else "FINISHED"] += 1
            runs = getattr(task, "runs", None)
            if runs is not None and not has_failed:
                names[runs.function_id] = _name_function(task), task.kind
                unseen[runs.function_id] = unseen.get(runs.function_id, runs.count) - 1
        for function_id, count in unseen.items():  # short runs that are not remembered one by one
            counts[*names[function_id], "FINISHED"] += max(0, count)
        for (name, kind, state), count in counts.items():
            yield {"func_or_class_name": name, "type": TASK_TYPES[kind], "state": state, "count": count}

    def _list_spans(self) -> Iterator[Row]:
        for task in list(self.kernel.closed_tasks):
            if task.outcome is not None and task.outcome[1]:
                yield self._describe_span(task, *task.outcome)
        now = time.perf_counter()
        for task in list(self.kernel.tasks.values()):
            if task.worker is not None:
                started = self._find_state(task)[1]
                if started:
                    yield self._describe_span(task, task.worker.id, started, now - started, None) | {"state": "RUNNING"}
        for span in list(self.spans):
            yield {
                "name": span.name,
                "type": "DRIVER",
                "worker_id": 0,
                "pid": self.driver_pid,
                "started": span.started,
                "seconds": span.seconds,
                "amount": span.amount,
            }

    def _describe_span(
        self, task: TaskRecord, worker_id: int, started: float, seconds: float, error_type: str | None
    ) -> Row:
        return {
            "name": task.options.name,
            "type": TASK_TYPES[task.kind],
            "worker_id": worker_id,
            "pid": self.get_pid(worker_id),
            "started": started,
            "seconds": seconds,
            "task_id": f"{task.id:016x}",
            "attempt_number": task.attempt,
            "state": "FINISHED" if error_type is None else "FAILED",
            "error_type": error_type,
        }

    # --- actors, workers ----------------------------------------------------------------------------------------------

    def _list_actors(self) -> Iterator[Row]:
        for actor in list(self.kernel.actors.values()):
            yield self._describe_actor(actor)
        for actor in reversed(list(self.kernel.closed_actors)):
            yield self._describe_actor(actor)

    def _describe_actor(self, actor: records.ActorRecord) -> Row:
        options = actor.options
        group_id = options.lifetime_shape.group_id
        is_dead = actor.state == ActorState.DEAD
        creation = self.kernel.tasks.get(actor.id)
        state = actor.state.name
        if actor.state == ActorState.PENDING:
            is_waiting = creation is not None and creation.state == TaskState.WAITING
            state = "DEPENDENCIES_UNREADY" if is_waiting else "PENDING_CREATION"
        return {
            "actor_id": f"{actor.id:016x}",
            "class_name": options.class_name,
            "state": state,
            "job_id": self.job_id,
            "name": options.name,
            "node_id": self.node_id,
            "pid": self.get_pid(actor.worker.id) if actor.worker is not None else 0,
            "namespace": options.namespace,
            "required_resources": _to_amounts(options.lifetime_shape.demand),
            "death_cause": {"error_message": actor.death_message.removesuffix(":")} if is_dead else None,
            "is_detached": options.detached,
            "placement_group_id": f"{group_id:016x}" if group_id else None,
            "num_restarts": actor.restarts,
            "pending_calls": sum(map(len, actor.queues.values())) + (0 if is_dead else actor.inflight),
        }

    def _list_workers(self) -> Iterator[Row]:
        yield self._describe_worker(records.DRIVER, self.driver_pid, "DRIVER") | {"state": "DRIVER"}
        now = time.perf_counter()
        for worker in list(self.kernel.workers.values()):
            pid = self.get_pid(worker.id)
            if pid == self.driver_pid:  # nothing has a process of its own here
                continue
            task_id, started = self.find_running(worker)
            task = worker.inflight.get(task_id)
            yield self._describe_worker(worker.id, pid, "WORKER") | {
                "state": worker.state.name,
                "actor_id": f"{worker.actor.id:016x}" if worker.actor is not None else None,
                "task_name": task.options.name if task is not None else None,
                "task_seconds": now - started if task is not None else None,
                "queued_tasks": len(worker.inflight) - (task is not None),
            }
        for lost in reversed(list(self.lost)):
            death = lost.death
            yield self._describe_worker(lost.worker_id, death.pid, "WORKER") | {
                "state": "DEAD",
                "is_alive": False,
                "exit_type": "INTENDED_SYSTEM_EXIT" if lost.was_asked or death.exit_code == 0 else "SYSTEM_ERROR",
                "exit_detail": death.reason(),
                "end_time_ms": int(lost.ended_at * 1000),
            }

    def _describe_worker(self, worker_id: int, pid: int, worker_type: str) -> Row:
        return {
            "worker_id": f"{worker_id:016x}",
            "is_alive": True,
            "worker_type": worker_type,
            "exit_type": None,
            "node_id": self.node_id,
            "ip": "127.0.0.1",
            "pid": pid,
            "exit_detail": None,
            "end_time_ms": None,
            "actor_id": None,
            "task_name": None,
            "task_seconds": None,
            "queued_tasks": 0,
        }

    # --- objects ------------------------------------------------------------------------------------------------------

    def _list_objects(self) -> Iterator[Row]:
        for record in list(self.kernel.objects.values()):
            task = record.task
            owner = next(iter(record.holders), records.DRIVER) if record.holders else records.DRIVER
            yield {
                "object_id": f"{record.id:016x}",
                "object_size": self.measure(record.value) if record.value is not None else 0,
                "call_site": self.locate(record.value) if record.value is not None else "",
                "task_status": self._find_state(task)[0] if task is not None else _name_end(record),
                "reference_type": self._classify_reference(record),
                "type": "WORKER" if owner else "DRIVER",
                "pid": self.get_pid(owner) if owner else self.driver_pid,
                "ip": "127.0.0.1",
                "reference_count": record.count,
            }

    def _classify_reference(self, record: records.ObjectRecord) -> str:
        if record.id in self.kernel.actors:
            return "ACTOR_HANDLE"
        if record.dependents:
            return "USED_BY_PENDING_TASK"
        return "LOCAL_REFERENCE"

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _list_groups(self) -> Iterator[Row]:
        for group in list(self.kernel.groups.values()):
            described = node.describe_group(group)
            yield described | {"creator_job_id": self.job_id, "is_detached": False}

    def _list_nodes(self) -> Iterator[Row]:
        total = {name: units / resources.UNIT for name, units in self.kernel.pool.total.items()}
        described = node.describe_node(self.node_id, total, self.labels)
        yield {
            "node_id": described["NodeID"],
            "node_ip": described["NodeManagerAddress"],
            "is_head_node": True,
            "state": "ALIVE",
            "state_message": None,
            "node_name": described["NodeManagerHostname"],
            "resources_total": total,
            "labels": described["Labels"],
            "start_time_ms": int(self.opened_at * 1000),
            "end_time_ms": None,
        }

    def _list_jobs(self) -> Iterator[Row]:
        yield {
            "job_id": self.job_id,
            "submission_id": None,
            "entrypoint": self.entrypoint,
            "type": "DRIVER",
            "status": "RUNNING",
            "message": None,
            "error_type": None,
            "driver_info": {"id": self.job_id, "pid": str(self.driver_pid), "node_ip_address": "127.0.0.1"},
            "start_time_ms": int(self.opened_at * 1000),
            "namespace": self.namespace,
        }

    def _list_events(self) -> Iterator[Row]:
        for number, error in enumerate(self.errors):
            is_death = error.error_type in _DEATHS
            yield {
                "severity": "ERROR" if is_death else "WARNING",
                "time": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(error.timestamp)),
                "source_type": "WORKER" if is_death else "TASK",
                "message": f"{error.name}: {error.error_type}: {error.message}",
                "event_id": f"{number:016x}",
            }


_DEATHS = frozenset({"WorkerCrashedError", "OutOfMemoryError", "ActorDiedError"})


def matches(row: Row, one: Filter) -> bool:
    """Tell whether a row passes a filter. Words compare without regard to case, numbers also with their text."""
    name, sign, wanted = one
    value = row.get(name)
    if isinstance(value, str):
        is_same = value.casefold() == str(wanted).casefold()
    elif isinstance(value, bool) or value is None:
        is_same = str(value).casefold() == str(wanted).casefold()
    else:
        is_same = value == wanted or str(value) == str(wanted)
    return is_same if sign == "=" else operator.not_(is_same)


def _name_function(task: TaskRecord) -> str:
    return task.actor_options.class_name if task.actor_options is not None else task.options.name


def _count_threads(options: records.ActorOptions) -> int:
    return options.max_concurrency + sum(size for _, size in options.concurrency_groups)


def _has_failed(task: TaskRecord) -> bool:
    return task.outcome is None or task.outcome[3] is not None


def _find_error_type(task: TaskRecord, earlier: Mapping[int, str | None]) -> str | None:
    """Return the error of a task that is over; None after a success. It may have come with an argument."""
    if task.outcome is not None:
        return task.outcome[3]
    causes = (earlier.get(object_id) for object_id in task.dependencies)
    return next((cause for cause in causes if cause is not None), "ArgumentFailed")


def _name_end(record: records.ObjectRecord) -> str:
    return "NIL" if record.value is None else "FAILED" if record.failed else "FINISHED"


def _to_amounts(demand: resources.Demand) -> dict[str, float]:
    return {name: units / resources.UNIT for name, units in demand}


def _to_ms(started: float, offset: float) -> int | None:
    return int((started + offset) * 1000) if started else None
