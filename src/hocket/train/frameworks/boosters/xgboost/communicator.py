"""XGBoost's collectives (Rabit) in the ranks. Rank 0 has the tracker, through which all ranks find each other.

XGBoost opens its own sockets. The tracker listens at rank 0's address, which is loopback if all ranks are on one
machine. Each rank listens on a port of its own. No peer is authenticated, so the nodes' network must be private.

A rank that fails does not leave the collectives: ranks that wait for it would take that for the end of the training.
They get an error from XGBoost when the failed rank's process ends, or are ended with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from xgboost import collective, tracker

_JOIN_SECONDS = 5
"""Seconds that the tracker's thread may take to end after all ranks have left. A guess."""


class _Here:
    """This rank's arguments for XGBoost's collectives, and the tracker that it runs for all ranks."""

    arguments: dict[str, Any] | None = None
    tracker: Any = None
    thread: threading.Thread | None = None


def start_tracker(address: str, size: int, timeout_s: float) -> dict[str, object]:
    """Start the tracker in this process; return the arguments with which ranks reach it."""
    _Here.tracker = tracker.RabitTracker(size, address, sortby="task", timeout=int(timeout_s))
    _Here.tracker.start()
    _Here.thread = threading.Thread(target=_Here.tracker.wait_for, name="hocket-xgboost-tracker", daemon=True)
    _Here.thread.start()
    return {**_Here.tracker.worker_args(), "dmlc_timeout": int(timeout_s)}


def keep(arguments: dict[str, object], rank: int) -> None:
    """Keep the arguments for `join`. The id has leading zeros, because XGBoost sorts ids as text."""
    _Here.arguments = {**arguments, "dmlc_task_id": f"{rank:08d}"}


def leave() -> None:
    """Drop the arguments and end the tracker, after all ranks have left."""
    _Here.arguments = None
    if _Here.thread is not None:
        _Here.thread.join(_JOIN_SECONDS)
        _Here.tracker.free()
        _Here.tracker = _Here.thread = None


@contextlib.contextmanager
def join() -> Iterator[None]:
    """Join the calling thread's XGBoost with the other ranks', for the duration of a block."""
    if _Here.arguments is None:
        yield
        return
    collective.init(**_Here.arguments)
    yield
    collective.finalize()
