"""`hocket status`: the running work and the memory of every session of this user on this machine.

It finds guardians by their process name, and queries each driver through its inspection endpoint (see
`engine.local.endpoint`). A driver does not answer if a library holds the interpreter, or if it was stopped. Then only
facts from /proc are shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import psutil
from rich import box, console, table, text

from hocket._base import showing, texts
from hocket.cli import consoles
from hocket.engine import node
from hocket.engine.local import endpoint
from hocket.observe import sessions

TIMEOUT_SECONDS = 2.0
"""How long a driver may take to answer. It takes milliseconds unless the driver is stuck. A guess."""

SHOWN_LINES = 10
"""How many source lines to show with the memory that they hold."""

WIDTH = 140
"""The width in columns if there is no terminal."""


def run(*, as_json: bool, timeout_s: float = TIMEOUT_SECONDS) -> int:
    """Print all sessions, and return the exit code."""
    found = [sessions.look(one, timeout_s) for one in endpoint.list_sessions()]
    if as_json:
        print(showing.encode(found, indent=2))
        return 0
    out = consoles.open_console(WIDTH)
    if not found:
        out.print("You have no session with workers on this machine. A session appears here with its first task.")
    if any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        out.print(
            "Ray runs on this machine. Sessions on Ray are not shown here: see `ray status`, and hocket.util.state in "
            "the sessions' drivers."
        )
    for one in found:
        show(one, out)
    return 0


# --- for people -------------------------------------------------------------------------------------------------------


def show(session: sessions.Session, out: console.Console) -> None:
    """Print a session."""
    processes = session["processes"]
    driver = next((one for one in processes if one["role"] == "driver"), None)
    total = sum(one["rss_bytes"] for one in processes)
    snapshot = session["snapshot"]
    title = text.Text(f"Session of pid {session['driver_pid']}", style="bold")
    if driver is not None:
        title.append("  " + texts.show_name(" ".join(driver["command"].split())[:100]), style="not bold")
    out.print(title)
    if snapshot is None or "failure" in snapshot:
        why = session["problem"] if snapshot is None else f"it could not describe itself ({snapshot['failure']})"
        told = f"No answer: {texts.show_name(why)}. The session's processes, as the kernel sees them:"
        out.print(text.Text(told, style="yellow"))
        out.print(_build_process_table(processes))
        return
    facts = [
        f"open for {format_seconds(time.time() - snapshot['opened_at'])}",
        f"{len(processes)} processes with {texts.format_bytes(total)}",
        ", ".join(_format_resources(snapshot["resources"])),
    ]
    out.print(text.Text(" | ".join(facts)))
    for built in (
        _build_task_table(snapshot["tasks"]),
        _build_actor_table(snapshot["actors"]),
        _build_worker_table(snapshot["workers"], processes),
        _build_object_table(snapshot["statistics"]),
    ):
        if built is not None:
            out.print(built)
    for kind, count in snapshot.get("left_out", {}).items():
        if count:
            out.print(f"{count:,} more rows of {kind} are not shown.")
    errors = snapshot["errors"]
    if errors["count"]:
        out.print(text.Text(f"{errors['count']} errors; the latest:", style="red"))
        for error in errors["last"]:
            first = next(iter(error["message"].splitlines()), "")
            out.print(text.Text(f"  {': '.join(map(texts.show_name, (error['name'], error['type'], first)))}"))
    out.print()


def _quote(name: str) -> text.Text:
    """Return a user's name as text that cannot control the terminal."""
    return text.Text(texts.show_name(name))


def _build_table(title: str, *columns: str) -> table.Table:
    built = table.Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        built.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    return built


def _build_task_table(rows: list[dict[str, Any]]) -> table.Table | None:
    if not rows:
        return None
    by_function: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = by_function.setdefault(row["func_or_class_name"], {})
        group = _STATE_GROUPS.get(row["state"], "waiting")
        counts[group] = counts.get(group, 0) + row["count"]
    built = _build_table("Tasks", "function", *_STATE_NAMES)
    for name, counts in sorted(by_function.items(), key=lambda item: -sum(item[1].values())):
        built.add_row(_quote(name), *(f"{counts[group]:,}" if group in counts else "" for group in _STATE_NAMES))
    return built


