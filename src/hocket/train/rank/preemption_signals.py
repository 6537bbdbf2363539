"""SIGTERM as a notice: in a rank's process, and in the process that called `fit`.

Python runs a signal's handler in the main thread, and only that thread may set handlers. In a rank, the main thread is
idle while the training function runs in another thread, so the handler runs at once. In a worker of Ray, the main
thread is inside Ray's own loop and runs no handler. There, another thread reads Python's wakeup descriptor, to which
the system's handler writes (`listen_aside`). A second SIGTERM ends the process, as without this module. So does the
first SIGTERM in a process that a rank forks, such as a loader's worker. A handler that the program has set stays.

A SIGTERM for the process that called `fit` means that the process must end. `fit` raises `PreemptionError` there, but
the program may catch it, so `passed_on` ends the process in any case.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

_log = logging.getLogger("hocket.train")

END_SECONDS: Final = 10.0
"""Seconds that a process may go on after `fit` if it got SIGTERM. A guess: ``docker stop`` kills after that time."""


@dataclass(frozen=True, slots=True)
class PreemptionSignal:
    """A rank's notice that it got SIGTERM."""

    is_drivers: bool
    """Whether the process that called `fit` got SIGTERM, and not the rank itself."""


class _Handler:
    """The one handler of this process."""

    tell: Callable[[], None] | None = None
    """The function that the handler calls; None if the handler is not set."""
    is_aside: bool = False
    """Whether a thread reads signals from the wakeup descriptor."""


def listen(tell: Callable[[], None]) -> bool:
    """Make the next SIGTERM call a function, unless the program has a handler; return whether it now does.

    Args:
        tell: The function. A signal's handler calls it, so it must not wait for a lock that the main thread may hold.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    _Handler.tell = tell
    signal.signal(signal.SIGTERM, _take_signal)
    return True


def listen_aside(tell: Callable[[], None]) -> bool:
    """Make the next SIGTERM call a function, even if the main thread runs no Python; return whether it now does.

    This replaces a handler that is set.

    Args:
        tell: The function, called in a thread of its own.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
        return False

    def wait() -> None:
        while signal.SIGTERM not in os.read(reading, 1):
            pass
        end_at_once()
        _take_signal(signal.SIGTERM, None)

    _Handler.tell, _Handler.is_aside = tell, True
    signal.signal(signal.SIGTERM, _take_signal)
    threading.Thread(target=wait, name="hocket-sigterm", daemon=True).start()
    return True


def end_at_once() -> None:
    """Make SIGTERM end the process, whatever handler Python has. Any thread may call this function."""
    import ctypes  # here, because few processes need it; and not `signal.signal`, which only the main thread may call

    libc: Any = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGTERM, None)  # SIG_DFL


def ignore() -> None:
    """Make SIGTERM end the process again, as by default."""
    _Handler.tell = None
    if signal.getsignal(signal.SIGTERM) is _take_signal:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _take_signal(number: int, frame: FrameType | None) -> None:
    tell, _Handler.tell = _Handler.tell, None
    if threading.current_thread() is threading.main_thread():
        ignore()
    if tell is not None:
        tell()


_forking = threading.local()
"""The signal mask that a thread had before it forked."""


def _before_fork() -> None:
    """Hold SIGTERM back until the child has reset its handler. Until then the child would take it for a notice."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}) if _Handler.tell is not None else None


def _after_fork() -> None:
    mask = getattr(_forking, "mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    if _Handler.tell is not None:
        ignore()
    if _Handler.is_aside:  # the child's signals are not this process's
        _Handler.is_aside = False
        signal.set_wakeup_fd(-1)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def passed_on(tell_ranks: Callable[[], None], most_seconds: float) -> Iterator[None]:
    """Pass a SIGTERM of this process on to the ranks during the block, and end the process some time after the block.

    Args:
        tell_ranks: Called once, in a thread of its own, because the main thread may be in the middle of anything.
        most_seconds: The most seconds that ranks have after the signal.
    """
    heard = threading.Event()
    are_told = threading.Event()
    is_over = threading.Event()

    def wait() -> None:
        heard.wait()
        if not is_over.is_set():
            tell_ranks()
            are_told.set()
            is_over.wait(most_seconds)
            time.sleep(END_SECONDS)
            _end_process()

    if not listen(heard.set):
        yield
        return
    thread = threading.Thread(target=wait, name="hocket-sigterm", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ignore()
        was_heard = heard.is_set()
        is_over.set()
        heard.set()
        if was_heard:
            are_told.wait(END_SECONDS)
        else:
            thread.join()


def _end_process() -> None:
    """End this process as SIGTERM would have, unless the program has set a handler of its own since."""
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _take_signal):
        return
    _log.warning(
        "This process received SIGTERM while it trained, and had not ended %.0f s later, so it ends now. To let it run "
        "longer, catch train.PreemptionError and set a handler for SIGTERM.",
        END_SECONDS,
    )
    end_at_once()
    os.kill(os.getpid(), signal.SIGTERM)
