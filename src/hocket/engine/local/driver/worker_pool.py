"""The workers' births and deaths, as the guardian reports them, and their messages in between."""

from __future__ import annotations

import functools
import socket
import time
from typing import final

from hocket import exceptions
from hocket._base import texts
from hocket.engine import descriptors, events, faults, inspection, kernel_parts
from hocket.engine.local import channel, driver_store, functions, links, messages, processes, reactor
from hocket.engine.local.driver import courier, guardianship, inbox
from hocket.kernel import records


@final
class WorkerPool:
    """The starts, messages and deaths of workers. Every method is called with the lock held.

    Args:
        session: The kernel, and whether the session is over.
        ends: The links to the workers.
        parent: The parent of the workers.
        mail: Handles the workers' messages.
        carrier: Carries out the kernel's instructions.
        store: The objects in shared memory.
        table: The code of functions.
        waiters: The threads that wait.
        setup: The first message to each worker.
    """

    def __init__(
        self,
        session: kernel_parts.Session,
        ends: links.Links,
        parent: guardianship.Guardianship,
        mail: inbox.Inbox,
        carrier: courier.Courier,
        store: driver_store.DriverStore,
        table: functions.Functions,
        waiters: reactor.Reactor,
        setup: channel.Message,
    ) -> None:
        self._session, self._kernel, self._links, self._parent = session, session.kernel, ends, parent
        self._inbox, self._courier, self._store, self._functions = mail, carrier, store, table
        self._waiters, self._setup = waiters, setup

    def start(self, worker: records.WorkerRecord) -> None:
        """Have a process forked for a worker."""
        if self._session.is_closed:
            return  # a last message has asked for a worker, and no code would close its sockets
        guardian = self._parent.open()
        descriptors.reserve_standard()  # the program may have become a daemon since
        try:
            link, theirs = links.Link.open(worker)
        except OSError as error:
            death = exceptions.Death(
                pid=0, explanation=f"could not be started: the driver: {descriptors.explain_os_error(error)}"
            )
            self._waiters.due.append(functools.partial(self._lose_unborn, worker, death))
            self._waiters.wake()
            return
        self._links.add(link)
        link.channel.post(self._setup)
        guardian.spawn(worker.id, theirs, link.page)
        self._links.dirty[link] = None

    def _lose_unborn(self, worker: records.WorkerRecord, death: exceptions.Death) -> None:
        with self._session.lock:
            if worker.id in self._kernel.workers:
                self._session.note_failure()
                self._kernel.lose(worker, death, set())
                self._courier.carry_out()

    # --- messages -----------------------------------------------------------------------------------------------------

    def hear(self, link: links.Link) -> None:
        """Read a worker's messages, and handle them."""
        try:
            received = link.channel.receive()
            if received is not None:
                if faults.plan is not None:
                    faults.plan.reach("hub.in_handle")
                self._inbox.handle(link, received)
                if link.channel.outbox:  # answers to questions
                    self._links.dirty[link] = None
                return
        except Exception as error:  # noqa: BLE001
            # No message of a worker may bring the session down: a message that makes no sense ends its sender.
            link.refuse()
            self._session.note_error(0, "a worker's socket", texts.name_class(type(error)), texts.safe_text(error))
            self._parent.kill(link.worker.id)
        self._hang_up(link)

    def _hang_up(self, link: links.Link) -> None:
        if self._links.hang_up(link):
            self._parent.owe(link.worker.id)

    def hear_guardian(self, guardian: processes.GuardianProcess) -> None:
        """Read the guardian's messages, and handle them."""
        if self._session.is_closed:
            return  # the guardian is ending, and `close` may have closed its socket by now
        received = guardian.receive()
        if received is None:
            self._waiters.unwatch(guardian.fd)
            self._fail_all(
                exceptions.LocalEngineDiedError(
                    f"The guardian (pid {guardian.pid}), the parent of all workers, is gone, so the session is "
                    f"over. {guardian.explain_end()}Call hocket.shutdown() and hocket.init() to start again."
                )
            )
            return
        for message in received:
            if message[0] == messages.SPAWNED:
                link = self._links.by_worker.get(message[1])
                if link is not None:
                    link.note_birth(message[2])
                    self._parent.note_pid(message[1], message[2])
            elif message[0] == messages.DIED:
                self._bury(message[1], processes.parse_death(message))
        self._courier.carry_out()

    # --- deaths -------------------------------------------------------------------------------------------------------

    def _bury(self, worker_id: int, death: exceptions.Death) -> None:
        link = self._links.by_worker.get(worker_id)
        if link is None:
            return
        while not link.is_closed:  # messages that it sent before its death still count
            if _is_readable(link.channel.sock):
                self.hear(link)
            else:
                self._hang_up(link)
        self._hear_last_words(link)
        running = self._list_running(link)
        worker = link.worker
        self._parent.lost.append(inspection.LostWorker(worker_id, death, time.time(), worker.killed))
        if not worker.killed:
            self._parent.note(events.Kind.DEATH, "death of a worker", time.perf_counter(), 0.0, link.pid)
        self._links.remove(link)
        self._inbox.forget_worker(worker_id)
        self._store.lose_worker(worker_id)
        self._functions.lose_worker(link.exported, worker_id)
        if worker.id in self._kernel.workers:
            self._session.note_failure()
            if not worker.killed:
                self._note_death(worker, death, running)
            self._kernel.lose(worker, death, running)
            if link.is_refused:
                self._kernel.fail_unfinished(death)

    def _hear_last_words(self, link: links.Link) -> None:
        """Handle a dead worker's unsent messages."""
        try:
            self._inbox.read_last_words(link)
        except Exception as error:  # noqa: BLE001 (its memory may hold anything; what came before still counts)
            link.refuse()
            self._session.note_error(0, "a worker's journal", texts.name_class(type(error)), texts.safe_text(error))

    def _list_running(self, link: links.Link) -> set[int] | None:
        """Return the ids of the work that a dead worker was running; None if they are not known."""
        worker = link.worker
        beside = link.page.list_running()
        if beside is None:
            return None
        begun = link.page.read_begun()
        _, started = self._parent.find_running(worker)
        for task in worker.inflight.values():
            if task.number == begun:
                seconds = time.perf_counter() - started
                task.note_run(worker.id, started, seconds)
                if started:
                    self._parent.write_killed_run(worker, task, started, seconds)
                return {task.id, *beside}
        return set(beside)

    def _note_death(self, worker: records.WorkerRecord, death: exceptions.Death, running: set[int] | None) -> None:
        """Remember an unexpected death for `error_info`."""
        hit = [task for task in worker.inflight.values() if running is None or task.id in running]
        names = ", ".join(task.options.name for task in hit)
        if worker.actor is not None:
            names = names or worker.actor.options.class_name
        text = f"worker pid {death.pid} {death.reason()}"
        self._session.note_error(hit[0].id if hit else 0, names, "WorkerCrashedError", text)

    def bury_unreported(self, link: links.Link, guardian: processes.GuardianProcess) -> None:
        """Handle the death of a worker that the guardian does not report."""
        text = f"ended, and the guardian (pid {guardian.pid}), which would know why, is stopped"
        self._bury(link.worker.id, exceptions.Death(pid=link.pid, explanation=text))
        self._courier.carry_out()

    def _fail_all(self, error: exceptions.HocketError) -> None:
        self._session.finish(error)
        for link in list(self._links.by_worker.values()):
            self._hang_up(link)
        self._waiters.due.extend(self._session.take_callbacks())


def _is_readable(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)) or True
    except BlockingIOError:
        return False
    except OSError:
        return True
