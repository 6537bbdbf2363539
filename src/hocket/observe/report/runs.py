"""The report of a run from its log, and the comparison of several runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import numpy as np

from hocket.observe.report import document
from hocket.observe.runs import advice, history

SHOWN_RANKS = 8
"""The most ranks with their own lines."""

OWN_FACTS = ("run", "state", "begun", "seconds", "ranks", "reports", "checkpoints", "ranks were started", "error")
"""A report's own names for facts of a run; a program's metric with such a name is marked."""

PARTS = ("compute", "data", "waits for ranks", "exchange", "report")
"""The names in charts for the parts of ranks' time."""


def describe(run: history.RunHistory) -> document.Report:
    """Return the report of a run.

    Args:
        run: The run, read to its end.
    """
    facts = run.facts
    spent = run.sum_spent(len(run))
    built = document.Report(title=facts.name or run.path.name, facts=_list_facts(run))
    built.remarks += advice.explain_values(run.find_unfit())
    built.remarks += advice.explain(spent, facts.behind if run.state == "running" else 0.0)
    if spent:
        built.shares["What ranks spend their time on"] = document.Shares(
            parts=PARTS,
            of={
                f"rank {rank}": (one.compute, one.data, one.wait, one.exchange, one.report)
                for rank, one in enumerate(spent)
            },
        )
    counted = _find_steps(run)
    steps = np.arange(1.0, len(run) + 1) if counted is None else counted
    built.step_name = "report" if counted is None else "step"
    names = [name for name in run.names if counted is None or name != "step"]
    built.curves += [
        _build(name, steps, run.get_curve(name), run.count_values(name), run.get_last(name)) for name in names
    ]
    late = run.get_late()
    if len(late) > 1 and len(run):
        built.curves.append(_build("Later than the first rank's report, by seconds", steps, late))
    if facts.failures:
        built.tables["Failures"] = [
            {"at": _show_time(failure.at), "rank": rank, "error": text}
            for failure in facts.failures
            for rank, text in failure.errors.items()
        ]
    if facts.config:
        built.tables["Configuration"] = [{"name": name, "value": value} for name, value in facts.config.items()]
    return built


def compare(runs: Sequence[history.RunHistory]) -> document.Report:
    """Return a report that compares runs: their curves in one plot, and the differences of their configurations.

    Args:
        runs: The runs, read to their ends.
    """
    labels = label_all(runs)
    built = document.Report(title="Runs", facts={"runs": len(runs)})
    built.tables["Runs"] = [{"run": label, **_list_facts(run)} for label, run in zip(labels, runs, strict=True)]
    differing = list_differing([run.facts.config for run in runs])
    if differing:
        built.tables["Where the configurations differ"] = [
            {"run": label, **{_mark(name): run.facts.config.get(name, "") for name in differing}}
            for label, run in zip(labels, runs, strict=True)
        ]
    for name in dict.fromkeys(name for run in runs for name in run.names):
        having = [
            (label, run.get_first_curve(name)) for label, run in zip(labels, runs, strict=True) if name in run.names
        ]
        (first, values), *others = sorted(having, key=lambda one: -len(one[1]))
        built.curves.append(
            document.Curve(
                name=name,
                steps=np.arange(1.0, len(values) + 1),
                values=values,
                label=first,
                others=dict(others),
            )
        )
    return built


def label_all(runs: Sequence[history.RunHistory]) -> list[str]:
    """Return a name for each run: its folder's, or its path if another run has the same."""
    names = [run.path.resolve().name for run in runs]
    return [str(run.path) if names.count(name) > 1 else name for name, run in zip(names, runs, strict=True)]


def list_differing(configs: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names of values that differ between configurations."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if len({repr(config.get(name)) for config in configs}) > 1]


def _list_facts(run: history.RunHistory) -> dict[str, object]:
    facts = run.facts
    found: dict[str, object] = {
        "state": run.state,
        "begun": _show_time(facts.started),
        "seconds": round((facts.ended or facts.last) - facts.started, 3),
        "ranks": facts.ranks,
        "reports": len(run),
        "checkpoints": len(facts.checkpoints),
    }
    if facts.attempts > 1:
        found["ranks were started"] = f"{facts.attempts} times"
    if facts.error is not None:
        found["error"] = facts.error
    last = {name: run.get_last(name) for name in run.names}
    reported = {name: value for name, value in last.items() if value is not None} | dict(run.texts)
    return found | {_mark(name): value for name, value in reported.items()}


def _mark(name: str) -> str:
    return f"{name} (the program's)" if name in OWN_FACTS else name


def _find_steps(run: history.RunHistory) -> history.Floats | None:
    """Return the program's own steps; None if it reports none, or they decrease."""
    steps = run.get_curve("step")[0] if "step" in run.names else None
    return steps if steps is not None and np.isfinite(steps).all() and (np.diff(steps) >= 0).all() else None


def _build(
    name: str,
    steps: history.Floats,
    columns: Sequence[history.Floats],
    count: int | None = None,
    last: float | None = None,
) -> document.Curve:
    return document.Curve(
        name=name,
        steps=steps,
        values=columns[0],
        label="rank 0",
        others={f"rank {rank}": column for rank, column in enumerate(columns[1:SHOWN_RANKS], 1)},
        count=count,
        last=last,
    )


def _show_time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
