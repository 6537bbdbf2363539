"""Results that cannot travel are explained in the worker, where they are.

Ray pickles a result after the user's code has returned, and its error has the reason but not the part.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import ray

from hocket import exceptions
from hocket.engine import pickling, unsendable

_sending = threading.local()


def number_items(items: Iterable[object]) -> Iterator[object]:
    """Give the items of a generator, and note in this thread which of them is sent: Ray encodes each before it asks for
    the next one."""
    for index, item in enumerate(items):
        _sending.index = index
        try:
            yield item
        finally:
            _sending.index = None


def install() -> None:
    """Have Ray's encoder in this worker say which part of a value cannot be encoded."""
    context = ray._private.worker.global_worker.get_serialization_context()
    encode = context.serialize
    if getattr(encode, "explains", False):
        return

    def serialize(value: object) -> object:
        try:
            return encode(value)
        except (ray.exceptions.RayError, exceptions.HocketError):
            raise
        except Exception as error:
            if pickling.can_travel(value):
                raise
            index = getattr(_sending, "index", None)
            kind = "the result" if index is None else f"item {index}"
            what = f"{kind} of `{ray.get_runtime_context().get_task_name()}`"
            raise exceptions.SerializationError(unsendable.explain_result(value, what, error)) from None

    serialize.explains = True  # type: ignore[attr-defined]
    context.serialize = serialize
