"""XGBoost's collectives (Rabit) in the ranks: one of them has the tracker, through which all find each other.

XGBoost brings its own sockets: the tracker listens where rank 0 can be reached, on loopback if all ranks are on one
machine, and each rank on a port of its own. No peer has to prove who it is, so the network between the nodes must be
one's own.

A rank that fails does not leave: others that wait for it would take that for the end of the training. They get an error
from XGBoost when its process ends, or are ended with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from xgboost import collective, tracker

_JOIN_SECONDS = 5
"""How long the tracker's thread may take to end when all ranks have left. A guess."""


class _Here:
    """This rank's given environment, and the servers that it runs for all."""

    arguments: dict[str, Any] | None = None
    tracker: Any = None
    thread: threading.Thread | None = None


def start_tracker(address: str, size: int, timeout_s: float) -> dict[str, object]:
    """Start the tracker in this process; return what the ranks need to reach it."""
    _Here.tracker = tracker.RabitTracker(size, address, sortby="task", timeout=int(timeout_s))
    _Here.tracker.start()
    _Here.thread = threading.Thread(target=_Here.tracker.wait_for, name="hocket-xgboost-tracker", daemon=True)
    _Here.thread.start()
    return {**_Here.tracker.worker_args(), "dmlc_timeout": int(timeout_s)}


def keep(arguments: dict[str, object], rank: int) -> None:
    """Keep them for `join`. XGBoost sorts its workers by the text of their ids."""
    _Here.arguments = {**arguments, "dmlc_task_id": f"{rank:08d}"}


def leave() -> None:
    """All ranks have left."""
    _Here.arguments = None
    if _Here.thread is not None:
        _Here.thread.join(_JOIN_SECONDS)
        _Here.tracker.free()
        _Here.tracker = _Here.thread = None


@contextlib.contextmanager
def join() -> Iterator[None]:
    """Have the calling thread's XGBoost train together with the other ranks', for the duration of a block."""
    if _Here.arguments is None:
        yield
        return
    collective.init(**_Here.arguments)
    yield
    collective.finalize()
