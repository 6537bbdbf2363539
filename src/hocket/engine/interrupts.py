"""Ctrl-C that breaks a wait, never a data structure.

Python raises KeyboardInterrupt between any two bytecodes of the main thread, also half-way through the handling of a
message, which would then be lost. While a session is open, the handler of SIGINT therefore looks whether the main
thread holds the engine's lock. If not, it raises at once, as always; if so, it takes a note, and the engine raises
(`check`) as soon as the lock is free, microseconds later.

Only Python's own handler is replaced: a program with a handler of its own keeps it.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Protocol

from hocket.engine import contract

_COLLECTING = contract.ObjectRef.__del__.__code__


class Lock(Protocol):
    """What the guard needs of an engine's lock."""

    def _is_owned(self) -> bool: ...


class InterruptGuard:
    """The handler, for as long as a session is open."""

    def __init__(self, lock: Lock | threading.RLock) -> None:
        self._lock = lock
        #: Whether an interrupt is waiting to be raised.
        self.is_pending = False
        self._is_installed = False
        #: The last that was raised.
        self._raised: KeyboardInterrupt | None = None

    def install(self) -> None:
        """Replace Python's handler; does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_interrupt)
            self._is_installed = True

    def remove(self) -> None:
        """Put Python's handler back."""
        if self._is_installed and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) == self._on_interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_installed = False

    def check(self) -> None:
        """Raise the interrupt that had to wait. Called by the main thread without the lock."""
        if self.is_pending and threading.current_thread() is threading.main_thread():
            self.is_pending = False
            raise self._build()

    def is_own(self, error: KeyboardInterrupt) -> bool:
        """Tell whether an exception is of a signal, and was not raised by a program itself. Signals that nobody guards against count as such."""
        return not self._is_installed or error is self._raised

    def _build(self) -> KeyboardInterrupt:
        self._raised = KeyboardInterrupt()
        return self._raised

    def _on_interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        # What is raised in a `__del__` is printed and lost, so there it waits for the next call of the engine.
        if (frame is not None and frame.f_code is _COLLECTING) or self._lock._is_owned():  # type: ignore[union-attr]
            self.is_pending = True
        else:
            raise self._build()


def is_interactive() -> bool:
    """Tell whether a person types at a prompt or in a notebook."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
