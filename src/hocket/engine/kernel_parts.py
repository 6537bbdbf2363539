"""Parts of the two engines that hold the kernel in their own process: all methods that only take the lock and call the
kernel.

The engines themselves carry out the kernel's instructions, and let callers wait. These parts use them through a
`Floor`.
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
    """The lock, the kernel, and facts about the session that all parts of an engine need.

    Args:
        lock: Held around every use of the kernel.
        kernel: A new kernel.
        namespace: The default namespace of actors' names.
        labels: The machine's labels from `hocket.init`, for options that choose among nodes.
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
        #: The error that says why the session is over; None if it is open.
        self.end: exceptions.HocketError | None = None
        #: How many failures there were. A change makes a thread that waits for several objects look at all of them.
        self.failures = 0
        self.errors: deque[exceptions.ErrorRecord] = deque(maxlen=1000)
        #: How many errors there were, including those that have left `errors`.
        self.error_count = 0
        #: Functions to call when an object has its value, by the object's id.
        self.callbacks: dict[int, list[Callable[[], None]]] = {}

    def make_ids(self, count: int) -> int:
        """Return the first of `count` consecutive ids: a task's own, and those of its further returns."""
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
        """Whether the session was closed, and did not fail."""
        return isinstance(self.end, exceptions.SessionClosedError)

    def finish(self, error: exceptions.HocketError) -> None:
        """Set the error that says why the session is over. Called with the lock held."""
        self.end = error
        self.failures += 1

    def take_callbacks(self) -> list[Callable[[], None]]:
        """Return and remove all functions to call at the session's end, which give futures their errors."""
        found = [callback for callbacks in self.callbacks.values() for callback in callbacks]
        self.callbacks.clear()
        return found

    def note_failure(self) -> None:
        """Count a failure, or another reason for waiting threads to look again. Called with the lock held."""
        self.failures += 1

    def note_error(self, task_id: int, name: str, error_type: str, text: str) -> None:
        """Keep a failure, for viewers."""
        self.error_count += 1
        self.errors.append(
            exceptions.ErrorRecord(
                task_id=f"{task_id:016x}", name=name, error_type=error_type, message=text, timestamp=time.time()
            )
        )


def _find_nothing() -> None:
    """Return None: the calling code is the main program."""


class Floor(Protocol):
    """The engine below these parts. All methods are called with the lock held; `read_arrived` may also be called
    without it."""

    def carry_out(self) -> None:
        """Carry out the kernel's instructions."""

    def finish_change(self) -> None:
        """Carry out the instructions after a change, and have waiting threads see the change."""

    def drain_dropped(self) -> None:
        """Count the handles that have been garbage-collected."""

    def read_arrived(self) -> None:
        """Handle the workers' messages that have arrived and are still unread."""


class Processes(Protocol):
    """The processes behind an engine, for viewers. Called with the lock held."""

    @property
    def lost(self) -> Iterable[inspection.LostWorker]:
        """The workers that ended last, oldest first."""

    @property
    def spans(self) -> Iterable[inspection.OwnSpan]:
        """The last spans of the engine's own process, oldest first."""

    @property
    def starts(self) -> Mapping[int, float]:
        """The start of each running task, by `time.perf_counter`, if the engine itself runs the tasks."""

    @property
    def read_events(self) -> Callable[[], list[reader.Batch]] | None:
        """A function that returns the events of all processes; None if they are not recorded: then only the kernel
        knows of runs."""

    def get_pid(self, worker_id: int) -> int:
        """Return the pid of a worker, living or dead; 0 if it is unknown."""

    def find_running(self, worker: records.WorkerRecord) -> tuple[int, float]:
        """Return the task that a worker started last, and its start by `time.perf_counter`; zeros if unknown."""

    def measure(self, payload: tuple[object, ...]) -> int:
        """Return the bytes of a payload."""

    def locate(self, payload: tuple[object, ...]) -> str:
        """Return the source line that made a payload, if known."""

    def count(self) -> dict[str, object]:
        """Return the statistics about workers and memory."""


