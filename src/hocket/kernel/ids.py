"""The ids of generators' items. They stand apart from the records because workers need only this of the kernel."""

from __future__ import annotations

_STREAM_BIT = 1 << 120
_INDEX_BITS = 32

LAST_INDEX = (1 << _INDEX_BITS) - 1
"""An index behind all items of a generator."""


def build_item_id(task_id: int, index: int) -> int:
    """Return the id of the item that a generator yields at this index; no other object has the id."""
    return _STREAM_BIT | task_id << _INDEX_BITS | index
