"""The engine contract on Ray.

Each method says to Ray what it was asked for, and says in our words what Ray answers. There is one object of this class
in the driver, and one in each of Ray's workers that runs work of ours: both talk to Ray in the same way.

What is ours is small. Handles are Ray's inside (`natives`). Options become keywords once for each remote function
(`keywords`). An impossible request is refused at the call: Ray would wait for a node that might come, and it may where
the cluster can grow.

The class is one object in layers: `base`, `submission`, `objects`, and here the whole.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, final

import ray

from hocket import exceptions
from hocket.engine import contract
from hocket.engine.ray import (
    arrays,
    base,
    keywords,
    listing,
    natives,
    notes,
    objects,
    outside,
    runner,
    tables,
)
from hocket.kernel import resources


@final
class RayEngine(objects.ObjectAccess):
    """The engine of ``hocket.init(engine="ray")`` and ``hocket.init(address=...)``."""

    reads_parts = False
    limits: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "death_evidence": (
                "An error about a dead worker has no signal, exit code, memory peak or last lines: Ray keeps "
                "them in log files."
            ),
            "interrupted_sleep": (
                "A task that is cancelled while it is inside one long call, such as time.sleep or a C function, "
                "goes on until that returns; use force=True."
            ),
            "constructor_causes": (
                "The error of a call on an actor whose constructor raised has its traceback, but not the "
                "exception itself: its cause is a HocketError with the last line. Ray keeps the text alone."
            ),
            "told_cancellation": (
                "A cancelled call of a plain actor that runs fails at once for its caller, though the actor goes "
                "on with it."
            ),
            "exact_deaths": (
                "A dead actor takes along answers that had not been sent, the calls that it had been sent and "
                "not started, and the last items of a generator. Of plain tasks only the one that ran is lost."
            ),
            "background_exit": (
                "exit_actor() in a thread or asyncio task in the background ends the actor with its next call."
            ),
            "idle_deaths": "A worker that dies while it has nothing to do can cost the next task on it a try.",
            "cancel_before_creation": (
                "A call that is cancelled before its actor is built takes those behind it along: Ray waits for "
                "it for 30 s, and then fails them with ActorUnavailableError. Under load this is seen with an "
                "actor that is built, too."
            ),
            "order_in_event_loops": (
                "An asynchronous actor may begin a call before one that was sent earlier; if it holds up the event "
                "loop, it holds up the answer of that one."
            ),
            "immediate_kill": (
                "kill() asks Ray to end an actor, and remove_placement_group() those in it: calls that are sent "
                "right after may still be answered."
            ),
            "deadlock_search": "Tasks that wait for each other in a circle wait for ever, or until a time-out.",
            "long_chains": (
                "The error of a task that heads a chain of hundreds of dependent tasks takes long to arrive: Ray "
                "writes the text of all before it into each."
            ),
            "generator_completion": (
                "completed() of a generator that raised has the value None: its last item has the error."
            ),
            "counted_async_generators": (
                "A method that is an asynchronous generator has no num_returns but 'streaming' and 'dynamic'."
            ),
            "owner_deaths": (
                "What a worker put, and the results of tasks that it submitted, are lost if it is killed: it owns them."
            ),
            "forks": (
                "A process that a task forks is a second copy of Ray's worker: it has to end with os._exit() "
                "before the task's function ends."
            ),
            "decoding_errors": (
                "The error of a value that cannot be rebuilt has the last line of what was raised, but neither the "
                "exception nor which value it is."
            ),
            "instant_start": "Ray's processes start with the session, which takes seconds.",
            "every_interrupt": (
                "A Ctrl-C in the short moment in which Ray's C++ calls back into Python is lost there; press it again."
            ),
            "plain_output": (
                "What workers print comes with a worker's name and pid in front of each line, up to a second late."
            ),
            "exact_state": (
                "The state API and the timeline tell what Ray's own do: a second or so late, with Ray's names "
                "for errors and causes, and also of what was there before the session."
            ),
            "abandoned_generators": (
                "A generator whose reader is gone goes on to its end, or waits for the reader for ever; cancel it."
            ),
            "unreachable_actors": (
                "Actors that hold their own handles, or each other's, live until they are killed or the session ends."
            ),
            "lent_cpus_of_generators": "A generator that waits for its reader keeps its CPU.",
            "signal_handlers": (
                "SIGTERM ends a worker at once, or after what it runs: its handler is Ray's own, so no code of a "
                "task or actor hears of it."
            ),
            "exact_statistics": "statistics() counts the references of this process, and nothing of others.",
            **outside.LIMITS,
        }
    )

    def __init__(self, connection: base.Connection | None, *, namespace: str, session_id: str) -> None:
        home = (namespace, session_id)
        self._rebuilder = _Rebuilder(home)
        self._home = open_in_worker, home
        super().__init__(connection, namespace=namespace, session_id=session_id)

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        self._check_open()
        try:
            native = ray.get_actor(name, namespace=namespace)
        except ValueError:
            return None
        return contract.ActorInfo(ref=self.wrap_known(native), options=listing.look_up_actor(native, name, namespace))

    def list_named_actors(self) -> list[tuple[str, str]]:
        return [(found["namespace"], found["name"]) for found in ray.util.list_named_actors(all_namespaces=True)]

    def describe_actor(self, actor_id: int) -> contract.ActorInfo:
        ref = self._handles.get(actor_id)
        if ref is None and runner.current_options is not None:
            ref = self.wrap_known(ray.get_runtime_context().current_actor)
        if ref is None or ref._id != actor_id:
            raise exceptions.ActorHandleNotFoundError(
                f"Actor {actor_id:032x} is not known in this process. Get a handle with hocket.get_actor(name), or "
                "pass one."
            )
        options = runner.current_options or listing.look_up_actor(ref._native, "", self._namespace)
        return contract.ActorInfo(ref=ref, options=options)

    def kill_actor(self, actor: contract.ObjectRef[None], *, no_restart: bool = True) -> None:
        if not self._is_closed:
            ray.kill(actor._native, no_restart=no_restart)
            if no_restart:
                self._kept_arguments.forget(actor._native)
                listing.remove_groups_of(natives.format_id(actor._native))

    def request_exit(self) -> None:
        runner.is_exiting = True
        with contextlib.suppress(SystemExit, ray.exceptions.AsyncioActorExit):  # ours follows
            ray.actor.exit_actor()

    def check_pending(self, actor: contract.ObjectRef[None]) -> None:
        """Ray checks it when the call is submitted."""

    def reserve(
        self, bundles: Sequence[resources.Demand], strategy: str, name: str, *, is_detached: bool = False
    ) -> contract.ObjectRef[None]:
        self._check_open()
        listing.check_bundles(bundles, strategy)
        lifetime = "detached" if is_detached else None
        wanted = [keywords.build_bundle(bundle) for bundle in bundles]
        native = ray.util.placement_group(wanted, strategy, name, lifetime)
        ref = self.wrap_known(native)
        self._groups[ref._id] = native
        return ref

    def remove_group(self, group_id: int) -> None:
        if not self._is_closed:
            self._groups.pop(group_id, None)
            self._removed.add(group_id)
            ray.util.remove_placement_group(keywords.build_group(group_id))

    def list_groups(self) -> list[dict[str, object]]:
        return listing.list_groups()

    def list_nodes(self) -> list[dict[str, object]]:
        return listing.list_nodes()

    def get_total_resources(self) -> dict[str, float]:
        return listing.hide_groups(ray.cluster_resources())

    def get_free_resources(self) -> dict[str, float]:
        free = listing.hide_groups(ray.available_resources())
        return {name: amount for name, amount in free.items() if amount > 0}

    def get_context(self) -> contract.WorkContext:
        actor = runner.current_options
        namespace = actor.namespace if actor is not None and actor.name else self._namespace
        return listing.build_context(self.session_id, namespace)

    def list_errors(self) -> list[exceptions.ErrorRecord]:
        return notes.list_failures(self.session_id)

    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, object]] = (), limit: int | None = None
    ) -> list[dict[str, object]]:
        return outside.ask(tables.list_records, kind, filters, limit, notes.list_failures(self.session_id))

    def send_news(self) -> None:
        """Write what this worker has noted; the runner calls it before a result leaves."""
        self._told_at = time.monotonic()
        with self.metrics.lock:
            notes.publish(self.session_id, self.metrics.store)

    def statistics(self) -> dict[str, object]:
        return listing.count(self._earlier | outside.list_functions(self._functions.values()))

    def close(self) -> None:
        with self._callbacks_lock:
            if (
                self._is_closed or self.connection is None or os.getpid() != self._pid
            ):  # a fork's exit is not the driver's
                return
            self._is_closed = True
            callbacks, self._callbacks = self._callbacks, set()
        atexit.unregister(self.close)
        for callback in callbacks:
            callback()
        arrays.uninstall()
        self._kept_arguments.clear()
        try:
            if ray.is_initialized():  # the user may have called ray.shutdown() before
                if self.connection.is_attached:
                    self._end_own()
                notes.clear(self.session_id)
        finally:
            self._functions.clear()
            self._codes.clear()
            self._groups.clear()
            self.connection.close()

    def _end_own(self) -> None:
        """End what the session started, where Ray goes on."""
        for actor_id in self._own_actors:
            ref = self._handles.get(actor_id)
            if ref is not None:
                ray.kill(ref._native)
        for group in self._groups.values():
            ray.util.remove_placement_group(group)


class _Rebuilder:
    """Makes our handle of Ray's where a message is unpickled; opens the process's side of the session if it must."""

    def __init__(self, home: tuple[str, str]) -> None:
        self._home = home

    def __call__(self, native: object) -> contract.AnyRef:
        engine = contract.get_optional_current_engine()
        if engine is None or not engine.is_closable:
            open_in_worker(*self._home)
            engine = contract.get_current_engine()
        assert isinstance(engine, RayEngine)
        return engine.wrap_known(native)

    def __reduce__(self) -> tuple[object, ...]:
        return _Rebuilder, (self._home,)


def open_in_worker(namespace: str, session_id: str) -> None:
    """Open this worker's side of a session. A worker of Ray's runs work of one driver only, but that may open one
    session after another."""
    known = contract.get_optional_current_engine()
    if isinstance(known, RayEngine) and known.session_id == session_id:
        return
    notes.failures.clear()
    ray._private.worker.blocking_get_inside_async_warned = True  # an awaited reference is looked up when it is there
    engine = RayEngine(None, namespace=namespace, session_id=session_id)
    runner.send_news = engine.send_news
    runner.explain_results()
    contract.set_current_engine(engine)
