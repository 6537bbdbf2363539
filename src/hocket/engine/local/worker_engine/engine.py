"""The engine as a worker process sees it: it forwards everything to the driver. This module puts its parts together."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import final

from hocket.engine import contract, events, forks, interrupts
from hocket.engine.local import direct_channels, journal, reactor, store
from hocket.engine.local.worker_engine import arrivals, duty, inbox, objects, outbox, questions, tasks


@final
class WorkerEngine(contract.Engine):
    """The worker's side of the contract.

    Args:
        worker_id: The worker's number.
        sock: The worker's end of the socket to the driver.
        page_fd: The descriptor of the worker's page.
        ring: The worker's ring of events.
        build: Returns the main loop, which runs the work. Called once, with the engine, which the loop needs.
    """

    name = "local"
    is_closable = False

    def __init__(
        self,
        worker_id: int,
        sock: socket.socket,
        page_fd: int,
        ring: events.EventRing,
        build: Callable[[WorkerEngine], duty.Taker],
    ) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.duty = duty.Duty(worker_id)
        self.channel = journal.JournalChannel(sock, page_fd)
        self.ring = ring
        self.metrics = outbox.WorkerMetrics(self._send_metrics)
        self.handles = self.known = arrivals.WorkerHandles(self, self.lock, self.channel, self.duty)
        self.guard = interrupts.InterruptGuard(self.lock, find_running=lambda: self.duty.running.task_id)
        self.reactor = reactor.Reactor(
            self,
            self.lock,
            build=lambda made: self._build_parts(made, build),
            guard=self.guard,
            check=self._check,
            name="hocket-reader",
        )
        self.reactor.watch(self.channel.fd)

    def _build_parts(self, made: reactor.Reactor, build: Callable[[WorkerEngine], duty.Taker]) -> inbox.Inbox:
        """Make the parts, each from the parts before it."""
        lock, driver, own, known = self.lock, self.channel, self.duty, self.known
        self.reactor = made
        come = self.arrivals = arrivals.Arrivals(driver, known, made.due)
        asked = self.questions = questions.Questions(lock, driver, own, known, come, made)

        def ask_room(needed: int) -> bool:
            return asked.ask_room(memory, needed)

        memory = self.store = store.WorkerStore(lock, ask_room=ask_room, explain_full=asked.explain_full)
        taker = self.taker = build(self)
        direct = self.direct = direct_channels.DirectChannels(driver, made, come, taker, self._flush_later)
        post = self.outbox = outbox.Outbox(self, lock, driver, direct, known, come, memory, self.ring, made)
        self.tasks = tasks.WorkerTasks(lock, driver, own, known, come, post, asked, direct, memory, taker)
        waits = self.objects = self.values = objects.WorkerObjects(
            self, lock, driver, own, known, come, post, asked, direct, memory, made, taker
        )
        self.actors = questions.AskedActors(asked, own, taker)
        self.resources = questions.AskedResources(asked)
        self.view = questions.WorkerView(own, asked, taker)
        return inbox.Inbox(driver, come, asked, waits, direct, post, memory, taker)

    def _check(self) -> None:
        self.taker.check()

    def _send_metrics(self) -> None:
        self.outbox.flush_if_old()

    def _flush_later(self) -> None:
        self.outbox.send_later()

    def cut_off(self) -> None:
        self.guard.remove()
        self.reactor.cut_off()
        self.channel.cut_off()
        self.direct.cut_off()
        self.lock = threading.RLock()  # a thread of the parent may hold the old one
        forks.cut_off(self)

    def close(self) -> None:
        """Do nothing: the guardian ends workers, and a task cannot close the session that it runs in."""
