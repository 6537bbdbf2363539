"""The parts of the engine on Ray for actors, resources, views and metrics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Final, final

import ray

from hocket import exceptions
from hocket.engine import contract
from hocket.engine.ray import base, kept_arguments, keywords, listing, natives, notes, outside, runner, tables, tasks
from hocket.kernel import metrics, resources

NEWS_S: Final = 1.0
"""How many seconds pass between two writes of a worker's metrics while a task runs. A guess."""


@final
class RayActors(contract.Actors):
    """Actors, and Ray's names for them.

    Args:
        session: The session.
        handles: The handles of this process.
        kept: The constructors' arguments of this process's actors.
    """

    def __init__(self, session: base.Session, handles: base.RayHandles, kept: kept_arguments.KeptArguments) -> None:
        self._session, self._handles, self._kept = session, handles, kept

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        self._session.check_open()
        try:
            native = ray.get_actor(name, namespace=namespace)
        except ValueError:
            return None
        return contract.ActorInfo(
            ref=self._handles.wrap_known(native), options=listing.look_up_actor(native, name, namespace)
        )

    def list_named_actors(self) -> list[tuple[str, str]]:
        return [(found["namespace"], found["name"]) for found in ray.util.list_named_actors(all_namespaces=True)]

    def describe_actor(self, actor_id: int) -> contract.ActorInfo:
        ref = self._handles.known.get(actor_id)
        if ref is None and runner.current_options is not None:
            ref = self._handles.wrap_known(ray.get_runtime_context().current_actor)
        if ref is None or ref._id != actor_id:
            raise exceptions.ActorHandleNotFoundError(
                f"Actor {actor_id:032x} is not known in this process. Get a handle with hocket.get_actor(name), or "
                "pass one."
            )
        options = runner.current_options or listing.look_up_actor(ref._native, "", self._session.namespace)
        return contract.ActorInfo(ref=ref, options=options)

    def kill_actor(self, actor: contract.ObjectRef[None], *, no_restart: bool = True) -> None:
        if not self._session.is_closed:
            ray.kill(actor._native, no_restart=no_restart)
            if no_restart:
                self._kept.forget(actor._native)
                listing.remove_groups_of(natives.format_id(actor._native))

    def request_exit(self) -> None:
        runner.is_exiting = True
        with contextlib.suppress(SystemExit, ray.exceptions.AsyncioActorExit):  # `exit_actor` raises our own after this
            ray.actor.exit_actor()

    def check_pending(self, actor: contract.ObjectRef[None]) -> None:
        """Return at once: Ray checks the limit when the call is submitted."""


@final
class RayResources(contract.Resources):
    """The cluster's resources, and placement groups.

    Args:
        session: The session.
        handles: The handles of this process.
        groups: The placement groups of this process.
    """

    def __init__(self, session: base.Session, handles: base.RayHandles, groups: base.Groups) -> None:
        self._session, self._handles, self._groups = session, handles, groups

    def reserve(
        self, bundles: Sequence[resources.Demand], strategy: str, name: str, *, is_detached: bool = False
    ) -> contract.ObjectRef[None]:
        self._session.check_open()
        listing.check_bundles(bundles, strategy)
        lifetime = "detached" if is_detached else None
        wanted = [keywords.build_bundle(bundle) for bundle in bundles]
        native = ray.util.placement_group(wanted, strategy, name, lifetime)
        ref = self._handles.wrap_known(native)
        if not is_detached:
            self._groups.made[ref._id] = native
        return ref

    def remove_group(self, group_id: int) -> None:
        if not self._session.is_closed:
            self._groups.remove(group_id)
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


@final
class RayView(contract.View):
    """The state of the session, for viewers.

    Args:
        session: The session.
        work: The part for tasks, which has the submitted functions.
    """

    def __init__(self, session: base.Session, work: tasks.RayTasks) -> None:
        self._session, self._tasks = session, work
        #: Ids of objects and actors that this process already had before the session.
        self._earlier: frozenset[bytes | str] = frozenset()
        if session.connection is None or session.connection.is_attached:
            self._earlier = frozenset([*listing.list_objects(), *listing.list_living_actors()])

    def get_context(self) -> contract.WorkContext:
        actor = runner.current_options
        namespace = actor.namespace if actor is not None and actor.name else self._session.namespace
        return listing.build_context(self._session.session_id, namespace)

    def list_errors(self) -> list[exceptions.ErrorRecord]:
        return notes.list_failures(self._session.session_id)

    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, object]] = (), limit: int | None = None
    ) -> list[dict[str, object]]:
        return outside.ask(tables.list_records, kind, filters, limit, notes.list_failures(self._session.session_id))

    def statistics(self) -> dict[str, object]:
        return listing.count(self._earlier | outside.list_functions(self._tasks.list_functions()))


@final
class RayMetrics(contract.Metrics):
    """The metrics of a process; a worker sends them through Ray's key-value store.

    Args:
        session: The session.
    """

    def __init__(self, session: base.Session) -> None:
        super().__init__()
        self._session = session
        #: The time of this worker's last write of its notes.
        self._told_at = time.monotonic()

    def record(self, batch: metrics.Batch) -> None:
        super().record(batch)
        if self._session.connection is not None:
            return
        runner.has_news = True
        if time.monotonic() - self._told_at > NEWS_S:  # the task's result may still take long
            self.send_news()

    def send_news(self) -> None:
        """Write this worker's notes; the runner calls this before a result leaves."""
        self._told_at = time.monotonic()
        with self.lock:
            notes.publish(self._session.session_id, self.store)

    def collect(self) -> metrics.MetricStore:
        with self.lock:
            return notes.collect_metrics(self._session.session_id, self.store)
