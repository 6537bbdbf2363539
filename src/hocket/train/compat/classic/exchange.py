"""What a rank hands to the driver, one thing at a time: it goes on when the driver has taken it, and asks for the next one."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reported:
    """One call of ``report``."""

    blob: bytes
    """The pickled dict."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One call of ``save_checkpoint``."""

    blob: bytes | None
    """The pickled dict, from rank 0; None from the others."""
    score: float | None
    """The value of `CheckpointStrategy.checkpoint_score_attribute`."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The training function has returned, or raised."""


Event = Reported | Saved | Ended


class AbandonedRun(BaseException):
    """Ends a training function whose run nobody follows any more. Not an Exception, so that the function does not handle it."""


class Exchange:
    """Where the thread of the training function and that of the driver's questions meet. Used for one run."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._taken = threading.Semaphore(0)
        self._owes_go = False
        self._is_ignored = False
        self._is_abandoned = False

    def hand_over(self, event: Event) -> None:
        """Give something to the driver, and wait until it has dealt with it."""
        if not self._is_ignored:
            self._events.put(event)
            self._taken.acquire()
        if self._is_abandoned:
            raise AbandonedRun

    def end(self) -> None:
        """Say that nothing more will come."""
        self._events.put(Ended())

    def take(self) -> Event:
        """Wait for the next thing. What was taken before is thereby dealt with."""
        if self._owes_go:
            self._taken.release()
        event = self._events.get()
        self._owes_go = not isinstance(event, Ended)
        return event

    def ignore(self) -> None:
        """Let the training function run to its end: nothing is taken any more."""
        self._is_ignored = True
        self._taken.release()

    def abandon(self) -> None:
        """Have the training function raise at its next report."""
        self._is_abandoned = True
        self.ignore()
