"""What the engine in the caller's process knows."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType

from hocket import exceptions
from hocket.engine import kernel_engine, node
from hocket.engine.inprocess import coroutines, payloads, turning
from hocket.kernel import machine, resources
from hocket.kernel.records import TaskRecord, WorkerRecord

current: contextvars.ContextVar[tuple[WorkerRecord, TaskRecord]] = contextvars.ContextVar("current")
"""What the coroutine belongs to; not set in ordinary code."""


class Entrance:
    """The engine's reentrant lock, which knows whether its owner runs the user's code.

    Tasks run inside the engine's calls, with the lock held. Ctrl-C must stop them at once and must not stop the engine
    half-way through its own work, so the lock is "owned", as `engine.interrupts` asks, only while the engine works.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: Called when the user's code goes on; may raise the interrupt that had to wait.
        self.check: Callable[[], None] = lambda: None
        #: By depth: whether what runs there is the user's code.
        self._depths: list[bool] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depths.append(False)

    def __exit__(self, *_: object) -> None:
        self._depths.pop()
        self._lock.release()
        if not self._is_owned():
            self.check()

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Run the user's code in here."""
        self._depths.append(True)
        try:
            self.check()
            yield
        finally:
            self._depths.pop()

    def _is_owned(self) -> bool:
        return self._lock._is_owned() and bool(self._depths) and not self._depths[-1]  # type: ignore[attr-defined]


class InProcessState(kernel_engine.KernelEngine):
    """The tables and the lock."""

    lock: Entrance

    def __init__(
        self, node_demand: resources.Demand, *, namespace: str, labels: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        kernel = machine.Kernel(
            node_demand,
            max_idle_workers=1 << 30,
            gpu_ids=node.name_gpus(node_demand),
            encode_error=payloads.encode_error,
            error_mark=True,
            none_value=payloads.encode(None)[0],
            end_value=payloads.encode_error(exceptions.ObjectRefStreamEndOfStreamError("The generator has ended.")),
        )
        super().__init__(Entrance(), kernel, namespace=namespace, labels=labels)
        self.lock.check = self.guard.check
        self.guard.install()
        self._runnable: deque[tuple[WorkerRecord, TaskRecord]] = deque()
        self._instances: dict[int, object] = {}
        self._stack: list[tuple[WorkerRecord, TaskRecord]] = []
        self._loops: dict[int, coroutines.Loop] = {}
        self._turner = turning.Turner(self.lock, self._turn)
        #: Large arrays that functions refer to.
        self._buffers: dict[bytes, list[bytes]] = {}
        #: Full names, by the function's id.
        self._function_names: dict[bytes, str] = {}

    def _find_current(self) -> tuple[WorkerRecord, TaskRecord] | None:
        """Return what the calling code belongs to; None for the main program."""
        return current.get(None) or (self._stack[-1] if self._stack else None)

    # --- of the layers above ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _end_worker(self, worker: WorkerRecord, is_graceful: bool) -> None:
        """Drop a worker's actor and its event loop, after the actor's own farewell if it is graceful."""

    @abc.abstractmethod
    def _bury(
        self, worker: WorkerRecord, *, is_graceful: bool, running: Collection[int] = (), exit_code: int | None = None
    ) -> None:
        """End a worker, and have the kernel know. Without an exit code its end was wanted."""

    @abc.abstractmethod
    def _turn(self) -> bool:
        """Let coroutines and tasks run as far as they come; tell whether somebody outside still waits for some."""

    # --- what there is to see -----------------------------------------------------------------------------------------

    def _get_pid(self, worker_id: int) -> int:
        return os.getpid()

    def _find_running(self, worker: WorkerRecord) -> tuple[int, float]:
        return 0, 0.0

    def _measure(self, payload: payloads.Payload) -> int:
        return payloads.measure(payload)

    def _locate(self, payload: payloads.Payload) -> str:
        return ""

    def _count_processes(self) -> dict[str, object]:
        return {"workers": 0, "worker_pids": [], "guardian_pid": None, "shared_bytes": 0}