@final
class Feasibility:
    """Checks of whether the session can ever have room for a task or a group. The results never change."""

    def __init__(self, kernel: machine.Kernel) -> None:
        self._kernel = kernel
        #: Shapes that were found feasible.
        self.known: set[resources.Shape] = set()
        #: The shape of most tasks, if it is feasible; else None.
        self.usual = records.DEFAULT_SHAPE if kernel.could_ever_fit(records.DEFAULT_SHAPE) else None
        #: The last bundles that fitted into the machine, with their strategy: programs make the same groups again and
        #: again.
        self._bundles: tuple[tuple[resources.Demand, ...], str] = (), ""

    def check_feasible(
        self, shape: resources.Shape, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        """Raise if a shape can never fit."""
        if not self._kernel.could_ever_fit(shape):
            raise kind(node.explain_infeasible(what, shape, get_total_resources(self._kernel)))
        if not shape.group_id:
            self.known.add(shape)

    def check_bundles(self, bundles: tuple[resources.Demand, ...], strategy: str) -> None:
        """Raise if bundles can never fit together."""
        if (bundles, strategy) != self._bundles:
            node.check_bundles(self._kernel.pool, bundles, strategy, get_total_resources(self._kernel))
            self._bundles = bundles, strategy


def get_total_resources(kernel: machine.Kernel) -> dict[str, float]:
    """Return a session's total amounts, by resource name."""
    return {name: units / resources.UNIT for name, units in kernel.pool.total.items()}


@final
class KernelHandles(contract.Handles):
    """Handles that the kernel counts.

    Args:
        engine: The engine to which the handles belong.
        session: The engine's session.
    """

    def __init__(self, engine: contract.Engine, session: Session) -> None:
        super().__init__(engine)
        self._session = session

    def adopt(self, object_id: int) -> None:
        with self._session.lock:
            if object_id not in self._session.kernel.objects:
                raise exceptions.ObjectLostError(
                    f"ObjectRef({object_id:016x}) is unknown: it was freed, or belongs to another session."
                )
            self._session.kernel.retain(object_id)

    def reduce_pinned(self, ref: contract.ObjectRef[object]) -> tuple[object, ...]:
        return pinned.reduce(self._session.job_id, ref)


@final
class KernelActors(contract.Actors):
    """Actors and their names, also for requests of workers.

    Args:
        session: The session.
        floor: The engine below.
        handles: The handles of this process.
        exit_current: A function that ends the actor that runs the calling code.
    """

    def __init__(
        self, session: Session, floor: Floor, handles: contract.Handles, exit_current: Callable[[], None]
    ) -> None:
        self._session, self._floor, self._handles, self._exit_current = session, floor, handles, exit_current

    def claim_name(self, name: str, namespace: str, *, caller: int = DRIVER) -> None:
        """Reserve a name for the actor that the caller is about to create; raise if another actor has the name."""
        if not self._session.kernel.claim_name(namespace, name, caller):
            raise rules.build_name_error(name, namespace)

    def release_name(self, name: str, namespace: str, *, caller: int = DRIVER) -> None:
        """Give up the claim on a name: the caller will not create the actor."""
        with self._session.lock:
            self._session.kernel.release_name(namespace, name, caller)

    def look_up_name(self, name: str, namespace: str) -> tuple[contract.ActorInfo | None, bool]:
        """Return the actor with this name, and, if there is none, whether a worker is just creating it."""
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
        floor: The engine below.
        handles: The handles of this process.
        feasibility: The checks of whether groups can fit.
        find_caller: A function that returns the worker of the calling code, if the engine itself runs tasks.
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
        # Without the lock: if a task runs in the caller's process, a thread of the task may call this.
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
    """The state of a session, for viewers.

    Args:
        engine: The engine, which has the settings that tasks inherit.
        session: The session.
        floor: The engine below.
        processes: The processes behind the engine.
        describe: A function that returns the context of the calling code, if that is a task in this process; None in
            the main program.
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
        """Return the session's state as plain data, for another process of the user's. Called with the lock held."""
        return self._state.build_snapshot(self.statistics())


@final
class Unfetched:
    """The errors that the kernel keeps until a program fetches them; see `contract.Unfetched`."""

    def __init__(self, kernel: machine.Kernel, read_arrived: Callable[[], None]) -> None:
        self._kernel, self._read_arrived = kernel, read_arrived

    def note_fetched(self, payload: tuple[object, ...] | None) -> None:
        """Note that the program has fetched an error. Called only when an error is raised."""
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
    """Return an error of a task; None if this process cannot unpickle it."""
    try:
        error: BaseException = values.decode(payload[1])  # type: ignore[index, arg-type]
    except Exception:  # noqa: BLE001 (a class of the user's may raise anything)
        return None
    return error


KEPT_SPANS = state.KEPT_TASKS
"""How many spans of the engine's own process are kept."""


def cancel(session: Session, ref: contract.AnyRef, finish: Callable[[], None], *, force: bool, recursive: bool) -> None:
    """Cancel the task that makes an object.

    Args:
        session: The session.
        ref: The object.
        finish: A function that carries out the kernel's instructions.
        force: Whether to end the task's process.
        recursive: Whether to cancel the tasks that the task has submitted, too.
    """
    with session.lock:
        if force:
            checks.check_forcible(session.kernel, ref._id)
        session.kernel.cancel(ref._id, force=force, recursive=recursive)
        finish()
    session.guard.check()


def put_error(session: Session, handles: contract.Handles, error: exceptions.TaskError) -> contract.AnyRef:
    """Return a reference that raises this error in `get`."""
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
