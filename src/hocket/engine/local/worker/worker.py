"""A worker process: it takes a task from the queue, runs it, and sends its result.

The main thread runs tasks, and the calls of ordinary actors; an actor with ``max_concurrency > 1`` gets that many
threads. While the main thread is busy, the background reader (see `reactor`) reads the socket: it puts new work at the
end of the queue, and interrupts a task that is cancelled.

`answers` says when results are sent. They are safe before the next task starts: see `journal`, also for how the driver
takes back tasks that have not started. A task's printed output is flushed before its result is sent.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import mmap
import os
import select
import signal
import socket
import sys
from typing import final

from hocket._base import texts
from hocket.engine import contract, events, stacks
from hocket.engine.local import debugger, journal, messages, worker_engine
from hocket.engine.local.worker import answers, execution, intake, life, residents, row

importlib.import_module("cloudpickle")  # most functions come in its form: it is to be here before the guardian forks


@final
class Worker:
    """The process's main loop, which takes work from the engine; see `worker_engine.duty.Taker`.

    Args:
        engine: The worker's engine.
        status: The table of running work, which all processes share.
        slot: The slot of this process.
    """

    def __init__(self, engine: worker_engine.WorkerEngine, status: mmap.mmap, slot: int) -> None:
        self._engine = engine
        self.code = functions = residents.Code(engine)
        self.actor = residents.Actor(engine, functions)
        self.interruption = life.Interruption()
        self.life = life.Life(engine, self.actor)
        self.row = row.Row(engine, self.actor, functions)
        told = self.answers = answers.Answers(engine, self.actor, functions, self.interruption)
        intake_ = intake.Intake(engine, self.actor, functions, self.row, told, self.interruption, self.life)
        self.execution = execution.Execution(
            engine,
            self.actor,
            functions,
            self.row,
            told,
            self.interruption,
            self.life,
            execution.Status(status, slot),
        )
        self.take_message = intake_.take
        self.enqueue = self.row.add
        self.take_unstarted = self.row.take_unstarted
        self.name_function = self.actor.name_function
        engine.guard.install()
        self.interruption.install()

    def run(self) -> int:
        """Work until the order to stop; return the exit code."""
        row, engine, life = self.row, self._engine, self.life
        engine.reactor.start()

        def has_work() -> bool:
            return bool(row.works) or life.is_stopping or life.is_exiting

        while True:
            engine.reactor.wait_until(has_work)
            if life.is_exiting:
                life.exit_actor()
                life.finish()
                return 0
            code = self._run_row()
            if code is not None:
                return code
            if life.is_stopping and not row.works:
                engine.reactor.wait_until(lambda: not engine.outbox.owes())
                row.end_threads()
                life.finish()
                return 0

    def _run_row(self) -> int | None:
        """Run the work in the queue; return an exit code if that ends the process."""
        row, words = self.row.works, self._engine.channel.words
        while row and not self.life.is_exiting:
            try:
                work = row.popleft()
            except IndexError:  # another thread gave the last task back
                break
            if self.row.threads is not None:
                self.row.threads.submit(work)
                continue
            if work.number:  # from the driver, which may have withdrawn it: `journal` explains the order of the two
                words[journal.BEGUN] = work.number
                if work.number <= words[journal.WITHDRAWN]:
                    self.row.hand_back(work)
                    continue
            code = self.execution.run(work)
            del work
            if code is not None:
                return code
            if self.actor.loop is not None:
                return self.actor.loop.run(row)
        return None

    def check(self) -> None:
        """Call the handlers of signals that had to wait. Their exceptions go to the running task, or are printed if no
        task runs."""
        guard = self._engine.guard
        if not guard.noted:
            return
        if self._engine.duty.running.task_id:
            guard.check()
        else:
            guard.check_and_print()

    def note_exit(self) -> None:
        """End the actor at the request of the user's code."""
        if self.actor.loop is not None:
            self.actor.loop.exit_soon()
        elif not self._engine.duty.running.task_id:  # a background thread: no exception of a call ends the actor
            self.life.exit_soon()

    def cut_off(self) -> None:
        """Have a fork of this process end where the function that forked ends, and send nothing."""
        contract.set_current_engine(None)
        events.open_notes(None)
        self._engine.cut_off()
        faulthandler.disable()  # its file is for the worker's death, not for a fork's
        self.interruption.remove()
        if self.actor.loop is not None:
            self.actor.loop.cut_off()
        self.execution.cut_off()
        self.life.cut_off()


def _write_whole_lines() -> None:
    """Have stdout and stderr write whole lines. With PYTHONUNBUFFERED, ``print`` would write a line in pieces, and a
    signal in the middle would lose the rest of a large line."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            continue
        stream.reconfigure(line_buffering=True, write_through=False)
        if isinstance(stream.buffer, io.RawIOBase):
            raw = io.FileIO(fd, "w", closefd=False)  # a new file: the old one remembers the descriptor's earlier file
            raw.name = f"<{name}>"  # as in Python's own stream
            whole = io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors=stream.errors,
                newline="\n",
                line_buffering=True,
            )
            setattr(sys, name, whole)
            setattr(sys, f"__{name}__", whole)


def build(
    worker_id: int, sock: socket.socket, page_fd: int, ring: events.EventRing, status: mmap.mmap
) -> tuple[worker_engine.WorkerEngine, Worker]:
    """Return a worker's engine and its main loop, which need each other.

    Args:
        worker_id: The worker's number.
        sock: The worker's end of the socket to the driver.
        page_fd: The descriptor of the worker's page, which is closed.
        ring: The worker's ring of events.
        status: The table of running work.
    """
    built: list[Worker] = []

    def build_worker(engine: worker_engine.WorkerEngine) -> Worker:
        built.append(Worker(engine, status, worker_id % messages.STATUS_SLOTS))
        return built[0]

    return worker_engine.WorkerEngine(worker_id, sock, page_fd, ring, build_worker), built[0]


def main(worker_id: int, sock_fd: int, page_fd: int, status_fd: int, stack_fd: int, terminal: str | None) -> int:
    """Run a worker: the whole life of its process; return the exit code."""
    faulthandler.enable(stack_fd, all_threads=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _write_whole_lines()
    status = mmap.mmap(status_fd, messages.STATUS_BYTES)
    ring = events.EventRing.open(status_fd, messages.EVENTS_AT, worker_id, os.getpid())
    sock = socket.socket(fileno=sock_fd)
    engine, runner = build(worker_id, sock, page_fd, ring, status)
    events.open_notes(engine.outbox.note)
    contract.set_current_engine(engine)
    debugger.install(terminal, status_fd, lambda: f"`{engine.duty.running.name}`")
    os.register_at_fork(after_in_child=runner.cut_off)
    stacks.open_probe()
    try:
        return runner.run()
    except BaseException as error:  # a fault of this package, or no descriptors: the error of the death shows it
        if issubclass(type(error), ConnectionError) and _is_hung_up(sock):
            return 1  # the driver was killed during a send, and cannot read an error
        os.write(2, f"A Hocket worker failed and ends:\n{texts.format_error(error)}".encode(errors="replace"))
        return 1


def _is_hung_up(sock: socket.socket) -> bool:
    """Tell whether either end of a socket is closed."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))
