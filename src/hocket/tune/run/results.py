"""A report, completed: the metrics of a trial with what every report has."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from hocket.tune import trial as trials
from hocket.tune.worker import orders

SHOULD_CHECKPOINT: Final = "should_checkpoint"
"""The key with which a step's metrics, or a callback that sets it in a report, ask a `Trainable` to save."""

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
"""What `complete` adds to the metrics of every report."""


def list_reported(names: Iterable[str]) -> list[str]:
    """Return which of the names of metrics, or of their parts, are the trial's own, sorted."""
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
    """Return metrics with what Ray Tune adds to them; what the trial reports under the same name stays.

    Args:
        metrics: What the trial reported.
        trial: The trial.
        iteration: How many reports it has made.
        seconds: Since the report before.
        total: Since the trial began.
        now: When it was made, in seconds since 1970.
        since_start: How many reports, and seconds, since the trial last began or went on.
        where: The process.
        checkpoint: The name of the checkpoint that came with it.
        done: Whether it is the last.
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
