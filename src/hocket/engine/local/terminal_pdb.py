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

    def user_return(self, frame: FrameType, return_value: object) -> None:
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


def open_terminal(terminal: str) -> TextIO:
    """Return a text stream for reading and writing; a terminal cannot seek, so it takes one buffer each way."""
    raw = io.FileIO(os.open(terminal, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC), "r+")
    both: Any = io.BufferedRWPair(raw, raw)
    return io.TextIOWrapper(both, encoding="utf-8", errors="replace", line_buffering=True, write_through=True)
