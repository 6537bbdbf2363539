"""Tasks, actors and calls that a worker makes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, final

from hocket import exceptions
from hocket.engine import contract, faults, rules, values
from hocket.engine.local import direct_channels, journal, messages, payloads, store
from hocket.engine.local.worker_engine import arrivals, duty, outbox, questions
from hocket.kernel import resources

if TYPE_CHECKING:
    from hocket.kernel import records

_ONE_CPU: Final = (("CPU", resources.UNIT),)
"""The demand of most tasks; the worker knows without a question whether it can be had."""


@final
class WorkerTasks(contract.Tasks):
    """The submission of a worker's own tasks, actors and calls.

    Args:
        lock: The engine's lock.
        driver: The channel to the driver.
        own: The running work.
        known: The process's handles.
        come: The values that have come.
        post: The outbox.
        asked: The questions to the driver.
        direct: The direct channels to other workers.
        memory: The segments of this process.
        taker: Raises the exceptions of signals' handlers.
    """

    def __init__(
        self,
        lock: threading.RLock,
        driver: journal.JournalChannel,
        own: duty.Duty,
        known: arrivals.WorkerHandles,
        come: arrivals.Arrivals,
        post: outbox.Outbox,
        asked: questions.Questions,
        direct: direct_channels.DirectChannels,
        memory: store.WorkerStore,
        taker: duty.Taker,
    ) -> None:
        self._lock, self._driver, self._duty, self._handles, self._arrivals = lock, driver, own, known, come
        self._outbox, self._questions, self._direct, self._store, self._taker = post, asked, direct, memory, taker
        #: Shapes that the driver has found feasible; the answer does not change during a session.
        self._feasible: set[resources.Shape] = set()
        #: Functions whose code the driver has.
        self._exported: set[bytes] = set()
        self._options_blobs: dict[object, bytes] = {}

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.AnyRef]:
        self._check_feasible(options.shape, exceptions.TaskUnschedulableError, f"Task `{options.name}`")
        return self._submit(function, args, kwargs, options, options.num_returns)

    def create_actor(
        self,
        actor_class: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.ActorOptions,
    ) -> contract.ActorInfo:
        what = f"Actor `{options.class_name}`"
        self._check_feasible(options.creation.shape, exceptions.ActorUnschedulableError, what)
        try:
            if options.name:
                self._questions.ask("claim_name", options.name, options.namespace)
            ref = self._handles.remember(self._submit(actor_class, args, kwargs, options, 1)[0])
        except BaseException:
            if options.name:
                self._questions.ask("release_name", options.name, options.namespace)
            raise
        return contract.ActorInfo(ref=ref, options=options)

    def _check_feasible(
        self, shape: resources.Shape, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        is_usual = shape.demand == _ONE_CPU and not shape.group_id and self._duty.setup["has_cpu"]
        if shape.demand and not is_usual and shape not in self._feasible:
            self._questions.ask("check_feasible", shape, kind, what)
            self._feasible.add(shape)

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.AnyRef]:
        encoded, top = values.encode_arguments(args, kwargs, options.name)
        options_blob = self._options_blobs.get(options) or self._encode_options(options)
        stored = self._build_arguments(encoded)
        with self._lock:
            is_small = encoded is None or (not encoded.refs and stored is not None and stored[0] != payloads.SEGMENT)
            if options.is_direct and not top and is_small:
                direct = self._call_directly(actor, method, stored, options)
                if direct is not None:
                    return direct
            self._direct.note_bypass(actor._id)
            task_id = self._duty.make_ids(max(1, options.num_returns))
            payload, dependencies, borrowed = self._send_arguments(encoded, top, stored)
            parent = self._duty.running.task_id
            self._driver.post_short(
                (
                    messages.SUBMIT_CALL,
                    task_id,
                    actor._id,
                    method,
                    payload,
                    dependencies,
                    borrowed,
                    options_blob,
                    parent,
                )
            )
            refs = [self._handles.own(object_id) for object_id in range(task_id, task_id + abs(options.num_returns))]
            self._outbox.flush()
        self._taker.check()
        return refs

    def _submit(
        self,
        function: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions | records.ActorOptions,
        num_returns: int,
    ) -> list[contract.AnyRef]:
        encoded, top = values.encode_arguments(args, kwargs, function.name)
        options_blob = self._options_blobs.get(options) or self._encode_options(options)
        if function.id not in self._exported:
            self._export(function)
        stored = self._build_arguments(encoded)
        with self._lock:
            task_id = self._duty.make_ids(max(1, num_returns))
            payload, dependencies, borrowed = self._send_arguments(encoded, top, stored)
            if faults.plan is not None:
                faults.plan.reach("worker.in_submit")
            parent = self._duty.running.task_id
            self._driver.post_short(
                (messages.SUBMIT, task_id, function.id, payload, dependencies, borrowed, options_blob, parent)
            )
            refs = [self._handles.own(object_id) for object_id in range(task_id, task_id + abs(num_returns))]
            self._outbox.flush()
        self._taker.check()
        return refs

    def _call_directly(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        payload: payloads.Payload | None,
        options: records.TaskOptions,
    ) -> list[contract.AnyRef] | None:
        """Make a call by a direct channel; return None if there is no channel. Called with the lock held."""
        direct = self._direct.find_channel(actor._id)
        if direct is None:
            return None
        returns = options.num_returns
        task_id = self._duty.make_ids(max(1, returns))
        refs = [self._handles.own(object_id) for object_id in range(task_id, task_id + returns)]
        for ref in refs:
            self._arrivals.expect(ref._id)
        message = (messages.DIRECT, task_id, method, payload, returns, options.name, options.concurrency_group)
        pending = direct_channels.Pending(options.name, returns, self._duty.running.task_id)
        self._direct.send_call(direct, actor, message, pending)
        return refs

    def cancel(self, ref: contract.ObjectRef[object], *, force: bool, recursive: bool) -> None:
        with self._lock:
            if ref._id in self._arrivals.expected:
                if force:
                    raise ValueError(rules.explain_unforcible("this call"))
                if self._direct.cancel(ref._id, recursive=recursive):
                    return
        self._questions.ask("cancel", ref, force=force, recursive=recursive)

    # --- options, functions and arguments -----------------------------------------------------------------------------

    def _encode_options(self, options: records.TaskOptions | records.ActorOptions) -> bytes:
        import cloudpickle  # imported here, because the driver loads this module too

        blob: bytes = cloudpickle.dumps(options)
        self._options_blobs[options] = blob
        return blob

    def _export(self, function: contract.RemoteFunction) -> None:
        """Send the code of a remote function; large arrays of its closure go to shared memory once."""
        with self._lock:
            object_id = next(self._duty.ids)
        encoded = values.Encoded(function.blob, list(function.buffers), [])
        payload = self._store.build_payload(encoded, object_id)
        with self._lock:
            if function.id not in self._exported:
                self._exported.add(function.id)
                # References in the function's closure live as long as it can be called.
                self._handles.pinned.extend(function.captured)
                self._driver.post((messages.EXPORT, function.id, self._outbox.send_payload(payload), function.name))

    def _build_arguments(self, encoded: values.Encoded | None) -> payloads.Payload | None:
        if encoded is None:
            return None
        if not encoded.buffers:
            return (payloads.INLINE, encoded.data)
        with self._lock:
            object_id = next(self._duty.ids)
        return self._store.build_payload(encoded, object_id)

    def _send_arguments(
        self, encoded: values.Encoded | None, top: list[contract.AnyRef], payload: payloads.Payload | None
    ) -> tuple[payloads.Payload | None, tuple[int, ...], tuple[int, ...]]:
        dependencies = tuple([ref._id for ref in top])
        self._arrivals.publish(top)
        if encoded is None or payload is None:
            return None, dependencies, ()
        self._arrivals.publish(encoded.refs)
        return self._outbox.send_payload(payload), dependencies, tuple([ref._id for ref in encoded.refs])
