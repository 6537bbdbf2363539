"""`hocket runs`: the runs in folders, in a table or side by side in a report."""

from __future__ import annotations

import datetime as dt
import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box, table, text

from hocket._base import showing, texts
from hocket.cli import consoles
from hocket.observe.report import runs as reported_runs
from hocket.observe.runs import history, log
from hocket.stores import local_files, trust

SHOWN_METRICS = 5
"""How many metrics the table shows by default."""

WIDTH = 160
"""The width in columns if there is no terminal."""


def report(folder: str, output: str | None) -> Path:
    """Write the report of a run, even of a run that has saved nothing, and return the report's file."""
    results = importlib.import_module("hocket.train.result")
    if output is None and Path(folder).is_dir():
        trust.check_entered(Path(folder), "Name a file with --output")
    try:
        result = results.Result.from_path(folder)
    except RuntimeError as error:  # Ray raises this class, too
        if not Path(folder, log.NAME).is_file():
            raise ValueError(str(error)) from error
        result = None  # the run has reported, but saved nothing
    try:
        if result is not None:
            written: Path = result.report(output)
            return written
        target = Path(folder, "report.html") if output is None else Path(output)
        local_files.write(target, reported_runs.describe(_read(Path(folder))).write())
    except PermissionError as error:
        if output is not None:
            raise
        raise ValueError(f"{error}. Name another file with --output.") from error
    return target


def run(
    *, folders: Sequence[str], metrics: Sequence[str] | None, sort: str | None, output: str | None, as_json: bool
) -> int:
    """Print the runs in folders, or write their report, and return the exit code."""
    found = []
    for path in dict.fromkeys(path for folder in folders for path in history.find_runs(folder)):
        try:
            found.append(_read(path))
        except OSError as problem:
            print(f"Left out: {texts.escape(texts.safe_text(problem))}", file=sys.stderr)
    if not found:
        raise ValueError(
            f"Found no run in {', '.join(map(repr, folders))}: neither these folders nor the folders in them have a "
            f"{log.NAME}. Give Result.path, or RunConfig's storage_path."
        )
    found = _sort(found, sort)
    if output is not None:
        written = reported_runs.compare(found).write()
        local_files.write(Path(output), written)
        print(output)
    elif as_json:
        print(showing.encode([_describe(one) for one in found], indent=2))
    else:
        _print(found, metrics)
    return 0


def _read(folder: Path) -> history.RunHistory:
    found = history.RunHistory(folder)
    found.update()
    found.close()
    return found


def _sort(found: list[history.RunHistory], metric: str | None) -> list[history.RunHistory]:
    if metric is None:
        return sorted(found, key=lambda one: one.facts.started)
    known = sorted({name for one in found for name in one.names})
    if metric not in known:
        raise ValueError(f"No run has reported the metric {metric!r}. Name one of {list(map(texts.show_name, known))}.")

    def rank(one: history.RunHistory) -> float:
        value = one.get_last(metric) if metric in one.names else None
        return math.inf if value is None or math.isnan(value) else value

    return sorted(found, key=rank)


def _describe(one: history.RunHistory) -> dict[str, object]:
    facts = one.facts
    return {
        "path": str(one.path),
        "name": facts.name,
        "state": one.state,
        "started": facts.started,
        "seconds": (facts.ended or facts.last) - facts.started,
        "ranks": facts.ranks,
        "reports": len(one),
        "checkpoints": list(facts.checkpoints),
        "error": facts.error,
        "config": facts.config,
        "metrics": {name: _make_whole(one.get_last(name)) for name in one.names},
    }


def _make_whole(value: float | None) -> float | int | None:
    """Return a metric, as an int if it is a whole number."""
    return int(value) if value is not None and value.is_integer() else value


def _print(found: Sequence[history.RunHistory], metrics: Sequence[str] | None) -> None:
    names = list(dict.fromkeys(name for one in found for name in one.names))
    chosen = list(metrics) if metrics else names[:SHOWN_METRICS]
    differing = reported_runs.list_differing([one.facts.config for one in found])
    shown = table.Table(box=box.SIMPLE, pad_edge=False)
    columns = ["run", "state", "begun", "for", "ranks", "reports", "saved", *chosen, *differing]
    for column in columns:
        shown.add_column(text.Text(texts.show_name(column)), overflow="fold")
    for label, one in zip(reported_runs.label_all(found), found, strict=True):
        facts = one.facts
        cells: list[object] = [
            label,
            one.state,
            dt.datetime.fromtimestamp(facts.started).astimezone().strftime("%m-%d %H:%M"),
            f"{(facts.ended or facts.last) - facts.started:.1f} s",
            facts.ranks,
            len(one),
            len(facts.checkpoints),
            *(_show(one, name) for name in chosen),
            *(facts.config.get(name, "") for name in differing),
        ]
        shown.add_row(*(text.Text(texts.show_name(str(cell))) for cell in cells))
    out = consoles.open_console(WIDTH)
    out.print(shown)
    left_out = len(names) - SHOWN_METRICS
    if not metrics and left_out > 0:
        out.print(f"{left_out} more metrics are not shown: --metric NAME shows one.")


def _show(one: history.RunHistory, name: str) -> str:
    value = one.get_last(name) if name in one.names else None
    return "" if value is None else texts.show_figure(value)
