"""Tables of a session in `hocket top`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hocket._base import texts
from hocket.observe import sessions

RECENT_SECONDS = 10.0
"""The length, in seconds, of the stretch that the figures of functions cover."""


@dataclass(frozen=True)
class Column:
    """A column: its name, and the form of its values."""

    name: str
    show: Callable[[Any], str] = str
    is_number: bool = False


@dataclass
class Table:
    """Rows of values, where None means unknown."""

    columns: Sequence[Column]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Sentences above the rows."""
    pid_at: int | None = None
    """The index of the column with a process, if a row can show the process's stacks."""

    def sort(self, at: int, *, descending: bool) -> None:
        """Sort the rows by a column, unknown values last."""
        known = [row for row in self.rows if row[at] is not None]
        known.sort(key=lambda row: row[at] if self.columns[at].is_number else str(row[at]), reverse=descending)
        self.rows = known + [row for row in self.rows if row[at] is None]

    def show(self, row: Sequence[object]) -> list[str]:
        """Return a row as texts without control characters of a terminal."""
        return [
            "" if value is None else texts.show_name(column.show(value))
            for column, value in zip(self.columns, row, strict=True)
        ]


def show_seconds(seconds: float) -> str:
    """Return a duration as text."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def show_count(value: float) -> str:
    """Return a count as text."""
    return f"{value:,.0f}"


def show_rate(value: float) -> str:
    """Return a number per second as text."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def build_workers(session: sessions.Session) -> Table:
    """Return a row for each worker."""
    by_pid = {one["pid"]: one for one in session["processes"]}
    columns = (
        Column("pid", is_number=True),
        Column("state"),
        Column("runs"),
        Column("for", show_seconds, is_number=True),
        Column("queued", show_count, is_number=True),
        Column("memory", texts.format_bytes, is_number=True),
        Column("CPU time", show_seconds, is_number=True),
    )
    rows = [
        (
            row["pid"] or None,
            row["state"].lower(),
            row["task_name"],
            row["task_seconds"],
            row["queued_tasks"],
            by_pid.get(row["pid"], {}).get("rss_bytes"),
            by_pid.get(row["pid"], {}).get("cpu_seconds"),
        )
        for row in _read(session).get("workers", [])
    ]
    return Table(columns, rows, _tell_left_out(session, "workers"), pid_at=0)


def build_functions(picture: dict[str, Any] | None) -> Table:
    """Return a row for each function that ran in the last `RECENT_SECONDS`.

    Args:
        picture: A result of `watching.Watch.draw`.
    """
    columns = (
        Column("function"),
        Column("runs a second", show_rate, is_number=True),
        Column("busy", _percent, is_number=True),
        Column("mean", show_seconds, is_number=True),
        Column("longest", show_seconds, is_number=True),
        Column("failed", show_count, is_number=True),
    )
    found = Table(columns)
    if picture is None:
        return found
    seconds = max(1e-3, picture["end"] - picture["start"])
    for one in picture["names"]:
        share, mean = one["seconds"] / seconds, one["mean"]
        found.rows.append((one["name"], one["runs"] / seconds, share, mean, one["longest"], one["failed"]))
    if picture["counts"]["missed"]:
        found.remarks.append(f"{picture['counts']['missed']:,} events were overwritten before they were read.")
    return found


def build_actors(session: sessions.Session) -> Table:
    """Return a row for each living actor."""
    columns = (
        Column("class"),
        Column("name"),
        Column("state"),
        Column("pid", is_number=True),
        Column("calls waiting", show_count, is_number=True),
        Column("restarts", show_count, is_number=True),
    )
    rows = [
        (row["class_name"], row["name"], row["state"].lower(), row["pid"] or None, row["pending_calls"], restarts)
        for row in _read(session).get("actors", [])
        for restarts in [row.get("num_restarts")]
    ]
    return Table(columns, rows, _tell_left_out(session, "actors"), pid_at=3)


def build_memory(session: sessions.Session) -> Table:
    """Return a row for each source line of the program that holds stored values."""
    columns = (
        Column("source line"),
        Column("holds", texts.format_bytes, is_number=True),
        Column("values", show_count, is_number=True),
    )
    statistics = _read(session).get("statistics", {})
    return Table(columns, [(line, held, count) for line, held, count in statistics.get("holders", [])])