_STATE_NAMES = ("waiting", "queued", "running", "finished", "failed")
_STATE_GROUPS = {
    "SUBMITTED_TO_WORKER": "queued",
    "RUNNING": "running",
    "RUNNING_IN_RAY_GET": "running",
    "FINISHED": "finished",
    "FAILED": "failed",
}


def _build_actor_table(rows: list[dict[str, Any]]) -> table.Table | None:
    if not rows:
        return None
    built = _build_table("Actors", "class", "name", "state", "pid", "calls not answered")
    for row in rows:
        built.add_row(
            _quote(row["class_name"]),
            _quote(row["name"]),
            row["state"],
            str(row["pid"] or ""),
            f"{row['pending_calls']:,}",
        )
    return built


def _build_worker_table(rows: list[dict[str, Any]], processes: list[dict[str, Any]]) -> table.Table | None:
    if not rows:
        return None
    by_pid = {one["pid"]: one for one in processes}
    built = _build_table("Workers", "pid", "state", "runs", "since", "behind it", "memory", "CPU time")
    for row in rows:
        process = by_pid.get(row["pid"], {})
        since = row["task_seconds"]
        built.add_row(
            str(row["pid"] or "starting"),
            row["state"].lower(),
            _quote(row["task_name"] or ""),
            format_seconds(since) if since is not None else "",
            f"{row['queued_tasks']:,}" if row["queued_tasks"] else "",
            texts.format_bytes(process["rss_bytes"]) if process else "",
            format_seconds(process["cpu_seconds"]) if process else "",
        )
    return built


def _build_object_table(statistics: dict[str, Any]) -> table.Table | None:
    if not statistics.get("objects"):
        return None
    built = _build_table("Objects, by the line that made them", "line", "objects", "bytes")
    holders = statistics.get("holders", [])
    for where, taken, count in holders[:SHOWN_LINES]:
        built.add_row(_quote(where), f"{count:,}", texts.format_bytes(taken))
    rest = holders[SHOWN_LINES:]
    if rest:
        built.add_row(
            "other lines", f"{sum(one[2] for one in rest):,}", texts.format_bytes(sum(one[1] for one in rest))
        )
    small = statistics["objects"] - sum(one[2] for one in holders)
    if small > 0:
        built.add_row("small values, actors", f"{small:,}", "")
    spilled = statistics.get("spilled_bytes", 0)
    built.add_row(
        "together",
        f"{statistics['objects']:,}",
        texts.format_bytes(statistics.get("shared_bytes", 0))
        + (f", {texts.format_bytes(spilled)} on disk" if spilled else ""),
    )
    return built


def _build_process_table(processes: list[dict[str, Any]]) -> table.Table:
    built = _build_table("Processes", "pid", "role", "status", "memory", "CPU time")
    for one in processes:
        built.add_row(
            str(one["pid"]),
            one["role"],
            one["status"],
            texts.format_bytes(one["rss_bytes"]),
            format_seconds(one["cpu_seconds"]),
        )
    return built


def _format_resources(found: dict[str, dict[str, float]]) -> Iterable[str]:
    for name, total in node.hide_internal(found["total"]).items():
        used = total - found["free"].get(name, 0.0)
        if name != "memory":
            yield f"{used:g} of {total:g} {texts.show_name(name)} in use"
        elif used:
            yield f"{texts.format_bytes(int(used))} of {texts.format_bytes(int(total))} of memory reserved"


def format_seconds(seconds: float) -> str:
    """Format a time span for people.

    Example:
        >>> format_seconds(0.25), format_seconds(75), format_seconds(7500)
        ('0.2 s', '1 min 15 s', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
