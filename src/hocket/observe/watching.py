"""The sessions of a viewer, and their events read so far."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import psutil

from hocket.engine import descendants, stack_questions
from hocket.engine.local import endpoint
from hocket.observe import frames, history, sessions

LOOK_SECONDS = 0.5
"""Seconds for which a list of sessions is reused: making one goes through all processes of the machine."""

ANSWER_SECONDS = 1.0
"""Seconds for a driver's answer. A page asks again anyway."""


class Watch:
    """All sessions of this user, or one session. Several threads may use it."""

    def __init__(self, driver_pid: int | None = None) -> None:
        self._only = driver_pid
        self._lock = threading.Lock()
        self._found: list[endpoint.Found] = []
        self._looked_at = 0.0
        self._opened: dict[endpoint.Found, tuple[sessions.SessionEvents, history.History]] = {}

    def list_found(self) -> list[endpoint.Found]:
        """Return the present sessions, from a list of at most `LOOK_SECONDS` ago."""
        now = time.monotonic()
        if now - self._looked_at > LOOK_SECONDS:
            self._found = sessions.list_found(self._only)
            self._looked_at = now
        return self._found

    def describe(self, driver_pid: int) -> sessions.Session | None:
        """Return a session's description by its driver and by the system; None if there is no such session."""
        for found in self.list_found():
            if found.driver_pid == driver_pid:
                return sessions.look(found, ANSWER_SECONDS)
        return None

    def draw(self, driver_pid: int, seconds: float, width: int, end: float | None = None) -> dict[str, Any] | None:
        """Return a drawing of a session's events; None if they cannot be read.

        Args:
            driver_pid: The session's driver.
            seconds: The length of the window; 0 for all kept events.
            width: The window's width in pixels.
            end: The window's end, by `time.perf_counter`. Default: now.
        """
        with self._lock:
            found = self._open(driver_pid)
            if found is None:
                return None
            found.update()
            now = time.perf_counter()
            until = max(found.find_end(), now) if end is None else end
            start = until - seconds if seconds else found.find_start()
            return found.draw(start, max(until, start + 1e-6), width) | {
                "counts": found.count(),
                "first": found.find_start(),
                "last": found.find_end(),
                "now": now,
            }

    def read_stack(self, driver_pid: int, pid: int) -> str | None:
        """Return the stacks of a process's threads; None if the process is not in the session."""
        if not self._has_member(driver_pid, pid):
            return None
        probe = stack_questions.find_probe(pid)
        if probe is None:
            return "The stack of this process cannot be read."
        found = "" if descendants.is_stopped(pid) else stack_questions.fetch(pid, probe).strip()
        if found:
            return frames.trim(found)
        if descendants.is_stopped(pid):
            return f"The process {pid} is stopped, by a signal such as SIGSTOP or by a debugger: it does not answer."
        return f"The process {pid} does not answer: it has ended, or has had no processor for a while."

    def sample(self, driver_pid: int, pid: int) -> dict[str, int] | None:
        """Sample a process of a session for a second; return the number of samples by stack.

        Return None if the process is not in the session, is stopped, or does not answer.
        """
        if not self._has_member(driver_pid, pid) or descendants.is_stopped(pid):
            return None
        probe = stack_questions.find_probe(pid)
        found = None if probe is None else stack_questions.sample(pid, probe)
        return None if found is None else frames.trim_samples(found)

    def _has_member(self, driver_pid: int, pid: int) -> bool:
        found = next((one for one in self.list_found() if one.driver_pid == driver_pid), None)
        if found is None:
            return False
        try:
            return pid == driver_pid or found.guardian_pid in [one.pid for one in psutil.Process(pid).parents()]
        except (psutil.Error, ValueError, OverflowError):  # ended, or not a process's number
            return False

    def _open(self, driver_pid: int) -> history.History | None:
        there = self.list_found()
        for gone in self._opened.keys() - set(there):
            self._opened.pop(gone)[0].close()
        found = next((one for one in there if one.driver_pid == driver_pid), None)
        if found is None:
            return None
        if found not in self._opened:  # a driver's second session has another guardian
            with contextlib.suppress(OSError, LookupError):
                opened = sessions.SessionEvents(driver_pid)
                self._opened[found] = opened, history.History(opened.reader)
        known = self._opened.get(found)
        return known[1] if known is not None else None

    def close(self) -> None:
        """Close the descriptors."""
        with self._lock:
            for opened, _ in self._opened.values():
                opened.close()
            self._opened.clear()
