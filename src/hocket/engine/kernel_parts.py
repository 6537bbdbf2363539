"""The parts that two engines share, because they hold the kernel in their own process: whatever only takes the lock and
asks the kernel.

How work is carried out, and how a caller waits for it, is in the engines. These parts reach it through a `Floor`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, final

from hocket import exceptions
from hocket.engine import checks, contract, inspection, interrupts, node, pinned, rules, values
from hocket.engine.events import reader
from hocket.kernel import machine, records, resources, state, tasks
from hocket.kernel.records import DRIVER


@final
class Session:
    """The lock and the kernel, and what all parts of an engine want to know of the session.

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
        self.lock, self.kernel = lock, kernel
        self.guard = interrupts.InterruptGuard(lock)
        self.namespace, self.labels = namespace, dict(labels)
        self.job_id = os.urandom(4).hex()
        self.node_id = os.urandom(16).hex()
        self.ids = itertools.count(1)
        #: Why the session is over, if it is.
        self.end: exceptions.HocketError | None = None
        #: How often something has failed: who waits for several objects looks at all of them then.
        self.failures = 0
        self.errors: deque[exceptions.ErrorRecord] = deque(maxlen=1000)
        #: How many there were, with those that are no longer remembered.
        self.error_count = 0
        #: Functions to call when an object is there, by its id.
        self.callbacks: dict[int, list[Callable[[], None]]] = {}

    def make_ids(self, count: int) -> int:
        """Return the first of so many ids in a row: a task's own, and those of its further returns."""
        first = next(self.ids)
        for _ in range(count - 1):
            next(self.ids)
        return first

    def check_open(self) -> None:
        """Raise if the session is over."""
        if self.end is not None:
            raise self.end

    @property
    def is_closed(self) -> bool:
        """Whether somebody has closed it."""
        return isinstance(self.end, exceptions.SessionClosedError)

    def finish(self, error: exceptions.HocketError) -> None:
        """The session is over. Called with the lock held."""
        self.end = error
        self.failures += 1

    def take_callbacks(self) -> list[Callable[[], None]]:
        """Return the functions to call because the session is over: futures get their error by them."""
        found = [callback for callbacks in self.callbacks.values() for callback in callbacks]
        self.callbacks.clear()
        return found

    def note_failure(self) -> None:
        """Something has failed, or is to be looked at by those who wait. Called with the lock held."""
        self.failures += 1

    def note_error(self, task_id: int, name: str, error_type: str, text: str) -> None:
        """Remember a failure, for those who look."""
        self.error_count += 1
        self.errors.append(
            exceptions.ErrorRecord(
                task_id=f"{task_id:016x}", name=name, error_type=error_type, message=text, timestamp=time.time()
            )
        )


def _find_nothing() -> None:
    """The calling code is the main program."""


class Floor(Protocol):
    """The engine below these parts. The lock is held in every call but that of `read_arrived`, which
    may be made without it."""

    def carry_out(self) -> None:
        """Do what the kernel asks."""

    def finish_change(self) -> None:
        """Carry out the caller's change, and have waiting threads see it."""

    def drain_dropped(self) -> None:
        """Count the handles that have been garbage-collected."""

    def read_arrived(self) -> None:
        """Take in what workers have said and nobody has read yet."""


class Processes(Protocol):
    """The processes behind an engine, for those who look. Called with the lock held."""

    @property
    def lost(self) -> Iterable[inspection.LostWorker]:
        """Workers that have ended: the last ones, oldest first."""

    @property
    def spans(self) -> Iterable[inspection.OwnSpan]:
        """Spans of the engine's own process: the last ones, oldest first."""

    @property
    def starts(self) -> Mapping[int, float]:
        """When each task that runs was started, by `time.perf_counter`, where the engine itself runs them."""

    @property
    def read_events(self) -> Callable[[], list[reader.Batch]] | None:
        """Returns the events of all processes, where they are written down; else runs are known from the kernel
        alone."""

    def get_pid(self, worker_id: int) -> int:
        """Return the pid of a worker, dead ones included; 0 if it is not known."""

    def find_running(self, worker: records.WorkerRecord) -> tuple[int, float]:
        """Return the task that a worker started last, and when, by `time.perf_counter`; zeros where unknown."""

    def measure(self, payload: tuple[object, ...]) -> int:
        """Return the bytes of a payload."""

    def locate(self, payload: tuple[object, ...]) -> str:
        """Return the source line that made a payload, where known."""

    def count(self) -> dict[str, object]:
        """Return the part of the statistics that is about workers and memory."""


