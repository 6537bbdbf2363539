"""The engine in the driver: the kernel, its sockets and its memory.

A task costs two messages, one each way, and both are batched. `.remote()` sends at once to a worker that was idle; what
goes behind another task in a worker's row is sent in company: with the next wait, after `BATCH` messages, or by the
steward. Results are read by whoever waits (see `pump`).

The division of labour: `kernel.machine` decides, this module carries out its instructions; `dispatch` turns what
workers say into calls of the kernel; `processes` starts the guardian.
"""

from __future__ import annotations

import functools
import itertools
import os
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hocket import exceptions
from hocket.engine import contract, faults, forks, inspection, interrupts, node, rules, values
from hocket.engine.local import (
    channel,
    client,
    dispatch,
    functions,
    hub_store,
    links,
    messages,
    payloads,
    processes,
    pump,
    watch,
    window,
)
from hocket.kernel import machine, records, resources, state
from hocket.kernel.instructions import Op
from hocket.kernel.records import DRIVER, TaskKind, TaskRecord

BATCH = 32
"""Messages that wait for company at most."""

PUMP_EVERY = 64
"""After so many submissions without a wait, results are read, so that workers never wait for a driver that only submits."""

STALL_SECONDS = 0.02
"""How long a task may run before what stands behind it is taken back."""

SILENT_SECONDS = 2.0
"""How long a worker may take to start what it was sent. A guess: it may be just being forked, on a busy machine."""


