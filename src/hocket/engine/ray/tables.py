"""Ray's tasks, actors, nodes and so on, as rows with the names of `hocket.engine.inspection`, which are Ray's own.

Most rows come from Ray's control service (GCS), which every cluster has. Only Ray's state service, a part of its
dashboard, has the objects, workers, runtime environments and events.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ray

from hocket import exceptions
from hocket._base.internals import ray as ray_internals
from hocket.engine import inspection
from hocket.engine.ray import listing

Row = dict[str, Any]

_MOST_ROWS = 10_000
"""The most rows that Ray's state service returns."""

_TASK_FIELDS = (
    "task_id",
    "attempt_number",
    "name",
    "state",
    "job_id",
    "actor_id",
    "type",
    "func_or_class_name",
    "parent_task_id",
    "node_id",
    "worker_id",
    "worker_pid",
    "error_type",
    "required_resources",
    "placement_group_id",
    "start_time_ms",
    "end_time_ms",
    "error_message",
)


def list_records(
    kind: str, filters: Sequence[tuple[str, str, object]], limit: int | None, failures: Iterable[exceptions.ErrorRecord]
) -> list[Row]:
    """Return the rows of a kind that pass all filters; rows of living things come first.

    Args:
        kind: One of `inspection.KINDS`.
        filters: See `inspection.Filter`.
        limit: The most rows; None is all.
        failures: The failures that the session's workers have noted; Ray has only their texts.
    """
    lister = _LISTERS.get(kind)
    if lister is None:
        raise ValueError(f"kind must be one of {list(inspection.KINDS)}, but received {kind!r}.")
    if kind == "tasks":
        filters = [_shorten_id(*one) for one in filters]
    known = {failure.task_id: failure for failure in failures}
    found = (row for row in lister(known) if all(inspection.matches(row, one) for one in filters))
    return list(itertools.islice(found, limit))


def _shorten_id(name: str, comparison: str, value: object) -> tuple[str, str, object]:
    """Return a filter that accepts the id of a task's result as the task's id: in Hocket the two are equal, and in Ray
    the result's id begins with the task's."""
    if name == "task_id" and isinstance(value, str):
        value = value[: 2 * ray.TaskID.size()]
    return name, comparison, value


Failures = Mapping[str, exceptions.ErrorRecord]


# --- tasks ------------------------------------------------------------------------------------------------------------


def _list_tasks(failures: Failures) -> Iterator[Row]:
    rows = [_build_task(row, failures) for row in ray_internals.list_tasks() if row["type"] != "DRIVER_TASK"]
    yield from (row for row in rows if row["state"] not in _OVER)
    yield from sorted((row for row in rows if row["state"] in _OVER), key=lambda row: -(row["end_time_ms"] or 0))


_OVER = ("FINISHED", "FAILED")


def _build_task(row: Row, failures: Failures) -> Row:
    built = {name: row.get(name) for name in _TASK_FIELDS}
    failure = failures.get(row["task_id"])
    if failure is not None and row["state"] == "FAILED":
        built |= {"error_type": failure.error_type, "error_message": failure.message}
    return built


def _count_tasks(failures: Failures) -> Iterator[Row]:
    counts = Counter((row["func_or_class_name"], row["type"], row["state"]) for row in _list_tasks(failures))
    for (name, kind, state), count in counts.items():
        yield {"func_or_class_name": name, "type": kind, "state": state, "count": count}


def _list_spans(failures: Failures) -> Iterator[Row]:
    numbers: dict[str, int] = {}
    for row in _list_tasks(failures):
        if not row["start_time_ms"] or not row["worker_id"]:
            continue
        end = row["end_time_ms"] or row["start_time_ms"]
        yield {
            "name": row["name"],
            "type": row["type"],
            "worker_id": numbers.setdefault(row["worker_id"], len(numbers) + 1),
            "pid": row["worker_pid"] or 0,
            "started": row["start_time_ms"] / 1e3,
            "seconds": (end - row["start_time_ms"]) / 1e3,
            "task_id": row["task_id"],
            "attempt_number": row["attempt_number"],
            "state": row["state"],
            "error_type": row["error_type"],
        }


