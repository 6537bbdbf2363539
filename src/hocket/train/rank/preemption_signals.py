"""SIGTERM as a notice: in a rank's process, and in the process that called `fit`.

Python runs a signal's handler in the main thread, and only that thread may set one. In a rank it is idle while the
training function runs in another thread, so the handler runs at once. A second SIGTERM ends the process, as it would
have without us; and so does the first in a process that a rank forks, such as a loader's worker. A handler that
somebody else has set stays: on Ray that is Ray's own. It would have the process wait for the end of what runs and
answer nobody meanwhile, and the other ranks wait for it; so there SIGTERM is the end of a rank, at once
(`end_at_once`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class PreemptionSignal:
    """A rank's word that it was told to end."""

    is_drivers: bool
    """Whether it was the process that called `fit` that was told."""


class _Handler:
    """The one handler of this process."""

    tell: Callable[[], None] | None = None
    """What it calls; None if it is not set."""


def listen(tell: Callable[[], None]) -> bool:
    """Have the next SIGTERM call something, if that signal would end the process; return whether it does now.

    Args:
        tell: Called by a signal's handler, so it must not wait for a lock that the main thread may hold.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    _Handler.tell = tell
    signal.signal(signal.SIGTERM, _take_signal)
    return True


def end_at_once() -> None:
    """Have SIGTERM end the process, whatever handler Python knows.

    Any thread may call it: the system is asked, and not Python.
    """
    import ctypes  # here, because few processes need it

    libc: Any = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGTERM, None)  # SIG_DFL


def ignore() -> None:
    """Have SIGTERM end the process again."""
    _Handler.tell = None
    if signal.getsignal(signal.SIGTERM) is _take_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _take_signal(number: int, frame: FrameType | None) -> None:
    tell = _Handler.tell
    ignore()
    if tell is not None:
        tell()


_forking = threading.local()
"""The signal mask of a thread from before it forks."""


def _before_fork() -> None:
    """Hold SIGTERM back: before the child has set it to its default, it would be taken for a notice, and be lost."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}) if _Handler.tell is not None else None


def _after_fork() -> None:
    mask = getattr(_forking, "mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    if _Handler.tell is not None:
        ignore()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def passed_on(tell_ranks: Callable[[], None]) -> Iterator[None]:
    """Have a SIGTERM of this process told to the ranks for the duration of a block.

    Args:
        tell_ranks: Called once, in a thread of its own: the main thread may be in the middle of anything.
    """
    heard = threading.Event()
    is_over = threading.Event()

    def wait() -> None:
        heard.wait()
        if not is_over.is_set():
            tell_ranks()

    if not listen(heard.set):
        yield
        return
    thread = threading.Thread(target=wait, name="hocket-sigterm", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ignore()
        is_over.set()
        heard.set()
        thread.join()
