"""What happens between two waits: messages are handled, dropped handles counted, silent workers noticed.

Results are read by whoever waits (see `reactor`).
"""

from __future__ import annotations

import time

from hocket.engine.local import links, messages, reactor
from hocket.engine.local.driver import watch

STALL_SECONDS = 0.02
"""How long a task may run before what stands behind it is taken back."""

SILENT_SECONDS = 2.0
"""How long a worker may take to start what it was sent. A guess: it may be just being forked, on a busy machine."""


class EventHandling(watch.Watch):
    """Handles events."""

    def _before_wait(self) -> float | None:
        if self.dropped:
            self._drain_dropped()
        for link in list(self._dirty):
            self.flush(link)
        if self.spans:
            self._write_spans()
        if self.end is not None:
            return 0.05
        now = time.monotonic()
        limit_s = self._look(now)
        stalled = self.kernel.find_stalled()
        if not stalled:
            return limit_s
        for worker in stalled:
            silent = self.links.get(worker.id)
            if silent is not None:  # else it could not be started, which is about to be told
                self._look_for_progress(silent, now)
        if self.kernel.instructions:
            self.carry_out()
        return STALL_SECONDS

    def _look_for_progress(self, link: links.Link, now: float) -> None:
        """Take back what stands behind a task that takes long, or in a worker that is silent."""
        begun = link.page.read_begun()
        if begun != link.begun or now - link.looked_at > 4 * STALL_SECONDS:  # it has had nothing to do meanwhile
            link.begun, link.begun_at = begun, now
        link.looked_at = now
        worker = link.worker
        is_running = next(iter(worker.inflight.values())).number <= begun
        if now - link.begun_at > (STALL_SECONDS if is_running else SILENT_SECONDS):
            self.kernel.withdraw(worker, link.page.withdraw(worker.sent))

    def _handle(self, fd: int, mask: int) -> None:
        link = self._by_fd.get(fd)
        if link is None:
            if self.guardian is not None and fd == self.guardian.fd:
                self._hear_guardian()
            elif self._endpoint is not None and fd == self._endpoint.fd:
                self._endpoint.answer(lambda: self._view.build_snapshot(self.statistics()))
            return
        if link.is_writable_watched:
            self.flush(link)
        if mask & reactor.READABLE:
            self._hear_worker(link)
            if link.channel.outbox:  # answers to what it asked
                self._dirty.add(link)
        if self.kernel.instructions or self._dirty:
            self.carry_out()

    def _drain_dropped(self) -> None:
        if self.store.unmapped:
            self.store.drain_unmapped()
        if self.functions.dropped or self.functions.unused:
            self._forget_functions()
        self.kernel.release_dropped(self.reactor.bell.usual, self.interned, self.forget)
        if self.kernel.instructions:
            self.carry_out()

    def _forget_functions(self) -> None:
        """Have the workers forget the code that nobody needs."""
        for function_id in self.functions.drain():
            for link in self.links.values():
                if function_id in link.functions:
                    link.functions.discard(function_id)
                    link.channel.post((messages.FORGET, function_id))
                    self._dirty.add(link)
