"""The workers of a coordinator: started, added, removed and ended, each with its dispatcher."""

from __future__ import annotations

import threading
from typing import Final, final

from hocket import showing
from hocket.ps import dispatcher, links, scheduler, worker


@final
class Workers:
    """All workers of a coordinator."""

    def __init__(self, queue: scheduler.ClosureScheduler, link: links.Link, settings: worker.Settings) -> None:
        self.scheduler: Final = queue
        self.dispatchers: Final[dict[int, dispatcher.WorkerDispatcher]] = {}
        """By worker. Changes under the scheduler's lock."""
        self.helpers: Final[list[threading.Thread]] = []
        """Threads that end when the scheduler is closed."""
        self._link = link
        self._settings = settings
        showing.show("coordinators", self, Workers._describe)

    def _describe(self) -> showing.Facts:
        queue = self.scheduler
        states = [state for _, state in sorted(queue.workers.items())]
        return {
            "strategy": self._link.address.gate.identity,
            **queue.statistics(),
            "workers": [
                {"worker": one.index, "taken": one.num_taken, "has": len(one.sent), "is_leaving": one.is_leaving}
                for one in states
            ],
        }

    def add(self) -> int:
        """Start one more worker; return its index."""
        queue = self.scheduler
        with queue.condition:
            queue.check_open()
            index = queue.num_workers
            queue.num_workers += 1
        added = dispatcher.WorkerDispatcher(queue, self._link, index, self._settings)
        with queue.condition:
            added.state.num_taken = max((one.num_taken for one in queue.workers.values()), default=0)
            self.dispatchers[index] = added
            queue.workers[index] = added.state
            self._tell_gate()
        added.begin()
        return index

    def remove(self, index: int) -> None:
        """End a worker, after it has done what it has.

        Raises:
            ValueError: There is no such worker, or it is the last.
        """
        living = self.scheduler.workers
        if index not in living:
            raise ValueError(f"There is no worker {index}; there are {sorted(living)}.")
        if len(living) == 1:
            raise ValueError(
                f"Worker {index} is the last one, and closures need one. Use coordinator.close() to end all."
            )
        self.dispatchers[index].leave()
        with self.scheduler.condition:
            del self.dispatchers[index]
            self.scheduler.remove_worker(index)
            self._tell_gate()

    def close(self) -> None:
        """End all workers and the threads that keep them busy. What has not ended is cancelled."""
        queue = self.scheduler
        queue.close()
        for one in list(self.dispatchers.values()):
            one.stop()
        for helper in self.helpers:
            if helper is not threading.current_thread():
                helper.join()
        with queue.condition:
            self.dispatchers.clear()
            queue.workers.clear()
            queue.inputs.close()

    def _tell_gate(self) -> None:
        if self._link.address.is_synchronous:
            self._link.gate.set_workers(len(self.dispatchers))
