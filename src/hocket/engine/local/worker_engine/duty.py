"""The duty of a worker process: its number, its actor, and the task that runs."""

from __future__ import annotations

import contextvars
import itertools
import threading
from collections.abc import Mapping
from typing import Any, Protocol, final

from hocket.engine.local import channel


class Work(Protocol):
    """A task or call, as far as it matters here."""

    name: str
    #: Which function; empty for a method.
    function_id: bytes
    method: str
    extra: dict[str, Any] | None


@final
class Running:
    """The work of a thread, or of a coroutine of an asynchronous actor."""

    __slots__ = ("is_exiting", "task_id", "work")

    def __init__(self) -> None:
        #: 0 if it runs nothing.
        self.task_id = 0
        #: The work itself; None in between.
        self.work: Work | None = None
        #: Whether it has asked for the end of its actor: then it has no result, whatever becomes of the exception.
        self.is_exiting = False

    def begin(self, task_id: int, work: Work) -> None:
        """Run a task or call."""
        self.task_id, self.work, self.is_exiting = task_id, work, False

    def end(self) -> None:
        """Run nothing; let go of what ran, which holds handles."""
        self.task_id, self.work = 0, None

    def request_exit(self) -> None:
        """End the actor."""
        self.is_exiting = True

    @property
    def name(self) -> str:
        """The running work's name, for messages."""
        return self.work.name if self.work is not None else ""

    @property
    def extra(self) -> dict[str, Any]:
        """Facts that only some tasks have; nothing if none runs."""
        return (self.work.extra or {}) if self.work is not None else {}


class Taker(Protocol):
    """The process's main loop, as its engine knows it: it runs the work that comes."""

    def take_message(self, message: channel.Message) -> None:
        """Take a message that is work rather than an answer. Called with the lock held."""

    def enqueue(self, work: Any) -> None:
        """Take work that was kept back for order. Called with the lock held."""

    def take_unstarted(self) -> list[tuple[int, int]]:
        """Give back what has not been started. Called with the lock held."""

    def check(self) -> None:
        """Raise what is to be raised in the thread that uses the engine. Called without the lock."""

    def note_exit(self) -> None:
        """End the actor soon, whatever runs."""

    def name_function(self, running: Running) -> str:
        """Return the full name of what runs."""


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.running = Running()


current: contextvars.ContextVar[Running] = contextvars.ContextVar("current")
"""What the coroutine runs; not set in ordinary threads."""


@final
class Duty:
    """The worker's number, its actor if it has one, and what runs.

    Args:
        worker_id: The number. Ids that are made here begin with it, so submitting and putting need no answer.
    """

    def __init__(self, worker_id: int) -> None:
        self.worker_id = worker_id
        self.ids = itertools.count((worker_id << 40) + 1)
        self.setup: dict[str, Any] = {"job_id": "", "node_id": "", "namespace": "", "has_cpu": True}
        self.actor_id = 0
        self.actor_extra: Mapping[str, Any] = {}
        #: Tasks and calls that somebody does not want any more.
        self.cancelled: set[int] = set()
        self._threads = _ThreadState()

    @property
    def running(self) -> Running:
        """The work of the calling thread or coroutine."""
        return current.get(None) or self._threads.running

    def make_ids(self, count: int) -> int:
        """Return the first of so many ids in a row."""
        first = next(self.ids)
        for _ in range(count - 1):
            next(self.ids)
        return first

    def become_actor(self, actor_id: int, extra: Mapping[str, Any]) -> None:
        """The process is an actor's from now on."""
        self.actor_id, self.actor_extra = actor_id, extra
