"""The data that `hocket top` shows at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hocket.observe import searches, training, watching
from hocket.observe.top import tables


@dataclass(frozen=True)
class View:
    """The state of a session at one moment."""

    pid: int | None
    """The driver of the session; None if there is none."""
    headline: str
    tables: dict[str, tables.Table]
    """The tables by name, in the order of the pages."""


class Look:
    """A source of views of a session.

    Args:
        driver_pid: The session's driver. Default: that of the latest session.
    """

    def __init__(self, driver_pid: int | None = None) -> None:
        self._watch = watching.Watch(driver_pid)
        self._runs = training.Runs()
        self._searches = searches.Searches()

    def look(self) -> View:
        """Return the present view."""
        pids = [found.driver_pid for found in self._watch.list_found()]
        if not pids:
            return View(None, "No session of yours has workers on this machine.", {})
        pid = pids[-1]
        session = self._watch.describe(pid)
        picture = self._watch.draw(pid, tables.RECENT_SECONDS, 10)
        if session is None:
            return View(None, tables.describe(None, None), {})
        # The list has runs of earlier sessions, too.
        runs = [one for one in self._runs.list_runs([pid]) if one["driver_pid"] == pid]
        run: dict[str, Any] | None = self._runs.describe(runs[0]["path"], 100) if runs else None
        shown = {
            "Workers": tables.build_workers(session),
            "Functions": tables.build_functions(picture),
            "Actors": tables.build_actors(session),
            "Memory": tables.build_memory(session),
            "Training": tables.build_training(run),
            "Runs": tables.build_runs(runs),
            "Searches": tables.build_search(self._describe_search(pid)),
        }
        others = f"; {len(pids) - 1} more of your sessions: name a pid" if len(pids) > 1 else ""
        return View(pid, tables.describe(session, picture) + others, shown)

    def _describe_search(self, driver_pid: int) -> dict[str, object] | None:
        found = [one for one in self._searches.list_searches([driver_pid]) if one["driver_pid"] == driver_pid]
        return self._searches.describe(found[0]["path"], None, 1) if found else None

    def read_stack(self, driver_pid: int, pid: int) -> str:
        """Return the stacks of a session's process."""
        return self._watch.read_stack(driver_pid, pid) or f"The process {pid} has ended."

    def close(self) -> None:
        """Close the descriptors."""
        self._watch.close()
        self._runs.close()
