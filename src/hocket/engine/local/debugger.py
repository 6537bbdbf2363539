"""`breakpoint()` in a task or an actor: pdb on the terminal that the driver was started from.

A worker's stdin is /dev/null, and its session is not the terminal's. The guardian remembers the name of the terminal before
it closes its own stdin, and a worker opens it anew when `breakpoint()` is called. That needs no job control: the kernel
stops background readers (SIGTTIN) only if the terminal is their controlling one, and a worker has none.

One worker at a time talks to the terminal. It holds a lock on the session's status table from its first prompt until it
goes on (`continue`, `quit`, or the end of the task's function); another worker's `breakpoint()` waits for that.

Holes: a driver that reads the terminal itself at the same moment competes for the lines, and Ctrl-C goes to the
driver, which owns the terminal. Only `breakpoint()` is redirected, not a `pdb.set_trace()` that is written out.
"""

from __future__ import annotations

import fcntl
import io
import os
import pdb  # noqa: T100 (it is what this module is about)
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TextIO

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""Frames of these files lie below the user's function."""

_thread_lock = threading.RLock()
"""Between the threads of one worker; the lock on the file is between workers."""


class TerminalPdb(pdb.Pdb):
    """pdb on a terminal that it has to share.

    Args:
        terminal: Open for reading and writing; closed by `let_go`.
        lock_fd: A file that all workers of the session have open.
        title: Printed at the first prompt.
    """

    def __init__(self, terminal: TextIO, lock_fd: int, title: str) -> None:
        super().__init__(stdin=terminal, stdout=terminal, nosigint=True, readrc=False)
        self.prompt = f"({title}) "
        self._lock_fd = lock_fd
        self._is_holding = False

    def interaction(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        """Talk, alone."""
        self._hold()
        try:
            super().interaction(frame, tb_or_exc)
        except BaseException:
            self.let_go()
            raise

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Stop at a return; after that of the task's own function there is nothing of the user's to step into."""
        super().user_return(frame, return_value)
        if frame.f_back is None or frame.f_back.f_code.co_filename.startswith(_PACKAGE):
            self.set_continue()

    def set_continue(self) -> None:
        """Go on, and let others talk."""
        super().set_continue()
        self.let_go()

    def set_quit(self) -> None:
        """End the task, and let others talk."""
        super().set_quit()
        self.let_go()

    def _hold(self) -> None:
        if not self._is_holding:
            _thread_lock.acquire()
            fcntl.lockf(self._lock_fd, fcntl.LOCK_EX)
            self._is_holding = True

    def let_go(self) -> None:
        """Let others talk."""
        if self._is_holding:
            self._is_holding = False
            fcntl.lockf(self._lock_fd, fcntl.LOCK_UN)
            _thread_lock.release()


def find_terminal() -> str | None:
    """Return the name of the terminal on stdin; None if stdin is none, or has no name here."""
    try:
        return os.ttyname(0)
    except OSError:
        return None


def install(terminal: str | None, lock_fd: int, get_title: Callable[[], str]) -> None:
    """Send `breakpoint()` of this process to a terminal, unless ``PYTHONBREAKPOINT`` says where it is to go.

    Args:
        terminal: Its name; None if there is none, and `breakpoint` explains that.
        lock_fd: A file that all processes which share the terminal have open.
        get_title: Says what is running.
    """

    def stop_here(*args: Any, **kwargs: Any) -> Any:
        if os.environ.get("PYTHONBREAKPOINT") not in (None, "", "pdb.set_trace"):
            return sys.__breakpointhook__(*args, **kwargs)  # noqa: T100 (the user's own choice of a debugger)
        title = get_title()
        if terminal is None:
            raise RuntimeError(_explain(title, "the driver's stdin is not one, as in a notebook, a pipe or a CI job"))
        try:
            fd = os.open(terminal, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            raise RuntimeError(_explain(title, f"{terminal} cannot be opened ({error.strerror})")) from error
        file = _open_terminal(fd)
        debugger = TerminalPdb(file, lock_fd, f"{title}, pid {os.getpid()}")
        debugger.set_trace(sys._getframe().f_back)
        return None

    sys.breakpointhook = stop_here


def _open_terminal(fd: int) -> TextIO:
    """Return a text stream for reading and writing; a terminal cannot seek, so it takes one buffer each way."""
    raw = io.FileIO(fd, "r+")
    both: Any = io.BufferedRWPair(raw, raw)
    return io.TextIOWrapper(both, encoding="utf-8", errors="replace", line_buffering=True, write_through=True)


def _explain(title: str, why: str) -> str:
    return (
        f'breakpoint() in {title} found no terminal: {why}. Debug with hocket.init(engine="inprocess"), which runs '
        "everything in the driver, or switch breakpoints off with PYTHONBREAKPOINT=0."
    )
