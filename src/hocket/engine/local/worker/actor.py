"""The actor of a worker process, if it has one."""

from __future__ import annotations

from typing import Any, final

from hocket import exceptions
from hocket.engine import callers, methods
from hocket.engine.local import event_loop, payloads, worker_engine
from hocket.engine.local.work import Work
from hocket.engine.local.worker import code


@final
class Actor:
    """The actor, its event loop, and what its constructor raised.

    Args:
        engine: The worker's side.
        functions: The code of functions, which are named, too.
    """

    def __init__(self, engine: worker_engine.WorkerEngine, functions: code.Code) -> None:
        self._engine, self._code = engine, functions
        self.instance: object = None
        self.error: payloads.Payload | None = None
        self.loop: event_loop.Loop | None = None
        #: Whether several calls may run at once, in threads.
        self.is_concurrent = False

    @property
    def exists(self) -> bool:
        """Whether the process is an actor's, be it alive or not."""
        return self.instance is not None or self.error is not None

    def become(self, instance: object, loop: event_loop.Loop | None, *, is_concurrent: bool) -> None:
        """The actor has been built."""
        self.instance, self.loop, self.is_concurrent = instance, loop, is_concurrent

    def note_error(self, error: payloads.Payload) -> None:
        """The constructor has raised."""
        self.error = error

    def complete(self, awaitable: object) -> bool:
        """Run something to its end on the actor's event loop; False if there is none."""
        if self.loop is not None:
            self.loop.complete(awaitable)
        return self.loop is not None

    def find_method(self, work: Work) -> Any:
        """Return what a call is to run."""
        if self.error is not None:
            raise self._build_init_error(self.error)
        return methods.get_method(self.instance, work.method)

    def name_function(self, running: worker_engine.Running) -> str:
        """Return the full name of what runs."""
        work = running.work
        if work is None:
            return ""
        if work.method:
            return callers.name_function(type(self.instance), work.method)
        function = self._code.functions.get(work.function_id)
        return callers.name_function(function, "__init__" if isinstance(function, type) else "")

    def describe_maker(self, work: Work) -> str:
        """Return the source line to blame for what a function returned."""
        function = (
            methods.get_method(self.instance, work.method) if work.method else self._code.functions[work.function_id]
        )
        return f"{callers.describe_function(function)} (returned by `{work.name}`)"

    def _build_init_error(self, error: payloads.Payload) -> exceptions.ActorDiedError:
        """Return the error of a call that was on its way when the constructor raised. The driver says the same to those
        that come later."""
        own = self._engine.duty
        kind, name = (own.actor_extra.get(key, "") for key in ("class_name", "actor_name"))
        return exceptions.ActorDiedError(
            f"Actor `{kind}`{f' (named {name!r})' if name else ''} is dead: its constructor raised an exception:",
            actor_id=f"{own.actor_id:016x}",
            actor_init_failed=True,
            cause_data=error[1],
        )
