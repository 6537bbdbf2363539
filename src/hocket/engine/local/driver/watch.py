"""Periodic checks of the driver's engine: deadlocks, long waits for resources, idle workers, unreachable actors.

`Watch.look` is called before each wait with the lock held. It looks at most once a second, and returns how soon to call
it again; an idle session is left asleep.
"""

from __future__ import annotations

from typing import Final, final

from hocket._base import texts
from hocket.engine import descendants, kernel_parts
from hocket.engine.local import ends, links, messages
from hocket.engine.local.driver import courier, guardianship, worker_pool
from hocket.kernel import deadlock, resources
from hocket.kernel.records import TaskKind, WorkerState

LOOK_SECONDS: Final = 1.0
"""How often to look for deadlocks while a worker waits."""

PATIENCE_SECONDS: Final = 10.0
"""How long a request may wait for resources before a warning names their holders."""

IDLE_SECONDS: Final = 60.0
"""How long workers beyond the first stay for later work."""

STOP_SECONDS: Final = 30.0
"""How long a worker may take to end after the order to stop, if it owes no value that it has promised."""

OVERDUE_SECONDS: Final = 1.0
"""How long the guardian's report of a birth or a death may take before a check whether a signal has stopped it."""

SILENT_SECONDS: Final = 3.0
"""How long a worker's death may go unreported by a guardian that stays stopped."""

UNSTARTED_SECONDS: Final = 2.0
"""How long a worker that has run work before may take to start its only task, or an actor. Queues of several tasks are
checked more often: see `rounds`."""


