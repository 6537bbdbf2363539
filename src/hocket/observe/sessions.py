"""The sessions that run on this machine, and access to their events."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from hocket.engine import descendants, stack_questions
from hocket.engine.events import reader
from hocket.engine.local import endpoint, messages
from hocket.observe.runs import lines

Session = dict[str, Any]
"""``driver_pid``, ``guardian_pid``, ``processes``, ``snapshot`` (the driver's answer) and ``problem`` (why it is
None)."""


HAS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()
"""Whether this kernel lists a process's children; if not, each process is read for its parent."""


class SessionEvents:
    """The events of a session of this user, read from another process. Must be closed."""

    def __init__(self, driver_pid: int) -> None:
        """Open the events."""
        self._fd = _open_status(driver_pid)
        self.reader = reader.EventReader(self._fd, messages.EVENTS_AT)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def _open_status(driver_pid: int) -> int:
    try:
        found = list(Path(f"/proc/{driver_pid}/fd").iterdir())
    except FileNotFoundError:
        raise LookupError(f"There is no process {driver_pid}.") from None
    for path in found:
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            if str(path.readlink()).startswith(f"/memfd:{messages.STATUS_NAME} "):
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    raise LookupError(f"The process {driver_pid} shows no session.")


def look(found: endpoint.Found, timeout_s: float) -> Session:
    """Return a session: its driver's description, if it answers, and the kernel's data about its processes."""
    session: Session = {
        "driver_pid": found.driver_pid,
        "guardian_pid": found.guardian_pid,
        "snapshot": None,
        "problem": None,
    }
    try:
        session["snapshot"] = endpoint.ask(found.driver_pid, timeout_s)
    except (TimeoutError, LookupError) as error:
        session["problem"] = str(error)
    except OSError as error:
        session["problem"] = f"the driver (pid {found.driver_pid}) may not be read ({error.strerror})"
    session["processes"] = list(_list_processes(found))
    return session


def list_found(driver_pid: int | None = None) -> list[endpoint.Found]:
    """Return the sessions of this user, or the session of one driver."""
    if driver_pid is None:
        return endpoint.list_sessions()
    found = endpoint.find_session(driver_pid)
    if found is None and not HAS_CHILDREN:
        return [one for one in endpoint.list_sessions() if one.driver_pid == driver_pid]
    return [] if found is None else [found]


def list_family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    if not HAS_CHILDREN:
        with contextlib.suppress(psutil.Error):  # ended in the meantime
            return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        return []
    found = [pid] if Path(f"/proc/{pid}").exists() else []
    for member in found:  # the list grows
        with contextlib.suppress(OSError):  # ended in the meantime
            found += endpoint.list_children(member)
    return found


def find_logs(driver_pids: Iterable[int], name: str) -> dict[Path, int]:
    """Return the logs with a name that sessions are writing or their drivers have written, each with its driver."""
    found: dict[Path, int] = {}
    for pid in driver_pids:
        paths = [path for member in list_family(pid) for path in lines.list_open(member, name)]
        probe = None if descendants.is_stopped(pid) else stack_questions.find_probe(pid)
        shown = (stack_questions.fetch_shown(pid, probe) if probe is not None else None) or {}
        paths += [path for one in shown.get("logs", []) for path in map(Path, one["paths"]) if path.name == name]
        found |= {path: pid for path in paths if path.is_file()}
    return found


def _list_processes(found: endpoint.Found) -> Iterable[dict[str, object]]:
    yield from _describe_process(found.driver_pid, "driver")
    yield from _describe_process(found.guardian_pid, "guardian")
    for pid in list_family(found.guardian_pid)[1:]:
        with contextlib.suppress(OSError, ValueError):  # ended in the meantime
            is_worker = int(descendants.read_stat(pid)[1]) == found.guardian_pid
            yield from _describe_process(pid, "worker" if is_worker else "child of a worker")


def _describe_process(pid: int, role: str) -> Iterable[dict[str, object]]:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            yield {
                "pid": pid,
                "role": role,
                "command": " ".join(process.cmdline()[:8])[:200],
                "status": process.status(),
                "rss_bytes": process.memory_info().rss,
                "cpu_seconds": times.user + times.system,
                "started_at": process.create_time(),
            }
    except psutil.Error:  # ended in the meantime
        return
