"""The round between two waits: it handles messages, counts dropped handles, and notices silent workers.

The threads that wait read the results (see `reactor`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, final

from hocket.engine import contract, kernel_parts
from hocket.engine.local import links, reactor
from hocket.engine.local.driver import floor, guardianship, watch, worker_pool

STALL_SECONDS: Final = 0.02
"""How long a task may run before the tasks behind it are taken back."""

SILENT_SECONDS: Final = 2.0
"""How long a worker may take to start its next task. A guess: it may be just being forked, on a busy machine."""

CLOSED_SECONDS: Final = 0.05
"""How long to wait at most in a session that is over."""


@final
class Rounds:
    """See `reactor.Handler`.

    Args:
        engine: The engine; its handles may have been dropped.
        session: The kernel.
        base: Carries out the kernel's instructions.
        ends: The links to the workers.
        parent: The parent of the workers.
        pool: The workers.
        clock: The periodic checks.
        build_snapshot: Returns a snapshot for another process of the user's.
    """

    def __init__(
        self,
        engine: contract.Engine,
        session: kernel_parts.Session,
        base: floor.Floor,
        ends: links.Links,
        parent: guardianship.Guardianship,
        pool: worker_pool.WorkerPool,
        clock: watch.Watch,
        build_snapshot: Callable[[], dict[str, object]],
    ) -> None:
        self._engine, self._session, self._kernel, self._floor = engine, session, session.kernel, base
        self._links, self._parent, self._pool, self._watch = ends, parent, pool, clock
        self._build_snapshot = build_snapshot

    def before_wait(self) -> float | None:
        if self._engine.dropped:
            self._floor.drain_dropped()
        if self._links.dirty:
            for link in list(self._links.dirty):
                self._links.flush(link)
        if self._parent.spans:
            self._parent.write_spans()
        if self._session.end is not None:
            return CLOSED_SECONDS
        now, due_at = time.monotonic(), self._watch.due_at
        limit_s = due_at - now if now < due_at else self._watch.look(now)
        stalled = self._kernel.find_stalled() if self._kernel.may_stall else None
        if not stalled:
            return limit_s
        for worker in stalled:
            silent = self._links.by_worker.get(worker.id)
            if silent is not None:  # else the worker could not be started, and its death follows
                self._look_for_progress(silent, now)
        if self._kernel.instructions:
            self._floor.carry_out()
        return STALL_SECONDS

    def _look_for_progress(self, link: links.Link, now: float) -> None:
        """Take back the tasks behind a long task, or in a silent worker."""
        begun, worker = link.page.read_begun(), link.worker
        seconds = link.note_progress(begun, now, 4 * STALL_SECONDS)
        is_running = next(iter(worker.inflight.values())).number <= begun
        if seconds > (STALL_SECONDS if is_running else SILENT_SECONDS):
            self._kernel.withdraw(worker, link.page.withdraw(worker.sent))

    def handle(self, fd: int, mask: int) -> None:
        link = self._links.by_fd.get(fd)
        if link is None:
            guardian, endpoint = self._parent.guardian, self._parent.endpoint
            if guardian is not None and fd == guardian.fd:
                self._pool.hear_guardian(guardian)
            elif endpoint is not None and fd == endpoint.fd:
                endpoint.answer(self._build_snapshot)
            return
        if link.is_writable_watched:
            self._links.flush(link)
        if mask & reactor.READABLE:
            self._pool.hear(link)
            if link.channel.outbox:  # answers to questions
                self._links.dirty[link] = None
        if self._kernel.instructions or self._links.dirty:
            self._floor.carry_out()
