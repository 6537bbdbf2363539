"""The rows of each kind: filtered, limited, and counted for snapshots."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

from hocket import _base
from hocket.engine.inspection import tasks, things
from hocket.engine.inspection.facts import Facts, Row
from hocket.kernel import resources
from hocket.kernel.records import ActorState

Filter = tuple[str, str, object]
"""A condition on a row: ``(field, "=" or "!=", value)``."""

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
"""The kinds of rows. ``spans`` are the timeline's data; ``task_counts`` are numbers of tasks by function and state."""

SHOWN_ROWS = 500
"""The most rows of one kind in a snapshot: no screen shows more. A guess."""

SHOWN_ERRORS = 5
"""How many errors a snapshot has: the latest."""

_LISTERS: dict[str, Callable[[Facts], Iterator[Row]]] = {
    "actors": things.list_actors,
    "cluster_events": things.list_events,
    "jobs": things.list_jobs,
    "nodes": things.list_nodes,
    "objects": things.list_objects,
    "placement_groups": things.list_groups,
    "runtime_envs": lambda facts: iter(()),
    "spans": tasks.list_spans,
    "task_counts": tasks.count_tasks,
    "tasks": tasks.list_tasks,
    "workers": things.list_workers,
}


@final
class StateView(Facts):
    """A view of a session, which lists the rows of each kind."""

    def list_records(self, kind: str, filters: Sequence[Filter] = (), limit: int | None = None) -> list[Row]:
        """Return the rows of a kind that pass all filters; rows of living things come first.

        Raises:
            ValueError: The kind is unknown.
        """
        if kind not in _LISTERS:
            raise ValueError(f"kind must be one of {list(KINDS)}, but received {kind!r}.")
        found: Iterator[Row] = _LISTERS[kind](self)
        if filters:
            found = (row for row in found if all(matches(row, one) for one in filters))
        return list(itertools.islice(found, limit))

    def build_snapshot(self, statistics: Mapping[str, object]) -> Row:
        """Return the session's state for `hocket status`, as plain data. ``left_out`` counts the rows beyond
        `SHOWN_ROWS`."""
        pool = self.kernel.pool
        functions = self.list_records("task_counts")
        rows = {
            "tasks": functions[:SHOWN_ROWS],
            "actors": self.list_records("actors", [("state", "!=", "DEAD")], SHOWN_ROWS),
            "workers": self.list_records(
                "workers", [("is_alive", "=", True), ("worker_type", "=", "WORKER")], SHOWN_ROWS
            ),
        }
        counts = {
            "tasks": len(functions),
            "actors": sum(actor.state != ActorState.DEAD for actor in list(self.kernel.actors.values())),
            "workers": sum(self.get_pid(worker) != self.driver_pid for worker in list(self.kernel.workers)),
        }
        errors = list(self.errors)
        return {
            "version": _base.__version__,
            "job_id": self.job_id,
            "namespace": self.namespace,
            "driver_pid": self.driver_pid,
            "opened_at": self.opened_at,
            "statistics": dict(statistics),
            **rows,
            "left_out": {kind: counts[kind] - len(found) for kind, found in rows.items()},
            "resources": {
                "total": {name: units / resources.UNIT for name, units in pool.total.items()},
                "free": {name: units / resources.UNIT for name, units in pool.free.items()},
            },
            "errors": {
                "count": self.count_errors(),
                "last": [
                    {"name": error.name, "type": error.error_type, "message": error.message, "at": error.timestamp}
                    for error in errors[-SHOWN_ERRORS:]
                ],
            },
        }


def matches(row: Row, one: Filter) -> bool:
    """Return whether a row passes a filter. Texts compare without regard to case; numbers also equal their texts."""
    name, sign, wanted = one
    value = row.get(name)
    if isinstance(value, str):
        is_same = value.casefold() == str(wanted).casefold()
    elif isinstance(value, bool) or value is None:
        is_same = str(value).casefold() == str(wanted).casefold()
    else:
        is_same = value == wanted or str(value) == str(wanted)
    return is_same if sign == "=" else operator.not_(is_same)
