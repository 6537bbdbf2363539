"""What the engine in a worker knows, and what it owes the driver.

Ids are made here, ``worker_id << 40 | counter``, so submitting and putting need no answer. Small values that were
fetched once are kept while a handle on them lives; large ones are mapped anew for each `get`.

**Counting.** The driver counts, for each worker, how often it gave the worker a reference (`_receipts` here). When the
last handle of this process is collected, all receipts go back in one `DROP`. Handles for references in queued work are
made on arrival and kept with the work, so that a `DROP` can never give back a receipt that is still needed.
"""

from __future__ import annotations

import abc
import contextvars
import itertools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from hocket.engine import contract, descriptors, events, faults, interrupts, pinned
from hocket.engine.local import channel, direct_channels, journal, messages, payloads, reactor, store
from hocket.kernel import metrics as kernel_metrics

NOTES_SECONDS = 0.1
"""How long the driver may not know of a direct call that is over."""

MAX_NOTES = 1000
"""How many direct calls the driver is told of at a time; of more, the last ones. They are for those who look, so they
never fill the socket of a driver that computes: an actor that answers 90,000 calls a second would wait for it."""


class Arrived:
    """A value that the driver sent."""

    __slots__ = ("held", "payload")

    def __init__(self, payload: payloads.Payload, held: list[contract.ObjectRef[object]]) -> None:
        self.payload = payload
        #: Handles on the references inside the value.
        self.held = held


class Work(Protocol):
    """A task or call, as far as it matters here."""

    name: str
    #: Which function; empty for a method.
    function_id: bytes
    method: str
    extra: dict[str, Any] | None


class Running:
    """What a thread, or a coroutine of an asynchronous actor, runs."""

    __slots__ = ("is_exiting", "task_id", "work")

    def __init__(self) -> None:
        #: 0 if it runs nothing.
        self.task_id = 0
        #: What it runs; None in between.
        self.work: Work | None = None
        #: Whether it has asked for the end of its actor: then it has no result, whatever becomes of the exception.
        self.is_exiting = False

    @property
    def name(self) -> str:
        """What runs, for messages."""
        return self.work.name if self.work is not None else ""

    @property
    def extra(self) -> dict[str, Any]:
        """What only some tasks have; nothing if none runs."""
        return (self.work.extra or {}) if self.work is not None else {}


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.running = Running()


current: contextvars.ContextVar[Running] = contextvars.ContextVar("current")
"""What the coroutine runs; not set in ordinary threads."""


