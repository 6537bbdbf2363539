"""How a task that runs is interrupted: the main thread gets a signal, whose handler raises."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from types import FrameType
from typing import Final, final

AGAIN_SECONDS: Final = 0.02
"""After how long a task is interrupted again that was in the middle of an import. A guess."""


@final
class Interruption:
    """The task in the main thread, as far as it may be interrupted there."""

    def __init__(self) -> None:
        self.main_id = threading.get_ident()
        #: The task whose code runs; 0 where an interrupt would hit our own.
        self._interruptible_id = 0
        self._cancelling_id = 0

    def install(self) -> None:
        """Take over SIGINT."""
        signal.signal(signal.SIGINT, self._on_interrupt)

    def remove(self) -> None:
        """Give SIGINT back, in a fork."""
        if signal.getsignal(signal.SIGINT) == self._on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def open(self, task_id: int) -> None:
        """From here on a task may be interrupted. Called by the main thread."""
        self._interruptible_id = task_id

    def close(self) -> None:
        """From here on nothing may be."""
        self._interruptible_id = 0

    def raise_if_cancelled(self, task_id: int, cancelled: set[int]) -> None:
        """Interrupt a task that was cancelled before it could be interrupted."""
        if self._interruptible_id and task_id in cancelled:
            self._cancelling_id = task_id
            raise KeyboardInterrupt

    def is_cancelling(self, task_id: int) -> bool:
        """Tell whether it was this task that was interrupted last."""
        return self._cancelling_id == task_id

    def cancel(self, task_id: int) -> None:
        """Interrupt a task if it runs. Called by another thread."""
        if self._interruptible_id == task_id:
            self._cancelling_id = task_id
            signal.pthread_kill(self.main_id, signal.SIGINT)

    def _on_interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        if self._interruptible_id and self._interruptible_id == self._cancelling_id:
            if _is_importing(frame):  # a module that was broken off might never be imported in this process again
                _thread.start_new_thread(self._interrupt_again, (self._cancelling_id,))
                return
            self._interruptible_id = 0
            raise KeyboardInterrupt

    def _interrupt_again(self, task_id: int) -> None:
        time.sleep(AGAIN_SECONDS)
        if self._interruptible_id == task_id:
            signal.pthread_kill(self.main_id, signal.SIGINT)


def _is_importing(frame: FrameType | None) -> bool:
    """Tell whether the task imports a module there."""
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("hocket.engine.local.worker."):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
