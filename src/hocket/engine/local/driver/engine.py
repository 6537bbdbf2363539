"""The engine in the driver: the kernel, its sockets and its memory.

The division of labour: `kernel.machine` decides, the layers of this package carry it out; `processes` starts the
guardian.
"""

from __future__ import annotations

from typing import final

from hocket import exceptions
from hocket.engine import events, forks, rules, stacks
from hocket.engine.local import messages
from hocket.engine.local.driver import access


@final
class DriverEngine(access.ObjectAccess):
    """The local engine."""

    def _count_processes(self) -> dict[str, object]:
        return {
            "workers": len(self.kernel.workers),
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
        self.reactor.cut_off()
        for link in list(self.links.values()):
            link.channel.sock.close()
        if self.guardian is not None:
            self.guardian.cut_off()
        forks.cut_off(self)

    def close(self) -> None:
        with self.lock:
            if isinstance(self.end, exceptions.SessionClosedError):
                return
            self.end = rules.build_ended_error()
            ended = list(self.links.values())
            for link in ended:
                link.channel.post((messages.STOP,))
                self.flush(link)
            self._call_back_all()
        self.reactor.run_due()
        self.store.stop()
        self.reactor.close()  # before the guardian's socket: the background reader must not meet a closed descriptor
        if self.guardian is not None:
            self.guardian.end()
            stacks.close_probe()
            events.open_notes(None)
        if self._endpoint is not None:
            self._endpoint.close()
        for actor in self.kernel.actors.values():
            for marker, _ in actor.markers:
                self._drop_marker(marker)
        for link in ended:
            link.close()
        self.links.clear()
        self.store.close()
        self.interned.clear()
        self.pinned.clear()
        try:
            self.guard.remove()
        finally:
            self.guard.check()
