"""What a worker process knows of its work."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections import deque

from hocket.engine.local import event_loop, flow, messages, payloads, worker_engine
from hocket.engine.local.work import Work
from hocket.engine.local.worker import threads

FLUSH_SECONDS = 0.001
"""How long a result may wait for company."""

Sent = tuple[payloads.Payload, tuple[int, ...]]
"""A result, and the ids of the references inside it."""


class WorkerState:
    """The process's work, and its actor if it has one."""

    def __init__(self, engine: worker_engine.WorkerEngine, status: mmap.mmap, slot: int) -> None:
        self._engine = engine
        self._events = engine.ring
        self._status = memoryview(status).cast("Q")
        self._start_times = memoryview(status).cast("d")
        self._slot = slot
        self._words = engine.channel.words
        self._row: deque[Work] = deque()
        #: How many tasks and calls the driver has sent.
        self._taken = 0
        self._codes: dict[bytes, worker_engine.Arrived] = {}
        self._functions: dict[bytes, object] = {}
        self._actor: object = None
        self._actor_error: payloads.Payload | None = None
        self._threads: threads.CallThreads[Work] | None = None
        self._groups: dict[str, threads.CallThreads[Work]] = {}
        self._loop: event_loop.Loop | None = None
        #: Whether several calls may run at once, in threads.
        self._is_concurrent = False
        self._flows: dict[int, flow.Flow] = {}
        self._environment = ""
        self._is_stopping = False
        self._is_exiting = False
        #: Whether the driver has been told that the actor ends: the callers of what has not begun have been, too.
        self._has_left = False
        self._interruptible_id = 0
        self._cancelling_id = 0
        self._main_id = threading.get_ident()
        #: What the main thread runs.
        self._own_running = engine.running

    def _close_unopened(self, work: Work) -> None:
        """Give back the descriptors and counts of work that is not done here."""
        for object_id, arrived in ((0, work.args), *work.dependencies):
            if arrived is not None and arrived.payload[0] == payloads.SEGMENT:
                os.close(arrived.payload[-1])
                self._engine.channel.post((messages.UNMAP, object_id or arrived.payload[2]))
        work.clear()


def flush_streams() -> None:
    """Flush what the task has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:  # not `suppress`, which costs a microsecond a task
            stream.flush()
        except Exception:  # noqa: S110 (closed, read by nobody, or something of the user's that can do anything)
            pass
