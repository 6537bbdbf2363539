"""The code and the actor that live in a worker process, and the arguments that come with tasks and calls."""

from __future__ import annotations

import os
from typing import Any, final

from hocket import exceptions
from hocket.engine import callers, contract, methods, values
from hocket.engine.local import event_loop, messages, payloads, worker_engine
from hocket.engine.local.work import Work


@final
class Code:
    """The functions that the driver has sent to the process, and the values in messages.

    Args:
        engine: The worker's engine.
    """

    def __init__(self, engine: worker_engine.WorkerEngine) -> None:
        self._engine = engine
        #: Functions that have not been loaded.
        self._codes: dict[bytes, worker_engine.Arrived] = {}
        self.functions: dict[bytes, object] = {}

    def arrive(self, payload: payloads.Payload, held: list[contract.AnyRef]) -> worker_engine.Arrived:
        """Take a payload from a message, with its descriptor if it has one."""
        if payload[0] == payloads.SEGMENT:
            payload = (*payload, self._engine.channel.take_descriptor())
        return worker_engine.Arrived(payload, held)

    def add(self, function_id: bytes, payload: payloads.Payload) -> None:
        """Keep the code of a function, which the driver has sent."""
        self._codes[function_id] = self.arrive(payload, [])

    def forget(self, function_id: bytes) -> None:
        """Drop a function, and its code if that was not loaded."""
        self.functions.pop(function_id, None)
        code = self._codes.pop(function_id, None)
        if code is not None and code.payload[0] == payloads.SEGMENT:
            os.close(code.payload[-1])
            self._engine.channel.post((messages.UNMAP, code.payload[2]))

    def load(self, function_id: bytes) -> object:
        """Return a function."""
        function = self.functions.get(function_id)
        if function is None:
            function = self.functions[function_id] = self._engine.values.open_code(self._codes[function_id])
            del self._codes[function_id]  # not before: the next task may succeed in loading it
        return function

    def open_arguments(self, work: Work) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments of a task or call."""
        if work.args is None:
            return (), {}
        given, work.args = work.args, None
        open_payload = self._engine.values.open_payload
        args: Any
        if given.payload[0] == payloads.INLINE:
            args, kwargs = values.decode(given.payload[1], (), given.held)
        else:
            args, kwargs = open_payload(given.payload[2] if len(given.payload) > 2 else 0, given)  # type: ignore[misc]
        del given
        if work.dependencies:
            dependencies, work.dependencies = work.dependencies, []
            if len(dependencies) < values.MANY:
                found = [open_payload(object_id, arrived) for object_id, arrived in dependencies]
            else:
                with values.hold_collector():
                    found = [open_payload(object_id, arrived) for object_id, arrived in dependencies]
            del dependencies
            args, kwargs = values.fill_slots(args, kwargs, found)
        return args, kwargs

    def close_unopened(self, work: Work) -> None:
        """Give back the descriptors and counts of work that does not run here."""
        for object_id, arrived in ((0, work.args), *work.dependencies):
            if arrived is not None and arrived.payload[0] == payloads.SEGMENT:
                os.close(arrived.payload[-1])
                self._engine.channel.post((messages.UNMAP, object_id or arrived.payload[2]))
        work.clear()


@final
class Actor:
    """The actor, its event loop, and the error of its constructor.

    Args:
        engine: The worker's engine.
        functions: The code of functions, for their names.
    """

    def __init__(self, engine: worker_engine.WorkerEngine, functions: Code) -> None:
        self._engine, self._code = engine, functions
        self.instance: object = None
        self.error: payloads.Payload | None = None
        self.loop: event_loop.Loop | None = None
        #: Whether several calls may run at once, in threads.
        self.is_concurrent = False

    @property
    def exists(self) -> bool:
        """Whether the process is an actor's, alive or not."""
        return self.instance is not None or self.error is not None

    def become(self, instance: object, loop: event_loop.Loop | None, *, is_concurrent: bool) -> None:
        """Take the actor that has been built."""
        self.instance, self.loop, self.is_concurrent = instance, loop, is_concurrent

    def note_error(self, error: payloads.Payload) -> None:
        """Note the error of the constructor."""
        self.error = error

    def complete(self, awaitable: object) -> bool:
        """Run an awaitable to its end on the actor's event loop; return False if there is none."""
        if self.loop is not None:
            self.loop.complete(awaitable)
        return self.loop is not None

    def find_method(self, work: Work) -> Any:
        """Return the method that a call runs."""
        if self.error is not None:
            raise self._build_init_error(self.error)
        return methods.get_method(self.instance, work.method)

    def name_function(self, running: worker_engine.Running) -> str:
        """Return the full name of the running function."""
        work = running.work
        if work is None:
            return ""
        if work.method:
            return callers.name_function(type(self.instance), work.method)
        function = self._code.functions.get(work.function_id)
        return callers.name_function(function, "__init__" if isinstance(function, type) else "")

    def describe_maker(self, work: Work) -> str:
        """Return the source line to blame for a function's result."""
        function = (
            methods.get_method(self.instance, work.method) if work.method else self._code.functions[work.function_id]
        )
        return f"{callers.describe_function(function)} (returned by `{work.name}`)"

    def _build_init_error(self, error: payloads.Payload) -> exceptions.ActorDiedError:
        """Return the error of a call that was on its way when the constructor raised. Later calls get the same error
        from the driver."""
        own = self._engine.duty
        kind, name = (own.actor_extra.get(key, "") for key in ("class_name", "actor_name"))
        return exceptions.ActorDiedError(
            f"Actor `{kind}`{f' (named {name!r})' if name else ''} is dead: its constructor raised an exception:",
            actor_id=f"{own.actor_id:016x}",
            actor_init_failed=True,
            cause_data=error[1],
        )
