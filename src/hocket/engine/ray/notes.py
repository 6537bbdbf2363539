"""Notes of workers for the driver, in Ray's key-value store: counts and measures, and which tasks failed.

A worker writes all that it has noted so far under one key of its own, so nothing adds up there, however seldom the
driver looks.
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
"""How many failures a worker remembers, the latest. A guess: what one process does wrong more often is one mistake."""

MOST_CHARACTERS = 1_000
"""How much of a failure's text is kept. It is told again with each failure that follows."""

failures: deque[exceptions.ErrorRecord] = deque(maxlen=MOST_FAILURES)
"""The tasks and calls that failed in this worker, oldest first."""


class _Note(NamedTuple):
    written_at: float
    batch: metrics.Batch
    failures: tuple[exceptions.ErrorRecord, ...]


def note_failure(name: str, error: BaseException) -> None:
    """Remember that the user's code raised."""
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
    """Write what this worker has noted."""
    key = f"{_build_prefix(session_id)}{ray.get_runtime_context().get_worker_id()}"
    note = _Note(time.time(), store.list_records(), tuple(failures))
    ray_internals.put_value(key, pickle.dumps(tuple(note)), _NAMESPACE)


def collect_metrics(session_id: str, own: metrics.MetricStore) -> metrics.MetricStore:
    """Return what all processes of a session have recorded. Of a gauge, the value of the worker that wrote last
    counts."""
    total = metrics.MetricStore()
    for note in sorted(_list_notes(session_id)):
        total.merge(note.batch)
    total.merge(own.list_records())
    return total


def list_failures(session_id: str) -> list[exceptions.ErrorRecord]:
    """Return the tasks and calls that failed in a session, oldest first. One that is tried again is there once for each
    try."""
    found = [failure for note in _list_notes(session_id) for failure in note.failures]
    return sorted(found, key=lambda failure: failure.timestamp)


def _list_notes(session_id: str) -> Iterator[_Note]:
    for key in ray_internals.list_keys(_build_prefix(session_id), _NAMESPACE):
        blob = ray_internals.get_value(key, _NAMESPACE)
        if blob is not None:
            yield _Note(*pickle.loads(blob))


def clear(session_id: str) -> None:
    """Remove what is there of a session."""
    ray_internals.remove_values(_build_prefix(session_id), _NAMESPACE)


def _build_prefix(session_id: str) -> str:
    return f"notes:{session_id}:"
