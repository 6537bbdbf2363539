"""The rows of tasks, living and finished ones, and their spans."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from hocket import exceptions
from hocket.engine.events import layout, reader
from hocket.engine.inspection.facts import Facts, Row, to_amounts
from hocket.kernel import records
from hocket.kernel.records import TaskKind, TaskRecord, TaskState

TASK_TYPES = {
    TaskKind.FUNCTION: "NORMAL_TASK",
    TaskKind.CREATION: "ACTOR_CREATION_TASK",
    TaskKind.CALL: "ACTOR_TASK",
}
"""Ray's names for our kinds of tasks."""


_RECORDED_TYPES = {
    layout.Kind.TASK: TASK_TYPES[TaskKind.FUNCTION],
    layout.Kind.CONSTRUCTOR: TASK_TYPES[TaskKind.CREATION],
    layout.Kind.CALL: TASK_TYPES[TaskKind.CALL],
    layout.Kind.GET: "DRIVER",
    layout.Kind.PUT: "DRIVER",
    **{kind: kind.name for kind in layout.Kind if kind > layout.Kind.PUT},
}
"""The names for our kinds of events: Ray's for runs, and ours for the rest."""


def list_tasks(facts: Facts) -> Iterator[Row]:
    """Yield a row for each task: first the living tasks, then the finished tasks that are kept, the latest first."""
    offset = time.time() - time.perf_counter()
    errors = {record.task_id: record for record in facts.errors}
    for task in list(facts.kernel.tasks.values()):
        yield _describe_living(facts, task, offset)
    failed_types: dict[int, str | None] = {}
    # The constructor of an actor that was built again is in the list more than once, and not finished while it runs.
    closed = list({task.id: task for task in facts.kernel.closed_tasks if task.state == TaskState.DONE}.values())
    for task in closed:
        failed_types[task.id] = _find_error_type(task, failed_types)
    for task in reversed(closed):
        yield _describe_closed(facts, task, offset, failed_types[task.id], errors)


def _describe_living(facts: Facts, task: TaskRecord, offset: float) -> Row:
    state, started = find_state(facts, task)
    worker_id = task.worker.id if task.worker is not None else 0
    return _describe_task(facts, task, worker_id) | {
        "state": state,
        "error_type": None,
        "start_time_ms": _to_ms(started, offset),
        "end_time_ms": None,
        "error_message": None,
    }


def _describe_closed(
    facts: Facts, task: TaskRecord, offset: float, error_type: str | None, errors: Mapping[str, exceptions.ErrorRecord]
) -> Row:
    worker_id, started, seconds, _ = task.outcome or (0, 0.0, 0.0, None)
    error = errors.get(f"{task.id:016x}")
    return _describe_task(facts, task, worker_id) | {
        "state": "FAILED" if error_type is not None else "FINISHED",
        "error_type": error_type,
        "start_time_ms": _to_ms(started, offset),
        "end_time_ms": _to_ms(started and started + seconds, offset),
        "error_message": error.message if error is not None else None,
    }


def _describe_task(facts: Facts, task: TaskRecord, worker_id: int) -> Row:
    options = task.options
    group_id = options.shape.group_id
    actor_id = task.id if task.kind == TaskKind.CREATION else task.actor.id if task.actor is not None else 0
    return {
        "task_id": f"{task.id:016x}",
        "attempt_number": task.attempt,
        "name": options.name,
        "job_id": facts.job_id,
        "actor_id": f"{actor_id:016x}" if actor_id else None,
        "type": TASK_TYPES[task.kind],
        "func_or_class_name": task.options.name,
        "parent_task_id": f"{task.parent:016x}",
        "node_id": facts.node_id,
        "worker_id": f"{worker_id:016x}" if worker_id else None,
        "worker_pid": (facts.get_pid(worker_id) or None) if worker_id else None,
        "required_resources": to_amounts(options.shape.demand),
        "placement_group_id": f"{group_id:016x}" if group_id else None,
    }


def find_state(facts: Facts, task: TaskRecord) -> tuple[str, float]:
    """Return Ray's name for the state of a living task, and its start by `time.perf_counter`; 0 if unknown."""
    if task.state == TaskState.WAITING:
        return "PENDING_ARGS_AVAIL", 0.0
    worker = task.worker
    if worker is None:
        if task.kind == TaskKind.CALL:
            return "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", 0.0
        return "PENDING_NODE_ASSIGNMENT", 0.0
    task_id, started = facts.find_running(worker)
    if task.id in facts.starts:
        task_id, started = task.id, facts.starts[task.id]
    if task_id == task.id:
        return "RUNNING_IN_RAY_GET" if worker.blocked else "RUNNING", started
    at_once = _count_threads(worker.actor.options) if worker.actor is not None else 1
    if at_once > 1 and task.id in itertools.islice(worker.inflight, at_once):
        return "RUNNING", 0.0
    return "SUBMITTED_TO_WORKER", 0.0


