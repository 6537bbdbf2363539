"""The duty of a worker process: its number, its actor, and the task that runs."""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections.abc import Mapping
from typing import Any, Protocol, final

from hocket.engine.local import channel


class Work(Protocol):
    """The part of a task or call that matters here."""

    name: str
    #: The id of the function; empty for a method.
    function_id: bytes
    method: str
    extra: dict[str, Any] | None


@final
class Running:
    """The work of a thread, or of a coroutine of an asynchronous actor."""

    __slots__ = ("is_exiting", "task_id", "work")

    def __init__(self) -> None:
        #: 0 if nothing runs.
        self.task_id = 0
        #: The work itself; None if nothing runs.
        self.work: Work | None = None
        #: Whether the work has asked for its actor's end: then it has no result, even if it catches the exception.
        self.is_exiting = False

    def begin(self, task_id: int, work: Work) -> None:
        """Note that a task or call runs."""
        self.task_id, self.work, self.is_exiting = task_id, work, False

    def end(self) -> None:
        """Note that nothing runs; drop the work, which holds handles."""
        self.task_id, self.work = 0, None

    def request_exit(self) -> None:
        """Note that the work has asked for its actor's end."""
        self.is_exiting = True

    @property
    def name(self) -> str:
        """The running work's name, for messages."""
        return self.work.name if self.work is not None else ""

    @property
    def extra(self) -> dict[str, Any]:
        """The facts that only some tasks have; empty if nothing runs."""
        return (self.work.extra or {}) if self.work is not None else {}


class Taker(Protocol):
    """The process's main loop, as its engine knows it: it runs the work that comes."""

    def take_message(self, message: channel.Message) -> None:
        """Take a message that is work rather than an answer. Called with the lock held."""

    def enqueue(self, work: Any) -> None:
        """Take work that was kept back for order. Called with the lock held."""

    def take_unstarted(self) -> list[tuple[int, int]]:
        """Empty the queue, and return the tasks with their numbers. Called with the lock held."""

    def check(self) -> None:
        """Raise the exceptions of signals' handlers in the thread that uses the engine. Called without the lock."""

    def note_exit(self) -> None:
        """End the actor soon, whatever runs."""

    def name_function(self, running: Running) -> str:
        """Return the full name of the running function."""


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.running = Running()


current: contextvars.ContextVar[Running] = contextvars.ContextVar("current")
"""The work of the coroutine; not set in ordinary threads."""


@final
class Duty:
    """The worker's number, its actor if it has one, and the running work.

    Args:
        worker_id: The number. Ids that are made here begin with it, so a submission or a put needs no answer.
    """

    def __init__(self, worker_id: int) -> None:
        self.worker_id = worker_id
        self.ids = itertools.count((worker_id << 40) + 1)
        self.setup: dict[str, Any] = {"job_id": "", "node_id": "", "namespace": "", "has_cpu": True}
        self.actor_id = 0
        self.actor_extra: Mapping[str, Any] = {}
        #: Tasks and calls that were cancelled.
        self.cancelled: set[int] = set()
        self._threads = _ThreadState()

    @property
    def running(self) -> Running:
        """The work of the calling thread or coroutine."""
        return current.get(None) or self._threads.running

    def make_ids(self, count: int) -> int:
        """Return the first of so many consecutive ids."""
        first = next(self.ids)
        for _ in range(count - 1):
            next(self.ids)
        return first

    def become_actor(self, actor_id: int, extra: Mapping[str, Any]) -> None:
        """Make the process an actor's from now on."""
        self.actor_id, self.actor_extra = actor_id, extra
