"""The ids of what generators yield.

Here, and not with the records, because workers need no more of the kernel than this.
"""

from __future__ import annotations

_STREAM_BIT = 1 << 120
_INDEX_BITS = 32

LAST_INDEX = (1 << _INDEX_BITS) - 1
"""A place behind all items of a generator."""


def build_item_id(task_id: int, index: int) -> int:
    """Return the id of the object that a generator yields at this place; no other object can have it."""
    return _STREAM_BIT | task_id << _INDEX_BITS | index
