"""What the engines have in common that hold the kernel in their own process: whatever only takes the lock and asks the
kernel.

How work is carried out, and how a caller waits for it, is in the engines. They say it through the few methods that
`KernelEngine` lists first.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import final

from hocket import exceptions
from hocket.engine import checks, contract, inspection, interrupts, node, pinned, rules, values
from hocket.kernel import machine, records, resources, state, tasks
from hocket.kernel.records import DRIVER


class KernelEngine(contract.Engine):
    """An engine around a kernel of its own.

    Args:
        lock: Held around every use of the kernel.
        kernel: A new one.
        namespace: Where actors' names live unless said otherwise.
        labels: What `hocket.init` says about the machine, for options that choose among nodes.
    """

    def __init__(
        self,
        lock: interrupts.Lock | threading.RLock,
        kernel: machine.Kernel,
        *,
        namespace: str,
        labels: Mapping[str, str],
    ) -> None:
        super().__init__()
        self.lock = lock
        self.guard = interrupts.InterruptGuard(lock)
        self.kernel = kernel
        self.unfetched: Unfetched = Unfetched(kernel, self._read_arrived)
        self.namespace = namespace
        self.labels = dict(labels)
        self.job_id = os.urandom(4).hex()
        self.node_id = os.urandom(16).hex()
        self.errors: deque[exceptions.ErrorRecord] = deque(maxlen=1000)
        #: Workers that have ended, and what this process itself spent time on: the last ones, oldest first.
        self.lost: deque[inspection.LostWorker] = deque(maxlen=1000)
        self.spans: deque[inspection.OwnSpan] = deque(maxlen=state.KEPT_TASKS)
        #: When each task that runs was started, by `time.perf_counter`, where the engine itself runs them.
        self._starts: dict[int, float] = {}
        #: Why the session is over, if it is.
        self.end: exceptions.HocketError | None = None
        self._callbacks: dict[int, list[Callable[[], None]]] = {}
        self._ids = itertools.count(1)
        #: Shapes that have been found feasible; the answer does not change during a session.
        self._feasible: set[resources.Shape] = set()
        #: The one that most tasks have, if it is feasible.
        self._usual_shape = records.DEFAULT_SHAPE if kernel.could_ever_fit(records.DEFAULT_SHAPE) else None
        #: What was last found to fit into the machine, with its strategy: groups are often made again and again.
        self._feasible_bundles: tuple[tuple[resources.Demand, ...], str] = (), ""
        self._view = inspection.StateView(
            kernel=kernel,
            job_id=self.job_id,
            node_id=self.node_id,
            namespace=namespace,
            labels=self.labels,
            driver_pid=os.getpid(),
            entrypoint=" ".join(sys.orig_argv),
            opened_at=time.time(),
            get_pid=self._get_pid,
            find_running=self._find_running,
            measure=self._measure,
            locate=self._locate,
            errors=self.errors,
            starts=self._starts,
            lost=self.lost,
            spans=self.spans,
        )

    # --- of the engines -----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def carry_out(self) -> None:
        """Do what the kernel asks. Called with the lock held."""

    @abc.abstractmethod
    def _finish_change(self) -> None:
        """Carry out what the caller changed, and let whoever waits see it. Called with the lock held."""

    def _finish_cancel(self) -> None:
        """Do the same for what the caller cancelled."""
        self._finish_change()

    @abc.abstractmethod
    def _drain_dropped(self) -> None:
        """Count the handles that have been garbage-collected. Called with the lock held."""

    def _read_arrived(self) -> None:
        """Take in what workers have said and nobody has read yet. Called without the lock, or with it."""

    @abc.abstractmethod
    def _get_pid(self, worker_id: int) -> int:
        """Return the pid of a worker, dead ones included; 0 if it is not known."""

    @abc.abstractmethod
    def _find_running(self, worker: records.WorkerRecord) -> tuple[int, float]:
        """Return the task that a worker started last, and when, by `time.perf_counter`; zeros where unknown."""

    @abc.abstractmethod
    def _measure(self, payload: tuple[object, ...]) -> int:
        """Return the bytes of a payload."""

    @abc.abstractmethod
    def _locate(self, payload: tuple[object, ...]) -> str:
        """Return the source line that made a payload, where known."""

    @abc.abstractmethod
    def _count_processes(self) -> dict[str, object]:
        """Return the part of the statistics that is about workers and memory."""

    # --- work ---------------------------------------------------------------------------------------------------------

    def _make_ids(self, count: int) -> int:
        """Return the first of so many ids in a row: a task's own, and those of its further returns."""
        first = next(self._ids)
        for _ in range(count - 1):
            next(self._ids)
        return first

    def check_feasible(
        self, shape: resources.Shape, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        """Raise if the shape can never be had."""
        if not self.kernel.could_ever_fit(shape):
            raise kind(node.explain_infeasible(what, shape, self.get_total_resources()))
        if not shape.group_id:
            self._feasible.add(shape)

    def claim_name(self, name: str, namespace: str, *, caller: int = DRIVER) -> None:
        """Keep the name for the actor that the caller is about to create; raise if another has it."""
        if not self.kernel.claim_name(namespace, name, caller):
            raise rules.build_name_error(name, namespace)

    def release_name(self, name: str, namespace: str, *, caller: int = DRIVER) -> None:
        """There will be no such actor."""
        with self.lock:
            self.kernel.release_name(namespace, name, caller)

    def look_up_name(self, name: str, namespace: str) -> tuple[contract.ActorInfo | None, bool]:
        """Return the actor of that name, and whether there is none because a worker is just creating it."""
        with self.lock:
            actor = self.kernel.find_actor(namespace, name)
            if actor is None or actor.id not in self.kernel.objects:
                return None, self.kernel.is_claimed(namespace, name)
            return contract.ActorInfo(ref=self.intern(actor.id), options=actor.options), False

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        return rules.await_claim(lambda: self.look_up_name(name, namespace))

    def list_named_actors(self) -> list[tuple[str, str]]:
        with self.lock:
            return list(self.kernel.names)

    def describe_actor(self, actor_id: int) -> contract.ActorInfo:
        with self.lock:
            actor = checks.get_actor(self.kernel, actor_id)
            return contract.ActorInfo(ref=self.intern(actor_id), options=actor.options)

    def kill_actor(self, actor: contract.ObjectRef[None], *, no_restart: bool = True) -> None:
        with self.lock:
            self.kernel.kill_actor(actor._id, no_restart=no_restart)
            self._finish_change()
        self.guard.check()

    def reduce_pinned(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        return pinned.reduce(self, ref)

    def check_pending(self, actor: contract.ObjectRef[None], *, caller: int = DRIVER) -> None:
        with self.lock:
            if caller == DRIVER:
                self._read_arrived()
            checks.check_pending(self.kernel, actor._id, caller)

    def cancel(self, ref: contract.ObjectRef[object], *, force: bool, recursive: bool) -> None:
        with self.lock:
            if force:
                checks.check_forcible(self.kernel, ref._id)
            self.kernel.cancel(ref._id, force=force, recursive=recursive)
            self._finish_cancel()
        self.guard.check()

    # --- objects ------------------------------------------------------------------------------------------------------

    def put_error(self, error: exceptions.TaskError) -> contract.ObjectRef[object]:
        with self.lock:
            object_id = next(self._ids)
            self.kernel.put(object_id, self.kernel.encode_error(error), (), DRIVER, failed=True)
            return contract.ObjectRef(object_id, self)

    def take_item(self, stream: contract.ObjectRef[object], index: int) -> contract.ObjectRef[object]:
        with self.lock:
            ref: contract.AnyRef = contract.ObjectRef(self.kernel.take_item(stream._id, index), self)
            if self.kernel.instructions:
                self.carry_out()
            return ref

    def adopt(self, object_id: int) -> None:
        if object_id not in self.kernel.objects:
            raise exceptions.ObjectLostError(
                f"ObjectRef({object_id:016x}) is unknown: it was freed or is of another session."
            )
        self.kernel.retain(object_id)

    # --- resources ----------------------------------------------------------------------------------------------------

    def reserve(
        self,
        bundles: Sequence[resources.Demand],
        strategy: str,
        name: str,
        *,
        is_detached: bool = False,
        caller: int | None = None,
    ) -> contract.ObjectRef[None]:
        with self.lock:
            if isinstance(self.end, exceptions.SessionClosedError):
                raise self.end
            wanted = tuple(bundles)
            if (wanted, strategy) != self._feasible_bundles:
                node.check_bundles(self.kernel.pool, bundles, strategy, self.get_total_resources())
                self._feasible_bundles = wanted, strategy
            group = records.GroupRecord(next(self._ids), wanted, strategy, name)
            worker = None if caller is None or is_detached else self.kernel.workers.get(caller)
            group.creator = worker.id if worker is not None and worker.actor is not None else None
            self.kernel.reserve(group)
            self.carry_out()
            return contract.ObjectRef(group.id, self)

    def remove_group(self, group_id: int) -> None:
        with self.lock:
            self.kernel.remove_group(group_id)
            self._finish_change()
        self.guard.check()

    def list_groups(self) -> list[dict[str, object]]:
        # Without the lock: where a task runs in the caller's process, a thread of the task may ask.
        return [
            node.describe_group(group, self.node_id)
            for group in (*self.kernel.groups.values(), *self.kernel.removed_groups)
        ]

    def list_nodes(self) -> list[dict[str, object]]:
        return [node.describe_node(self.node_id, self.get_total_resources(), self.labels)]

    def get_total_resources(self) -> dict[str, float]:
        return {name: units / resources.UNIT for name, units in self.kernel.pool.total.items()}

    def get_free_resources(self) -> dict[str, float]:
        self._read_arrived()  # leases that ended a moment ago may not have been seen yet
        return {name: units / resources.UNIT for name, units in self.kernel.pool.free.items() if units > 0}

    # --- looking ------------------------------------------------------------------------------------------------------

    def get_context(self) -> contract.WorkContext:
        return contract.WorkContext(
            job_id=self.job_id,
            node_id=self.node_id,
            worker_id=f"{DRIVER:016x}",
            namespace=self.namespace,
            environment=self.inherited.environment if self.inherited is not None else "",
        )

    def list_errors(self) -> list[exceptions.ErrorRecord]:
        self._read_arrived()
        return list(self.errors)

    def note_error(self, task_id: int, name: str, error_type: str, text: str) -> None:
        """Remember a failure for `list_errors`."""
        record = exceptions.ErrorRecord(
            task_id=f"{task_id:016x}", name=name, error_type=error_type, message=text, timestamp=time.time()
        )
        self.errors.append(record)

    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, object]] = (), limit: int | None = None
    ) -> list[dict[str, object]]:
        self._read_arrived()
        with self.lock:
            self._drain_dropped()
            return self._view.list_records(kind, filters, limit)

    def statistics(self) -> dict[str, object]:
        with self.lock:
            self._drain_dropped()
            kernel = self.kernel
            return {
                "tasks": len(kernel.tasks),
                "objects": len(kernel.objects),
                "actors": len(kernel.actors),
                **self._count_processes(),
            }


