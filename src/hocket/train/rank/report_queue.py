"""The queue of a rank's messages to the controller."""

from __future__ import annotations

import queue
from dataclasses import dataclass

from hocket.train.checkpoints import cache
from hocket.train.rank import equality, preemption_signals, questions, reports


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark behind all items that the rank had put when the controller requested the mark."""


Item = reports.Report | equality.Item | cache.Request | questions.Question | preemption_signals.PreemptionSignal | Mark
"""An item that a rank sends to the controller."""


class ReportQueue:
    """The queue of a rank's items for the controller, which takes them in batches from another thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item | Exception | None] = queue.SimpleQueue()
        self._failure: Exception | None = None

    def put(self, item: Item) -> None:
        """Put an item at the end."""
        self._queue.put(item)

    def fail(self, error: Exception) -> None:
        """Put an error as the last item. `take_batch` raises it after the items before it."""
        self._queue.put(error)

    def end(self) -> None:
        """Note that no more items will come."""
        self._queue.put(None)

    def take_batch(self) -> tuple[list[Item], bool]:
        """Wait for the next item; return all items that are there, and whether they are the last."""
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
