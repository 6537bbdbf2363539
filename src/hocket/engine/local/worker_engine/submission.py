"""Tasks, actors and calls that a worker makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket import exceptions
from hocket.engine import contract, faults, rules, values
from hocket.engine.local import direct_channels, messages, payloads
from hocket.engine.local.worker_engine import questions

if TYPE_CHECKING:
    from hocket.kernel import records


class Submission(questions.Questions):
    """Hands work in."""

    def submit_task(
        self,
        function: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[object]]:
        self._check_feasible(options.shape, exceptions.TaskUnschedulableError, f"Task `{options.name}`")
        return self._submit(function, args, kwargs, options, options.num_returns)

    def create_actor(
        self,
        actor_class: contract.RemoteFunction,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.ActorOptions,
    ) -> contract.ActorInfo:
        self._check_feasible(
            options.creation.shape, exceptions.ActorUnschedulableError, f"Actor `{options.class_name}`"
        )
        try:
            if options.name:
                self._ask("claim_name", options.name, options.namespace)
            ref = self.remember(self._submit(actor_class, args, kwargs, options, 1)[0])
        except BaseException:
            if options.name:
                self._ask("release_name", options.name, options.namespace)
            raise
        return contract.ActorInfo(ref=ref, options=options)

    def submit_call(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[object]]:
        encoded, top = values.encode_arguments(args, kwargs, options.name)
        options_blob = self._options_blobs.get(options) or self._encode_options(options)
        stored = self._build_arguments(encoded)
        with self.lock:
            is_small = encoded is None or (not encoded.refs and stored is not None and stored[0] != payloads.SEGMENT)
            if options.is_direct and not top and is_small:
                direct = self._call_directly(actor, method, stored, options)
                if direct is not None:
                    return direct
            self.direct.note_bypass(actor._id)
            task_id = self._make_ids(max(1, options.num_returns))
            payload, dependencies, borrowed = self._send_arguments(encoded, top, stored)
            parent = self.running.task_id
            self.channel.post_short(
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
            refs = [self._own(object_id) for object_id in range(task_id, task_id + abs(options.num_returns))]
            self.flush()
        self.check()
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
        with self.lock:
            task_id = self._make_ids(max(1, num_returns))
            payload, dependencies, borrowed = self._send_arguments(encoded, top, stored)
            if faults.plan is not None:
                faults.plan.reach("worker.in_submit")
            parent = self.running.task_id
            self.channel.post_short(
                (messages.SUBMIT, task_id, function.id, payload, dependencies, borrowed, options_blob, parent)
            )
            refs = [self._own(object_id) for object_id in range(task_id, task_id + abs(num_returns))]
            self.flush()
        self.check()
        return refs

    def _call_directly(
        self,
        actor: contract.ObjectRef[None],
        method: str,
        payload: payloads.Payload | None,
        options: records.TaskOptions,
    ) -> list[contract.ObjectRef[object]] | None:
        """Make a call by a direct channel; None if there is none. Called with the lock held."""
        direct = self.direct.find_channel(actor._id)
        if direct is None:
            return None
        returns = options.num_returns
        task_id = self._make_ids(max(1, returns))
        refs = [self._own(object_id) for object_id in range(task_id, task_id + returns)]
        for ref in refs:
            self._expected.add(ref._id)
            self._private.add(ref._id)
        message = (messages.DIRECT, task_id, method, payload, returns, options.name, options.concurrency_group)
        self.direct.send_call(
            direct, actor, message, direct_channels.Pending(options.name, returns, self.running.task_id)
        )
        return refs

    def cancel(self, ref: contract.ObjectRef[object], *, force: bool, recursive: bool) -> None:
        with self.lock:
            if ref._id in self._expected:
                if force:
                    raise ValueError(rules.explain_unforcible("this call"))
                if self.direct.cancel(ref._id, recursive=recursive):
                    return
        self._ask("cancel", ref, force=force, recursive=recursive)

    def request_exit(self) -> None:
        self.running.is_exiting = True
        self.on_exit()

    # --- what is sent along -------------------------------------------------------------------------------------------

    def _encode_options(self, options: records.TaskOptions | records.ActorOptions) -> bytes:
        import cloudpickle  # here, because the driver loads this module too

        blob: bytes = cloudpickle.dumps(options)
        self._options_blobs[options] = blob
        return blob

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
        top: list[contract.ObjectRef[object]],
        payload: payloads.Payload | None,
    ) -> tuple[payloads.Payload | None, tuple[int, ...], tuple[int, ...]]:
        dependencies = tuple([ref._id for ref in top])
        self.publish(top)
        if encoded is None or payload is None:
            return None, dependencies, ()
        self.publish(encoded.refs)
        return self.send_payload(payload), dependencies, tuple([ref._id for ref in encoded.refs])