@final
class Unfetched:
    """The errors that the kernel remembers because nobody has fetched them; see `contract.Unfetched`."""

    def __init__(self, kernel: machine.Kernel, read_arrived: Callable[[], None]) -> None:
        self._kernel, self._read_arrived = kernel, read_arrived

    def note_fetched(self, payload: tuple[object, ...] | None) -> None:
        """Hear that somebody has fetched an error. Called only where one is raised."""
        if self._kernel.unfetched:
            error = decode_error(payload)
            actor_id = int(error.actor_id or "0", 16) if isinstance(error, exceptions.ActorError) else 0
            tasks.note_fetched(self._kernel, payload, actor_id)

    def note_asked(self, refs: Sequence[contract.AnyRef]) -> None:
        tasks.note_asked(self._kernel, [ref._id for ref in refs])

    def list_errors(self) -> list[tuple[str, BaseException]]:
        with contextlib.suppress(exceptions.HocketError):  # the session may be over
            self._read_arrived()
        found = [(name, decode_error(payload)) for name, _, payload in list(self._kernel.unfetched.values())]
        kinds = (exceptions.TaskError, exceptions.WorkerCrashedError)
        return [(name, error) for name, error in found if isinstance(error, kinds)]


def decode_error(payload: tuple[object, ...] | None) -> BaseException | None:
    """Return an error of a task; None if this process cannot import what it takes."""
    try:
        error: BaseException = values.decode(payload[1])  # type: ignore[index, arg-type]
    except Exception:  # noqa: BLE001 (a class of the user's may raise anything)
        return None
    return error
