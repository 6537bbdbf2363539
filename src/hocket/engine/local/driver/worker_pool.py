"""The workers' births and deaths, as the guardian reports them, and what they say in between."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Sequence

from hocket import exceptions, texts
from hocket.engine import descriptors, events, faults, inspection, stacks
from hocket.engine.local import endpoint, links, messages, processes, task_facts
from hocket.engine.local.driver import dispatch
from hocket.kernel import records, state


class WorkerPool(dispatch.Dispatcher):
    """Starts workers, hears them, and buries them."""

    def expect_work(self, modules: Sequence[str] = ()) -> None:
        with self.lock:
            if self.end is not None:
                return
            guardian = self._open_guardian()
            missing = [name for name in modules if name not in self._loaded]
            if missing:
                self._loaded.update(missing)
                guardian.load(missing)
                self.kernel.trim_idle(0)  # they would have to load it each for itself
                self.carry_out()

    def _open_guardian(self) -> processes.GuardianProcess:
        if self.guardian is None:
            self.guardian = processes.GuardianProcess()
            self.reactor.watch(self.guardian.fd)
            self._endpoint = endpoint.InspectionEndpoint()
            self.reactor.watch(self._endpoint.fd)
            self.reactor.start()
            stacks.open_probe()
            events.open_notes(self._note)
        return self.guardian

    def _start_worker(self, worker: records.WorkerRecord) -> None:
        if isinstance(self.end, exceptions.SessionClosedError):
            return  # a last message has made room for it, and nobody would close what it gets
        guardian = self._open_guardian()
        descriptors.reserve_standard()  # the program may have become a daemon since
        try:
            link, theirs = links.Link.open(worker)
        except OSError as error:
            death = exceptions.Death(
                pid=0, explanation=f"could not be started: the driver: {descriptors.explain_os_error(error)}"
            )
            self.reactor.due.append(functools.partial(self._lose_unborn, worker, death))
            self.reactor.wake()
            return
        self.links[worker.id] = link
        self._by_fd[link.channel.fd] = link
        self.reactor.watch(link.channel.fd)
        link.channel.post(self._setup)
        guardian.spawn(worker.id, theirs, link.page)
        self._dirty.add(link)

    def _lose_unborn(self, worker: records.WorkerRecord, death: exceptions.Death) -> None:
        with self.lock:
            if worker.id in self.kernel.workers:
                self.failures += 1
                self.kernel.lose(worker, death, set())
                self.carry_out()

    # --- what they say ------------------------------------------------------------------------------------------------

    def _hear_worker(self, link: links.Link) -> None:
        try:
            received = link.channel.receive()
            if received is not None:
                if faults.plan is not None:
                    faults.plan.reach("hub.in_handle")
                self._handle_messages(link, received)
                if link.channel.outbox:  # an answer to what it asked
                    self._dirty.add(link)
                return
        except Exception as error:  # noqa: BLE001
            # Whatever a worker says, it must not bring the session down: a message that makes no sense ends its sender.
            link.is_refused = True
            self.note_error(0, "a worker's socket", texts.name_class(type(error)), texts.safe_text(error))
            if self.guardian is not None:
                self.guardian.kill(link.worker.id)
        self._close_link(link)

    def _close_link(self, link: links.Link) -> None:
        if not link.is_closed:
            link.is_closed = True
            self.reactor.unwatch(link.channel.fd)
            del self._by_fd[link.channel.fd]
            if self.guardian is not None:
                self.guardian.owe(link.worker.id)

    def _hear_guardian(self) -> None:
        assert self.guardian is not None
        if isinstance(self.end, exceptions.SessionClosedError):
            return  # it was told to end, and `close` may have closed its socket by now
        received = self.guardian.receive()
        if received is None:
            self.reactor.unwatch(self.guardian.fd)
            self._fail_all(
                exceptions.LocalEngineDiedError(
                    f"The guardian (pid {self.guardian.pid}), the parent of all workers, is gone, so the session is "
                    f"over. {self.guardian.explain_end()}Call hocket.shutdown() and hocket.init() to start again."
                )
            )
            return
        for message in received:
            if message[0] == messages.SPAWNED:
                link = self.links.get(message[1])
                if link is not None:
                    link.pid = message[2]
                    self._note_pid(message[1], message[2])
            elif message[0] == messages.DIED:
                self._bury(message[1], processes.parse_death(message))
        self.carry_out()

    def _note_pid(self, worker_id: int, pid: int) -> None:
        self.pids[worker_id] = pid
        if len(self.pids) > 2 * state.KEPT_TASKS:  # tasks that old are forgotten too
            del self.pids[next(iter(self.pids))]

    # --- their deaths -------------------------------------------------------------------------------------------------

    def _bury(self, worker_id: int, death: exceptions.Death) -> None:
        link = self.links.get(worker_id)
        if link is None:
            return
        while not link.is_closed:  # what it said before it died still counts
            if _is_readable(link.channel.sock):
                self._hear_worker(link)
            else:
                self._close_link(link)
        self._hear_last_words(link)
        running = self._list_running(link)
        del self.links[worker_id]
        self.lost.append(inspection.LostWorker(worker_id, death, time.time(), link.worker.killed))
        if not link.worker.killed:
            self._note(events.Kind.DEATH, "death of a worker", time.perf_counter(), 0.0, link.pid)
        self._dirty.discard(link)
        link.close()
        self._forget_worker(worker_id)
        self.store.lose_worker(worker_id)
        self.functions.lose_worker(link.exported, worker_id)
        worker = link.worker
        if worker.id in self.kernel.workers:
            self.failures += 1
            if not worker.killed:
                self._note_death(worker, death, running)
            self.kernel.lose(worker, death, running)
            if link.is_refused:
                self.kernel.fail_unfinished(death)

    def _hear_last_words(self, link: links.Link) -> None:
        """Handle what a dead worker had said and not sent."""
        try:
            self._read_last_words(link)
        except Exception as error:  # noqa: BLE001 (its memory may hold anything; what came before still counts)
            link.is_refused = True
            self.note_error(0, "a worker's journal", texts.name_class(type(error)), texts.safe_text(error))

    def _list_running(self, link: links.Link) -> set[int] | None:
        """Return what a dead worker was running; None if nobody knows."""
        worker = link.worker
        beside = link.page.list_running()
        if beside is None:
            return None
        begun = link.page.read_begun()
        _, started = self._find_running(worker)
        for task in worker.inflight.values():
            if task.number == begun:
                seconds = time.perf_counter() - started
                task.note_run(worker.id, started, seconds)
                if started:
                    self._note_killed_run(worker, task, started, seconds)
                return {task.id, *beside}
        return set(beside)

    def _note_killed_run(
        self, worker: records.WorkerRecord, task: records.TaskRecord, started: float, seconds: float
    ) -> None:
        """Write the run down that a dead worker did not come to write."""
        assert self.guardian is not None
        ring = self.guardian.reopen_events(worker.id, self.pids.get(worker.id, 0))
        kind = task_facts.KINDS[task.kind]
        ring.record(kind, task.options.name, started, seconds, task.id, state=events.State.FAILED, attempt=task.attempt)
        ring.close()

    def _bury_unreported(self, link: links.Link) -> None:
        """A worker is dead, and the guardian does not say why. Called with the lock held."""
        assert self.guardian is not None
        text = f"ended, and the guardian (pid {self.guardian.pid}), which would know why, is stopped"
        self._bury(link.worker.id, exceptions.Death(pid=link.pid, explanation=text))
        self.carry_out()

    def _fail_all(self, error: exceptions.HocketError) -> None:
        self.end = error
        self.failures += 1
        for link in list(self.links.values()):
            self._close_link(link)
        self._call_back_all()


def _is_readable(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)) or True
    except BlockingIOError:
        return False
    except OSError:
        return True
