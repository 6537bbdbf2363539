"""The queue of a rank's messages to the controller."""

from __future__ import annotations

import queue
from dataclasses import dataclass

from hocket.train.checkpoints import cache
from hocket.train.rank import equality, preemption_signals, questions, reports


@dataclass(frozen=True, slots=True)
class Mark:
    """Comes after all that was reported when the controller asked for it."""


Item = reports.Report | equality.Item | cache.Request | questions.Question | preemption_signals.PreemptionSignal | Mark
"""What a rank sends to the controller."""


class ReportQueue:
    """Reports, requests and questions of a rank on their way to the controller, which takes them in batches from
    another thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item | Exception | None] = queue.SimpleQueue()
        self._failure: Exception | None = None

    def put(self, item: Item) -> None:
        """Send something."""
        self._queue.put(item)

    def fail(self, error: Exception) -> None:
        """Say that something has failed, and nothing more will come: `take_batch` raises it after what was put
        before."""
        self._queue.put(error)

    def end(self) -> None:
        """Say that no more will come."""
        self._queue.put(None)

    def take_batch(self) -> tuple[list[Item], bool]:
        """Wait for the next one; return all that are there, and whether there will be no more."""
        if self._failure is not None:
            raise self._failure
        batch: list[Item] = []
        item = self._queue.get()
        while item is not None:
            if isinstance(item, Exception):
                if not batch:
                    raise item
                self._failure = item
                return batch, False
            batch.append(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True