def count_tasks(facts: Facts) -> Iterator[Row]:
    """Yield the number of tasks of each function in each state."""
    counts: Counter[tuple[str, TaskKind, str]] = Counter()
    for task in facts.kernel.tasks.values():
        counts[task.options.name, task.kind, find_state(facts, task)[0]] += 1
    seen: Counter[tuple[str, TaskKind]] = Counter()
    by_function: dict[records.FunctionRuns, Counter[tuple[str, TaskKind]]] = {}
    for task in facts.kernel.closed_tasks:  # a short loop body: there are thousands, and the engine's lock is held
        name, kind = task.options.name, task.kind
        if getattr(task, "error_type", None) is not None or getattr(task, "ran_on", None) is None:
            counts[name, kind, "FAILED"] += 1
            continue
        runs = getattr(task, "runs", None)
        if runs is None:
            seen[name, kind] += 1
            continue
        if runs not in by_function:
            by_function[runs] = Counter()
        by_function[runs][name, kind] += 1
    for runs, named in by_function.items():
        seen.update(named)
        # The kernel keeps only a sample of short runs. The rest counts under the function's latest name.
        seen[next(reversed(named))] += max(0, runs.count - named.total())
    for (name, kind), count in seen.items():
        counts[name, kind, "FINISHED"] += count
    for (name, kind, state), count in counts.items():
        yield {"func_or_class_name": name, "type": TASK_TYPES[kind], "state": state, "count": count}


def list_spans(facts: Facts) -> Iterator[Row]:
    """Yield the spans of tasks and of the driver itself, and the number of overwritten ones for each process."""
    if facts.read_events is not None:
        yield from _list_recorded(facts, facts.read_events())
    else:
        for task in list(facts.kernel.closed_tasks):
            if task.outcome is not None and task.outcome[1]:
                yield _describe_span(facts, task, *task.outcome)
    now = time.perf_counter()
    for task in list(facts.kernel.tasks.values()):
        if task.worker is not None:
            started = find_state(facts, task)[1]
            if started:
                yield _describe_span(facts, task, task.worker.id, started, now - started, None) | {"state": "RUNNING"}
    for kind, name, began, seconds, amount in list(facts.spans):
        yield {
            "name": name,
            "type": _RECORDED_TYPES[kind],
            "worker_id": 0,
            "pid": facts.driver_pid,
            "started": began,
            "seconds": seconds,
            "amount": amount,
        }


def _list_recorded(facts: Facts, batches: Iterable[reader.Batch]) -> Iterator[Row]:
    error_types = {record.task_id: record.error_type for record in facts.errors}
    for batch in batches:
        if batch.missed:
            yield {"type": "MISSED", "worker_id": batch.worker_id, "pid": batch.pid, "count": batch.missed}
        for event in batch:
            row: Row = {
                "name": event.name,
                "type": _RECORDED_TYPES[event.kind],
                "worker_id": batch.worker_id,
                "pid": batch.pid,
                "started": event.started,
                "seconds": event.seconds,
            }
            if event.kind not in layout.RUNS:
                yield row | {"amount": event.subject}
                continue
            task_id = f"{event.subject:016x}"
            has_failed = event.state == layout.State.FAILED
            if event.runs > 1:
                yield row | {"task_id": task_id, "state": "FINISHED", "count": event.runs}
                continue
            yield row | {
                "task_id": task_id,
                "attempt_number": event.attempt,
                "state": event.state.name,
                "error_type": error_types.get(task_id, "") if has_failed else None,
            }


def _describe_span(
    facts: Facts, task: TaskRecord, worker_id: int, started: float, seconds: float, error_type: str | None
) -> Row:
    return {
        "name": task.options.name,
        "type": TASK_TYPES[task.kind],
        "worker_id": worker_id,
        "pid": facts.get_pid(worker_id),
        "started": started,
        "seconds": seconds,
        "task_id": f"{task.id:016x}",
        "attempt_number": task.attempt,
        "state": "FINISHED" if error_type is None else "FAILED",
        "error_type": error_type,
    }


def _count_threads(options: records.ActorOptions) -> int:
    return options.max_concurrency + sum(size for _, size in options.concurrency_groups)


def _find_error_type(task: TaskRecord, earlier: Mapping[int, str | None]) -> str | None:
    """Return the class of a finished task's error, which may be an argument's; None after a success."""
    if task.outcome is not None:
        return task.outcome[3]
    causes = (earlier.get(object_id) for object_id in task.dependencies)
    return next((cause for cause in causes if cause is not None), "ArgumentFailed")


def _to_ms(started: float, offset: float) -> int | None:
    return int((started + offset) * 1000) if started else None
