"""The engine in the driver: the kernel, its sockets and its memory.

The division of labour: `kernel.machine` decides, the layers of this package carry it out; `dispatch` turns what workers say into calls
of the kernel; `processes` starts the guardian.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from hocket import exceptions
from hocket.engine import contract, forks, node
from hocket.engine.local import (
    messages,
)
from hocket.engine.local.hub import access
from hocket.kernel import records, resources
from hocket.kernel.records import DRIVER


@final
class Hub(access.ObjectAccess):
    """The local engine."""

    # --- resources ----------------------------------------------------------------------------------------------------

    def reserve(self, bundles: Sequence[resources.Demand], strategy: str, name: str) -> contract.ObjectRef[None]:
        with self.lock:
            wanted = tuple(bundles)
            if (wanted, strategy) != self._feasible_bundles:
                node.check_bundles(self.kernel.pool, bundles, strategy, self.get_total_resources())
                self._feasible_bundles = wanted, strategy
            group = records.GroupRecord(next(self._ids), wanted, strategy, name)
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
            return [node.describe_group(group) for group in (*self.kernel.groups.values(), *self.kernel.removed_groups)]

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
