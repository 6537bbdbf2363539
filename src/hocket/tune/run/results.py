"""Completed reports: a trial's metrics with the values that every report has."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from hocket.tune import trial as trials
from hocket.tune.worker import orders

SHOULD_CHECKPOINT: Final = "should_checkpoint"
"""The key that requests a save from a `Trainable`, in a step's metrics or set in a report by a callback."""

ADDED: Final = frozenset(
    {
        "training_iteration",
        "time_this_iter_s",
        "time_total_s",
        "timestamp",
        "date",
        "trial_id",
        "checkpoint_dir_name",
        "done",
        "config",
        "experiment_tag",
        "iterations_since_restore",
        "time_since_restore",
        "pid",
        "hostname",
        "node_ip",
    }
)
"""The keys that `complete` adds to the metrics of every report."""


def list_reported(names: Iterable[str]) -> list[str]:
    """Return the names that are the trial's own metrics, or parts of them, sorted."""
    return sorted(name for name in names if name.partition("/")[0] not in ADDED)


def complete(
    metrics: Mapping[str, Any],
    trial: trials.Trial,
    *,
    iteration: int,
    seconds: float,
    total: float,
    now: float,
    since_start: tuple[int, float],
    where: orders.Introduction,
    checkpoint: str | None,
    done: bool,
) -> dict[str, Any]:
    """Return metrics with Ray Tune's additional values; a trial's own value under the same name stays.

    Args:
        metrics: The trial's metrics.
        trial: The trial.
        iteration: The number of its reports.
        seconds: Seconds since the report before.
        total: Seconds since the trial began.
        now: The time of the report, in seconds since 1970.
        since_start: The number of reports, and seconds, since the trial last began or went on.
        where: The trial's process.
        checkpoint: The name of the checkpoint that came with the report.
        done: Whether the report is the trial's last.
    """
    return {
        "training_iteration": iteration,
        "time_this_iter_s": seconds,
        "time_total_s": total,
        "timestamp": int(now),
        "date": time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now)),
        "trial_id": trial.trial_id,
        "checkpoint_dir_name": checkpoint,
        "done": done,
        "config": trial.config,
        "experiment_tag": trial.experiment_tag,
        "iterations_since_restore": since_start[0],
        "time_since_restore": since_start[1],
        "pid": where.pid,
        "hostname": where.hostname,
        "node_ip": where.node_ip,
        **metrics,
    }
