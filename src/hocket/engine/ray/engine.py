"""The engine contract on Ray.

Each part turns requests into Ray's calls, and Ray's answers into ours. The driver has one engine, and so has each of
Ray's workers that runs our tasks; both use Ray in the same way.

Our handles contain Ray's (`natives`). Options become Ray's keywords once for each remote function (`keywords`). An
impossible request raises at the call, unless the cluster can grow: Ray itself would wait for a node that might come.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Mapping
from typing import ClassVar, final

import ray

from hocket._base.internals import ray as ray_internals
from hocket.engine import contract
from hocket.engine.ray import arrays, base, kept_arguments, limits, listing, notes, objects, runner, tasks, views


@final
class RayEngine(contract.Engine):
    """The engine of ``hocket.init(engine="ray")`` and ``hocket.init(address=...)``.

    Args:
        connection: The driver's connection to Ray; None in a worker.
        namespace: The namespace of actors' names.
        session_id: The session's id.
    """

    name = "ray"
    reads_parts = False
    limits: ClassVar[Mapping[str, str]] = limits.LIMITS

    def __init__(self, connection: base.Connection | None, *, namespace: str, session_id: str) -> None:
        super().__init__()
        self.dropped = deque(maxlen=0)  # Ray counts
        self.connection, self.is_closable = connection, connection is not None
        self.session = base.Session(connection, namespace=namespace, session_id=session_id)
        home = (namespace, session_id)
        self._groups = base.Groups()
        self._kept = kept_arguments.KeptArguments(listing.list_dead_actors)
        arrays.install()
        arrays.share_numbers()
        if self.is_closable:
            atexit.register(self.close)  # before Ray's own end, which Ray has registered earlier
        known = self.handles = self.known = base.RayHandles(self, self.session, self._groups, _Rebuilder(home))
        work = self.tasks = self._work = tasks.RayTasks(
            self.session, known, self._groups, self._kept, (open_in_worker, home)
        )
        self.objects = objects.RayObjects(self.session, known, self._groups)
        self.actors = views.RayActors(self.session, known, self._kept)
        self.resources = views.RayResources(self.session, known, self._groups)
        self.view = views.RayView(self.session, work)
        self.metrics = self.news = views.RayMetrics(self.session)

    def close(self) -> None:
        callbacks, connection = self.session.finish(), self.session.connection
        if callbacks is None or connection is None:
            return
        atexit.unregister(self.close)
        for callback in callbacks:
            callback()
        arrays.uninstall()
        self._kept.clear()
        try:
            if ray.is_initialized():  # the user may have called ray.shutdown() before
                if connection.is_attached:
                    self._end_own()
                notes.clear(self.session.session_id)
        finally:
            self._work.clear()
            self._groups.made.clear()
            connection.close()

    def _end_own(self) -> None:
        """End the session's actors and placement groups, if Ray itself goes on."""
        for actor_id in self._work.own_actors:
            ref = self.known.known.get(actor_id)
            if ref is not None:
                ray.kill(ref._native)
        for group in self._groups.made.values():
            ray.util.remove_placement_group(group)


class _Rebuilder:
    """Turns Ray's handle into ours when a message is unpickled; opens the process's side of the session if needed."""

    def __init__(self, home: tuple[str, str]) -> None:
        self._home = home

    def __call__(self, native: object) -> contract.AnyRef:
        engine = contract.current_engine
        if engine is None or not engine.is_closable:
            open_in_worker(*self._home)
            engine = contract.get_current_engine()
        assert isinstance(engine, RayEngine)
        return engine.known.wrap_known(native)

    def __reduce__(self) -> tuple[object, ...]:
        return _Rebuilder, (self._home,)


def open_in_worker(namespace: str, session_id: str) -> None:
    """Open this worker's side of a session. A worker of Ray's belongs to one driver, but a driver may open several
    sessions, one after another."""
    known = contract.current_engine
    if isinstance(known, RayEngine) and known.session.session_id == session_id:
        return
    notes.failures.clear()
    ray_internals.never_warn_of_blocking()
    engine = RayEngine(None, namespace=namespace, session_id=session_id)
    runner.set_news(engine.news.send_news)
    runner.explain_results()
    contract.set_current_engine(engine)
