"""Which rank a thread belongs to that was started in one, where ranks are threads of one process.

A thread takes nothing over from the one that starts it. What it calls later, in another rank's turn, would be taken for
that rank's. So while ranks take turns, `threading.Thread.start` notes for whom it was called.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Final

_owners: Final[weakref.WeakKeyDictionary[threading.Thread, Hashable]] = weakref.WeakKeyDictionary()
_lock: Final = threading.Lock()


class _Followed:
    """How many want to know it, and what stood in `threading.Thread` before the first of them."""

    count = 0
    start = threading.Thread.start


def find_owner() -> Hashable | None:
    """Return what was open when the calling thread was started; None if nothing was, or nobody followed."""
    return _owners.get(threading.current_thread()) if _Followed.count else None


@contextlib.contextmanager
def follow(find_current: Callable[[], Hashable | None]) -> Iterator[None]:
    """For the duration of a block, note which rank the threads belong to that are started.

    Args:
        find_current: Called in the thread that starts one; what it returns, `find_owner` returns in the new one.
    """
    with _lock:
        if _Followed.count == 0:
            _Followed.start = threading.Thread.start
            threading.Thread.start = _build_start(_Followed.start, find_current)  # type: ignore[assignment, method-assign]
        _Followed.count += 1
    try:
        yield
    finally:
        with _lock:
            _Followed.count -= 1
            if _Followed.count == 0:
                threading.Thread.start = _Followed.start  # type: ignore[method-assign]


def _build_start(
    plain: Callable[[threading.Thread], None], find_current: Callable[[], Hashable | None]
) -> Callable[[threading.Thread], None]:
    @functools.wraps(plain)
    def start(thread: threading.Thread) -> None:
        current = find_current()
        if current is not None:
            _owners[thread] = current
        plain(thread)

    return start
