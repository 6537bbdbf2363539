"""The engine as a worker process sees it: everything is forwarded to the driver."""

from __future__ import annotations

import threading
from typing import final

from hocket.engine import forks
from hocket.engine.local.worker_engine import access


@final
class WorkerEngine(access.ObjectAccess):
    """The worker's side of the contract."""

    def _check(self) -> None:
        self.check()

    def cut_off(self) -> None:
        self.guard.remove()
        self.reactor.cut_off()
        self.channel.cut_off()
        self.direct.cut_off()
        self.lock = threading.RLock()
        forks.cut_off(self)

    def close(self) -> None:
        """Workers are ended by their parent; a task cannot close the session that it runs in."""