@final
class Feasibility:
    """Knows which tasks and groups the session can ever have room for. The answers do not change."""

    def __init__(self, kernel: machine.Kernel) -> None:
        self._kernel = kernel
        #: Shapes that have been found feasible.
        self.known: set[resources.Shape] = set()
        #: The one that most tasks have, if it is feasible.
        self.usual = records.DEFAULT_SHAPE if kernel.could_ever_fit(records.DEFAULT_SHAPE) else None
        #: The last request that fitted into the machine, with its strategy: programs make the same groups again and
        #: again.
        self._bundles: tuple[tuple[resources.Demand, ...], str] = (), ""

    def check_feasible(
        self, shape: resources.Shape, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        """Raise if a shape can never be had."""
        if not self._kernel.could_ever_fit(shape):
            raise kind(node.explain_infeasible(what, shape, get_total_resources(self._kernel)))
        if not shape.group_id:
            self.known.add(shape)

    def check_bundles(self, bundles: tuple[resources.Demand, ...], strategy: str) -> None:
        """Raise if bundles can never be had together."""
        if (bundles, strategy) != self._bundles:
            node.check_bundles(self._kernel.pool, bundles, strategy, get_total_resources(self._kernel))
            self._bundles = bundles, strategy


def get_total_resources(kernel: machine.Kernel) -> dict[str, float]:
    """Return what a session has."""
    return {name: units / resources.UNIT for name, units in kernel.pool.total.items()}


@final
class KernelHandles(contract.Handles):
    """Handles that the kernel counts.

    Args:
        engine: Whose they are.
        session: Its session.
    """

    def __init__(self, engine: contract.Engine, session: Session) -> None:
        super().__init__(engine)
        self._session = session

    def adopt(self, object_id: int) -> None:
        with self._session.lock:
            if object_id not in self._session.kernel.objects:
                raise exceptions.ObjectLostError(
                    f"ObjectRef({object_id:016x}) is unknown: it was freed or is of another session."
                )
            self._session.kernel.retain(object_id)

    def reduce_pinned(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        return pinned.reduce(self._session.job_id, ref)


@final
class KernelActors(contract.Actors):
    """Actors and their names, also for workers that ask.

    Args:
        session: The session.
        floor: What carries out.
        handles: For the handles on actors that are found.
        exit_current: Ends the actor that the calling code belongs to.
    """

    def __init__(
        self, session: Session, floor: Floor, handles: contract.Handles, exit_current: Callable[[], None]
    ) -> None:
        self._session, self._floor, self._handles, self._exit_current = session, floor, handles, exit_current

    def claim_name(self, name: str, namespace: str, *, caller: int = DRIVER) -> None:
        """Keep the name for the actor that the caller is about to create; raise if another has it."""
        if not self._session.kernel.claim_name(namespace, name, caller):
            raise rules.build_name_error(name, namespace)

    def release_name(self, name: str, namespace: str, *, caller: int = DRIVER) -> None:
        """There will be no such actor."""
        with self._session.lock:
            self._session.kernel.release_name(namespace, name, caller)

    def look_up_name(self, name: str, namespace: str) -> tuple[contract.ActorInfo | None, bool]:
        """Return the actor of that name, and whether there is none because a worker is just creating it."""
        kernel = self._session.kernel
        with self._session.lock:
            actor = kernel.find_actor(namespace, name)
            if actor is None or actor.id not in kernel.objects:
                return None, kernel.is_claimed(namespace, name)
            return contract.ActorInfo(ref=self._handles.intern(actor.id), options=actor.options), False

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        return rules.await_claim(lambda: self.look_up_name(name, namespace))

    def list_named_actors(self) -> list[tuple[str, str]]:
        with self._session.lock:
            return list(self._session.kernel.names)

    def describe_actor(self, actor_id: int) -> contract.ActorInfo:
        with self._session.lock:
            actor = checks.get_actor(self._session.kernel, actor_id)
            return contract.ActorInfo(ref=self._handles.intern(actor_id), options=actor.options)

    def kill_actor(self, actor: contract.ObjectRef[None], *, no_restart: bool = True) -> None:
        with self._session.lock:
            self._session.kernel.kill_actor(actor._id, no_restart=no_restart)
            self._floor.finish_change()
        self._session.guard.check()

    def request_exit(self) -> None:
        self._exit_current()

    def check_pending(self, actor: contract.ObjectRef[None], *, caller: int = DRIVER) -> None:
        with self._session.lock:
            if caller == DRIVER:
                self._floor.read_arrived()
            checks.check_pending(self._session.kernel, actor._id, caller)


@final
class KernelResources(contract.Resources):
    """The machine's resources, and placement groups.

    Args:
        session: The session.
        floor: What carries out.
        handles: For the handles on groups.
        feasibility: What was found to fit.
        find_caller: Returns the worker that the calling code runs on, where the engine itself runs work.
    """

    def __init__(
        self,
        session: Session,
        floor: Floor,
        handles: contract.Handles,
        feasibility: Feasibility,
        find_caller: Callable[[], int | None] = _find_nothing,
    ) -> None:
        self._session, self._floor, self._handles, self._feasibility = session, floor, handles, feasibility
        self._find_caller = find_caller

    def reserve(
        self,
        bundles: Sequence[resources.Demand],
        strategy: str,
        name: str,
        *,
        is_detached: bool = False,
        caller: int | None = None,
    ) -> contract.ObjectRef[None]:
        session = self._session
        caller = self._find_caller() if caller is None else caller
        with session.lock:
            if session.is_closed:
                session.check_open()
            wanted = tuple(bundles)
            self._feasibility.check_bundles(wanted, strategy)
            group = records.GroupRecord(next(session.ids), wanted, strategy, name)
            worker = None if caller is None or is_detached else session.kernel.workers.get(caller)
            group.creator = worker.id if worker is not None and worker.actor is not None else None
            session.kernel.reserve(group)
            self._floor.carry_out()
            return self._handles.build(group.id)

    def remove_group(self, group_id: int) -> None:
        with self._session.lock:
            self._session.kernel.remove_group(group_id)
            self._floor.finish_change()
        self._session.guard.check()

    def list_groups(self) -> list[dict[str, object]]:
        # Without the lock: where a task runs in the caller's process, a thread of the task may ask.
        kernel, node_id = self._session.kernel, self._session.node_id
        return [node.describe_group(group, node_id) for group in (*kernel.groups.values(), *kernel.removed_groups)]

    def list_nodes(self) -> list[dict[str, object]]:
        return [node.describe_node(self._session.node_id, self.get_total_resources(), self._session.labels)]

    def get_total_resources(self) -> dict[str, float]:
        return get_total_resources(self._session.kernel)

    def get_free_resources(self) -> dict[str, float]:
        self._floor.read_arrived()  # leases that ended a moment ago may not have been seen yet
        free = self._session.kernel.pool.free
        return {name: units / resources.UNIT for name, units in free.items() if units > 0}


@final
class KernelView(contract.View):
    """The state of a session, for those who look.

    Args:
        engine: What work inherits is there.
        session: The session.
        floor: What carries out.
        processes: What is known of processes.
        describe: Returns where the code is that asks, in a task that runs in this process; None in the main program.
    """

    def __init__(
        self,
        engine: contract.Engine,
        session: Session,
        floor: Floor,
        processes: Processes,
        describe: Callable[[], contract.WorkContext | None] = _find_nothing,
    ) -> None:
        self._engine, self._session, self._floor, self._processes = engine, session, floor, processes
        self._describe = describe
        self._state = inspection.StateView(
            kernel=session.kernel,
            job_id=session.job_id,
            node_id=session.node_id,
            namespace=session.namespace,
            labels=session.labels,
            driver_pid=os.getpid(),
            entrypoint=" ".join(sys.orig_argv),
            opened_at=time.time(),
            get_pid=processes.get_pid,
            find_running=processes.find_running,
            measure=processes.measure,
            locate=processes.locate,
            errors=session.errors,
            count_errors=lambda: session.error_count,
            starts=processes.starts,
            lost=processes.lost,
            spans=processes.spans,
            read_events=processes.read_events,
        )

    def get_context(self) -> contract.WorkContext:
        running = self._describe()
        if running is not None:
            return running
        inherited = self._engine.inherited
        return contract.WorkContext(
            job_id=self._session.job_id,
            node_id=self._session.node_id,
            worker_id=f"{DRIVER:016x}",
            namespace=self._session.namespace,
            environment=inherited.environment if inherited is not None else "",
        )

    def list_errors(self) -> list[exceptions.ErrorRecord]:
        self._floor.read_arrived()
        return list(self._session.errors)

    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, object]] = (), limit: int | None = None
    ) -> list[dict[str, object]]:
        self._floor.read_arrived()
        with self._session.lock:
            self._floor.drain_dropped()
            return self._state.list_records(kind, filters, limit)

    def statistics(self) -> dict[str, object]:
        with self._session.lock:
            self._floor.drain_dropped()
            kernel = self._session.kernel
            return {
                "tasks": len(kernel.tasks),
                "objects": len(kernel.objects),
                "actors": len(kernel.actors),
                **self._processes.count(),
            }

    def build_snapshot(self) -> dict[str, object]:
        """Return what another process of the user's is shown of the session. Called with the lock held."""
        return self._state.build_snapshot(self.statistics())


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


