"""A search's results as a table, in text and in HTML."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hocket._base import markup, texts
from hocket.train.tracking import plain, scores
from hocket.train.tracking import values as flat_values
from hocket.tune import result as results

MOST_LETTERS: Final = 40
"""The most characters of a configuration's value; longer ones are cut."""

_MOST_REASON: Final = 200
"""The most characters of the reason why a trial ended."""

HEADINGS: Final = ("trial", "reports", "how it ended", "configuration")


def sort(found: Sequence[results.Result], metric: str, mode: str) -> list[results.Result]:
    """Return results, those with the best last value first, those without a value last."""
    return sorted(found, key=lambda one: -scores.score(one.metrics, metric, mode))


def write_text(found: Sequence[results.Result], metric: str, mode: str, most: int) -> str:
    """Return a table of the best `most` trials, with a last line that counts all."""
    lines = [f"{'trial':<16} {metric:>12} {'reports':>8}  how it ended; configuration"]
    for one in sort(found, metric, mode)[:most]:
        trial, value, reports, end, config = _list_cells(one, metric)
        lines.append(f"{trial:<16} {value:>12} {reports:>8}  {end}; {config}")
    return "\n".join([*lines, count(found)])


def write_html(found: Sequence[results.Result], metric: str | None, mode: str | None, most: int) -> str:
    """Return the table as HTML for a notebook. Without a metric, trials keep their order, and no value is shown."""
    ordered = sort(found, metric, mode) if metric is not None and mode is not None else list(found)
    headings = list(HEADINGS)
    headings.insert(1, metric or "")
    return markup.write_grid(headings, [_list_cells(one, metric) for one in ordered[:most]], count(found))


def count(found: Sequence[results.Result]) -> str:
    """Return the number of results by status: ``"4 trials: 1 error, 3 terminated"``."""
    counts = collections.Counter(one.status.value.lower() for one in found)
    told = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    return f"{len(found)} trials: {told}"


def describe(config: Mapping[str, Any]) -> str:
    """Return a short form of a configuration: ``"lr=0.01, model/width=2"``."""
    return ", ".join(f"{name}={_shorten(value)}" for name, value in flat_values.flatten(config))


def _shorten(value: object) -> str:
    return texts.cut(f"{value:.4g}" if isinstance(value, float) else repr(value), MOST_LETTERS)


def _list_cells(one: results.Result, metric: str | None) -> list[str]:
    value = None if metric is None else plain.get_metric(one.metrics, metric)
    shown = f"{value:.6g}" if isinstance(value, int | float) else "-"
    reason = one.reason or one.status.value.lower()
    return [
        one.trial_id,
        shown,
        str(len(one.metrics_history)),
        texts.cut(reason, _MOST_REASON),
        describe(one.config),
    ]
