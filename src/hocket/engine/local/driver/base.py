"""What the driver's engine knows, and how it talks to one worker.

The classes of this package are one object in layers, as the kernel is: each calls what is below it by its name, and
what is above it through the abstract methods here, which are few.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hocket.engine import descriptors, events, faults, inspection, kernel_engine, node
from hocket.engine.events import reader
from hocket.engine.local import driver_store, endpoint, ends, functions, links, payloads, processes, reactor
from hocket.kernel import machine, records, resources


class DriverState(kernel_engine.KernelEngine):
    """The tables, the sockets and the lock.

    Args:
        node_demand: What the machine has.
        namespace: Where actors' names live unless said otherwise.
        labels: What `hocket.init` says about the machine, for options that choose among nodes.
        memory_limit: How many bytes large values may take in memory; what is more goes to disk. None: a part of what
            this process may use.
        spill_folder: Where they go. Empty: the system's folder for temporary files.
    """

    name = "local"
    lock: threading.RLock

    def __init__(
        self,
        node_demand: resources.Demand,
        *,
        namespace: str,
        labels: Mapping[str, str] = MappingProxyType({}),
        memory_limit: int | None = None,
        spill_folder: str = "",
    ) -> None:
        descriptors.reserve_standard()
        cpus = dict(node_demand).get("CPU", 0) // resources.UNIT
        kernel = machine.Kernel(
            node_demand,
            max_idle_workers=max(1, cpus),
            gpu_ids=node.name_gpus(node_demand),
            encode_error=payloads.encode_error,
            error_mark=payloads.ERROR,
            none_value=payloads.NONE,
            end_value=payloads.STREAM_END,
        )
        super().__init__(threading.RLock(), kernel, namespace=namespace, labels=labels)
        descriptors.raise_limit()
        self.guard.install()
        try:
            descriptors.check_free()
            self._build(memory_limit, spill_folder)
        except BaseException:  # no descriptors, for example
            self.guard.remove()
            raise

    def _build(self, memory_limit: int | None, spill_folder: str) -> None:
        self.links: dict[int, links.Link] = {}
        self.failures = 0
        self._since_read = 0
        self._dirty: set[links.Link] = set()
        self._by_fd: dict[int, links.Link] = {}
        self.reactor = reactor.Reactor(
            self,
            self.lock,
            handle=self._handle,
            before_wait=self._before_wait,
            guard=self.guard,
            check=self.guard.check,
            name="hocket-reader",
        )
        self.store = driver_store.DriverStore(
            self.lock,
            limit=node.choose_store_bytes() if memory_limit is None else memory_limit,
            folder=spill_folder,
            tell=self._tell,
            send=self.carry_out,
            wait=self.reactor.wait_until,
        )
        self.functions = functions.Functions(self.kernel.functions)
        #: Options that workers have sent, by their pickle; and those of direct calls, which are nothing but a name.
        self._options: dict[bytes, Any] = {}
        self._direct_options: dict[str, records.TaskOptions] = {}
        #: Answers of dead actors that we brought to their callers. Such a caller may have had the answer by its direct
        #: channel, too, and be about to announce it.
        self._delivered: set[int] = set()
        self._setup = processes.build_setup(
            self.job_id,
            self.node_id,
            self.namespace,
            has_gpus="GPU" in self.kernel.pool.total,
            has_cpu=self._usual_shape is not None,
        )
        self.guardian: processes.GuardianProcess | None = None
        #: The modules that it was told to load.
        self._loaded: set[str] = set()
        self.ends = ends.Ends(self)
        #: When to look after the rest, and since when all workers are idle; for `watch`.
        self._next_look = 0.0
        self._idle_since = 0.0
        self._waiting_since: dict[resources.Shape, float] = {}
        #: Since when a task has stood alone in a worker that does not start it, by the worker and the task's number.
        self._unstarted_since: dict[tuple[int, int], float] = {}
        #: Shapes of which the user has been told that they wait.
        self._told: set[resources.Shape] = set()
        #: Pids of workers, also of dead ones, as far as they are remembered.
        self.pids: dict[int, int] = {}
        self._endpoint: endpoint.InspectionEndpoint | None = None
        self._view.read_events = self._read_events

    # --- of the layers above ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def carry_out(self, *, urgent: bool = True) -> None:
        """Do what the kernel asks, then send. Called with the lock held."""

    @abc.abstractmethod
    def _before_wait(self) -> float | None:
        """Send what is unsent and look after what is due; return how long to wait at most. Called with the lock
        held."""

    @abc.abstractmethod
    def _handle(self, fd: int, mask: int) -> None:
        """Handle what has come on a descriptor. Called with the lock held."""

    # --- one worker ---------------------------------------------------------------------------------------------------

    def _tell(self, worker_id: int, message: tuple[object, ...]) -> bool:
        """Put a message into a worker's outbox; False if it is dead."""
        link = self.links.get(worker_id)
        if link is not None:
            link.channel.post(message)
            self._dirty.add(link)
        return link is not None

    def send(self, link: links.Link, message: tuple[object, ...]) -> None:
        """Put a message in a worker's outbox, to be sent before the next wait."""
        link.channel.post(message)
        self._dirty.add(link)
        self.flush(link)

    def flush(self, link: links.Link) -> None:
        """Send what a worker is to get; what its socket does not take is sent when it does."""
        if faults.plan is not None:
            faults.plan.reach("hub.before_flush")
        try:
            is_sent = link.channel.flush()
        except OSError as error:  # it is dying; its parent will tell why
            link.channel.outbox.clear()
            is_sent = True
            if not isinstance(error, BrokenPipeError | ConnectionResetError):  # it would wait for ever
                self.kill_worker(link.worker.id)
        if is_sent == link.is_writable_watched and not link.is_closed:
            link.is_writable_watched = not is_sent
            self.reactor.watch_writable(link.channel.fd, link.is_writable_watched)
        self._dirty.discard(link)

    def kill_worker(self, worker_id: int) -> None:
        """Have a worker killed."""
        if self.guardian is not None:
            self.guardian.kill(worker_id)

    # --- what there is to see -----------------------------------------------------------------------------------------

    def _get_pid(self, worker_id: int) -> int:
        return self.pids.get(worker_id, 0)

    def _find_running(self, worker: records.WorkerRecord) -> tuple[int, float]:
        if self.guardian is None:
            return 0, 0.0
        return self.guardian.read_status(worker.id), self.guardian.read_start(worker.id)

    def _read_events(self) -> list[reader.Batch]:
        self._write_spans()
        return self.guardian.build_reader().read() if self.guardian is not None else []

    def _write_spans(self) -> None:
        """Write down what this process spent time on. Called with the lock held."""
        if self.guardian is None:  # nobody can look before there is a worker
            return
        while self.spans:
            self.guardian.events.record(*self.spans.popleft())

    def _note(self, kind: events.Kind, name: str, started: float, seconds: float, amount: int) -> None:
        self.spans.append(inspection.OwnSpan(kind, name, started, seconds, amount))

    def _measure(self, payload: payloads.Payload) -> int:
        return payloads.measure(payload)

    def _locate(self, payload: payloads.Payload) -> str:
        return payloads.get_source_line(payload)

    def _read_arrived(self) -> None:
        self.reactor.handle_arrived()

    def _call_back_all(self) -> None:
        """The session is over: whoever waits for a future is to learn it."""
        for callbacks in self._callbacks.values():
            self.reactor.due.extend(callbacks)
        self._callbacks.clear()
