"""What a worker process runs: take a task from the row, run it, send what it returned.

The main thread runs tasks, and the calls of ordinary actors; an actor with ``max_concurrency > 1`` gets that many
threads. While the main thread is busy, the background reader (see `reactor`) reads the socket: it puts new work at the
end of the row, and interrupts a task that is cancelled.

Results are sent together when the row is empty, and at the latest `FLUSH_SECONDS` after the first of them, or by the
background reader. They are safe before the next task starts: see `journal`, and there also how the driver takes back
what has not started. What a task prints is flushed before its result is sent.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import mmap
import os
import signal
import socket
import sys
from typing import final

from hocket import texts
from hocket.engine import contract, events, forks, stacks
from hocket.engine.local import debugger, journal, messages, worker_engine
from hocket.engine.local.worker import execution

importlib.import_module("cloudpickle")  # most functions come in its form: it is to be here before the guardian forks


@final
class Worker(execution.Execution):
    """The process's main loop."""

    def __init__(self, engine: worker_engine.WorkerEngine, status: mmap.mmap, slot: int) -> None:
        super().__init__(engine, status, slot)
        engine.on_work = self._take_message
        engine.on_late = self._enqueue
        engine.on_exit = self._note_exit
        engine.name_function = self._name_function
        engine.take_unstarted = self._take_unstarted
        engine.check = self._check
        engine.guard.install()
        signal.signal(signal.SIGINT, self._on_interrupt)

    def run(self) -> int:
        """Work until told to stop; return the exit code."""
        row, engine = self._row, self._engine
        engine.reactor.start()  # not before `on_work` is set: the background reader would read work and drop it

        def has_work() -> bool:
            return bool(row) or self._is_stopping or self._is_exiting

        while True:
            engine.reactor.wait_until(has_work)
            if self._is_exiting:
                self.exit_actor()
                return 0
            code = self._run_row()
            if code is not None:
                return code
            if self._is_stopping and not row:
                engine.reactor.wait_until(lambda: not engine.owes())
                for pool in (self._threads, *self._groups.values()):
                    if pool is not None:
                        pool.shutdown()
                self.finish()
                return 0

    def _run_row(self) -> int | None:
        """Run what stands in the row; return an exit code if that ends the process."""
        row, words = self._row, self._words
        while row and not self._is_exiting:
            try:
                work = row.popleft()
            except IndexError:  # another thread gave the last one back
                break
            if self._threads is not None:
                self._threads.submit(work)
                continue
            if work.number:
                words[journal.BEGUN] = work.number
                if work.number <= words[journal.WITHDRAWN]:
                    self._hand_back(work)
                    continue
            code = self._run_work(work)
            del work
            if code is not None:
                return code
            if self._loop is not None:
                return self._loop.run(row)
        return None

    def cut_off(self) -> None:
        """In a fork of this process: have it end where the function that it came from ends. Nothing of it is sent."""
        contract.set_current_engine(None)
        events.open_notes(None)
        self._engine.cut_off()
        faulthandler.disable()  # its file tells of this worker's death, not of a fork's
        if signal.getsignal(signal.SIGINT) == self._on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._loop is not None:
            self._loop.cut_off()
        ends: dict[str, object] = {
            "send_result": lambda work, result, started: forks.end(),
            "send_item": lambda work, index, item: forks.end(RuntimeError(forks.YIELDED)),
            "report": lambda work, error: forks.end(error),
            "exit_actor": forks.end,
            "_send_exit": forks.end,
        }
        for name, method in ends.items():
            setattr(self, name, method)

    def _note_exit(self) -> None:
        """The user's code asks for the actor's end. What runs comes to it by the exception; a thread or coroutine in
        the background does not."""
        if self._loop is not None:
            self._loop.exit_soon()
        elif not self._engine.running.task_id:
            with self._engine.lock:
                self._is_exiting = True
                self._engine.reactor.poke()


def _write_whole_lines() -> None:
    """Have stdout and stderr write whole lines, and all of them: with PYTHONUNBUFFERED `print` would write a line in
    pieces, and lose the rest of a large one if a signal came in the middle."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            continue
        stream.reconfigure(line_buffering=True, write_through=False)
        if isinstance(stream.buffer, io.RawIOBase):
            raw = io.FileIO(fd, "w", closefd=False)  # a new one: the old one remembers what the descriptor once was
            raw.name = f"<{name}>"  # as Python's own has it
            whole = io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors=stream.errors,
                newline="\n",
                line_buffering=True,
            )
            setattr(sys, name, whole)
            setattr(sys, f"__{name}__", whole)


def main(worker_id: int, sock_fd: int, page_fd: int, status_fd: int, stack_fd: int, terminal: str | None) -> int:
    """Run a worker: the whole life of its process. Returns the exit code."""
    faulthandler.enable(stack_fd, all_threads=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _write_whole_lines()
    status = mmap.mmap(status_fd, messages.STATUS_BYTES)
    engine = worker_engine.WorkerEngine(worker_id, socket.socket(fileno=sock_fd), page_fd)
    engine.ring = events.EventRing.open(status_fd, messages.EVENTS_AT, worker_id, os.getpid())
    events.open_notes(engine.note)
    contract.set_current_engine(engine)
    debugger.install(terminal, status_fd, lambda: f"`{engine.running.name}`")
    runner = Worker(engine, status, worker_id % messages.STATUS_SLOTS)
    os.register_at_fork(after_in_child=runner.cut_off)
    stacks.open_probe()
    try:
        return runner.run()
    except BaseException as error:  # our own mistake, or a process without descriptors: the error of the death shows it
        os.write(2, f"A Hocket worker could not go on:\n{texts.format_error(error)}".encode(errors="replace"))
        return 1