KEPT_SPANS = state.KEPT_TASKS
"""How many spans of the engine's own process are remembered."""


def cancel(session: Session, ref: contract.AnyRef, finish: Callable[[], None], *, force: bool, recursive: bool) -> None:
    """Cancel the task that makes an object.

    Args:
        session: The session.
        ref: The object.
        finish: Carries that out.
        force: Whether its process may be ended.
        recursive: Whether what it has submitted is cancelled, too.
    """
    with session.lock:
        if force:
            checks.check_forcible(session.kernel, ref._id)
        session.kernel.cancel(ref._id, force=force, recursive=recursive)
        finish()
    session.guard.check()


def put_error(session: Session, handles: contract.Handles, error: exceptions.TaskError) -> contract.AnyRef:
    """Return a reference that raises this."""
    with session.lock:
        object_id = next(session.ids)
        session.kernel.put(object_id, session.kernel.encode_error(error), (), DRIVER, failed=True)
        return handles.build(object_id)


def take_item(
    session: Session, handles: contract.Handles, floor: Floor, stream: contract.AnyRef, index: int
) -> contract.AnyRef:
    """Return the handle on an item of a generator."""
    with session.lock:
        ref = handles.build(session.kernel.take_item(stream._id, index))
        if session.kernel.instructions:
            floor.carry_out()
        return ref
