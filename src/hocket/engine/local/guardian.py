"""The parent of all workers.

The guardian is a fresh, single-threaded interpreter, never a fork of the user's process, so it copies no lock, thread
or GPU context of the user's. It forks workers on the driver's order, after it has loaded the modules that they all
need. It passes on the workers' stderr, and keeps the last lines. It reports each death with its cause. When the driver
is gone for whatever reason, it ends every process of the session.

**Nothing survives.** The guardian is the *sub-reaper* of the session: a process whose parent dies becomes the
guardian's child, however deep it was and whatever session it moved to. The end of the session is therefore a loop: kill
all descendants, reap, until none is left. The guardian learns of the driver's death from a pidfd as well as from the
end of the control socket, because a child that the driver forked may hold a copy of that socket. If the guardian itself
is killed, the kernel kills the workers (``PR_SET_PDEATHSIG``); only then can a grandchild escape.

**Deaths are explained.** ``wait4`` returns the signal or exit code, and the peak memory; a counter of the Linux kernel
shows out-of-memory kills; the worker's faulthandler writes its stack to a memfd that outlives the worker.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from typing import NoReturn

from hocket.engine import descendants, descriptors, faults, forks, templates, values
from hocket.engine.local import channel, debugger, messages, stderr_relay, surroundings, worker

GRACE_SECONDS = 0.25
"""How long workers may take to exit by themselves at the end of a session. Only busy workers need so long."""

OOM_SECONDS = 1.0
"""An out-of-memory kill by the Linux kernel explains a death that comes so soon after it was seen."""

IDLE_SECONDS = 0.02
"""After so long without work the rest of the package is loaded. A guess: the first task should be over by then."""

_PUBLIC = importlib.import_module("hocket")
"""The package. Its names are loaded on first use: that takes 30 ms and more, and the first worker is forked before."""

_OURS = (os.path.dirname(os.path.abspath(__file__)), '"<string>", line 1')
"""Marks of the frames below the user's own, which mean nothing to a user."""


class Child:
    """A worker process, as the guardian knows it."""

    __slots__ = ("is_ended_by_us", "pid", "stack_fd", "stderr", "worker_id")

    def __init__(self, worker_id: int, pid: int, stderr: stderr_relay.Stream, stack_fd: int) -> None:
        self.worker_id = worker_id
        self.pid = pid
        self.stderr = stderr
        self.stack_fd = stack_fd
        self.is_ended_by_us = False


