"""Parts of a session's processes, for viewers: servers, coordinators, executions and meshes (`_base.showing`)."""

from __future__ import annotations

import threading
import time
from typing import Any, final

from hocket._base import showing
from hocket.engine import descendants, stack_questions, stacks
from hocket.observe import sessions
from hocket.stores import calls

ASK_SECONDS = 0.5
"""Seconds for which answers are reused, as several pages may ask."""

ASKED_AT_ONCE = 16
"""The number of processes asked at the same time."""


@final
class Parts:
    """The parts of all processes of a session. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probes: dict[int, stacks.StackProbe] = {}
        self._known: dict[int, tuple[dict[str, list[showing.Facts]], float]] = {}
        self._asked_at: dict[int, float] = {}

    def describe(self, driver_pid: int) -> dict[str, list[dict[str, Any]]]:
        """Return the parts by kind, each with the ``pid`` of its process and the age of its facts, ``ago``, in seconds.

        A stopped process does not answer, so its facts may be old.

        Args:
            driver_pid: The driver of a session of this user.
        """
        with self._lock:
            members = sessions.list_family(driver_pid)
            if time.monotonic() - self._asked_at.get(driver_pid, 0.0) > ASK_SECONDS:
                # All at the same time: a process that does not answer then delays no other.
                list(calls.do_all(self._ask, members, ASKED_AT_ONCE, "hocket-parts"))
                self._asked_at[driver_pid] = time.monotonic()
            found: dict[str, list[dict[str, Any]]] = {}
            for pid in members:
                kinds, at = self._known.get(pid, ({}, 0.0))
                facts = {"pid": pid, "ago": round(time.monotonic() - at, 3)}
                for kind, parts in kinds.items():
                    found.setdefault(kind, []).extend([{**one, **facts} for one in parts])
            return found

    def _ask(self, pid: int) -> None:
        if descendants.is_stopped(pid):
            return
        probe = self._probes.get(pid) or stack_questions.find_probe(pid)
        answer = None if probe is None else stack_questions.fetch_shown(pid, probe)
        if probe is None or answer is None:
            self._probes.pop(pid, None)
            return
        self._probes[pid] = probe
        self._known[pid] = answer, time.monotonic()
