"""pdb on a terminal that several workers share; see `debugger`, which loads this module on use: pdb takes 10 ms to
import."""

from __future__ import annotations

import fcntl
import io
import os
import pdb  # noqa: T100 (it is what this module is about)
import threading
from types import FrameType
from typing import Any, TextIO

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""Frames of files in this folder lie below the user's function."""

_thread_lock = threading.RLock()
"""The lock between the threads of one worker; the lock on the file is between workers."""


class TerminalPdb(pdb.Pdb):
    """pdb on a shared terminal.

    Args:
        terminal: A stream for reading and writing.
        lock_fd: A file that all workers of the session have open.
        title: Shown in each prompt.
    """

    def __init__(self, terminal: TextIO, lock_fd: int, title: str) -> None:
        super().__init__(stdin=terminal, stdout=terminal, nosigint=True, readrc=False)
        self.prompt = f"({title}) "
        self._lock_fd = lock_fd
        self._is_holding = False

    def interaction(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        """Take the terminal alone, and talk to the user."""
        self._hold()
        try:
            super().interaction(frame, tb_or_exc)
        except BaseException:
            self.let_go()
            raise

    def user_return(self, frame: FrameType, return_value: object) -> None:
        """Stop at a return; after the return of the task's own function go on, as no user code is left to step into."""
        super().user_return(frame, return_value)
        if frame.f_back is None or frame.f_back.f_code.co_filename.startswith(_PACKAGE):
            self.set_continue()

    def set_continue(self) -> None:
        """Go on, and release the terminal."""
        super().set_continue()
        self.let_go()

    def set_quit(self) -> None:
        """End the task, and release the terminal."""
        super().set_quit()
        self.let_go()

    def _hold(self) -> None:
        if not self._is_holding:
            _thread_lock.acquire()
            fcntl.lockf(self._lock_fd, fcntl.LOCK_EX)
            self._is_holding = True

    def let_go(self) -> None:
        """Release the terminal for other threads and workers."""
        if self._is_holding:
            self._is_holding = False
            fcntl.lockf(self._lock_fd, fcntl.LOCK_UN)
            _thread_lock.release()


def open_terminal(terminal: str) -> TextIO:
    """Return a text stream for reading and writing, with a buffer each way, because a terminal cannot seek."""
    raw = io.FileIO(os.open(terminal, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC), "r+")
    both: Any = io.BufferedRWPair(raw, raw)
    return io.TextIOWrapper(both, encoding="utf-8", errors="replace", line_buffering=True, write_through=True)
