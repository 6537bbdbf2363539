"""Curves of metrics in a picture, by matplotlib without its global state, which belongs to the program's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket import extras
from hocket.train.tracking import values


def import_figure() -> Any:
    """Return matplotlib's class of figures.

    Raises:
        MissingExtraError: matplotlib is missing.
    """
    return extras.load("matplotlib.figure", "A curve", "matplotlib", "Run pip install 'hocket[plot]'.").Figure


def find_loss_keys(keys: Sequence[str]) -> list[str]:
    """Return the keys that name a loss: ``"loss"``, ``"val/loss"``, ``"train_loss"``."""
    return [key for key in keys if key.lower().endswith("loss")]


def save_curve(
    history: Sequence[Mapping[str, object]],
    path: str | Path,
    keys: Sequence[str] | None = None,
    *,
    step_key: str | None = None,
) -> Path:
    """Draw metrics over the reports of a run, in a picture; return its path.

    Args:
        history: The metrics of each report, as `Result.metrics_history`.
        path: The file. Its suffix selects the format: ``.png``, ``.svg``, ``.pdf``.
        keys: The metrics to draw; ``"val/loss"`` looks into nested ones. Default: those with a name that ends in
            ``loss``.
        step_key: The metric on the horizontal axis. Default: ``"step"`` if every report has it, else the number of the
            report.

    Raises:
        ValueError: There is nothing to draw.
        MissingExtraError: matplotlib is missing.

    Example:
        >>> import tempfile
        >>> from hocket.train import loggers
        >>> history = [{"step": step, "loss": 1 / (step + 1)} for step in range(10)]
        >>> loggers.save_curve(history, tempfile.mkdtemp() + "/loss.png").name
        'loss.png'
    """
    rows = [values.list_numbers(metrics) for metrics in history]
    known = list(dict.fromkeys(key for row in rows for key in row))
    chosen = list(keys) if keys is not None else find_loss_keys(known)
    missing = [key for key in chosen if key not in known]
    if missing or not chosen:
        what = f"have no number called {missing[0]!r}" if missing else "have no number whose name ends in 'loss'"
        raise ValueError(
            f"There is nothing to draw: the {len(rows)} reports {what}, but {known}. Name some of these: "
            "keys=['accuracy']."
        )
    figure = import_figure()(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    step = step_key if step_key is not None else "step"
    has_steps = step_key is not None or all(step in row for row in rows)
    for key in chosen:
        points = [
            (row[step] if has_steps else number, row[key])
            for number, row in enumerate(rows, 1)
            if key in row and (step in row or not has_steps)
        ]
        axes.plot([x for x, _ in points], [y for _, y in points], label=key, marker="." if len(points) < 40 else None)
    axes.set_xlabel(step if has_steps else "report")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(str(path), dpi=120)
    return Path(path)