class Guardian:
    """The guardian's loop."""

    def __init__(
        self, control: socket.socket, status_fd: int, driver_pid: int, terminal: str | None, words_fd: int | None = None
    ) -> None:
        self._channel = channel.Channel(control)
        #: Why no worker may be forked any more; empty if workers may be.
        self._unfit = ""
        self._pid = os.getpid()
        self._status_fd = status_fd
        #: The file for an error that ends the guardian.
        self._words_fd = words_fd
        #: The name of the driver's terminal; None if it has none.
        self._terminal = terminal
        self._children: dict[int, Child] = {}
        self._by_worker: dict[int, Child] = {}
        self._poll = select.epoll()
        self._stderr = stderr_relay.StderrRelay(self._poll)
        self._poll.register(self._channel.fd, select.EPOLLIN)
        self._driver_fd = _open_pidfd(driver_pid)
        if self._driver_fd is not None:
            self._poll.register(self._driver_fd, select.EPOLLIN)
        self._wake_read, self._wake_write = descendants.open_wake_pipe()
        self._poll.register(self._wake_read, select.EPOLLIN)
        self._oom_kills = descendants.count_oom_kills()
        #: The times at which out-of-memory kills were seen that explain no death yet: two processes may die before the
        #: first death is reported.
        self._unexplained_kills: deque[float] = deque()
        self._is_graceful = False
        #: How long to wait for work; None for no limit.
        self._patience: float | None = IDLE_SECONDS

    def run(self) -> None:
        """Serve until the driver orders the end or is gone; then end everything."""
        try:
            while self._serve_once():
                pass
        except (OSError, channel.FrameError) as error:
            self._note(error)  # most likely the driver died in the middle of a message, and cannot read this
        except BaseException as error:
            self._note(error)
            raise
        finally:
            self._end_all()

    def _note(self, error: BaseException) -> None:
        """Write an error for the driver, which shows it if it is still there."""
        if self._words_fd is not None:
            os.write(self._words_fd, "".join(traceback.format_exception(error)).encode(errors="replace"))

    def _serve_once(self) -> bool:
        self._stderr.write(stderr_relay.STUCK_SECONDS)
        events = self._poll.poll(0 if self._stderr.is_stuck else self._patience)
        if not events and self._patience is not None:
            self._load_rest()
        for fd, _ in events:
            if fd == self._channel.fd:
                if not self._handle_control():
                    return False
            elif fd == self._driver_fd:
                return False
            elif fd == self._wake_read:
                os.read(self._wake_read, 4096)
                self._reap()
            elif not self._stderr.is_stuck:
                self._stderr.take(fd)
        self._stderr.write(0)  # before the report of a death: the dead worker's output comes first
        while not self._channel.flush():  # the driver reads promptly; a full socket means a driver in trouble
            if self._driver_fd is not None and descriptors.is_readable(self._driver_fd, timeout_s=0.01):
                return False
        return True

    def _handle_control(self) -> bool:
        received = self._channel.receive()
        if received is None:
            return False
        for message in received:
            match message:
                case (messages.SPAWN, int(worker_id)):
                    self._spawn(worker_id)
                case (messages.KILL, int(worker_id)):
                    child = self._by_worker.get(worker_id)
                    if child is not None:
                        child.is_ended_by_us = True
                        descendants.kill_group(child.pid)
                case (messages.LOAD, modules, sys_path):
                    self._load(modules, sys_path)
                case (messages.EXIT,):
                    self._is_graceful = True
                    return False
        return True

    def _load_rest(self) -> None:
        """Load the modules that the next workers may need, which then share them."""
        self._patience = None
        for name in _PUBLIC.__all__:
            getattr(_PUBLIC, name)
        values.prepare()  # measured: a worker's first `.remote()` takes 1.3 ms of CPU time with it, and 5.3 without
        gc.collect()
        gc.freeze()

    def _load(self, modules: list[str], sys_path: list[str]) -> None:
        """Import modules for the next workers. Nothing else is done meanwhile."""
        self._load_rest()
        usual = list(sys.path)
        sys.path[:] = sys_path
        gc.disable()  # measured: the collector takes a fifth of torch's loading time
        try:
            for name in modules:
                os.environ[messages.LOADING] = name
                with (
                    templates.load_modules_only(),
                    contextlib.suppress(BaseException),
                ):  # a worker's own import shows it
                    importlib.import_module(name)
                if not self._unfit and templates.uses_gpu():
                    self._unfit = templates.explain_use(name)
        finally:
            os.environ.pop(messages.LOADING, None)
            sys.path[:] = usual
            gc.enable()
            gc.freeze()

    # --- birth --------------------------------------------------------------------------------------------------------

    def _spawn(self, worker_id: int) -> None:
        if faults.plan is not None:
            faults.plan.reach("guardian.before_spawn")
        opened: list[int] = []
        try:
            opened.append(self._channel.take_descriptor())
            opened.append(self._channel.take_descriptor())
            opened += os.pipe2(os.O_CLOEXEC)
            opened.append(os.memfd_create("hocket-stack", os.MFD_CLOEXEC))
            if self._unfit:
                raise RuntimeError(self._unfit)
            pid = os.fork()
        except (OSError, channel.FrameError, RuntimeError) as error:  # the other workers go on
            for fd in opened:
                os.close(fd)
            self._report_unborn(worker_id, error)
            return
        sock_fd, page_fd, stderr_read, stderr_write, stack_fd = opened
        if pid == 0:
            os.close(stderr_read)
            self._become_worker(worker_id, sock_fd, page_fd, stderr_write, stack_fd)
        os.close(sock_fd)
        os.close(page_fd)
        os.close(stderr_write)
        child = Child(worker_id, pid, self._stderr.add(stderr_read), stack_fd)
        self._children[pid] = self._by_worker[worker_id] = child
        if faults.plan is not None:
            faults.plan.reach("guardian.after_spawn")
        self._channel.post((messages.SPAWNED, worker_id, pid))

    def _report_unborn(self, worker_id: int, error: Exception) -> None:
        """Report that a worker could not be started."""
        if isinstance(error, channel.FrameError):  # the kernel drops descriptors that it has no place for
            error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        text = f"the guardian: {descriptors.explain_os_error(error)}" if isinstance(error, OSError) else str(error)
        self._channel.post((messages.DIED, worker_id, 0, None, None, 0, False, text, ""))

    def _become_worker(self, worker_id: int, sock_fd: int, page_fd: int, stderr_fd: int, stack_fd: int) -> NoReturn:
        code = 1
        try:
            descendants.begin_child(f"hocket:w{worker_id}", self._pid)
            os.dup2(stderr_fd, 2)
            self._channel.close()
            self._poll.close()
            self._stderr.cut_off()
            for fd in (self._driver_fd, self._words_fd, self._wake_read, self._wake_write, stderr_fd):
                if fd is not None:
                    os.close(fd)
            for child in self._children.values():
                os.close(child.stack_fd)
            descendants.draw_new_random_numbers()
            code = worker.main(worker_id, sock_fd, page_fd, self._status_fd, stack_fd, self._terminal)
        finally:
            forks.flush_native()
            os._exit(code)

    # --- death --------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for ended in descendants.reap():
            child = self._children.pop(ended.pid, None)
            if child is not None:
                self._report_death(child, ended)

    def _report_death(self, child: Child, ended: descendants.Ended) -> None:
        if faults.plan is not None:
            faults.plan.reach("guardian.before_report")
        descendants.kill_group(child.pid)  # the processes that the worker left behind
        del self._by_worker[child.worker_id]
        self._stderr.drain(child.stderr)
        self._stderr.close(child.stderr)
        self._count_oom_kills()  # at each death: another process's kill must not explain a later death of a worker
        is_oom = ended.signal_number == signal.SIGKILL and not child.is_ended_by_us and bool(self._unexplained_kills)
        if is_oom:
            self._unexplained_kills.popleft()
        stack = descendants.read_stack(child.stack_fd, _OURS)
        self._channel.post((messages.DIED, child.worker_id, *ended, is_oom, child.stderr.read_tail(), stack))
        os.close(child.stack_fd)

    def _count_oom_kills(self) -> None:
        """Note the out-of-memory kills since the last look, and forget old ones."""
        now, count = time.monotonic(), descendants.count_oom_kills()
        self._unexplained_kills.extend([now] * (count - self._oom_kills))
        self._oom_kills = count
        while self._unexplained_kills and now - self._unexplained_kills[0] > OOM_SECONDS:
            self._unexplained_kills.popleft()

    def _end_all(self) -> None:
        """End every descendant, and pass on their output.

        Workers that are stopping get a moment for their end, and a slow reader of stderr gets some seconds. After a
        driver's death neither gets any time.
        """
        if self._is_graceful:
            self._let_stop()
        descendants.end_all()
        self._stderr.finish(
            lambda: self._is_graceful and not (self._driver_fd and descriptors.is_readable(self._driver_fd))
        )

    def _let_stop(self) -> None:
        """Wait for the workers that are stopping, and pass on their last lines."""
        deadline = time.monotonic() + GRACE_SECONDS
        while self._children and time.monotonic() < deadline:
            sources = self._stderr.list_sources()
            descriptors.is_readable(self._wake_read, *sources, timeout_s=0.005)
            for fd in [] if self._stderr.is_stuck else sources:
                self._stderr.take(fd)
            self._stderr.write(0)
            self._reap()


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or a dead driver: the end of the control socket shows its death
        return None


def main(
    control_fd: int, status_fd: int, driver_pid: int, words_fd: int | None = None, stderr_fd: int | None = None
) -> None:
    """Run the guardian: the whole life of its process.

    Args:
        control_fd: The guardian's socket to the driver.
        status_fd: The table of each worker's running task.
        driver_pid: The driver's pid.
        words_fd: Receives the guardian's own errors; its stderr up to now.
        stderr_fd: The driver's stderr, which becomes the guardian's own from now on: workers write there.
    """
    if words_fd is not None:
        faulthandler.enable(words_fd, all_threads=False)
    if stderr_fd is not None:
        os.dup2(stderr_fd, 2)
        os.close(stderr_fd)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the driver may block SIGCHLD, which reports deaths here
    descendants.adopt()
    descendants.set_name("hocket:guardian")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    terminal = debugger.find_terminal()
    surroundings.close_input()
    descendants.allow_forks()
    gc.freeze()  # present objects are never garbage; workers then share their pages
    gc.enable()
    guardian = Guardian(socket.socket(fileno=control_fd), status_fd, driver_pid, terminal, words_fd)
    guardian.run()
    os._exit(0)  # with the socket open: the Linux kernel closes it