class Hub(contract.Engine):
    """The local engine.

    Args:
        node_demand: What the machine has.
        namespace: Where actors' names live unless said otherwise.
        labels: What `hocket.init` says about the machine, for options that choose among nodes.
        memory_limit: How many bytes large values may take in memory; what is more goes to disk. None: a part of what this
            process may use.
        spill_folder: Where they go. Empty: the system's folder for temporary files.
    """

    name = "local"

    def __init__(
        self,
        node_demand: resources.Demand,
        *,
        namespace: str,
        labels: Mapping[str, str] = MappingProxyType({}),
        memory_limit: int | None = None,
        spill_folder: str = "",
    ) -> None:
        super().__init__()
        node.reserve_standard_descriptors()
        self.lock = threading.RLock()
        self.guard = interrupts.InterruptGuard(self.lock)
        node.raise_descriptor_limit()
        node.check_descriptors()
        self.guard.install()
        try:
            self._build(node_demand, namespace, labels, memory_limit, spill_folder)
        except BaseException:  # no descriptors, for example
            self.guard.remove()
            raise

    def _build(
        self,
        node_demand: resources.Demand,
        namespace: str,
        labels: Mapping[str, str],
        memory_limit: int | None,
        spill_folder: str,
    ) -> None:
        self.namespace = namespace
        self.labels = dict(labels)
        self.job_id = os.urandom(4).hex()
        self.node_id = os.urandom(16).hex()
        cpus = dict(node_demand).get("CPU", 0) // resources.UNIT
        self.kernel = machine.Kernel(
            node_demand,
            max_idle_workers=max(1, cpus),
            gpu_ids=node.name_gpus(node_demand),
            encode_error=payloads.encode_error,
            error_mark=payloads.ERROR,
            none_value=payloads.NONE,
            end_value=payloads.STREAM_END,
        )
        self.links: dict[int, links.Link] = {}
        self.errors: deque[exceptions.ErrorRecord] = deque(maxlen=1000)
        #: Why the session is over, if it is.
        self.end: exceptions.HocketError | None = None
        self.failures = 0
        self._callbacks: dict[int, list[Callable[[], None]]] = {}
        self._ids = itertools.count(1)
        self._since_pump = 0
        self._dirty: set[links.Link] = set()
        self._by_fd: dict[int, links.Link] = {}
        self.pump = pump.Pump(
            self,
            self.lock,
            handle=self._handle,
            before_wait=self._before_wait,
            guard=self.guard,
            check=self.guard.check,
            name="hocket-steward",
        )
        self.store = hub_store.HubStore(
            self.lock,
            limit=node.choose_store_bytes() if memory_limit is None else memory_limit,
            folder=spill_folder,
            tell=self._tell,
            send=self.carry_out,
            wait=self.pump.wait_until,
        )
        self.functions = functions.Functions(self.kernel.functions)
        self._dispatcher = dispatch.Dispatcher(self)
        has_gpus = "GPU" in self.kernel.pool.total
        self._setup = processes.build_setup(self.job_id, self.node_id, self.namespace, has_gpus=has_gpus)
        #: Shapes that have been found feasible; the answer does not change during a session.
        self._feasible: set[resources.Shape] = {records.DEFAULT_SHAPE}
        self.guardian: processes.GuardianProcess | None = None
        #: The modules that it was told to load.
        self._loaded: set[str] = set()
        self.watch = watch.Watch(self)
        #: Pids of workers, also of dead ones, as far as they are remembered.
        self.pids: dict[int, int] = {}
        self.lost: deque[inspection.LostWorker] = deque(maxlen=1000)
        self.spans: deque[inspection.OwnSpan] = deque(maxlen=state.KEPT_TASKS)
        self._window: window.Window | None = None
        self._scene = inspection.Scene(
            kernel=self.kernel,
            job_id=self.job_id,
            node_id=self.node_id,
            namespace=namespace,
            labels=self.labels,
            driver_pid=os.getpid(),
            entrypoint=" ".join(sys.orig_argv),
            opened_at=time.time(),
            get_pid=lambda worker_id: self.pids.get(worker_id, 0),
            find_running=self._find_running,
            measure=payloads.measure,
            locate=payloads.get_source_line,
            errors=self.errors,
            lost=self.lost,
            spans=self.spans,
        )

    # --- work ---------------------------------------------------------------------------------------------------------

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[Any]]:
        if args or kwargs:
            encoded, top = values.encode_arguments(args, kwargs, function.name)
        else:
            encoded, top = None, _NOTHING
        stored = self._store_buffers(encoded) if encoded is not None and encoded.buffers else None
        record = self.kernel.functions.get(function.id) or self._add_function(function)
        with self.lock:
            if self.end is not None:
                raise self.end
            shape = options.shape
            if shape is not records.DEFAULT_SHAPE and shape not in self._feasible:
                self.check_feasible(shape, exceptions.TaskUnschedulableError, f"Task `{options.name}`")
            task_id = next(self._ids) if options.num_returns == 1 else self._make_ids(options.num_returns)
            arguments = _NO_ARGUMENTS if encoded is None else self._register(encoded, top, stored)
            refs = self._submit(TaskRecord(task_id, record, *arguments, options))
        self._after_submit()
        return refs

    def _add_function(self, function: contract.RemoteFunction) -> records.FunctionRecord:
        """Register the code of a remote function; large arrays of its closure are stored once. Called without the lock."""
        with self.lock:
            self.functions.watch(function)
            known = self.functions.find(function.id)
        if known is not None:
            return known
        payload: payloads.Payload = (payloads.INLINE, function.blob)
        refs = list(function.captured)  # what its closure refers to lives as long as it can be called
        if function.buffers:
            payload, holder = self._store_buffers(values.Encoded(function.blob, list(function.buffers), []))
            refs += [holder] if holder is not None else []
        with self.lock:  # another thread may have been faster
            return self.functions.find(function.id) or self.functions.add(function.id, payload, refs)

    def export_function(
        self, link: links.Link, function_id: bytes, payload: payloads.Payload, *, is_taken: bool
    ) -> None:
        """A worker has sent the code of a function, and may call it from now on. Called with the lock held."""
        link.exported.add(function_id)
        self.functions.note_export(function_id, link.worker.id)
        if self.functions.find(function_id) is not None:
            if is_taken:
                self.store.free(payload)
            return
        refs: list[contract.ObjectRef[Any]] = []
        if is_taken:
            self.kernel.put(payload[2], payload, (), DRIVER)
            refs.append(contract.ObjectRef(payload[2], self))
        self.functions.add(function_id, payload, refs)

    def _forget_functions(self) -> None:
        """Have the workers forget the code that nobody needs."""
        for function_id in self.functions.drain():
            for link in self.links.values():
                if function_id in link.functions:
                    link.functions.discard(function_id)
                    link.channel.post((messages.FORGET, function_id))
                    self._dirty.add(link)

    def _make_ids(self, count: int) -> int:
        """Return the first of so many ids in a row: a task's own, and those of its further returns."""
        first = next(self._ids)
        for _ in range(count - 1):
            next(self._ids)
        return first

    def _store_buffers(
        self, encoded: values.Encoded, contained: tuple[int, ...] = ()
    ) -> tuple[payloads.Payload, contract.ObjectRef[Any] | None]:
        """Return a payload that holds a copy of the buffers, and a handle on its object if it has a segment.

        Called without the lock: bytes are copied, here or to the disk.
        """
        with self.lock:
            if self.dropped:
                self._drain_dropped()  # what was freed may be used again
            object_id = next(self._ids)
        holder: contract.ObjectRef[Any] | None = None

        def announce(payload: payloads.Payload) -> None:
            nonlocal holder
            self.kernel.put(object_id, payload, contained, DRIVER)
            holder = contract.ObjectRef(object_id, self)

        payload = self.store.build_payload(encoded, object_id, announce=announce)
        if self.guard.is_pending:
            self.guard.check()
        return payload, holder

    def _register(
        self,
        encoded: values.Encoded | None,
        top: Sequence[contract.ObjectRef[Any]],
        stored: tuple[payloads.Payload, contract.ObjectRef[Any] | None] | None,
    ) -> tuple[payloads.Payload | None, tuple[int, ...], tuple[int, ...]]:
        """Return the arguments as a payload, the ids of the dependencies, and those of the references inside."""
        dependencies = tuple([ref._id for ref in top]) if top else ()
        if encoded is None:
            return None, dependencies, ()
        if not encoded.buffers:
            borrowed = tuple([ref._id for ref in encoded.refs]) if encoded.refs else ()
            return (payloads.INLINE, encoded.data), dependencies, borrowed
        assert stored is not None
        payload, holder = stored
        if holder is not None:
            self.kernel.retain(holder._id)  # given back when the task is over
        return payload, dependencies, tuple([ref._id for ref in encoded.refs])

    def _submit(self, task: TaskRecord) -> list[contract.ObjectRef[Any]]:
        """Hand the task to the kernel and return the references. Called with the lock held."""
        returns = task.options.num_returns
        self.kernel.submit(task)
        if self.kernel.instructions:
            self.carry_out(urgent=False)
        if returns == 1 or returns < 0:
            return [contract.ObjectRef(task.id, self)]
        return [contract.ObjectRef(object_id, self) for object_id in range(task.id, task.id + returns)]

    def _after_submit(self) -> None:
        self._since_pump += 1
        if self._since_pump >= PUMP_EVERY:
            self._since_pump = 0
            with self.lock:
                self._drain_dropped()
            self.pump.handle_arrived()
        if self.guard.is_pending:
            self.guard.check()

    def create_actor(
        self,
        actor_class: contract.RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.ActorOptions,
    ) -> contract.ActorInfo:
        encoded, top = values.encode_arguments(args, kwargs, options.class_name)
        stored = self._store_buffers(encoded) if encoded is not None and encoded.buffers else None
        record = self.kernel.functions.get(actor_class.id) or self._add_function(actor_class)
        with self.lock:
            if self.end is not None:
                raise self.end
            shapes = (options.creation.shape, options.lifetime_shape)
            for shape in shapes:
                self.check_feasible(shape, exceptions.ActorUnschedulableError, f"Actor `{options.class_name}`")
            if options.name:
                self.claim_name(options.name, options.namespace)
            arguments = self._register(encoded, top, stored)
            task = TaskRecord(next(self._ids), record, *arguments, options.creation, kind=TaskKind.CREATION)
            task.actor_options = options
            ref = self.remember(self._submit(task)[0])
        self._after_submit()
        return contract.ActorInfo(ref=ref, options=options)

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[Any]]:
        if args or kwargs:
            encoded, top = values.encode_arguments(args, kwargs, options.name)
        else:
            encoded, top = None, _NOTHING
        stored = self._store_buffers(encoded) if encoded is not None and encoded.buffers else None
        with self.lock:
            if self.end is not None:
                rules.raise_ended(self.end, options.name)
            task_id = next(self._ids) if options.num_returns == 1 else self._make_ids(options.num_returns)
            arguments = _NO_ARGUMENTS if encoded is None else self._register(encoded, top, stored)
            task = TaskRecord(task_id, None, *arguments, options, DRIVER, 0, TaskKind.CALL)
            task.actor = self.kernel.actors.get(actor._id) or rules.get_actor(self.kernel, actor._id)
            task.method = method
            refs = self._submit(task)
        self._after_submit()
        return refs

    def ping(self) -> None:
        """Answer a worker that wants to have heard all that there is to hear."""

    def claim_name(self, name: str, namespace: str, *, caller: int = DRIVER) -> None:
        """Keep the name for the actor that the caller is about to create; raise if another has it."""
        if not self.kernel.claim_name(namespace, name, caller):
            raise rules.build_name_error(name, namespace)

    def check_feasible(
        self, shape: resources.Shape, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        """Raise if the shape can never be had."""
        if self.kernel.could_ever_fit(shape):
            if not shape.group_id:
                self._feasible.add(shape)
            return
        raise kind(node.explain_infeasible(what, shape, self.get_total_resources()))

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        with self.lock:
            actor = self.kernel.find_actor(namespace, name)
            if actor is None or actor.id not in self.kernel.objects:
                return None
            return contract.ActorInfo(ref=self.intern(actor.id), options=actor.options)

    def list_named_actors(self) -> list[tuple[str, str]]:
        with self.lock:
            return list(self.kernel.names)

    def describe_actor(self, actor_id: int) -> contract.ActorInfo:
        with self.lock:
            actor = rules.get_actor(self.kernel, actor_id)
            return contract.ActorInfo(ref=self.intern(actor_id), options=actor.options)

    def kill_actor(self, actor: contract.ObjectRef[None], *, no_restart: bool = True) -> None:
        with self.lock:
            self.kernel.kill_actor(actor._id, no_restart=no_restart)
            self._finish_change()
        self.guard.check()

    def put_error(self, error: exceptions.TaskError) -> contract.ObjectRef[Any]:
        with self.lock:
            object_id = next(self._ids)
            self.kernel.put(object_id, payloads.encode_error(error), (), DRIVER, failed=True)
            return contract.ObjectRef(object_id, self)

    def request_exit(self) -> None:
        """The driver is no actor."""

    def check_pending(self, actor: contract.ObjectRef[None], *, caller: int = DRIVER) -> None:
        with self.lock:
            if caller == DRIVER:
                self.pump.handle_arrived()
            rules.check_pending(self.kernel, actor._id, caller)

    def cancel(self, ref: contract.ObjectRef[Any], *, force: bool, recursive: bool) -> None:
        with self.lock:
            if force:
                rules.check_forcible(self.kernel, ref._id)
            self.kernel.cancel(ref._id, force=force, recursive=recursive)
            self._finish_change()
        self.guard.check()

    def _finish_change(self) -> None:
        """Carry out what the caller changed, and wake whoever waits for it: it may need no message to come about."""
        self.failures += 1
        self.carry_out()
        self.pump.poke()

    # --- values -------------------------------------------------------------------------------------------------------

    def put(self, value: Any) -> contract.ObjectRef[Any]:
        encoded = values.encode(value, by_index=True)
        contained = tuple([ref._id for ref in encoded.refs]) if encoded.refs else ()
        if encoded.buffers:
            started = time.perf_counter()
            payload, stored = self._store_buffers(encoded, contained)
            seconds = time.perf_counter() - started
            self.spans.append(inspection.OwnSpan("put", started, seconds, payloads.measure(payload)))
            if stored is not None:
                return stored
        else:
            payload = (payloads.INLINE, encoded.data)
        with self.lock:
            if self.dropped:
                self._drain_dropped()
            object_id = next(self._ids)
            self.kernel.put(object_id, payload, contained, DRIVER)
            ref: contract.ObjectRef[Any] = contract.ObjectRef(object_id, self)
        if self.guard.is_pending:
            self.guard.check()
        return ref

    def get(self, refs: Sequence[contract.ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        objects = self.kernel.objects
        found = []
        started = 0.0
        for ref in refs:
            record = objects.get(ref._id)
            if record is None or ref._engine is not self:
                raise rules.build_closed_error(ref)
            if record.value is None:
                started = started or time.perf_counter()
                self._wait_for(record, refs, deadline, timeout_s)
            found.append(record)
        if started:
            self.spans.append(inspection.OwnSpan("get", started, time.perf_counter() - started, len(refs)))
        if len(found) < values.MANY:
            result = [self._open(record) for record in found]
        else:
            with values.hold_collector():
                result = [self._open(record) for record in found]
        if self.guard.is_pending:
            self.guard.check()
        return result

    def _wait_for(
        self,
        record: records.ObjectRecord,
        refs: Sequence[contract.ObjectRef[Any]],
        deadline: float | None,
        timeout_s: float | None,
    ) -> None:
        """Wait for one object; an error in any of the others is raised at once."""
        failures = -1

        def is_done() -> bool:
            nonlocal failures
            if record.value is not None or self.end is not None:
                return True
            if failures != self.failures:
                failures = self.failures
                objects = self.kernel.objects
                for ref in refs:
                    other = objects[ref._id]
                    if other.failed:
                        self._open(other)
            return False

        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            is_there = self.pump.wait_until(is_done, left_s)
        except KeyboardInterrupt:
            self._give_up(refs)
            raise
        if is_there:
            if record.value is None and self.end is not None:
                raise self.end
            return
        missing = sum(self.kernel.objects[ref._id].value is None for ref in refs)
        raise rules.build_timeout_error(missing, len(refs), timeout_s)

    def _give_up(self, refs: Sequence[contract.ObjectRef[Any]]) -> None:
        """The user interrupted a wait: at a prompt or in a notebook, what the cell asked for is not wanted any more.

        A program that catches the interrupt may have plans with its tasks; there they go on.
        """
        if not interrupts.is_interactive():
            return
        with self.lock:
            row = [ref._id for ref in refs]
            while row:
                record = self.kernel.objects.get(row.pop())
                if record is not None and record.task is not None and record.task.kind == TaskKind.FUNCTION:
                    row += record.task.dependencies
                    self.kernel.cancel(record.id, force=False, recursive=True)
            self._finish_change()

    def _open(self, record: records.ObjectRecord) -> Any:
        payload = record.value
        assert payload is not None
        kind = payload[0]
        refs = self._hold_all(record.contained) if record.contained else None
        if kind == payloads.INLINE:
            return values.decode(payload[1], (), refs)  # type: ignore[arg-type]
        if kind == payloads.SEGMENT:
            with self.lock:
                object_id = record.id
                self.kernel.retain(object_id)
                fd = self.store.lend(object_id)
                buffers = payloads.map_segment(payload, fd, lambda: self._note_unmapped(object_id))
            return values.decode(payload[1], buffers, refs)  # type: ignore[arg-type]
        return payloads.open_payload(payload, None, _do_nothing, refs)

    def _hold_all(self, object_ids: tuple[int, ...]) -> list[contract.ObjectRef[Any]]:
        """Return handles on objects that a value refers to: `intern` of each, without a call for each."""
        refs = []
        with self.lock:
            objects, interned = self.kernel.objects, self.interned
            for object_id in object_ids:
                known = interned.get(object_id)
                ref = known() if known is not None else None
                if ref is None or ref._id == contract.NO_ID:
                    objects[object_id].count += 1
                    ref = contract.ObjectRef(object_id, self)
                    interned[object_id] = weakref.ref(ref)
                refs.append(ref)
        return refs

    def _note_unmapped(self, object_id: int) -> None:
        """Called by a finalizer, in any thread at any moment, so without a lock."""
        self.store.unmapped.append(object_id)
        self.dropped.append(object_id)

    def wait(self, refs: Sequence[contract.ObjectRef[Any]], num_ready: int, timeout_s: float | None) -> list[bool]:
        objects = self.kernel.objects
        there = [False] * len(refs)
        left = num_ready
        for position, ref in enumerate(refs):  # a row of waits mostly finds what it wants at the head of its list
            if objects[ref._id].value is not None:
                there[position] = True
                left -= 1
                if not left:
                    self.guard.check()
                    return there
        waited = [objects[ref._id] for ref in refs]

        def is_done() -> bool:
            left = num_ready
            for record in waited:
                if record.value is not None:
                    left -= 1
                    if not left:
                        return True
            return self.end is not None

        self.pump.wait_until(is_done, timeout_s)
        self.guard.check()
        return client.limit_true([record.value is not None for record in waited], num_ready)

    def when_done(self, ref: contract.ObjectRef[Any], callback: Callable[[], None]) -> None:
        with self.lock:
            record = self.kernel.objects.get(ref._id)
            if record is not None and record.value is None and self.end is None:
                self._callbacks.setdefault(ref._id, []).append(callback)
                self.kernel.watch(ref._id, DRIVER)
                return
        callback()

    # --- generators ---------------------------------------------------------------------------------------------------

    def take_item(self, stream: contract.ObjectRef[Any], index: int) -> contract.ObjectRef[Any]:
        with self.lock:
            ref: contract.ObjectRef[Any] = contract.ObjectRef(self.kernel.take_item(stream._id, index), self)
            if self.kernel.instructions:
                self.carry_out()
            return ref

    def lift_bound(self, stream: contract.ObjectRef[Any]) -> None:
        with self.lock:
            self.kernel.lift_bound(stream._id)
            if self.kernel.instructions:
                self.carry_out()

    def is_end(self, item: contract.ObjectRef[Any], timeout_s: float | None) -> bool | None:
        record = self.kernel.objects[item._id]
        if not self.pump.wait_until(lambda: record.value is not None or self.end is not None, timeout_s):
            return None
        if record.value is None:
            assert self.end is not None
            raise self.end
        self.guard.check()
        return record.value[0] == payloads.END

    # --- resources ----------------------------------------------------------------------------------------------------

    def reserve(self, bundles: Sequence[resources.Demand], strategy: str, name: str) -> contract.ObjectRef[None]:
        with self.lock:
            node.check_bundles(self.kernel.pool, bundles, strategy, self.get_total_resources())
            group = records.GroupRecord(next(self._ids), tuple(bundles), strategy, name)
            self.kernel.reserve(group)
            self.carry_out()
            return contract.ObjectRef(group.id, self)

    def remove_group(self, group_id: int) -> None:
        with self.lock:
            self.kernel.remove_group(group_id)
            self._finish_change()
        self.guard.check()

    def list_groups(self) -> list[dict[str, Any]]:
        with self.lock:
            return [node.describe_group(group) for group in self.kernel.groups.values()]

    def list_nodes(self) -> list[dict[str, Any]]:
        return [node.describe_node(self.node_id, self.get_total_resources(), self.labels)]

    def get_total_resources(self) -> dict[str, float]:
        return {name: units / resources.UNIT for name, units in self.kernel.pool.total.items()}

    def get_free_resources(self) -> dict[str, float]:
        # Leases that ended a moment ago may not have been seen yet: read what has arrived first.
        self.pump.handle_arrived()
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
        self.pump.handle_arrived()
        return list(self.errors)

    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, Any]] = (), limit: int | None = None
    ) -> list[dict[str, Any]]:
        self.pump.handle_arrived()
        with self.lock:
            self._drain_dropped()
            return self._scene.list_records(kind, filters, limit)

    def _find_running(self, worker: records.WorkerRecord) -> tuple[int, float]:
        if self.guardian is None:
            return 0, 0.0
        return self.guardian.read_status(worker.id), self.guardian.read_start(worker.id)

    def statistics(self) -> dict[str, Any]:
        with self.lock:
            self._drain_dropped()
            kernel = self.kernel
            return {
                "tasks": len(kernel.tasks),
                "objects": len(kernel.objects),
                "actors": len(kernel.actors),
                "workers": len(kernel.workers),
                "worker_pids": sorted(link.pid for link in self.links.values() if link.pid),
                "guardian_pid": self.guardian.pid if self.guardian is not None else None,
                **self.store.statistics(),
            }

    def explain_full(self, size: int, reason: str, is_disk: bool) -> str:
        """Return the message for a worker's value that finds no room."""
        return self.store.explain_full(size, reason, is_disk=is_disk)

    # --- handles ------------------------------------------------------------------------------------------------------

    def adopt(self, object_id: int) -> None:
        with self.lock:
            if object_id not in self.kernel.objects:
                raise exceptions.ObjectLostError(
                    f"ObjectRef({object_id:016x}) is unknown: it was freed or is of another session."
                )
            self.kernel.retain(object_id)

    def _drain_dropped(self) -> None:
        dropped, interned, release = self.pump.bell.usual, self.interned, self.kernel.release
        if self.store.unmapped:
            self.store.drain_unmapped()
        if self.functions.has_news:
            self._forget_functions()
        objects = self.kernel.objects
        while dropped:
            object_id = dropped.popleft()
            if object_id in interned:
                self.forget(object_id)
            record = objects.get(object_id)
            if record is not None and record.count > 1:
                record.count -= 1
            else:
                release(object_id)
        if self.kernel.instructions:
            self.carry_out()

    # --- carrying out -------------------------------------------------------------------------------------------------

    def carry_out(self, *, urgent: bool = True) -> None:
        """Do what the kernel asks, then send. Called with the lock held."""
        kernel = self.kernel
        dirty = self._dirty
        while kernel.instructions:
            batch, kernel.instructions = kernel.instructions, []
            for instruction in batch:
                op = instruction[0]
                if op == Op.RUN:
                    _, worker, task = instruction
                    link = self.links.get(worker.id)  # type: ignore[attr-defined]
                    if link is not None:
                        self._send_task(link, task)  # type: ignore[arg-type]
                        dirty.add(link)
                elif op == Op.FREE:
                    self._free(instruction[1], instruction[2])  # type: ignore[arg-type]
                else:
                    self._carry_out_rare(instruction)
        for link in list(dirty):
            outbox = link.channel.outbox
            if urgent or len(outbox) >= BATCH or len(link.worker.inflight) <= len(outbox):
                self.flush(link)
        if dirty:
            self.pump.poke()

    def _carry_out_rare(self, instruction: tuple[Any, ...]) -> None:
        op = instruction[0]
        if op == Op.START:
            self._start_worker(instruction[1])
            return
        if op == Op.TELL:
            _, worker_id, object_id = instruction
            if worker_id == DRIVER:
                self.pump.due.extend(self._callbacks.pop(object_id, ()))
                return
            link = self.links.get(abs(worker_id))
            if link is not None:
                self._dispatcher.tell(link, object_id, wants_value=worker_id > 0)
                self._dirty.add(link)
            return
        if op in {Op.MOVED, Op.REFUSE, Op.PASS}:
            self._carry_out_for_lines(instruction)
            return
        link = self.links.get(instruction[1].id)
        if link is None:
            return
        if op == Op.KILL:
            self.kill_worker(link.worker.id)
        elif op == Op.END:
            self._end_task(link, instruction[2])
        else:
            number = _MESSAGES[op]
            if op == Op.STOP:
                link.stopped_at = time.monotonic()
            link.channel.post((number, *instruction[2:]))
            self._dirty.add(link)

    def _end_task(self, link: links.Link, task_id: int) -> None:
        """End the process if this is what it runs, once it is sure that it starts nothing else."""
        worker = link.worker
        begun = link.page.withdraw(worker.sent)
        self.kernel.withdraw(worker, begun)
        task = worker.inflight.get(task_id)
        if task is not None and task.number == begun:
            worker.killed = True
            self.kill_worker(worker.id)

    def _send_task(self, link: links.Link, task: TaskRecord) -> None:
        function = task.function
        if function is not None and function.id not in link.functions:  # first: so are the descriptors
            link.functions.add(function.id)
            link.channel.post((messages.FUNCTION, function.id, self.lend(link, functions.get_payload(function))))
        dependencies: tuple[Any, ...] = ()
        descriptors = len(link.channel.outbox_fds) if task.dependencies else 0
        if task.dependencies:
            dependencies = tuple([self._lend_object(link, object_id) for object_id in task.dependencies])
        if task.borrowed:
            for object_id in task.borrowed:
                self.kernel.retain(object_id, link.worker.id)
        args = task.args
        if args is not None and args[0] == payloads.SEGMENT:
            self.lend(link, args)
        options = task.options
        returns, name, borrowed = options.num_returns, options.name, task.borrowed
        message: channel.Message
        if task.kind == TaskKind.CALL:
            extra = dispatch.build_call_extra(task) if task.attempt or not options.is_simple else None
            message = (messages.CALL, task.id, task.method, args, dependencies, borrowed, returns, name, extra)
        else:
            assert function is not None
            extra = None
            if options.shape is not records.DEFAULT_SHAPE or task.kind or task.attempt or options.backpressure:
                extra = self._dispatcher.build_extra(link.worker, task)
            message = (messages.RUN, task.id, function.id, args, dependencies, borrowed, returns, name, extra)
        if dependencies:
            self._post_long(link, task, message, descriptors)
        else:
            link.channel.outbox.append(channel.encode_short(message))

    def _post_long(self, link: links.Link, task: TaskRecord, message: channel.Message, descriptors: int) -> None:
        """Post a message with values beside the arguments. If these are too many for one, the task has failed."""
        try:
            link.channel.post(message)
        except channel.MessageError as error:
            del link.channel.outbox_fds[descriptors:]
            link.channel.post((messages.SKIP,))
            refused = exceptions.SerializationError(
                f"`{task.options.name}` cannot be sent to a worker: {error}. Put the references into a list and pass that: then the "
                "function gets references, and fetches the values itself."
            )
            self.failures += 1
            self.kernel.fail(
                link.worker,
                task.id,
                payloads.encode_error(refused),
                retryable=False,
                error_type=type(refused).__name__,
            )

    def _lend_object(self, link: links.Link, object_id: int) -> tuple[int, payloads.Payload, tuple[int, ...]]:
        """Prepare an argument for sending, with the references inside it."""
        record = self.kernel.objects[object_id]
        for inner in record.contained:
            self.kernel.retain(inner, link.worker.id)
        return object_id, self.lend(link, record.value), record.contained

    def lend(self, link: links.Link, payload: Any) -> payloads.Payload:
        """Prepare a payload for sending; a mapping of a segment will hold a count on its object."""
        if payload[0] == payloads.SEGMENT:
            self.kernel.retain(payload[2], link.worker.id)
            link.channel.outbox_fds.append(self.store.lend(payload[2], link.worker.id))
        return payload  # type: ignore[no-any-return]

    def _free(self, object_id: int, payload: payloads.Payload) -> None:
        if payload[0] != payloads.SEGMENT:
            return
        if object_id != payload[2]:  # arguments: their task is over; the segment goes when nobody looks into it
            self.kernel.release(payload[2])
        else:
            self.store.free(payload)

    def _tell(self, worker_id: int, message: tuple[Any, ...]) -> bool:
        """Put a message into a worker's outbox; False if it is dead."""
        link = self.links.get(worker_id)
        if link is not None:
            link.channel.post(message)
            self._dirty.add(link)
        return link is not None

    # --- lines between workers ----------------------------------------------------------------------------------------

    def introduce(self, caller: int, actor_id: int, fd: int) -> None:
        """Pass one end of a line on to an actor's worker, behind what the caller has sent it through us."""
        self.kernel.introduce(actor_id, caller, (messages.INTRODUCED, caller, fd))

    def _carry_out_for_lines(self, instruction: tuple[Any, ...]) -> None:
        op = instruction[0]
        if op == Op.REFUSE:
            self._drop_marker(instruction[1])
            return
        link = self.links.get(instruction[1] if op == Op.MOVED else instruction[1].id)
        if op == Op.PASS and link is None:
            self._drop_marker(instruction[2])
        elif op == Op.PASS and link is not None:
            self._pass_marker(link, instruction[2])
        elif link is not None:
            link.channel.post((messages.MOVED, instruction[2]))
            self._dirty.add(link)

    def _pass_marker(self, link: links.Link, marker: tuple[Any, ...]) -> None:
        if marker[0] == messages.INTRODUCED:
            link.channel.post(marker[:2])
            link.channel.outbox_fds.append(marker[2])
            self.flush(link)  # duplicates the descriptor
            os.close(marker[2])
        else:
            link.channel.post(marker)
            self._dirty.add(link)

    def _drop_marker(self, marker: tuple[Any, ...]) -> None:
        """The actor is dead: its caller learns it from the end of the line."""
        if marker[0] == messages.INTRODUCED:
            os.close(marker[2])

    def send(self, link: links.Link, message: tuple[Any, ...]) -> None:
        """Put a message in a worker's outbox, to be sent before the next wait."""
        link.channel.post(message)
        self._dirty.add(link)
        self.flush(link)

    def kill_worker(self, worker_id: int) -> None:
        """Have a worker killed."""
        if self.guardian is not None:
            self.guardian.kill(worker_id)

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
            self.pump.watch_writable(link.channel.fd, link.is_writable_watched)
        self._dirty.discard(link)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _before_wait(self) -> float | None:
        if self.dropped:
            self._drain_dropped()
        for link in list(self._dirty):
            self.flush(link)
        if self.end is not None:
            return 0.05
        now = time.monotonic()
        limit_s = self.watch.look(now)
        stalled = self.kernel.find_stalled()
        if not stalled:
            return limit_s
        for worker in stalled:
            self._look_for_progress(self.links[worker.id], now)
        if self.kernel.instructions:
            self.carry_out()
        return STALL_SECONDS

    def _look_for_progress(self, link: links.Link, now: float) -> None:
        """Take back what stands behind a task that takes long, or in a worker that is silent."""
        begun = link.page.read_begun()
        if begun != link.begun or now - link.looked_at > 4 * STALL_SECONDS:  # it has had nothing to do meanwhile
            link.begun, link.begun_at = begun, now
        link.looked_at = now
        worker = link.worker
        is_running = next(iter(worker.inflight.values())).number <= begun
        if now - link.begun_at > (STALL_SECONDS if is_running else SILENT_SECONDS):
            self.kernel.withdraw(worker, link.page.withdraw(worker.sent))

    def _handle(self, fd: int, mask: int) -> None:
        link = self._by_fd.get(fd)
        if link is None:
            if self.guardian is not None and fd == self.guardian.fd:
                self._hear_guardian()
            elif self._window is not None and fd == self._window.fd:
                self._window.answer(lambda: self._scene.build_snapshot(self.statistics()))
            return
        if link.is_writable_watched:
            self.flush(link)
        if mask & pump.READABLE:
            self._hear_worker(link)
            if link.channel.outbox:  # answers to what it asked
                self._dirty.add(link)
        if self.kernel.instructions or self._dirty:
            self.carry_out()

    def _hear_worker(self, link: links.Link) -> None:
        try:
            received = link.channel.receive()
            if received is not None:
                if faults.plan is not None:
                    faults.plan.reach("hub.in_handle")
                self._dispatcher.handle(link, received)
                if link.channel.outbox:  # an answer to what it asked
                    self._dirty.add(link)
                return
        except Exception as error:  # noqa: BLE001
            # Whatever a worker says, it must not bring the session down: a message that makes no sense ends its sender.
            link.is_refused = True
            self._dispatcher.note_error(0, "a worker's socket", error)
            if self.guardian is not None:
                self.guardian.kill(link.worker.id)
        self._close_link(link)

    def _close_link(self, link: links.Link) -> None:
        if not link.is_closed:
            link.is_closed = True
            self.pump.unwatch(link.channel.fd)
            del self._by_fd[link.channel.fd]
            if self.guardian is not None:
                self.guardian.owe(link.worker.id)

    def _hear_guardian(self) -> None:
        assert self.guardian is not None
        if isinstance(self.end, exceptions.SessionClosedError):
            return  # it was told to end, and `close` may have closed its socket by now
        received = self.guardian.receive()
        if received is None:
            self.pump.unwatch(self.guardian.fd)
            self._fail_all(
                exceptions.LocalEngineDiedError(
                    f"The guardian (pid {self.guardian.pid}), the parent of all workers, is gone, so the session is over. "
                    f"{self.guardian.explain_end()}Call hocket.shutdown() and hocket.init() to start again."
                )
            )
            return
        for message in received:
            if message[0] == messages.SPAWNED:
                link = self.links.get(message[1])
                if link is not None:
                    link.pid = message[2]
                    self._note_pid(message[1], message[2])
            elif message[0] == messages.DIED:
                self._bury(message[1], processes.parse_death(message))
        self.carry_out()

    def _note_pid(self, worker_id: int, pid: int) -> None:
        self.pids[worker_id] = pid
        if len(self.pids) > 2 * state.KEPT_TASKS:  # tasks that old are forgotten too
            del self.pids[next(iter(self.pids))]

    def _bury(self, worker_id: int, death: exceptions.Death) -> None:
        link = self.links.get(worker_id)
        if link is None:
            return
        while not link.is_closed:  # what it said before it died still counts
            if _is_readable(link.channel.sock):
                self._hear_worker(link)
            else:
                self._close_link(link)
        self._hear_last_words(link)
        running = self._list_running(link)
        del self.links[worker_id]
        self.lost.append(inspection.LostWorker(worker_id, death, time.time(), link.worker.killed))
        self._dirty.discard(link)
        link.close()
        self._dispatcher.forget_worker(worker_id)
        self.store.lose_worker(worker_id)
        self.functions.lose_worker(link.exported, worker_id)
        worker = link.worker
        if worker.id in self.kernel.workers:
            self.failures += 1
            if not worker.killed:
                self._dispatcher.note_death(worker, death, running)
            self.kernel.lose(worker, death, running)
            if link.is_refused:
                self.kernel.fail_orphans(death)

    def _hear_last_words(self, link: links.Link) -> None:
        """Handle what a dead worker had said and not sent."""
        try:
            self._dispatcher.read_last_words(link)
        except Exception as error:  # noqa: BLE001 (its memory may hold anything; what came before still counts)
            link.is_refused = True
            self._dispatcher.note_error(0, "a worker's journal", error)

    def _list_running(self, link: links.Link) -> set[int] | None:
        """Return what a dead worker was running; None if nobody knows."""
        worker = link.worker
        beside = link.page.list_running()
        if beside is None:
            return None
        begun = link.page.read_begun()
        _, started = self._find_running(worker)
        for task in worker.inflight.values():
            if task.number == begun:
                task.note_run(worker.id, started, time.perf_counter() - started)
                return {task.id, *beside}
        return set(beside)

    def expect_work(self, modules: Sequence[str] = ()) -> None:
        with self.lock:
            if self.end is not None:
                return
            guardian = self._open_guardian()
            missing = [name for name in modules if name not in self._loaded]
            if missing:
                self._loaded.update(missing)
                guardian.load(missing)
                self.kernel.trim_idle(0)  # they would have to load it each for itself
                self.carry_out()

    def _open_guardian(self) -> processes.GuardianProcess:
        if self.guardian is None:
            self.guardian = processes.GuardianProcess()
            self.pump.watch(self.guardian.fd)
            self._window = window.Window()
            self.pump.watch(self._window.fd)
            self.pump.start()
        return self.guardian

    def _start_worker(self, worker: records.WorkerRecord) -> None:
        guardian = self._open_guardian()
        node.reserve_standard_descriptors()  # the program may have become a daemon since
        try:
            link, theirs = links.Link.open(worker)
        except OSError as error:
            death = exceptions.Death(
                pid=0, explanation=f"could not be started: the driver: {node.explain_os_error(error)}"
            )
            self.pump.due.append(functools.partial(self._lose_unborn, worker, death))
            self.pump.wake()
            return
        self.links[worker.id] = link
        self._by_fd[link.channel.fd] = link
        self.pump.watch(link.channel.fd)
        link.channel.post(self._setup)
        guardian.spawn(worker.id, theirs, link.page)
        self._dirty.add(link)

    def _lose_unborn(self, worker: records.WorkerRecord, death: exceptions.Death) -> None:
        with self.lock:
            if worker.id in self.kernel.workers:
                self.failures += 1
                self.kernel.lose(worker, death, set())
                self.carry_out()

    def bury_unreported(self, link: links.Link) -> None:
        """A worker is dead, and the guardian does not say why. Called with the lock held."""
        assert self.guardian is not None
        text = f"ended, and the guardian (pid {self.guardian.pid}), which would know why, is stopped"
        self._bury(link.worker.id, exceptions.Death(pid=link.pid, explanation=text))
        self.carry_out()

    def _fail_all(self, error: exceptions.HocketError) -> None:
        self.end = error
        self.failures += 1
        for link in list(self.links.values()):
            self._close_link(link)
        self._call_back_all()

    def _call_back_all(self) -> None:
        """The session is over: whoever waits for a future is to learn it."""
        for callbacks in self._callbacks.values():
            self.pump.due.extend(callbacks)
        self._callbacks.clear()

    # --- the end ------------------------------------------------------------------------------------------------------

    def cut_off(self) -> None:
        self.guard.remove()
        self.pump.cut_off()
        for link in list(self.links.values()):
            link.channel.sock.close()
        if self.guardian is not None:
            self.guardian.cut_off()
        forks.cut_off(self)

    def close(self) -> None:
        with self.lock:
            if isinstance(self.end, exceptions.SessionClosedError):
                return
            self.end = exceptions.SessionClosedError("The session was shut down. Call hocket.init() to open a new one.")
            ended = list(self.links.values())
            for link in ended:
                link.channel.post((messages.STOP,))
                self.flush(link)
            self._call_back_all()
        self.pump.run_due()
        self.store.stop()
        self.pump.close()  # before the guardian's socket: the steward must not meet a closed descriptor
        if self.guardian is not None:
            self.guardian.end()
        if self._window is not None:
            self._window.close()
        self.guard.remove()
        for actor in self.kernel.actors.values():
            for marker, _ in actor.markers:
                self._drop_marker(marker)
        for link in ended:
            link.close()
        self.links.clear()
        self.store.close()
        self.interned.clear()
        self.pinned.clear()
        self.guard.check()


_MESSAGES = {
    Op.CANCEL: messages.CANCEL,
    Op.STOP: messages.STOP,
    Op.CONSUMED: messages.CONSUMED,
}
"""Instructions that are passed on to the worker as they are."""

_NO_ARGUMENTS: tuple[None, tuple[int, ...], tuple[int, ...]] = (None, (), ())

_NOTHING: list[contract.ObjectRef[Any]] = []


def _do_nothing() -> None:
    pass


def _is_readable(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)) or True
    except BlockingIOError:
        return False
    except OSError:
        return True
