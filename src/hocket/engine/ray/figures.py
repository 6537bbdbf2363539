"""What workers count and measure, on its way to the driver: in Ray's key-value store.

A worker writes all that it has recorded so far under one key of its own, so nothing adds up there, however seldom the driver looks.
"""

from __future__ import annotations

import pickle
import time

import ray
from ray.experimental import internal_kv

from hocket.kernel import metrics

_NAMESPACE = b"hocket"


def publish(session_id: str, store: metrics.MetricStore) -> None:
    """Write what this worker has recorded."""
    key = f"{_build_prefix(session_id)}{ray.get_runtime_context().get_worker_id()}"
    internal_kv._internal_kv_put(key, pickle.dumps((time.time(), store.list_records())), namespace=_NAMESPACE)


def collect(session_id: str, own: metrics.MetricStore) -> metrics.MetricStore:
    """Return what all processes of a session have recorded. Of a gauge, the value of the worker that wrote last counts."""
    found: list[tuple[float, metrics.Batch]] = []
    for key in internal_kv._internal_kv_list(_build_prefix(session_id), namespace=_NAMESPACE):
        blob = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
        if blob is not None:
            found.append(pickle.loads(blob))
    total = metrics.MetricStore()
    for _, batch in sorted(found, key=lambda entry: entry[0]):
        total.merge(batch)
    total.merge(own.list_records())
    return total


def clear(session_id: str) -> None:
    """Remove what is there of a session."""
    internal_kv._internal_kv_del(_build_prefix(session_id), del_by_prefix=True, namespace=_NAMESPACE)


def _build_prefix(session_id: str) -> str:
    return f"metrics:{session_id}:"
