"""The rows of actors, workers, objects, placement groups, nodes, jobs and failures."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hocket.engine import node
from hocket.engine.inspection import tasks
from hocket.engine.inspection.facts import Facts, Row, to_amounts
from hocket.kernel import records, resources
from hocket.kernel.records import ActorState, TaskState

_DEATHS = frozenset({"WorkerCrashedError", "OutOfMemoryError", "ActorDiedError"})


def list_actors(facts: Facts) -> Iterator[Row]:
    """Yield a row for each actor, living ones first."""
    for actor in list(facts.kernel.actors.values()):
        yield _describe_actor(facts, actor)
    for actor in reversed(list(facts.kernel.closed_actors)):
        yield _describe_actor(facts, actor)


def _describe_actor(facts: Facts, actor: records.ActorRecord) -> Row:
    options = actor.options
    group_id = options.lifetime_shape.group_id
    is_dead = actor.state == ActorState.DEAD
    creation = facts.kernel.tasks.get(actor.id)
    state = actor.state.name
    if actor.state == ActorState.PENDING:
        is_waiting = creation is not None and creation.state == TaskState.WAITING
        state = "DEPENDENCIES_UNREADY" if is_waiting else "PENDING_CREATION"
    return {
        "actor_id": f"{actor.id:016x}",
        "class_name": options.class_name,
        "state": state,
        "job_id": facts.job_id,
        "name": options.name,
        "node_id": facts.node_id,
        "pid": facts.get_pid(actor.worker.id) if actor.worker is not None else 0,
        "namespace": options.namespace,
        "required_resources": to_amounts(options.lifetime_shape.demand),
        "death_cause": {"error_message": actor.death_message.removesuffix(":")} if is_dead else None,
        "is_detached": options.detached,
        "placement_group_id": f"{group_id:016x}" if group_id else None,
        "num_restarts": actor.restarts,
        "pending_calls": sum(map(len, actor.queues.values())) + (0 if is_dead else actor.inflight),
    }


def list_workers(facts: Facts) -> Iterator[Row]:
    """Yield a row for the driver and each worker, dead ones included."""
    yield _describe_worker(facts, records.DRIVER, facts.driver_pid, "DRIVER") | {"state": "DRIVER"}
    now = time.perf_counter()
    for worker in list(facts.kernel.workers.values()):
        pid = facts.get_pid(worker.id)
        if pid == facts.driver_pid:  # the engine runs all work in the driver's process
            continue
        task_id, started = facts.find_running(worker)
        task = worker.inflight.get(task_id)
        yield _describe_worker(facts, worker.id, pid, "WORKER") | {
            "state": worker.state.name,
            "actor_id": f"{worker.actor.id:016x}" if worker.actor is not None else None,
            "task_name": task.options.name if task is not None else None,
            "task_seconds": now - started if task is not None else None,
            "queued_tasks": len(worker.inflight) - (task is not None),
        }
    for lost in reversed(list(facts.lost)):
        death = lost.death
        yield _describe_worker(facts, lost.worker_id, death.pid, "WORKER") | {
            "state": "DEAD",
            "is_alive": False,
            "exit_type": "INTENDED_SYSTEM_EXIT" if lost.was_asked or death.exit_code == 0 else "SYSTEM_ERROR",
            "exit_detail": death.reason(),
            "end_time_ms": int(lost.ended_at * 1000),
        }


def _describe_worker(facts: Facts, worker_id: int, pid: int, worker_type: str) -> Row:
    return {
        "worker_id": f"{worker_id:016x}",
        "is_alive": True,
        "worker_type": worker_type,
        "exit_type": None,
        "node_id": facts.node_id,
        "ip": "127.0.0.1",
        "pid": pid,
        "exit_detail": None,
        "end_time_ms": None,
        "actor_id": None,
        "task_name": None,
        "task_seconds": None,
        "queued_tasks": 0,
    }


def list_objects(facts: Facts) -> Iterator[Row]:
    """Yield a row for each object."""
    for record in list(facts.kernel.objects.values()):
        task = record.task
        owner = next(iter(record.holders), records.DRIVER) if record.holders else records.DRIVER
        yield {
            "object_id": f"{record.id:016x}",
            "object_size": facts.measure(record.value) if record.value is not None else 0,
            "call_site": facts.locate(record.value) if record.value is not None else "",
            "task_status": tasks.find_state(facts, task)[0] if task is not None else _name_end(record),
            "reference_type": _classify_reference(facts, record),
            "type": "WORKER" if owner else "DRIVER",
            "pid": facts.get_pid(owner) if owner else facts.driver_pid,
            "ip": "127.0.0.1",
            "reference_count": record.count,
        }


def _classify_reference(facts: Facts, record: records.ObjectRecord) -> str:
    if record.id in facts.kernel.actors:
        return "ACTOR_HANDLE"
    if record.dependents:
        return "USED_BY_PENDING_TASK"
    return "LOCAL_REFERENCE"


def list_groups(facts: Facts) -> Iterator[Row]:
    """Yield a row for each placement group."""
    for group in list(facts.kernel.groups.values()):
        described = node.describe_group(group, facts.node_id)
        yield described | {"creator_job_id": facts.job_id, "is_detached": False}


def list_nodes(facts: Facts) -> Iterator[Row]:
    """Yield the row of this machine."""
    total = {name: units / resources.UNIT for name, units in facts.kernel.pool.total.items()}
    described = node.describe_node(facts.node_id, total, facts.labels)
    yield {
        "node_id": described["NodeID"],
        "node_ip": described["NodeManagerAddress"],
        "is_head_node": True,
        "state": "ALIVE",
        "state_message": None,
        "node_name": described["NodeManagerHostname"],
        "resources_total": total,
        "labels": described["Labels"],
        "start_time_ms": int(facts.opened_at * 1000),
        "end_time_ms": None,
    }


def list_jobs(facts: Facts) -> Iterator[Row]:
    """Yield the row of this session."""
    yield {
        "job_id": facts.job_id,
        "submission_id": None,
        "entrypoint": facts.entrypoint,
        "type": "DRIVER",
        "status": "RUNNING",
        "message": None,
        "error_type": None,
        "driver_info": {"id": facts.job_id, "pid": str(facts.driver_pid), "node_ip_address": "127.0.0.1"},
        "start_time_ms": int(facts.opened_at * 1000),
        "namespace": facts.namespace,
    }


def list_events(facts: Facts) -> Iterator[Row]:
    """Yield a row for each failure."""
    for number, error in enumerate(facts.errors, facts.count_errors() - len(facts.errors)):
        is_death = error.error_type in _DEATHS
        yield {
            "severity": "ERROR" if is_death else "WARNING",
            "time": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(error.timestamp)),
            "source_type": "WORKER" if is_death else "TASK",
            "message": f"{error.name}: {error.error_type}: {error.message}",
            "event_id": f"{number:016x}",
        }


def _name_end(record: records.ObjectRecord) -> str:
    return "NIL" if record.value is None else "FAILED" if record.failed else "FINISHED"
