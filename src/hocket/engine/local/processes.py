"""The driver's end of the guardian."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

from hocket import exceptions
from hocket.engine import descendants, descriptors, events
from hocket.engine.events import layout, reader
from hocket.engine.local import channel, journal, messages

WORDS_BYTES = 4096
"""How many of the guardian's last bytes are shown."""

REAP_SECONDS = 1.0
"""How long to wait for the guardian's exit status when its socket has ended. It takes microseconds."""

STOPPED_SECONDS = 0.5
"""How often a wait for the guardian checks whether a signal has stopped it."""

END_SECONDS = 10.0
"""How long the guardian may take to end everything; it takes milliseconds unless a process cannot be killed."""

_BOOT = """
import gc, sys; gc.disable()
if not sys.flags.safe_path:
    del sys.path[0]
sys.path.insert(0, {source!r})
from hocket.engine.local import guardian
guardian.main({control}, {status}, {driver}, {words}, {stderr})
"""
"""The guardian's program. It keeps everything that it loads, so the garbage collector would find nothing. It loads no
module from the current folder, where another user's ``typing.py`` may lie; workers look there if the driver does."""
_SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
"""The folder that this package was imported from; the guardian imports the package from there, too."""


class GuardianProcess:
    """The guardian's process: its start, its commands and its end. Called with the driver's lock held."""

    def __init__(self) -> None:
        loading = os.environ.get(messages.LOADING)
        if loading is not None:  # else each guardian would start the next session
            raise RuntimeError(
                f"Importing {loading!r} for the workers opened a session, which an import must not do. Does a program "
                "of yours have the name of a library? Rename the program, or put its code under `if __name__ == "
                "'__main__':`."
            )
        descriptors.reserve_standard()  # the program may have become a daemon since `init`
        self._status_fd = os.memfd_create(messages.STATUS_NAME, os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._status_fd, messages.STATUS_BYTES)
            with contextlib.suppress(OSError):  # the process may write short files only: then its events are not seen
                os.ftruncate(self._status_fd, messages.EVENTS_AT + layout.FILE_BYTES)
        except OSError as error:
            os.close(self._status_fd)
            if error.errno != errno.EFBIG:
                raise
            raise OSError(
                error.errno,
                "The limit on file sizes is too low for shared memory, which the system counts as a file; raise the "
                "limit (ulimit -f)",
            ) from None
        self._status = mmap.mmap(self._status_fd, messages.STATUS_BYTES)
        #: This process's own events.
        self.events = events.EventRing.open(self._status_fd, messages.EVENTS_AT, 0, os.getpid())
        self.events.note_slot(0)
        #: Workers that the guardian should report on, and since when.
        self._owed: dict[int, float] = {}
        #: The file for the guardian's own errors: its stderr is the workers', and belongs to the user.
        self._words_fd = os.memfd_create("hocket-words", os.MFD_CLOEXEC)
        ours, theirs = socket.socketpair()
        self._channel = channel.Channel(ours)
        stderr_fd = os.dup(2)
        boot = _BOOT.format(
            source=_SOURCE,
            control=theirs.fileno(),
            status=self._status_fd,
            driver=os.getpid(),
            words=self._words_fd,
            stderr=stderr_fd,
        )
        try:
            # A session of its own: a Ctrl-C or hang-up of the terminal is the driver's business.
            self._process = subprocess.Popen(
                [sys.executable, *_list_interpreter_flags(), "-c", boot],
                pass_fds=(theirs.fileno(), self._status_fd, self._words_fd, stderr_fd),
                stderr=self._words_fd,  # until it has loaded: an interpreter that cannot start says why
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError, TypeError) as error:
            self._close()
            raise RuntimeError(
                f"sys.executable is {sys.executable!r}, with which no worker can be started: {error}. Set "
                "sys.executable to the path of the Python interpreter before the first remote call."
            ) from None
        except OSError:  # no memory for a process: the session goes on without workers
            self._close()
            raise
        finally:
            theirs.close()
            os.close(stderr_fd)
        self.pid = self._process.pid
        self.fd = self._channel.fd

    # --- expected reports ---------------------------------------------------------------------------------------------

    def owe(self, worker_id: int) -> None:
        """Expect a report on this worker soon."""
        self._owed.setdefault(worker_id, time.monotonic())

    def list_overdue(self, now: float, patience_s: float) -> list[int]:
        """Return the workers with reports that have been due for longer than `patience_s`."""
        return [worker_id for worker_id, since in self._owed.items() if now - since > patience_s]

    def owes(self) -> bool:
        """Tell whether a report is due."""
        return bool(self._owed)

    def revive(self) -> bool:
        """Continue the guardian if a signal has stopped it; return whether that was so."""
        if not descendants.is_stopped(self.pid):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        return True

    # --- messages -----------------------------------------------------------------------------------------------------

    def spawn(self, worker_id: int, sock: socket.socket, page: journal.Page) -> None:
        """Have a worker forked, and hand over its end of the socket pair and its page."""
        self._channel.outbox_fds += [sock.fileno(), page.fd]
        self._channel.post((messages.SPAWN, worker_id))
        self.events.note_slot(worker_id)
        self._send()
        sock.close()
        page.hand_over()
        self.owe(worker_id)

    def load(self, modules: Sequence[str]) -> None:
        """Have the guardian import modules, with the import paths of this process."""
        self._channel.post((messages.LOAD, list(modules), list_paths()))
        self._send()

    def kill(self, worker_id: int) -> None:
        """Have a worker killed."""
        self._channel.post((messages.KILL, worker_id))
        self.owe(worker_id)
        self._send()

    def _send(self) -> None:
        try:
            while not self._channel.flush():
                if not descriptors.is_writable(self.fd, STOPPED_SECONDS):
                    self.revive()
        except OSError:
            self._channel.outbox.clear()  # the guardian is gone; the end of its socket is handled later

    def receive(self) -> list[channel.Message] | None:
        """Return the guardian's messages; None if it is gone."""
        received = self._channel.receive()
        for message in received or ():
            self._owed.pop(message[1], None)
        return received

    def explain_end(self) -> str:
        """Return sentences on how the guardian ended and what it wrote last; called after `receive` returns None."""
        try:
            code = self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            return ""
        how = (
            f"It was killed by signal {-code} ({signal.strsignal(-code)}). "
            if code < 0
            else f"It exited with code {code}. "
        )
        size = os.fstat(self._words_fd).st_size
        said = os.pread(self._words_fd, 8 * WORDS_BYTES, max(0, size - 8 * WORDS_BYTES))
        crash = said.rfind(b"Fatal Python error")  # the cause and the latest calls follow it, and the oldest are last
        text = (said[-WORDS_BYTES:] if crash < 0 else said[crash:][:WORDS_BYTES]).decode(errors="replace").strip()
        return f"{how}Its last words:\n{text}\n" if text else how

    def read_status(self, worker_id: int) -> int:
        """Return the id of the task that the worker started last."""
        task_id: int = struct.unpack_from("<Q", self._status, (worker_id % messages.STATUS_SLOTS) * 8)[0]
        return task_id

    def read_start(self, worker_id: int) -> float:
        """Return when the worker started its last task, by ``time.perf_counter``; 0 if it has started none."""
        slot = worker_id % messages.STATUS_SLOTS + messages.STATUS_SLOTS
        start: float = struct.unpack_from("<d", self._status, slot * 8)[0]
        return start

    def reopen_events(self, worker_id: int, pid: int) -> events.EventRing:
        """Return a dead worker's slot, for the events that it could not write; the caller closes the slot."""
        return events.EventRing.open(self._status_fd, messages.EVENTS_AT, worker_id, pid)

    def build_reader(self) -> reader.EventReader:
        """Return a reader of the session's events, from the oldest one kept."""
        return reader.EventReader(self._status_fd, messages.EVENTS_AT)

    def end(self) -> None:
        """Have the guardian end every process of the session, and wait for it."""
        self._channel.post((messages.EXIT,))
        self._send()
        deadline = time.monotonic() + END_SECONDS
        while self._process.returncode is None:
            self.revive()
            try:
                self._process.wait(STOPPED_SECONDS)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    self._process.send_signal(signal.SIGKILL)
                    self._process.wait()
        self._close()

    def cut_off(self) -> None:
        """Let go of the guardian in a fork of the driver, which is not its parent."""
        self._channel.sock.close()
        self._process.returncode = 0  # else its destructor warns that it still runs

    def _close(self) -> None:
        self._channel.close()
        self._status.close()
        self.events.close()
        os.close(self._status_fd)
        os.close(self._words_fd)


