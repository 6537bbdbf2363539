"""The engine as a worker process sees it: everything is forwarded to the hub.

Ids are made here, ``worker_id << 40 | counter``, so submitting and putting need no answer. Small values that were fetched
once are kept while a handle on them lives; large ones are mapped anew for each `get`.

**Counting.** The hub counts, for each worker, how often it gave the worker a reference (`_receipts` here). When the last
handle of this process is collected, all receipts go back in one `DROP`. Handles for references in queued work are
made on arrival and kept with the work, so that a `DROP` can never give back a receipt that is still needed.
"""

from __future__ import annotations

import contextvars
import itertools
import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from hocket import exceptions
from hocket.engine import contract, faults, forks, interrupts, rules, values
from hocket.engine.local import channel, journal, messages, payloads, peers, pump, store
from hocket.kernel import metrics, records, resources

DIRECT_SECONDS = 0.002
"""How long a wait for an answer by a line, or for what somebody else makes, may take before the hub is told that its CPU is free. A
guess: less than any task that the CPU could be lent to takes to get there."""

NOTES_SECONDS = 0.1
"""How long the hub may not know of a direct call that is over."""

MAX_NOTES = 1000
"""How many direct calls the hub is told of at a time; of more, the last ones."""

METRICS_SECONDS = 1.0
"""How long what a running task counts may wait for company at most, if it goes on counting."""


class Arrived:
    """A value that the hub sent."""

    __slots__ = ("held", "payload")

    def __init__(self, payload: payloads.Payload, held: list[contract.ObjectRef[Any]]) -> None:
        self.payload = payload
        #: Handles on the references inside the value.
        self.held = held


class Work(Protocol):
    """A task or call, as far as it matters here."""

    name: str
    #: Which function; empty for a method.
    function_id: bytes
    method: str
    extra: dict[str, Any] | None


class Running:
    """What a thread, or a coroutine of an asynchronous actor, runs."""

    __slots__ = ("is_exiting", "task_id", "work")

    def __init__(self) -> None:
        #: 0 if it runs nothing.
        self.task_id = 0
        #: What it runs; None in between.
        self.work: Work | None = None
        #: Whether it has asked for the end of its actor: then it has no result, whatever becomes of the exception.
        self.is_exiting = False

    @property
    def name(self) -> str:
        """What runs, for messages."""
        return self.work.name if self.work is not None else ""

    @property
    def extra(self) -> dict[str, Any]:
        """What only some tasks have; nothing if none runs."""
        return (self.work.extra or {}) if self.work is not None else {}


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.running = Running()


current: contextvars.ContextVar[Running] = contextvars.ContextVar("current")
"""What the coroutine runs; not set in ordinary threads."""


