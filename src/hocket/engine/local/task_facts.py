"""The special facts of a task or call for its worker: the field ``extra`` of `messages.RUN` and `messages.CALL`."""

from __future__ import annotations

import functools
from typing import Any

from hocket.engine import events, values
from hocket.kernel import resources
from hocket.kernel.records import TaskKind, TaskRecord, WorkerRecord

KINDS = {
    TaskKind.FUNCTION: events.Kind.TASK,
    TaskKind.CREATION: events.Kind.CONSTRUCTOR,
    TaskKind.CALL: events.Kind.CALL,
}
"""The kinds of event for the kernel's kinds of task."""


def build_extra(worker: WorkerRecord, task: TaskRecord) -> dict[str, object]:
    """Return the field for a task."""
    shape = task.options.shape
    allocation = worker.allocation
    extra: dict[str, Any] = {
        "resources": {name: units / resources.UNIT for name, units in shape.demand},
        "group_id": shape.group_id,
        "attempt": task.attempt,
    }
    if shape.captures_children:
        extra["captures_children"] = True
    if shape.environment:
        extra["environment"] = shape.environment
    if task.options.backpressure:
        extra["backpressure"] = task.options.backpressure
    if isinstance(task.options.retry_exceptions, tuple) and task.retries_left:
        extra["retried"] = _encode_classes(task.options.retry_exceptions)
    if allocation is not None and allocation.gpu_ids:
        extra["gpu_ids"] = list(allocation.gpu_ids)
    options = task.actor_options
    if options is not None:
        extra["creates_actor"] = True
        extra["max_concurrency"] = options.max_concurrency
        extra["is_async"] = options.is_async
        extra["groups"] = list(options.concurrency_groups)
        extra["namespace"] = options.namespace
        extra["actor_name"] = options.name
        extra["class_name"] = options.class_name
        extra["resources"] = {name: units / resources.UNIT for name, units in options.lifetime_shape.demand}
    return extra


def build_call_extra(task: TaskRecord) -> dict[str, object] | None:
    """Return the field for a call; None for an ordinary call."""
    options = task.options
    if options.is_simple and not task.attempt:
        return None
    retried = options.retry_exceptions if task.retries_left else ()
    return {
        "attempt": task.attempt,
        "group": options.concurrency_group,
        "backpressure": options.backpressure,
        "retried": _encode_classes(retried) if isinstance(retried, tuple) and retried else None,
    }


@functools.lru_cache(maxsize=256)
def _encode_classes(classes: tuple[type[BaseException], ...]) -> bytes | None:
    """Return the pickle of the classes in `retry_exceptions`; None if they cannot be sent.

    The worker compares, because in the driver a text may stand for the exception.
    """
    try:
        return values.encode_whole(classes, "retry_exceptions").data
    except Exception:  # noqa: BLE001 (a user's metaclass may raise anything; then the driver compares)
        return None