def build_setup(job_id: str, node_id: str, namespace: str, *, has_gpus: bool, has_cpu: bool) -> channel.Message:
    """Return the first message to a worker: the paths of the driver's imports, and facts of the session."""
    facts = {
        "sys_path": list_paths(),
        "cwd": _get_cwd(),
        "job_id": job_id,
        "node_id": node_id,
        "namespace": namespace,
        "has_gpus": has_gpus,
        "has_cpu": has_cpu,
    }
    return (messages.SETUP, facts)


def parse_death(message: channel.Message) -> exceptions.Death:
    """Return the evidence in a `DIED` message."""
    _, _, pid, signal_number, exit_code, peak_rss_bytes, out_of_memory, stderr_tail, stack = message
    return exceptions.Death(
        pid=pid,
        signal_number=signal_number,
        exit_code=exit_code,
        peak_rss_bytes=peak_rss_bytes,
        out_of_memory=out_of_memory,
        stderr_tail=stderr_tail if pid else "",
        stack=stack,
        explanation="" if pid else f"could not be started: {stderr_tail}",
    )


def list_paths() -> list[str]:
    """Return the import paths as plain text; a program may have put anything among them."""
    entries: list[object] = list(sys.path)
    return [os.fspath(entry) for entry in entries if isinstance(entry, str | os.PathLike)]


def _get_cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder was deleted; workers stay in the guardian's
        return ""


def _list_interpreter_flags() -> list[str]:
    """Return the flags that this interpreter was started with and that matter to user code."""
    return subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined,no-any-return]