class Client(contract.Engine):
    """The worker's side of the contract."""

    name = "local"
    is_closable = False

    def __init__(self, worker_id: int, sock: socket.socket, page_fd: int) -> None:
        super().__init__()
        self.worker_id = worker_id
        self.lock = threading.RLock()
        self.channel = journal.JournalChannel(sock, page_fd)
        self._thread_state = _ThreadState()
        self.setup: dict[str, Any] = {"job_id": "", "node_id": "", "namespace": ""}
        self.actor_id: int = 0
        self.actor_extra: dict[str, Any] = {}
        self.cancelled: set[int] = set()
        self.last_flush = 0.0
        #: Sends what is unsent: now, or, on an event loop, at the end of its round.
        self.flush_soon: Callable[[], None] = self._flush_locked
        #: Handles messages that are work for this process rather than answers.
        self.on_work: Callable[[channel.Message], None] = lambda message: None
        #: Takes work that was kept back for order.
        self.on_late: Callable[[Any], None] = lambda work: None
        #: Called without the lock when something may have to be raised in the thread that uses the engine.
        self.check: Callable[[], None] = _do_nothing
        #: Ends the actor soon, whatever runs.
        self.on_exit: Callable[[], None] = _do_nothing
        #: Returns the full name of what runs.
        self.name_function: Callable[[Running], str] = lambda running: running.name
        #: Takes back what has not been started; called with the lock held.
        self.take_unstarted: Callable[[], list[tuple[int, int]]] = list
        self._ids = itertools.count((worker_id << 40) + 1)
        self.store = store.WorkerStore(self.lock, ask_room=self._ask_room, explain_full=self._explain_full)
        self._arrived: dict[int, Arrived] = {}
        self._wanted: set[int] = set()
        self._ready: set[int] = set()
        self._answers: dict[int, tuple[bool, bytes, list[contract.ObjectRef[Any]]]] = {}
        self._room_questions: set[int] = set()
        self._receipts: dict[int, int] = {}
        self._callbacks: dict[int, list[Callable[[], None]]] = {}
        self._deadlocks: dict[int, str] = {}
        self.switchboard = peers.Switchboard(self)
        #: Objects that will come by a line.
        self._expected: set[int] = set()
        #: Objects of ours that the hub does not know.
        self._private: set[int] = set()
        #: Those of `_expected` that the hub was promised.
        self._promised: set[int] = set()
        #: Direct calls that are over, and that the hub has not been told of.
        self.notes: list[tuple[int, str, float, float, str | None, str]] = []
        self._notes_sent = 0.0
        self._unmapped: deque[int] = deque()
        self._exported: set[bytes] = set()
        self._options_blobs: dict[Any, bytes] = {}
        self.guard = interrupts.InterruptGuard(self.lock)
        self.pump = pump.Pump(
            self,
            self.lock,
            handle=self._handle,
            before_wait=self.before_wait,
            guard=self.guard,
            check=self._check,
            name="hocket-steward",
        )
        self.pump.watch(self.channel.fd)

    @property
    def running(self) -> Running:
        """What the calling thread or coroutine runs."""
        return current.get(None) or self._thread_state.running

    # --- messages -----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self.check()

    def before_wait(self) -> float | None:
        """Send everything that is unsent; return how long to wait at most, if there is something to send later."""
        self._drain_dropped()
        if self.notes:
            now = time.perf_counter()
            if now - self._notes_sent > NOTES_SECONDS or len(self.notes) > MAX_NOTES:
                self._notes_sent = now
                self.channel.post((messages.NOTES, self.notes[-MAX_NOTES:]))
                self.notes = []
        self.flush()
        return NOTES_SECONDS if self.notes else None

    def flush(self) -> None:
        """Send the outbox; waits if the hub is slow, because a worker has nothing better to do."""
        if faults.plan is not None and self.channel.has_unsent():
            faults.plan.reach("worker.in_flush")
        if self.metrics.families:
            self.post_metrics()
        self.switchboard.flush()
        self.channel.flush()
        self.last_flush = time.perf_counter()

    def post_metrics(self) -> None:
        """Tell what has been counted; before a result, so that whoever sees that also sees what was counted on the way to it."""
        with self.metrics_lock:
            self.channel.post((messages.METRICS, self.metrics.take()))

    def has_unsent(self) -> bool:
        """Tell whether anything waits to be sent."""
        return self.channel.has_unsent() or self.switchboard.has_unsent()

    def owes(self) -> bool:
        """Tell whether values that were promised to the hub have not come yet."""
        return bool(self._promised)

    def _flush_locked(self) -> None:
        with self.lock:
            self.flush()

    def _handle(self, fd: int, mask: int) -> None:
        if fd != self.channel.fd:
            self.switchboard.handle(fd, bool(mask & pump.READABLE))
            return
        received = self.channel.receive()
        if received is None:
            os._exit(0)  # the hub is gone, so nobody wants what this process does
        for message in received:
            op = message[0]
            if op == messages.VALUE:
                self._take_value(*message[1:])
            elif op == messages.READY:
                self._ready.add(message[1])
            elif op == messages.ANSWER:
                self._take_answer(*message[1:])
            elif op in _RARE:
                self._handle_rare(message)
            else:
                self.on_work(message)

    def _handle_rare(self, message: channel.Message) -> None:
        op = message[0]
        if op == messages.RECYCLE:
            if self.store.obey(message[1], message[2]):
                self.channel.post((messages.POOL, *self.store.get_account()))
        elif op == messages.DEADLOCK:
            self._deadlocks[message[1]] = message[2]
        elif op == messages.PROBE:
            self._drain_dropped()
            is_waiting = self.owes() or self.switchboard.is_waiting()
            self.channel.post((messages.PROBED, message[1], is_waiting, self.switchboard.sent))
        elif op == messages.SYNC:
            self.switchboard.sync(message[1], message[2])
        elif op == messages.AWAIT:
            self.switchboard.await_calls(message[1], message[2])
        elif op == messages.INTRODUCED:
            self.switchboard.accept(message[1], self.channel.take_descriptor())
        else:
            self._take_move(message[1])

    def _take_answer(self, question_id: int, ok: bool, data: bytes, contained: tuple[int, ...]) -> None:
        if question_id in self._room_questions:  # counted here, because who asked may have been interrupted meanwhile
            self._room_questions.discard(question_id)
            self.store.credit(*pickle.loads(data))
        self._answers[question_id] = (ok, data, self.hold(contained))

    def _take_value(self, object_id: int, payload: payloads.Payload, contained: tuple[int, ...]) -> None:
        self._wanted.discard(object_id)
        held = self.hold(contained)
        if payload[0] == payloads.SEGMENT:
            fd = self.channel.take_descriptor()
            if object_id not in self._receipts:  # the last handle went while it was on its way
                os.close(fd)
                self.channel.post((messages.UNMAP, object_id))
                return
            payload = (*payload, fd)
        if object_id in self._receipts:
            self._arrived[object_id] = Arrived(payload, held)
            if self._callbacks:
                self.pump.due.extend(self._callbacks.pop(object_id, ()))

    def intern(self, object_id: int) -> contract.ObjectRef[Any]:
        with self.lock:  # the steward must not give receipts back between the look and the new handle
            return super().intern(object_id)

    def hold(self, object_ids: Sequence[int]) -> list[contract.ObjectRef[Any]]:
        """Count a receipt for each reference that came with a message, and return handles that keep them."""
        held = []
        for object_id in object_ids:
            self._receipts[object_id] = self._receipts.get(object_id, 0) + 1
            held.append(self.intern(object_id))
        return held

    def adopt(self, object_id: int) -> None:
        if object_id not in self._receipts:
            with self.lock:
                self._receipts[object_id] = 1
                self.channel.post((messages.ADOPT, object_id))

    def _drain_dropped(self) -> None:
        post = self.channel.post
        while self._unmapped:
            post((messages.UNMAP, self._unmapped.popleft()))
        dropped = self.pump.bell.usual
        while dropped:
            object_id = dropped.popleft()
            if object_id == contract.NO_ID:
                continue
            self.forget(object_id)
            if object_id in self.interned:
                continue  # a new handle took over the receipts
            if object_id in self._private:
                self._private.discard(object_id)
                self._receipts.pop(object_id, None)
                self._arrived.pop(object_id, None)
                continue
            unread = self._arrived.pop(object_id, None)
            if unread is not None and unread.payload[0] == payloads.SEGMENT:
                os.close(unread.payload[-1])
                post((messages.UNMAP, object_id))
            unread = None  # it may hold handles on others, which would miss this round
            self._ready.discard(object_id)
            receipts = self._receipts.pop(object_id, 0)
            if receipts:
                post((messages.DROP, object_id, receipts))

    def _note_unmapped(self, object_id: int) -> None:
        """Called by a finalizer, in any thread at any moment, so without a lock."""
        self._unmapped.append(object_id)
        self.dropped.append(contract.NO_ID)  # if somebody sleeps, it wakes

    def _own(self, object_id: int) -> contract.ObjectRef[Any]:
        """Return the first handle on an object that this process has just announced to the hub."""
        self._receipts[object_id] = 1
        return contract.ObjectRef(object_id, self)

    # --- lines to actors ----------------------------------------------------------------------------------------------

    def watch_line(self, fd: int) -> None:
        """Handle what arrives on this descriptor."""
        self.pump.watch(fd)

    def watch_line_writable(self, fd: int, wanted: bool) -> None:
        """Also handle the moment when it takes more."""
        self.pump.watch_writable(fd, wanted)

    def unwatch_line(self, fd: int) -> None:
        """Forget a descriptor."""
        self.pump.unwatch(fd)

    def take_answer(self, object_id: int, payload: payloads.Payload) -> None:
        """A value has come by a line."""
        self._expected.discard(object_id)
        if object_id in self._promised:
            self._promised.discard(object_id)
            self.channel.post((messages.FULFIL, object_id, payload))
        if object_id in self._receipts:
            self._arrived[object_id] = Arrived(payload, [])
            if self._callbacks:
                self.pump.due.extend(self._callbacks.pop(object_id, ()))

    def give_to_hub(self, object_ids: Iterable[int]) -> None:
        """The hub knows these objects from now on, and will bring them."""
        for object_id in object_ids:
            self._expected.discard(object_id)
            self._promised.discard(object_id)
            self._private.discard(object_id)
            if object_id not in self._receipts:
                self.channel.post((messages.DROP, object_id, 1))
            elif object_id in self._callbacks:
                self._have_arrived({object_id})

    def _take_move(self, object_id: int) -> None:
        """A result is at the hub, because it has references inside or is large."""
        self.switchboard.settle(object_id)
        self.give_to_hub((object_id,))
        if object_id in self._receipts:
            self._ready.add(object_id)

    def publish(self, refs: Sequence[contract.ObjectRef[Any]]) -> None:
        """Tell the hub of those that it does not know, because they are about to leave. Called with the lock held."""
        if not self._private:
            return
        for ref in refs:
            object_id = ref._id
            if object_id not in self._private:
                continue
            self._private.discard(object_id)
            found = self._arrived.get(object_id)
            if found is None:
                self._promised.add(object_id)
                self.channel.post((messages.PROMISE, object_id))
            else:
                self.channel.post((messages.PUT, object_id, found.payload, ()))

    def _call_directly(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        payload: payloads.Payload | None,
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[Any]] | None:
        """Make a call by a line; None if there is none. Called with the lock held."""
        line = self.switchboard.find_line(actor._id)
        if line is None:
            return None
        returns = options.num_returns
        task_id = self._make_ids(max(1, returns))
        refs = [self._own(object_id) for object_id in range(task_id, task_id + returns)]
        for ref in refs:
            self._expected.add(ref._id)
            self._private.add(ref._id)
        message = (messages.DIRECT, task_id, method, payload, returns, options.name, options.concurrency_group)
        self.switchboard.send_call(line, actor, message, peers.Pending(options.name, returns, self.running.task_id))
        return refs

    # --- work ---------------------------------------------------------------------------------------------------------

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[Any]]:
        self._check_feasible(options.shape, exceptions.TaskUnschedulableError, f"Task `{options.name}`")
        return self._submit(function, args, kwargs, options, options.num_returns)

    def create_actor(
        self,
        actor_class: contract.RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.ActorOptions,
    ) -> contract.ActorInfo:
        self._check_feasible(
            options.creation.shape, exceptions.ActorUnschedulableError, f"Actor `{options.class_name}`"
        )
        if options.name:
            self._ask("claim_name", options.name, options.namespace)
        ref = self.remember(self._submit(actor_class, args, kwargs, options, 1)[0])
        return contract.ActorInfo(ref=ref, options=options)

    def _submit(
        self,
        function: contract.RemoteFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.TaskOptions | records.ActorOptions,
        num_returns: int,
    ) -> list[contract.ObjectRef[Any]]:
        encoded, top = values.encode_arguments(args, kwargs, function.name)
        options_blob = self._options_blobs.get(options) or self._encode_options(options)
        if function.id not in self._exported:
            self._export(function)
        stored = self._build_arguments(encoded)
        with self.lock:
            task_id = self._make_ids(max(1, num_returns))
            payload, dependencies, borrowed = self._send_arguments(encoded, top, stored)
            if faults.plan is not None:
                faults.plan.reach("worker.in_submit")
            parent = self.running.task_id
            self.channel.post(
                (messages.SUBMIT, task_id, function.id, payload, dependencies, borrowed, options_blob, parent)
            )
            refs = [self._own(object_id) for object_id in range(task_id, task_id + abs(num_returns))]
            self.flush()
        self.check()
        return refs

    def _encode_options(self, options: records.TaskOptions | records.ActorOptions) -> bytes:
        import cloudpickle  # here, because the driver loads this module too

        blob: bytes = cloudpickle.dumps(options)
        self._options_blobs[options] = blob
        return blob

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[Any]]:
        encoded, top = values.encode_arguments(args, kwargs, options.name)
        options_blob = self._options_blobs.get(options) or self._encode_options(options)
        stored = self._build_arguments(encoded)
        with self.lock:
            is_small = encoded is None or (not encoded.refs and stored is not None and stored[0] != payloads.SEGMENT)
            if options.is_direct and not top and is_small:
                direct = self._call_directly(actor, method, stored, options)
                if direct is not None:
                    return direct
            self.switchboard.note_bypass(actor._id)
            task_id = self._make_ids(max(1, options.num_returns))
            payload, dependencies, borrowed = self._send_arguments(encoded, top, stored)
            call = (messages.SUBMIT_CALL, task_id, actor._id, method, payload, dependencies, borrowed)
            self.channel.post((*call, options_blob, self.running.task_id))
            refs = [self._own(object_id) for object_id in range(task_id, task_id + abs(options.num_returns))]
            self.flush()
        self.check()
        return refs

    def _make_ids(self, count: int) -> int:
        first = next(self._ids)
        for _ in range(count - 1):
            next(self._ids)
        return first

    def _export(self, function: contract.RemoteFunction) -> None:
        """Send the code of a remote function; large arrays of its closure go to shared memory once."""
        with self.lock:
            object_id = next(self._ids)
        encoded = values.Encoded(function.blob, list(function.buffers), [])
        payload = self.store.build_payload(encoded, object_id)
        with self.lock:
            if function.id not in self._exported:
                self._exported.add(function.id)
                self.pinned += function.captured  # what its closure refers to lives as long as it can be called
                self.channel.post((messages.EXPORT, function.id, self.send_payload(payload), function.name))

    def _build_arguments(self, encoded: values.Encoded | None) -> payloads.Payload | None:
        if encoded is None:
            return None
        if not encoded.buffers:
            return (payloads.INLINE, encoded.data)
        with self.lock:
            object_id = next(self._ids)
        return self.store.build_payload(encoded, object_id)

    def _send_arguments(
        self,
        encoded: values.Encoded | None,
        top: list[contract.ObjectRef[Any]],
        payload: payloads.Payload | None,
    ) -> tuple[payloads.Payload | None, tuple[int, ...], tuple[int, ...]]:
        dependencies = tuple([ref._id for ref in top])
        self.publish(top)
        if encoded is None or payload is None:
            return None, dependencies, ()
        self.publish(encoded.refs)
        return self.send_payload(payload), dependencies, tuple([ref._id for ref in encoded.refs])

    def send_payload(self, payload: payloads.Payload) -> payloads.Payload:
        """Put the descriptor of a payload's segment on its way. Called with the lock held, in the order of the messages."""
        if payload[0] == payloads.SEGMENT:
            self.channel.outbox_fds.append(self.store.pool.used[payload[2]].fd)
        return payload

    def _check_feasible(
        self, shape: resources.Shape, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        if shape.demand not in _KNOWN_FEASIBLE:
            self._ask("check_feasible", shape, kind, what)

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        info: contract.ActorInfo | None = self._ask("find_actor", name, namespace)
        return info

    def list_named_actors(self) -> list[tuple[str, str]]:
        return list(self._ask("list_named_actors"))

    def record_metrics(self, batch: metrics.Batch) -> None:
        super().record_metrics(batch)
        if time.perf_counter() - self.last_flush > METRICS_SECONDS:
            with self.lock:
                self.flush()

    def describe_actor(self, actor_id: int) -> contract.ActorInfo:
        info: contract.ActorInfo = self._ask("describe_actor", actor_id)
        return info

    def kill_actor(self, actor: contract.ObjectRef[None], *, no_restart: bool = True) -> None:
        self._ask("kill_actor", actor, no_restart=no_restart)

    def request_exit(self) -> None:
        self.running.is_exiting = True
        self.on_exit()

    def check_pending(self, actor: contract.ObjectRef[None]) -> None:
        self._ask("check_pending", actor)

    def cancel(self, ref: contract.ObjectRef[Any], *, force: bool, recursive: bool) -> None:
        with self.lock:
            if ref._id in self._expected:
                if force:
                    raise ValueError(rules.explain_unforcible("this call"))
                if self.switchboard.cancel(ref._id, recursive=recursive):
                    return
        self._ask("cancel", ref, force=force, recursive=recursive)

    # --- values -------------------------------------------------------------------------------------------------------

    def put(self, value: Any) -> contract.ObjectRef[Any]:
        encoded = values.encode(value, by_index=True)
        contained = tuple([ref._id for ref in encoded.refs])
        if contained:
            with self.lock:
                self.publish(encoded.refs)
        if not encoded.buffers:
            with self.lock:
                return self._announce_put((payloads.INLINE, encoded.data), next(self._ids), contained)
        ref: contract.ObjectRef[Any] | None = None

        def announce(payload: payloads.Payload) -> None:
            nonlocal ref
            ref = self._announce_put(payload, object_id, contained)

        with self.lock:
            object_id = next(self._ids)
        payload = self.store.build_payload(encoded, object_id, announce=announce)
        if ref is not None:
            return ref
        with self.lock:
            return self._announce_put(payload, object_id, contained)

    def put_error(self, error: exceptions.TaskError) -> contract.ObjectRef[Any]:
        payload = payloads.encode_error(error)
        with self.lock:
            return self._announce_put(payload, next(self._ids), ())

    def _announce_put(
        self, payload: payloads.Payload, object_id: int, contained: tuple[int, ...]
    ) -> contract.ObjectRef[Any]:
        if faults.plan is not None:
            faults.plan.reach("worker.in_put")
        self.channel.post((messages.PUT, object_id, self.send_payload(payload), contained))
        return self._own(object_id)

    def get(self, refs: Sequence[contract.ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        missing = {ref._id for ref in refs if ref._id not in self._arrived}
        if missing:
            self._fetch(missing, len(refs), timeout_s)
        if len(refs) < values.MANY:
            return [self._open(ref._id, refs, deadline) for ref in refs]
        with values.hold_collector():
            return [self._open(ref._id, refs, deadline) for ref in refs]

    def _fetch(self, missing: set[int], wanted: int, timeout_s: float | None) -> None:
        """Wait until these have come, or one of them is an error."""
        if self._is_close(missing):
            patience_s = DIRECT_SECONDS if timeout_s is None else min(DIRECT_SECONDS, timeout_s)
            if self.pump.wait_until(lambda: self._have_arrived(missing), patience_s):
                return
        if timeout_s == 0:
            self._look_once(missing, wanted, timeout_s)
            return
        number = next(self._ids)
        for_good = tuple(missing) if timeout_s is None else ()
        with self.lock:
            self._block(number, for_good, tuple(missing))
        try:
            if not self.pump.wait_until(lambda: self._is_over(number) or self._have_arrived(missing), timeout_s):
                raise rules.build_timeout_error(len(missing), wanted, timeout_s)
        finally:
            self._unblock(number)

    def _is_close(self, missing: set[int]) -> bool:
        """Tell whether the values may be there, or come, before the hub has read that we wait: an answer by a line, or what
        somebody else made. A task of our own is not: it may need the CPU that we hold.
        """
        expected, own_id = self._expected, self.worker_id
        return all(object_id in expected or object_id >> 40 != own_id for object_id in missing)

    def _look_once(self, missing: set[int], wanted: int, timeout_s: float) -> None:
        """Fetch what is there, without waiting for what is not: the hub answers in order, so one question is enough."""
        with self.lock:
            self._have_arrived(missing)
        self._ask("ping")
        with self.lock:
            if not self._have_arrived(missing):
                raise rules.build_timeout_error(len(missing), wanted, timeout_s)

    def wait_lending(self, is_done: Callable[[], bool]) -> None:
        """Wait for what others do; if it takes longer than a moment, the CPU is theirs meanwhile."""
        if self.pump.wait_until(is_done, DIRECT_SECONDS):
            return
        number = next(self._ids)
        with self.lock:
            self._block(number, (), ())
        try:
            self.pump.wait_until(is_done)
        finally:
            self._unblock(number)

    def _block(self, number: int, wanted: tuple[int, ...], missing: tuple[int, ...], needed: int = 0) -> None:
        """Tell the hub that a thread waits, unless the hub knows better: what is missing here may be there. Called with the lock held.

        Args:
            number: Our name for the wait.
            wanted: What it waits for until it comes; nothing if the wait has a time-out.
            missing: What it waits for.
            needed: How many of these end it; 0 is all of them, or the first error.
        """
        direct = []
        if self._expected:
            for object_id in wanted:
                found = self.switchboard.describe(object_id)
                if found is not None:
                    direct.append((object_id, *found))
        task_id = self.running.task_id
        needs_all = needed in (0, len(missing))
        block = (messages.BLOCK, self.take_unstarted(), number, task_id, wanted, needs_all, direct)
        self.channel.post((*block, missing, needed))

    def _is_over(self, number: int) -> bool:
        """Tell whether the wait of that number is known never to end. Called with the lock held."""
        return number in self._deadlocks

    def _unblock(self, number: int) -> None:
        """A wait is over."""
        with self.lock:
            self.channel.post((messages.UNBLOCK, number))
            text = self._deadlocks.pop(number, None)
        if text is not None:
            raise exceptions.DeadlockError(text)

    def _have_arrived(self, missing: set[int]) -> bool:
        """Tell whether the wait is over; ask for what nobody has asked for. Called with the lock held."""
        for object_id in list(missing):
            found = self._arrived.get(object_id)
            if found is not None:
                if found.payload[0] >= payloads.ERROR:
                    return True
                missing.discard(object_id)
            elif (
                object_id not in self._wanted and object_id not in self._expected
            ):  # also when another thread has taken what had arrived
                self._wanted.add(object_id)
                self.channel.post((messages.WANT, object_id))
        return not missing

    def _open(self, object_id: int, refs: Sequence[contract.ObjectRef[Any]], deadline: float | None) -> Any:
        """Return one of the values; raise if it, or another one that has arrived, is an error."""
        while True:
            with self.lock:
                found = self._arrived.get(object_id)
                if found is not None and found.payload[0] == payloads.SEGMENT:
                    # One receipt of the hub's stands for one mapping; the next `get` asks for another.
                    del self._arrived[object_id]
            if found is not None:
                return self.open_payload(object_id, found)
            for ref in refs:
                other = self._arrived.get(ref._id)
                if other is not None and other.payload[0] >= payloads.ERROR:
                    return self.open_payload(ref._id, other)
            self._fetch({object_id}, len(refs), None if deadline is None else max(0.0, deadline - time.monotonic()))

    def open_payload(self, object_id: int, found: Arrived) -> Any:
        """Return a value that has arrived; raise it if it is an error."""
        payload = found.payload
        if payload[0] == payloads.SEGMENT:
            fd = payload[-1]
            try:
                return payloads.open_payload(payload, fd, lambda: self._note_unmapped(object_id), found.held)
            finally:
                os.close(fd)
        return payloads.open_payload(payload, None, _do_nothing, found.held)

    def wait(self, refs: Sequence[contract.ObjectRef[Any]], num_ready: int, timeout_s: float | None) -> list[bool]:
        with self.lock:
            unknown = [ref._id for ref in refs if not self._is_there(ref._id)]
            enough = num_ready - (len(refs) - len(unknown))
            number = next(self._ids)
            if enough > 0:
                if timeout_s != 0:
                    self._block(number, tuple(unknown) if timeout_s is None else (), tuple(unknown), enough)
                known = [object_id for object_id in unknown if object_id not in self._expected]
                for object_id in known:
                    self.channel.post((messages.WATCH, object_id))
        if enough > 0 and timeout_s == 0:
            self._ask("ping")  # the answer comes behind the news of what is there
        elif enough > 0:
            try:
                self.pump.wait_until(
                    lambda: self._is_over(number) or sum(map(self._is_there, unknown)) >= enough, timeout_s
                )
            finally:
                self._unblock(number)
        with self.lock:
            there = [self._is_there(ref._id) for ref in refs]
        return limit_true(there, num_ready)

    def _is_there(self, object_id: int) -> bool:
        return object_id in self._arrived or object_id in self._ready

    def when_done(self, ref: contract.ObjectRef[Any], callback: Callable[[], None]) -> None:
        with self.lock:
            if ref._id not in self._arrived:
                self._callbacks.setdefault(ref._id, []).append(callback)
                self._have_arrived({ref._id})
                callback = self.flush_soon
        callback()

    # --- generators ---------------------------------------------------------------------------------------------------

    def take_item(self, stream: contract.ObjectRef[Any], index: int) -> contract.ObjectRef[Any]:
        with self.lock:
            self.channel.post((messages.TAKE, stream._id, index))
            return self._own(records.build_item_id(stream._id, index))

    def lift_bound(self, stream: contract.ObjectRef[Any]) -> None:
        with self.lock:
            self.channel.post((messages.LIFT, stream._id))

    def is_end(self, item: contract.ObjectRef[Any], timeout_s: float | None) -> bool | None:
        if item._id not in self._arrived:
            try:
                self._fetch({item._id}, 1, timeout_s)
            except exceptions.GetTimeoutError:
                return None
        found = self._arrived.get(item._id)
        return found is not None and found.payload[0] == payloads.END

    # --- asking the hub -----------------------------------------------------------------------------------------------

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the hub and wait for what it returns, or raises."""
        encoded = values.encode_whole((args, kwargs))
        with self.lock:
            self.publish(encoded.refs)
            question_id = next(self._ids)
            self.channel.post((messages.ASK, question_id, method, encoded.data))
        return self._wait_answer(question_id)

    def _wait_answer(self, question_id: int) -> Any:
        self.pump.wait_until(lambda: question_id in self._answers)
        ok, data, held = self._answers.pop(question_id)
        answer = pickle.loads(data)
        del held
        try:
            if not ok:
                raise answer
            return answer
        finally:
            del answer  # else the error and this frame hold each other, and what the frames above hold

    def _ask_room(self, needed: int) -> bool:
        """Ask for room for a new segment, and wait until it is granted or refused."""
        with self.lock:
            question_id = next(self._ids)
            self._room_questions.add(question_id)
            self.channel.post((messages.ROOM, question_id, needed, *self.store.get_account()))
        granted, _ = self._wait_answer(question_id)
        return bool(granted)

    def _explain_full(self, size: int, reason: str, is_disk: bool) -> str:
        return str(self._ask("explain_full", size, reason, is_disk))

    def reserve(self, bundles: Sequence[resources.Demand], strategy: str, name: str) -> contract.ObjectRef[None]:
        ref: contract.ObjectRef[None] = self._ask("reserve", list(bundles), strategy, name)
        return ref

    def remove_group(self, group_id: int) -> None:
        self._ask("remove_group", group_id)

    def list_groups(self) -> list[dict[str, Any]]:
        return list(self._ask("list_groups"))

    def list_nodes(self) -> list[dict[str, Any]]:
        return list(self._ask("list_nodes"))

    def get_total_resources(self) -> dict[str, float]:
        return dict(self._ask("get_total_resources"))

    def get_free_resources(self) -> dict[str, float]:
        return dict(self._ask("get_free_resources"))

    def list_errors(self) -> list[exceptions.ErrorRecord]:
        return list(self._ask("list_errors"))

    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, Any]] = (), limit: int | None = None
    ) -> list[dict[str, Any]]:
        return list(self._ask("list_records", kind, list(filters), limit))

    def statistics(self) -> dict[str, Any]:
        return dict(self._ask("statistics"))

    # --- looking, and the end -----------------------------------------------------------------------------------------

    def get_context(self) -> contract.WorkContext:
        running = self.running
        extra = {**self.actor_extra, **running.extra}
        task_id = running.task_id
        group_id = extra.get("group_id", 0)
        return contract.WorkContext(
            job_id=self.setup["job_id"],
            node_id=self.setup["node_id"],
            worker_id=f"{self.worker_id:016x}",
            task_id=f"{task_id:016x}" if task_id else None,
            task_name=running.name or None,
            function_name=self.name_function(running) if task_id else None,
            actor_id=f"{self.actor_id:016x}" if self.actor_id else None,
            resources=extra.get("resources", {"CPU": 1.0}),
            gpu_ids=tuple(extra.get("gpu_ids", ())),
            placement_group_id=f"{group_id:016x}" if group_id else None,
            namespace=extra.get("namespace", self.setup["namespace"]),
            attempt=extra.get("attempt", 0),
            actor_attempt=self.actor_extra.get("attempt", 0),
            actor_name=extra.get("actor_name"),
            environment=extra.get("environment", ""),
            captures_children=extra.get("captures_children", False),
            is_canceled=task_id in self.cancelled,
        )

    def cut_off(self) -> None:
        self.guard.remove()
        self.pump.cut_off()
        self.channel.cut_off()
        self.switchboard.cut_off()
        self.lock = threading.RLock()
        forks.cut_off(self)

    def close(self) -> None:
        """Workers are ended by their parent; a task cannot close the session that it runs in."""


def limit_true(there: list[bool], most: int) -> list[bool]:
    """Return the list with only the first `most` Trues left."""
    left = most
    for position, is_there in enumerate(there):
        if is_there:
            left -= 1
            if left < 0:
                there[position] = False
    return there


_KNOWN_FEASIBLE = frozenset({(), (("CPU", resources.UNIT),)})
"""Demands that every session can meet, so that common tasks need no question."""


_RARE = frozenset(
    {
        messages.PROBE,
        messages.RECYCLE,
        messages.DEADLOCK,
        messages.SYNC,
        messages.AWAIT,
        messages.INTRODUCED,
        messages.MOVED,
    }
)
"""What the hub says now and then, and is no work."""


def _do_nothing() -> None:
    pass