class WorkerEngineState(
    contract.Tasks,
    contract.Actors,
    contract.Objects,
    contract.Resources,
    contract.View,
    contract.Handles,
    contract.Engine,
):
    """The tables, the lock and the way to the driver."""

    name = "local"
    is_closable = False

    ring: events.EventRing
    """What this process has to tell; written with the lock held. Set before it runs anything."""

    def __init__(self, worker_id: int, sock: socket.socket, page_fd: int) -> None:
        contract.Engine.__init__(self)
        contract.Handles.__init__(self, self)
        self.tasks = self.actors = self.objects = self.resources = self.view = self.handles = self
        self.metrics = WorkerMetrics(self)
        self.worker_id = worker_id
        self.lock = threading.RLock()
        self.channel = journal.JournalChannel(sock, page_fd)
        self._thread_state = _ThreadState()
        self.setup: dict[str, Any] = {"job_id": "", "node_id": "", "namespace": "", "has_cpu": True}
        self.actor_id: int = 0
        self.actor_extra: dict[str, Any] = {}
        self.cancelled: set[int] = set()
        self.last_flush = 0.0
        #: Sends what is unsent: now, or, on an event loop, at the end of its round.
        self.flush_soon: Callable[[], None] = self._flush_locked
        #: Handles messages that are work for this process rather than answers.
        self.on_work: Callable[[channel.Message], None] = lambda message: None
        #: Takes work that was kept back for order.
        self.on_late: Callable[[Any], None] = lambda work: None
        #: Called without the lock when something may have to be raised in the thread that uses the engine.
        self.check: Callable[[], None] = _do_nothing
        #: Ends the actor soon, whatever runs.
        self.on_exit: Callable[[], None] = _do_nothing
        #: Returns the full name of what runs.
        self.name_function: Callable[[Running], str] = lambda running: running.name
        #: Takes back what has not been started; called with the lock held.
        self.take_unstarted: Callable[[], list[tuple[int, int]]] = list
        self._ids = itertools.count((worker_id << 40) + 1)
        self.store = store.WorkerStore(self.lock, ask_room=self._ask_room, explain_full=self._explain_full)
        self._arrived: dict[int, Arrived] = {}
        self._wanted: set[int] = set()
        self._ready: set[int] = set()
        #: Of the questions that somebody waits for; None as long as it has not come.
        self._answers: dict[int, tuple[bool, bytes, list[contract.ObjectRef[object]]] | None] = {}
        self._room_questions: set[int] = set()
        self._receipts: dict[int, int] = {}
        self._callbacks: dict[int, list[Callable[[], None]]] = {}
        self._deadlocks: dict[int, str] = {}
        self.direct = direct_channels.DirectChannels(self)
        #: Objects that will come by a direct channel.
        self._expected: set[int] = set()
        #: Those of them that a `wait` waits for: if the direct channel breaks, the driver is asked to tell of them.
        self._watched: set[int] = set()
        #: Objects of ours that the driver does not know.
        self._private: set[int] = set()
        #: Those of `_expected` that the driver was promised.
        self._promised: set[int] = set()
        #: Direct calls that are over, and that the driver has not been told of.
        self.notes = deque[tuple[int, str, float, float, str | None, str]](maxlen=MAX_NOTES)
        self._notes_sent = 0.0
        self._unmapped: deque[int] = deque()
        self._exported: set[bytes] = set()
        self._options_blobs: dict[object, bytes] = {}
        self.guard = interrupts.InterruptGuard(self.lock, find_running=lambda: self.running.task_id)
        self.reactor = reactor.Reactor(
            self,
            self.lock,
            build=lambda _: self,
            guard=self.guard,
            check=self._check,
            name="hocket-reader",
        )
        self.reactor.watch(self.channel.fd)

    @property
    def running(self) -> Running:
        """What the calling thread or coroutine runs."""
        return current.get(None) or self._thread_state.running

    # --- of the layers above ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _check(self) -> None:
        """Raise what is to be raised in the thread that waits. Called without the lock."""

    @abc.abstractmethod
    def handle(self, fd: int, mask: int) -> None:
        """Handle what has come on a descriptor. Called with the lock held."""

    @abc.abstractmethod
    def _ask_room(self, needed: int) -> bool:
        """Ask for room for a new segment, and wait until it is granted or refused."""

    @abc.abstractmethod
    def _explain_full(self, size: int, reason: str, is_disk: bool) -> str:
        """Return the message for a value that finds no room."""

    @abc.abstractmethod
    def take_answer(self, object_id: int, payload: payloads.Payload) -> None:
        """A value has come by a direct channel."""

    @abc.abstractmethod
    def give_to_driver(self, object_ids: Iterable[int]) -> None:
        """The driver knows these objects from now on, and will bring them."""

    # --- sending ------------------------------------------------------------------------------------------------------

    def before_wait(self) -> float | None:
        """Send everything that is unsent; return how long to wait at most, if there is something to send later."""
        self._drain_dropped()
        if self.notes:
            now = time.perf_counter()
            if now - self._notes_sent > NOTES_SECONDS:
                self._notes_sent = now
                if descriptors.is_writable(self.channel.fd):
                    self.channel.post((messages.NOTES, list(self.notes)))
                    self.notes.clear()
        self.flush()
        return NOTES_SECONDS if self.notes else None

    def flush(self) -> None:
        """Send the outbox; waits if the driver is slow, because a worker has nothing better to do."""
        if faults.plan is not None and self.channel.has_unsent():
            faults.plan.reach("worker.in_flush")
        if self.metrics.store.families:
            self.post_metrics()
        self.direct.flush()
        self.channel.flush()
        self.ring.flush()
        self.last_flush = time.perf_counter()

    def note(self, kind: events.Kind, name: str, started: float, seconds: float, subject: int) -> None:
        """Write down what this process spent time on beside its tasks; see `events.note`."""
        with self.lock:
            self.ring.record(kind, name, started, seconds, subject)

    def post_metrics(self) -> None:
        """Send what has been counted; before a result, so that its reader also sees what was counted on the way."""
        with self.metrics.lock:
            self.channel.post((messages.METRICS, self.metrics.store.take()))

    def has_unsent(self) -> bool:
        """Tell whether anything waits to be sent."""
        return self.channel.has_unsent() or self.direct.has_unsent()

    def owes(self) -> bool:
        """Tell whether values that were promised to the driver have not come yet, or calls have not been sent."""
        return bool(self._promised) or self.direct.is_clogged()

    def flush_later(self) -> None:
        """Have what is unsent sent within some ticks, whatever this thread does next. Called with the lock held."""
        self.reactor.nudge()

    def _flush_locked(self) -> None:
        with self.lock:
            self.flush()

    def send_payload(self, payload: payloads.Payload) -> payloads.Payload:
        """Put the descriptor of a payload's segment on its way. Called with the lock held, in the order of the
        messages."""
        if payload[0] == payloads.SEGMENT:
            self.channel.outbox_fds.append(self.store.pool.used[payload[2]].fd)
        return payload

    # --- counts -------------------------------------------------------------------------------------------------------

    def hold(self, object_ids: Sequence[int]) -> list[contract.ObjectRef[object]]:
        """Count a receipt for each reference that came with a message, and return handles that keep them."""
        held = []
        for object_id in object_ids:
            self._receipts[object_id] = self._receipts.get(object_id, 0) + 1
            held.append(self.intern(object_id))
        return held

    def reduce_pinned(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        return pinned.reduce(self.setup["job_id"], ref)

    def intern(self, object_id: int) -> contract.AnyRef:
        with self.lock:  # the background reader must not give receipts back between the look and the new handle
            return super().intern(object_id)

    def adopt(self, object_id: int) -> None:
        if object_id not in self._receipts:
            with self.lock:
                self._receipts[object_id] = 1
                self.channel.post((messages.ADOPT, object_id))

    def _own(self, object_id: int) -> contract.ObjectRef[object]:
        """Return the first handle on an object that this process has just announced to the driver."""
        self._receipts[object_id] = 1
        return contract.ObjectRef(object_id, self)

    def _make_ids(self, count: int) -> int:
        first = next(self._ids)
        for _ in range(count - 1):
            next(self._ids)
        return first

    def _drain_dropped(self) -> None:
        post = self.channel.post_later
        while self._unmapped:
            post((messages.UNMAP, self._unmapped.popleft()))
        dropped = self.reactor.bell.usual
        while dropped:
            object_id = dropped.popleft()
            if object_id == contract.NO_ID:
                continue
            self.forget(object_id)
            if object_id in self.interned:
                continue  # a new handle took over the receipts
            if object_id in self._private:
                self._private.discard(object_id)
                self._receipts.pop(object_id, None)
                self._arrived.pop(object_id, None)
                continue
            unread = self._arrived.pop(object_id, None)
            if unread is not None and unread.payload[0] == payloads.SEGMENT:
                os.close(unread.payload[-1])
                post((messages.UNMAP, object_id))
            unread = None  # it may hold handles on others, which would miss this round
            self._ready.discard(object_id)
            receipts = self._receipts.pop(object_id, 0)
            if receipts:
                post((messages.DROP, object_id, receipts))

    def _note_unmapped(self, object_id: int) -> None:
        """Called by a finalizer, in any thread at any moment, so without a lock."""
        self._unmapped.append(object_id)
        self.dropped.append(contract.NO_ID)  # if somebody sleeps, it wakes


def _do_nothing() -> None:
    pass


METRICS_SECONDS = 1.0
"""How long what a running task counts may wait for company at most, if it goes on counting."""


class WorkerMetrics(contract.Metrics):
    """What a worker has counted and not sent."""

    def __init__(self, engine: WorkerEngineState) -> None:
        super().__init__()
        self._engine = engine

    def record(self, batch: kernel_metrics.Batch) -> None:
        super().record(batch)
        if time.perf_counter() - self._engine.last_flush > METRICS_SECONDS:
            with self._engine.lock:
                self._engine.flush()
