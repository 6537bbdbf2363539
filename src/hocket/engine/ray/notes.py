"""Notes of workers for the driver, in Ray's key-value store: metrics, and failed tasks.

A worker writes all its notes under one key, so the store does not grow, however seldom the driver reads it.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import ray

from hocket import exceptions
from hocket._base import texts
from hocket._base.internals import ray as ray_internals
from hocket.kernel import metrics

_NAMESPACE = b"hocket"

MOST_FAILURES = 100
"""How many failures a worker keeps, the latest. A guess: more failures in one process have the same cause."""

MOST_CHARACTERS = 1_000
"""How many characters of a failure's text are kept. The worker sends them again with each later failure."""

failures: deque[exceptions.ErrorRecord] = deque(maxlen=MOST_FAILURES)
"""The tasks and calls that failed in this worker, oldest first."""


class _Note(NamedTuple):
    written_at: float
    batch: metrics.Batch
    failures: tuple[exceptions.ErrorRecord, ...]


def note_failure(name: str, error: BaseException) -> None:
    """Keep an error of the user's code."""
    task_id = ray.get_runtime_context().get_task_id() or ""
    failures.append(
        exceptions.ErrorRecord(
            task_id=task_id,
            name=name,
            error_type=texts.name_class(type(error)),
            message=texts.safe_text(error, MOST_CHARACTERS),
            timestamp=time.time(),
        )
    )


def publish(session_id: str, store: metrics.MetricStore) -> None:
    """Write this worker's notes to the store."""
    key = f"{_build_prefix(session_id)}{ray.get_runtime_context().get_worker_id()}"
    note = _Note(time.time(), store.list_records(), tuple(failures))
    ray_internals.put_value(key, pickle.dumps(tuple(note)), _NAMESPACE)


def collect_metrics(session_id: str, own: metrics.MetricStore) -> metrics.MetricStore:
    """Return the metrics of all processes of a session. For a gauge, the value of the worker that wrote last counts."""
    total = metrics.MetricStore()
    for note in sorted(_list_notes(session_id)):
        total.merge(note.batch)
    total.merge(own.list_records())
    return total


def list_failures(session_id: str) -> list[exceptions.ErrorRecord]:
    """Return the failed tasks and calls of a session, oldest first, once for each failed attempt."""
    found = [failure for note in _list_notes(session_id) for failure in note.failures]
    return sorted(found, key=lambda failure: failure.timestamp)


def _list_notes(session_id: str) -> Iterator[_Note]:
    for key in ray_internals.list_keys(_build_prefix(session_id), _NAMESPACE):
        blob = ray_internals.get_value(key, _NAMESPACE)
        if blob is not None:
            yield _Note(*pickle.loads(blob))


def clear(session_id: str) -> None:
    """Remove a session's notes."""
    ray_internals.remove_values(_build_prefix(session_id), _NAMESPACE)


def _build_prefix(session_id: str) -> str:
    return f"notes:{session_id}:"
