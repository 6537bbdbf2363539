"""The hub's end of the guardian."""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence

from hocket import exceptions
from hocket.engine.local import channel, journal, late, messages

END_SECONDS = 10.0
"""How long the guardian may take to end everything; it takes milliseconds unless a process cannot be killed."""

_BOOT = """
import gc; gc.disable()
import importlib.util, sys
sys.path.insert(0, {source!r})
sys.modules[{package!r}] = importlib.util.module_from_spec(importlib.util.find_spec({package!r}))
from hocket.engine.local import guardian
guardian.main({control}, {status}, {driver})
"""
"""What the guardian runs. All that it loads it keeps, so the garbage collector would look in vain; `late` says why the package's own
code does not run."""
_PACKAGE = __name__.partition(".")[0]
_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
"""The folder that this package was imported from, so that the guardian imports the same one."""


class GuardianProcess:
    """Starts the guardian, tells it what to do, and waits for its end. Called with the hub's lock held."""

    def __init__(self) -> None:
        loading = os.environ.get(late.LOADING)
        if loading is not None:  # else each session would start the next
            raise RuntimeError(
                f"A session was opened by an import, while {loading!r} was loaded for workers. Is a program of yours called like a library? Call it something else, or put "
                "what it does under `if __name__ == '__main__':`."
            )
        self._status_fd = os.memfd_create("hocket-status", os.MFD_CLOEXEC)
        os.ftruncate(self._status_fd, messages.STATUS_BYTES)
        self._status = mmap.mmap(self._status_fd, messages.STATUS_BYTES)
        ours, theirs = socket.socketpair()
        self._channel = channel.Channel(ours)
        boot = _BOOT.format(
            source=_SOURCE, package=_PACKAGE, control=theirs.fileno(), status=self._status_fd, driver=os.getpid()
        )
        try:
            # A session of its own: a Ctrl-C or hang-up of the terminal is the driver's business.
            self._process = subprocess.Popen(
                [sys.executable, *_list_interpreter_flags(), "-c", boot],
                pass_fds=(theirs.fileno(), self._status_fd),
                start_new_session=True,
            )
        except OSError:  # no memory for a process, or the interpreter is gone: the session goes on without workers
            self._close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.fd = self._channel.fd

    def spawn(self, worker_id: int, sock: socket.socket, page: journal.Page) -> None:
        """Have a worker forked; its end of the socket pair, and its page, are handed over."""
        self._channel.outbox_fds += [sock.fileno(), page.fd]
        self._channel.post((messages.SPAWN, worker_id))
        self._send()
        sock.close()
        page.hand_over()

    def load(self, modules: Sequence[str]) -> None:
        """Have it import modules from where this process would."""
        self._channel.post((messages.LOAD, list(modules), list(sys.path)))
        self._send()

    def kill(self, worker_id: int) -> None:
        """Have a worker killed."""
        self._channel.post((messages.KILL, worker_id))
        self._send()

    def _send(self) -> None:
        try:
            while not self._channel.flush():
                select.select([], [self.fd], [])
        except OSError:
            self._channel.outbox.clear()  # it is gone; the end of its socket will be handled as such

    def receive(self) -> list[channel.Message] | None:
        """Return what it says; None if it is gone."""
        return self._channel.receive()

    def read_status(self, worker_id: int) -> int:
        """Return the id of the task that the worker started last."""
        task_id: int = struct.unpack_from("<Q", self._status, (worker_id % messages.STATUS_SLOTS) * 8)[0]
        return task_id

    def read_start(self, worker_id: int) -> float:
        """Return when the worker started its last task, by `time.perf_counter`; 0 if it has not had one."""
        slot = worker_id % messages.STATUS_SLOTS + messages.STATUS_SLOTS
        start: float = struct.unpack_from("<d", self._status, slot * 8)[0]
        return start

    def end(self) -> None:
        """Have every process of the session ended, and wait for it."""
        self._channel.post((messages.EXIT,))
        self._send()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._close()

    def _close(self) -> None:
        self._channel.close()
        self._status.close()
        os.close(self._status_fd)


def build_setup(job_id: str, node_id: str, namespace: str, *, has_gpus: bool) -> channel.Message:
    """Return the first message to a worker: what it must know to import what the driver imports."""
    facts = {
        "sys_path": list(sys.path),
        "cwd": _get_cwd(),
        "job_id": job_id,
        "node_id": node_id,
        "namespace": namespace,
        "has_gpus": has_gpus,
    }
    return (messages.SETUP, facts)


def parse_death(message: channel.Message) -> exceptions.Death:
    """Return the evidence of a `DIED` message."""
    _, _, pid, signal_number, exit_code, peak_rss_bytes, out_of_memory, stderr_tail, stack = message
    return exceptions.Death(
        pid=pid,
        signal_number=signal_number,
        exit_code=exit_code,
        peak_rss_bytes=peak_rss_bytes,
        out_of_memory=out_of_memory,
        stderr_tail=stderr_tail,
        stack=stack,
    )


def _get_cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted; workers stay where the guardian is
        return ""


def _list_interpreter_flags() -> list[str]:
    """Return the flags that this interpreter was started with and that matter to user code."""
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined,no-any-return]