@final
class Watch:
    """The engine's periodic checks.

    Args:
        session: The kernel.
        links_of: The links to the workers.
        parent: The parent of the workers.
        pool: The workers.
        search: Ends actors that no process can reach.
        carrier: Carries out the kernel's instructions.
    """

    def __init__(
        self,
        session: kernel_parts.Session,
        links_of: links.Links,
        parent: guardianship.Guardianship,
        pool: worker_pool.WorkerPool,
        search: ends.Ends,
        carrier: courier.Courier,
    ) -> None:
        self._kernel, self._links, self._parent = session.kernel, links_of, parent
        self._pool, self._search, self._courier = pool, search, carrier
        #: The time of the next look.
        self.due_at = 0.0
        #: The time since which all workers are idle.
        self._idle_since = 0.0
        self._waiting_since: dict[resources.Shape, float] = {}
        #: The time since which a worker does not start its only task, by the worker and the task's number.
        self._unstarted_since: dict[tuple[int, int], float] = {}
        #: Shapes of the warnings that were given.
        self._told: set[resources.Shape] = set()

    def look(self, now: float) -> float | None:
        """Make all checks; return the seconds until the next call, or None to wait for an event. Called at `due_at`."""
        self.due_at = now + LOOK_SECONDS
        kernel = self._kernel
        is_blocked = any(worker.waits for worker in kernel.workers.values())
        is_waiting = any(kernel.queues.values())
        is_idle = len(kernel.idle) > 1 and len(kernel.idle) == len(kernel.workers)
        stopping = [worker for worker in kernel.workers.values() if worker.stopped]
        is_unstarted = self._take_back_unstarted(now)
        ends_s = self._search.look(now)
        is_owed = self._parent.guardian is not None and self._parent.guardian.owes()
        if is_owed:
            self._look_after_guardian(now)
        if not (is_blocked or is_waiting or is_idle or is_owed or is_unstarted or stopping):
            self._idle_since = 0.0
            self._waiting_since.clear()
            return ends_s
        if is_blocked:
            self._break_circle()
        if is_waiting:
            self._tell_who_holds(now)
        self._stop_idle(now, is_idle)
        for worker in stopping:
            link = self._links.by_worker.get(worker.id)
            if link is not None and now - link.stopped_at > STOP_SECONDS and not worker.promised:
                self._parent.kill(worker.id)
        limit_s = LOOK_SECONDS if is_blocked or is_waiting or is_owed or is_unstarted or stopping else IDLE_SECONDS
        return limit_s if ends_s is None else min(limit_s, ends_s)

    def _take_back_unstarted(self, now: float) -> bool:
        """Take back single tasks that a worker does not start; return whether there are such tasks.

        The building of an actor cannot be taken back: its worker is killed if it is stopped. Nothing is lost, as the
        actor is built elsewhere. Calls of an actor stay: no other worker can run them.
        """
        found = {}
        for worker in list(self._kernel.workers.values()):
            link = self._links.by_worker.get(worker.id)
            if link is None or not worker.inflight or worker.recalled:
                continue
            first = next(iter(worker.inflight.values()))
            if first.kind == TaskKind.CALL:
                continue
            if first.number <= (link.page.read_begun() or first.number):  # 0: the worker may be just being forked
                continue
            if first.kind != TaskKind.CREATION and len(worker.inflight) > 1:
                continue
            found[worker.id, first.number] = since = self._unstarted_since.get((worker.id, first.number), now)
            if now - since <= UNSTARTED_SECONDS:
                continue
            if first.kind != TaskKind.CREATION:
                self._kernel.withdraw(worker, link.page.withdraw(worker.sent))
            elif descendants.is_stopped(self._parent.pids[worker.id]):
                self._parent.kill(worker.id)
        self._unstarted_since = found
        if self._kernel.instructions:
            self._courier.carry_out()
        return bool(found)

    def _look_after_guardian(self, now: float) -> None:
        """Continue a guardian that a signal has stopped. If it stays stopped, do without its reports of deaths."""
        guardian = self._parent.guardian
        assert guardian is not None
        if not guardian.list_overdue(now, OVERDUE_SECONDS):
            return
        if not guardian.revive():
            for worker_id in guardian.list_overdue(now, OVERDUE_SECONDS):
                link = self._links.by_worker.get(worker_id)
                if (
                    link is not None and link.is_closed
                ):  # the worker lives and has lost its socket: no message can reach it any more
                    self._parent.kill(worker_id)
            return
        import logging  # imported here, as below

        text = "The guardian (pid %d), the parent of all workers, was stopped by a signal; Hocket has continued it."
        logging.getLogger("hocket").warning(text, guardian.pid)
        for worker_id in guardian.list_overdue(now, SILENT_SECONDS):
            link = self._links.by_worker.get(worker_id)
            if link is not None and link.is_closed:
                self._pool.bury_unreported(link, guardian)

    def _break_circle(self) -> None:
        found = deadlock.find_deadlock(self._kernel)
        if found is not None:
            worker, number, text = found
            self._links.send(self._links.by_worker[worker.id], (messages.DEADLOCK, number, text))

    def _stop_idle(self, now: float, is_idle: bool) -> None:
        if not is_idle:
            self._idle_since = 0.0
        elif not self._idle_since:
            self._idle_since = now
        elif now - self._idle_since >= IDLE_SECONDS:
            self._kernel.trim_idle(1)

    def _tell_who_holds(self, now: float) -> None:
        """Warn once for each shape that its tasks have waited long, and name the holders of the resources."""
        import logging  # imported here: it would delay the start of each session by 2 ms

        kernel = self._kernel
        for shape in [shape for shape in self._waiting_since if not kernel.queues.get(shape)]:
            del self._waiting_since[shape]
        for shape, queue in kernel.queues.items():
            if not queue or shape in kernel.leases or shape in self._told:  # leases: its tasks run, one after another
                continue
            since = self._waiting_since.setdefault(shape, now)
            if now - since >= PATIENCE_SECONDS:
                self._told.add(shape)
                holders = ", ".join(self._list_holders(shape)) or "nothing (a worker is being started)"
                names = (queue[0].options.name, resources.format_demand(shape.demand), holders)
                waiting, wanted, held = map(texts.show_name, names)
                logging.getLogger("hocket").warning(
                    "`%s` has waited %.0f s for %s, held by %s.", waiting, now - since, wanted, held
                )

    def _list_holders(self, shape: resources.Shape) -> list[str]:
        """Return the holders of the resources that the shape demands."""
        wanted = {name for name, _ in shape.demand}
        holders = []
        for worker in self._kernel.workers.values():
            allocation = worker.allocation
            if allocation is None or not wanted & {name for name, _ in allocation.demand}:
                continue
            what = f"worker {worker.id}"
            if worker.actor is not None:
                what = f"actor `{worker.actor.options.class_name}`"
            elif worker.state == WorkerState.LEASED and worker.inflight:
                what = f"task `{next(iter(worker.inflight.values())).options.name}`"
            holders.append(f"{what} ({resources.format_demand(allocation.demand)})")
        holders += [
            f"placement group {group.name or f'{group.id:016x}'}"
            for group in self._kernel.groups.values()
            if group.pools and not shape.group_id
        ]
        return holders