# --- actors, nodes, groups, jobs --------------------------------------------------------------------------------------


def _list_actors(_: Failures) -> Iterator[Row]:
    namespaces = ray_internals.list_namespaces()
    for actor in sorted(ray_internals.list_actors().values(), key=lambda actor: actor["State"] == "DEAD"):
        is_dead = actor["State"] == "DEAD"
        yield {
            "actor_id": actor["ActorID"],
            "class_name": actor["ActorClassName"],
            "state": actor["State"],
            "job_id": actor["JobID"],
            "name": actor["Name"],
            "node_id": actor["Address"]["NodeID"],
            "pid": actor["Pid"],
            "namespace": namespaces.get(actor["ActorID"], ""),
            "death_cause": {"error_message": str(actor["DeathCause"])} if is_dead else None,
            "is_detached": actor["IsDetached"],
            "num_restarts": actor["NumRestarts"],
        }


def _list_nodes(_: Failures) -> Iterator[Row]:
    for found in listing.list_nodes():
        yield {
            "node_id": found["NodeID"],
            "node_ip": found["NodeManagerAddress"],
            "node_name": found["NodeName"],
            "is_head_node": "node:__internal_head__" in found["Resources"],
            "state": "ALIVE" if found["Alive"] else "DEAD",
            "state_message": found.get("DeathReasonMessage") or None,
            "resources_total": found["Resources"],
            "labels": dict(found["Labels"]),
        }


def _list_groups(_: Failures) -> Iterator[Row]:
    for found in listing.list_groups():
        yield {**found, "creator_job_id": ""}


def _list_jobs(_: Failures) -> Iterator[Row]:
    for found in ray_internals.list_jobs():
        yield {
            "job_id": found["JobID"],
            "submission_id": None,
            "entrypoint": found["Entrypoint"],
            "type": "DRIVER",
            "status": "SUCCEEDED" if found["IsDead"] else "RUNNING",
            "message": None,
            "error_type": None,
            "driver_info": {"pid": str(found["DriverPid"]), "node_ip_address": found["DriverIPAddress"]},
            "start_time_ms": found["StartTime"],
        }


# --- kinds from the dashboard -----------------------------------------------------------------------------------------


def _ask(kind: str, _: Failures) -> Iterator[Row]:
    from ray.util import state  # here, because its import is slow

    try:
        # A Ray without a dashboard still has an address for it, with the usual port, where another server may listen.
        if not ray_internals.get_value("webui:url", "dashboard"):
            raise ConnectionError("there is no dashboard")
        found = getattr(state, f"list_{kind}")(
            address=ray.get_runtime_context().gcs_address, detail=True, limit=_MOST_ROWS, raise_on_missing_output=False
        )
    except Exception as error:
        raise exceptions.HocketError(
            f"Ray's state service does not answer, so {kind} cannot be listed ({type(error).__name__}: {error}). It "
            "is part of Ray's dashboard: start with hocket.init(engine='ray', include_dashboard=True), or start "
            "the cluster with its dashboard."
        ) from error
    for record in found:
        row: Row = record.asdict()
        if kind == "workers":
            row["state"] = "ALIVE" if row["is_alive"] else "DEAD"
        elif kind == "objects":
            row["reference_count"] = 1  # Ray has a row for each process that refers to the object
        yield row


_LISTERS: dict[str, Callable[[Failures], Iterator[Row]]] = {
    **{kind: functools.partial(_ask, kind) for kind in ("cluster_events", "objects", "runtime_envs", "workers")},
    "actors": _list_actors,
    "jobs": _list_jobs,
    "nodes": _list_nodes,
    "placement_groups": _list_groups,
    "spans": _list_spans,
    "task_counts": _count_tasks,
    "tasks": _list_tasks,
}
