"""The guardian as the driver knows it, and facts on the workers, its children.

`processes` starts the guardian when there is a task to run, and not before: a program that only puts values has one
process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import final

from hocket.engine import events, inspection, kernel_parts, stacks
from hocket.engine.events import reader
from hocket.engine.local import driver_store, endpoint, links, payloads, processes, reactor, task_facts
from hocket.kernel import machine, records


@final
class Guardianship:
    """The guardian, the workers' pids, and spans of time. Every method is called with the lock held.

    Args:
        kernel: The kernel.
        ends: The links to the workers.
        store: The objects in shared memory.
        poller: The reader of the guardian's socket.
    """

    def __init__(
        self, kernel: machine.Kernel, ends: links.Links, store: driver_store.DriverStore, poller: reactor.Reactor
    ) -> None:
        self._kernel, self._links, self._store, self._poller = kernel, ends, store, poller
        self.guardian: processes.GuardianProcess | None = None
        self.endpoint: endpoint.InspectionEndpoint | None = None
        #: The modules that the guardian has to load.
        self._loaded: set[str] = set()
        #: The pids of workers, also of dead workers, as far as they are remembered.
        self.pids: dict[int, int] = {}
        self.lost: deque[inspection.LostWorker] = deque(maxlen=1000)
        self.spans: deque[inspection.OwnSpan] = deque(maxlen=kernel_parts.KEPT_SPANS)
        self.starts: dict[int, float] = {}

    def open(self) -> processes.GuardianProcess:
        """Return the guardian; start it and the readers of its sockets if there is none."""
        if self.guardian is None:
            self.guardian = processes.GuardianProcess()
            self._poller.watch(self.guardian.fd)
            self.endpoint = endpoint.InspectionEndpoint()
            self._poller.watch(self.endpoint.fd)
            self._poller.start()
            stacks.open_probe()
            events.open_notes(self.note)
        return self.guardian

    def load(self, modules: Sequence[str]) -> bool:
        """Have the guardian import modules that workers will need; return whether any module is new."""
        guardian = self.open()
        missing = [name for name in modules if name not in self._loaded]
        if missing:
            self._loaded.update(missing)
            guardian.load(missing)
        return bool(missing)

    def kill(self, worker_id: int) -> None:
        """Have a worker killed."""
        if self.guardian is not None:
            self.guardian.kill(worker_id)

    def owe(self, worker_id: int) -> None:
        """Expect the guardian's report of a worker's death."""
        if self.guardian is not None:
            self.guardian.owe(worker_id)

    def note_pid(self, worker_id: int, pid: int) -> None:
        """Note a new worker's pid."""
        self.pids[worker_id] = pid
        if len(self.pids) > 2 * kernel_parts.KEPT_SPANS:  # tasks that old are forgotten too
            del self.pids[next(iter(self.pids))]

    # --- spans of time ------------------------------------------------------------------------------------------------

    def note(self, kind: events.Kind, name: str, started: float, seconds: float, amount: int) -> None:
        """Note a span of the driver's time; see `events.note`."""
        self.spans.append((kind, name, started, seconds, amount))

    def write_spans(self) -> None:
        """Write the driver's spans to the events of all processes."""
        if self.guardian is None:  # there are no events before there is a worker
            return
        while self.spans:
            self.guardian.events.record(*self.spans.popleft())

    def write_killed_run(
        self, worker: records.WorkerRecord, task: records.TaskRecord, started: float, seconds: float
    ) -> None:
        """Write the event of a run that a dead worker could not write."""
        assert self.guardian is not None
        ring = self.guardian.reopen_events(worker.id, self.get_pid(worker.id))
        kind = task_facts.KINDS[task.kind]
        ring.record(kind, task.options.name, started, seconds, task.id, state=events.State.FAILED, attempt=task.attempt)
        ring.close()

    # --- facts on processes; see `kernel_parts.Processes` -------------------------------------------------------------

    def read_events(self) -> list[reader.Batch]:
        """Return the events of all processes."""
        self.write_spans()
        return self.guardian.build_reader().read() if self.guardian is not None else []

    def get_pid(self, worker_id: int) -> int:
        return self.pids.get(worker_id, 0)

    def find_running(self, worker: records.WorkerRecord) -> tuple[int, float]:
        if self.guardian is None:
            return 0, 0.0
        return self.guardian.read_status(worker.id), self.guardian.read_start(worker.id)

    def measure(self, payload: payloads.Payload) -> int:
        return payloads.measure(payload)

    def locate(self, payload: payloads.Payload) -> str:
        return payloads.get_source_line(payload)

    def count(self) -> dict[str, object]:
        return {
            "workers": len(self._kernel.workers),
            "worker_pids": sorted(link.pid for link in self._links.by_worker.values() if link.pid),
            "guardian_pid": self.guardian.pid if self.guardian is not None else None,
            **self._store.statistics(),
        }

    # --- the end ------------------------------------------------------------------------------------------------------

    def cut_off(self) -> None:
        """Let go of the guardian in a fork."""
        if self.guardian is not None:
            self.guardian.cut_off()

    def close(self) -> None:
        """End the guardian, and with it all workers. Called without the lock."""
        if self.guardian is not None:
            self.guardian.end()
            stacks.close_probe()
            events.open_notes(None)
        if self.endpoint is not None:
            self.endpoint.close()
