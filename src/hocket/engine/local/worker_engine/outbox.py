"""Messages of a worker, and the moments at which it sends them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final

from hocket.engine import contract, descriptors, events, faults
from hocket.engine.local import direct_channels, journal, messages, payloads, reactor, store
from hocket.engine.local.worker_engine import arrivals
from hocket.kernel import metrics as kernel_metrics

NOTES_SECONDS: Final = 0.1
"""How long the note of a direct call that is over may wait."""

MAX_NOTES: Final = 1000
"""How many notes of direct calls are sent at a time; of more, the last ones. Notes are for inspection only. They must
not fill the socket of a busy driver: an actor that answers 90,000 calls a second would wait for it."""

METRICS_SECONDS: Final = 1.0
"""How long a running task's metrics may wait to be sent with other messages, if the task goes on counting."""


class Pace(Protocol):
    """The part that decides when unsent messages go."""

    def flush_soon(self) -> None:
        """Send all unsent messages now, or, on an event loop, at the end of its round. Called without the lock."""

    def flush_later(self) -> None:
        """Have unsent messages sent within some ticks, whatever this thread does next. Called with the lock held."""


@final
class Outbox:
    """The messages to the driver and to other workers.

    Args:
        engine: The engine, with dropped handles and metrics.
        lock: The engine's lock.
        driver: The channel to the driver.
        direct: The direct channels to other workers.
        known: The process's handles.
        come: The values that have come.
        memory: The segments of this process.
        ring: The process's ring of events; written with the lock held.
        waiters: The threads that wait.
    """

    def __init__(
        self,
        engine: contract.Engine,
        lock: threading.RLock,
        driver: journal.JournalChannel,
        direct: direct_channels.DirectChannels,
        known: arrivals.WorkerHandles,
        come: arrivals.Arrivals,
        memory: store.WorkerStore,
        ring: events.EventRing,
        waiters: reactor.Reactor,
    ) -> None:
        self._engine, self._lock, self._driver, self._direct = engine, lock, driver, direct
        self._handles, self._arrivals, self._store, self.ring, self._waiters = known, come, memory, ring, waiters
        self._pace: Pace = self
        self.last_flush = 0.0
        #: Unsent notes of direct calls that are over.
        self.notes = deque[tuple[int, str, float, float, str | None, str]](maxlen=MAX_NOTES)
        self._notes_sent = 0.0
        self._unmapped: deque[int] = deque()

    # --- the moments --------------------------------------------------------------------------------------------------

    def set_pace(self, pace: Pace) -> None:
        """Let another part, an event loop, decide when to send."""
        self._pace = pace

    def send_soon(self) -> None:
        """See `Pace.flush_soon`."""
        self._pace.flush_soon()

    def send_later(self) -> None:
        """See `Pace.flush_later`."""
        self._pace.flush_later()

    def flush_soon(self) -> None:
        with self._lock:
            self.flush()

    def flush_later(self) -> None:
        self._waiters.nudge()

    def flush_if_old(self) -> None:
        """Send all unsent messages if the last sending was more than `METRICS_SECONDS` ago."""
        if time.perf_counter() - self.last_flush > METRICS_SECONDS:
            self.flush_soon()

    def before_wait(self) -> float | None:
        """Send all unsent messages; return how long to wait at most if notes remain to be sent. Called with the lock
        held."""
        self.drain_dropped()
        if self.notes:
            now = time.perf_counter()
            if now - self._notes_sent > NOTES_SECONDS:
                self._notes_sent = now
                if descriptors.is_writable(self._driver.fd):
                    self._driver.post((messages.NOTES, list(self.notes)))
                    self.notes.clear()
        self.flush()
        return NOTES_SECONDS if self.notes else None

    def flush(self) -> None:
        """Send the outbox; waits if the driver is slow, because a worker has nothing better to do. Called with the lock
        held."""
        if faults.plan is not None and self._driver.has_unsent():
            faults.plan.reach("worker.in_flush")
        if self._engine.metrics.store.families:
            self.post_metrics()
        self._direct.flush()
        self._driver.flush()
        self.ring.flush()
        self.last_flush = time.perf_counter()

    def has_unsent(self) -> bool:
        """Tell whether any message waits to be sent."""
        return self._driver.has_unsent() or self._direct.has_unsent()

    def owes(self) -> bool:
        """Tell whether values that were promised to the driver have not come yet, or calls have not been sent."""
        return self._arrivals.owes() or self._direct.is_clogged()

    # --- the messages -------------------------------------------------------------------------------------------------

    def note(self, kind: events.Kind, name: str, started: float, seconds: float, subject: int) -> None:
        """Record a span of this process's time outside its tasks; see `events.note`."""
        with self._lock:
            self.ring.record(kind, name, started, seconds, subject)

    def post_metrics(self) -> None:
        """Post the metrics. Posted before a result, they are there for the reader of the result."""
        with self._engine.metrics.lock:
            self._driver.post((messages.METRICS, self._engine.metrics.store.take()))

    def send_payload(self, payload: payloads.Payload) -> payloads.Payload:
        """Put the descriptor of a payload's segment in the outbox. Called with the lock held, in order of messages."""
        if payload[0] == payloads.SEGMENT:
            self._driver.outbox_fds.append(self._store.pool.used[payload[2]].fd)
        return payload

    # --- handles that are gone ----------------------------------------------------------------------------------------

    def drain_dropped(self) -> None:
        """Give back the counts of handles that have been garbage-collected. Called with the lock held."""
        known = self._handles
        while self._unmapped:
            self._driver.post_later((messages.UNMAP, self._unmapped.popleft()))
        dropped = self._waiters.bell.usual
        while dropped:
            object_id = dropped.popleft()
            if object_id == contract.NO_ID:
                continue
            known.forget(object_id)
            if object_id not in known.interned:  # else a new handle took over the receipts
                self._arrivals.drop(object_id)

    def note_unmapped(self, object_id: int) -> None:
        """Note the end of a mapping. A finalizer calls this in any thread at any moment, so without a lock."""
        self._unmapped.append(object_id)
        self._engine.dropped.append(contract.NO_ID)  # wakes a thread that sleeps


@final
class WorkerMetrics(contract.Metrics):
    """Counts and measurements that a worker has not sent.

    Args:
        send: Sends unsent messages, if the last sending was long ago.
    """

    def __init__(self, send: Callable[[], None]) -> None:
        super().__init__()
        self._send = send

    def record(self, batch: kernel_metrics.Batch) -> None:
        super().record(batch)
        self._send()