def build_training(run: dict[str, Any] | None) -> Table:
    """Return a row for each rank of a run.

    Args:
        run: A result of `training.Runs.describe`.
    """
    columns = (
        Column("rank", is_number=True),
        Column("pid", is_number=True),
        Column("process"),
        Column("reports", show_count, is_number=True),
        Column("late by", show_seconds, is_number=True),
        *(Column(name, _percent, is_number=True) for name in ("compute", "data", "waits", "exchange", "report")),
    )
    found = Table(columns, pid_at=1)
    if run is None:
        return found
    found.remarks.append(f"{run['name']}: {run['state']}, {run['rows']:,} reports.")
    found.remarks += [f"Rank {rank}: {text}" for one in run["failures"] for rank, text in one["errors"].items()]
    found.remarks += run["advice"]
    for one in run["ranks"]:
        spent = run["spent"][one["rank"]] if one["rank"] < len(run["spent"]) else None
        shares = [None] * 5 if spent is None else [spent[at] / (spent[0] or 1.0) for at in (7, 1, 2, 3, 4)]
        found.rows.append((one["rank"], one["pid"] or None, one["status"], one["reports"], one["late"], *shares))
    return found


def build_runs(runs: Sequence[dict[str, object]]) -> Table:
    """Return a row for each run in a result of `training.Runs.list_runs`."""
    columns = (
        Column("run"),
        Column("state"),
        Column("ranks", show_count, is_number=True),
        Column("reports", show_count, is_number=True),
        Column("error"),
    )
    return Table(columns, [(one["name"], one["state"], one["size"], one["rows"], one["error"]) for one in runs])


def build_search(search: dict[str, Any] | None) -> Table:
    """Return a row for each trial of a search: running ones first, then the best.

    Args:
        search: A result of `searches.Searches.describe`.
    """
    columns = [
        Column("trial", is_number=True),
        Column("state"),
        Column(search["metric"] if search else "metric", texts.show_figure, is_number=True),
        Column("reports", show_count, is_number=True),
        Column("time", show_seconds, is_number=True),
        Column("configuration"),
        Column("error"),
    ]
    found = Table(columns)
    if search is None:
        return found
    states = ", ".join(f"{count:,} {state}" for state, count in search["states"].items())
    found.remarks.append(f"{search['name']}: {search['state']}, {search['count']:,} trials: {states}.")
    for one in search["trials"]:
        config = ", ".join(f"{name}={one['config'].get(name)}" for name in search["parameters"])
        value = one["metrics"].get(search["metric"])
        found.rows.append((one["number"], one["state"], value, one["iterations"], one["seconds"], config, one["error"]))
    return found


def describe(session: sessions.Session | None, picture: dict[str, Any] | None) -> str:
    """Return a line about a session."""
    if session is None:
        return "The session is over."
    processes = session["processes"]
    memory = texts.format_bytes(sum(one["rss_bytes"] for one in processes))
    parts = [f"pid {session['driver_pid']}", f"{len(processes)} processes with {memory}"]
    snapshot = session["snapshot"]
    if snapshot is None:
        parts.append(f"no answer: {session['problem']}")
    elif "failure" in snapshot:
        parts.append(f"no answer: {snapshot['failure']}")
    else:
        resources = snapshot["resources"]
        for name in ("CPU", "GPU"):
            if resources["total"].get(name):
                used = resources["total"][name] - resources["free"].get(name, 0.0)
                parts.append(f"{used:g} of {resources['total'][name]:g} {name}")
        parts.append(f"{snapshot['errors']['count']:,} errors")
    if picture is not None:
        seconds = max(1e-3, picture["end"] - picture["start"])
        parts.append(f"{show_rate(picture['runs'] / seconds)} runs a second")
    return " | ".join(map(texts.show_name, parts))


def _tell_left_out(session: sessions.Session, kind: str) -> list[str]:
    count = _read(session).get("left_out", {}).get(kind, 0)
    return [f"{count:,} more {kind} are not shown."] if count else []


def _read(session: sessions.Session) -> dict[str, Any]:
    snapshot = session["snapshot"]
    return {} if snapshot is None or "failure" in snapshot else snapshot
