"""A worker's handles.

The driver counts, for each worker, how often it gave the worker a reference (`receipts` here). When the last handle of
this process is collected, all receipts go back in one `DROP`. Handles for references in queued work are made on arrival
and kept with the work, so that a `DROP` can never give back a receipt that is still needed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import final

from hocket.engine import contract, pinned
from hocket.engine.local import journal, messages
from hocket.engine.local.worker_engine import duty


@final
class WorkerHandles(contract.Handles):
    """Handles, with what the driver has counted for them.

    Args:
        engine: Whose they are.
        lock: The engine's.
        driver: The way to the driver.
        own: Which session it is.
    """

    def __init__(
        self, engine: contract.Engine, lock: threading.RLock, driver: journal.JournalChannel, own: duty.Duty
    ) -> None:
        super().__init__(engine)
        self._lock, self._driver, self._duty = lock, driver, own
        self.receipts: dict[int, int] = {}

    def adopt(self, object_id: int) -> None:
        if object_id not in self.receipts:
            with self._lock:
                self.receipts[object_id] = 1
                self._driver.post((messages.ADOPT, object_id))

    def intern(self, object_id: int) -> contract.AnyRef:
        with self._lock:  # the background reader must not give receipts back between the look and the new handle
            return super().intern(object_id)

    def hold(self, object_ids: Sequence[int]) -> list[contract.AnyRef]:
        """Count a receipt for each reference that came with a message, and return handles that keep them."""
        held = []
        for object_id in object_ids:
            self.receipts[object_id] = self.receipts.get(object_id, 0) + 1
            held.append(self.intern(object_id))
        return held

    def own(self, object_id: int) -> contract.AnyRef:
        """Return the first handle on an object that this process has just announced to the driver."""
        self.receipts[object_id] = 1
        return contract.ObjectRef(object_id, self._engine)

    def reduce_pinned(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        return pinned.reduce(self._duty.setup["job_id"], ref)
