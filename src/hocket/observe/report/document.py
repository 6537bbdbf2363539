"""A report, and its file."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TypeAlias, final

import numpy as np

from hocket import _base
from hocket._base import showing, texts
from hocket.observe.runs import history

MOST_POINTS = 4_000
"""The most points of a curve. A longer one keeps the least and the greatest of each stretch: no screen is as wide."""

MOST_LETTERS = 500
"""The most characters of a text in a table."""

Numbers: TypeAlias = Sequence[float] | history.Floats

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
"""The browser's policy for the file: it may load nothing."""


@final
@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric over the steps of a run."""

    name: str
    steps: Numbers
    """The steps in any order. A point whose step is not finite is left out."""
    values: Numbers
    """The values of the steps. NaN and infinities are gaps."""
    label: str = "value"
    """The name of the line."""
    others: Mapping[str, Numbers] = field(default_factory=dict)
    """More lines over the same steps, by name. A shorter one ends earlier."""
    count: int | None = None
    """The number of values. Default: the length of ``values``."""
    last: float | None = None
    """The last value, which may be NaN. Default: the last number of the line."""


@final
@dataclass(frozen=True, kw_only=True)
class Shares:
    """The shares of a whole, compared for several owners."""

    parts: Sequence[str]
    """The names of the parts."""
    of: Mapping[str, Sequence[float]]
    """The sizes of the parts, by owner."""


@final
@dataclass(kw_only=True)
class Report:
    """The contents of a report.

    Example:
        >>> from hocket.observe.report import Curve, Report
        >>> report = Report(title="run", facts={"loss": 0.5})
        >>> report.curves.append(Curve(name="loss", steps=[1, 2], values=[1.0, 0.5]))
        >>> report.write().startswith("<!doctype html>")
        True
    """

    title: str
    facts: Mapping[str, object] = field(default_factory=dict)
    """The entries at the top, by name."""
    step_name: str = "report"
    """The name of the horizontal axis of all curves."""
    curves: list[Curve] = field(default_factory=list)
    shares: dict[str, Shares] = field(default_factory=dict)
    """Bars of equal length, by heading."""
    remarks: list[str] = field(default_factory=list)
    """Sentences below the facts."""
    tables: dict[str, list[Mapping[str, object]]] = field(default_factory=dict)
    """Rows by heading; the columns are the keys of all rows."""

    def write(self) -> str:
        """Return the file's text."""
        data = {
            "title": texts.show_name(self.title),
            "facts": [[_show(name), _show(value)] for name, value in self.facts.items()],
            "step": texts.show_name(self.step_name),
            "remarks": [texts.escape(remark) for remark in self.remarks],
            "shares": [_lay_out_shares(heading, one) for heading, one in self.shares.items()],
            "curves": [_thin(curve) for curve in self.curves],
            "tables": [
                {"heading": texts.show_name(heading), **_lay_out(rows)} for heading, rows in self.tables.items()
            ],
            "version": _base.__version__,
        }
        own = resources.files("hocket.observe.report")
        vendor = resources.files("hocket.observe") / "vendor"
        inside = f'<script type="application/json" id="data">{_encode(data)}</script>'
        styles = [(vendor / "uplot.css").read_text(), (own / "report.css").read_text()]
        scripts = [(vendor / "uplot.js").read_text(), (own / "report.js").read_text()]
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en"><head><meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="color-scheme" content="light dark">',
                f"<title>{html.escape(texts.show_name(self.title))}</title>",
                *(f"<style>{style}</style>" for style in styles),
                f'</head><body><main id="page"></main>{inside}',
                *(f"<script>{script}</script>" for script in scripts),
                "</body></html>",
                "",
            ]
        )


def _encode(data: object) -> str:
    """Return JSON that cannot end a script, whatever the data."""
    encoded = showing.encode(data)
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _show(value: object) -> str:
    text = (
        value
        if isinstance(value, str)
        else texts.show_figure(value)
        if isinstance(value, float)
        else texts.safe_repr(value)
    )
    return texts.escape(texts.cut(text, MOST_LETTERS))


def _lay_out(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    shown = [_show(column) for column in columns]
    return {"columns": shown, "rows": [[_show(row[key]) if key in row else "" for key in columns] for row in rows]}


def _lay_out_shares(heading: str, shares: Shares) -> dict[str, object]:
    rows = []
    for who, sizes in shares.of.items():
        whole = sum(sizes) or 1.0
        rows.append({"label": texts.show_name(who), "percent": [round(100 * size / whole, 1) for size in sizes]})
    return {
        "heading": texts.show_name(heading),
        "parts": [texts.show_name(part) for part in shares.parts],
        "rows": rows,
    }


def _thin(curve: Curve) -> dict[str, object]:
    """Return a curve with no more points than a screen can show: the least and the greatest of each stretch."""
    steps = np.asarray(curve.steps, dtype=np.float64)
    lines = {curve.label: curve.values, **curve.others}
    columns = [_pad(values, len(steps)) for values in lines.values()]
    kept = np.flatnonzero(np.isfinite(steps))
    kept = kept[np.argsort(steps[kept], kind="stable")]
    rows, drawn = history.thin([column[kept] for column in columns], MOST_POINTS // 2)
    return {
        "name": texts.show_name(curve.name),
        "steps": steps[kept][rows].tolist(),
        "labels": [texts.show_name(label) for label in lines],
        "lines": [[value if math.isfinite(value) else None for value in line.tolist()] for line in drawn],
        "count": len(curve.values) if curve.count is None else curve.count,
        "last": None if curve.last is None else texts.show_figure(curve.last),
    }


def _pad(values: Numbers, size: int) -> history.Floats:
    found = np.full(size, math.nan)
    found[: len(values)] = values
    return found
