"""Hooks of the user that run beside the controller.

`UserCallback` is for ``fit()``; the others are those of 2022, for `Trainer.run`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.train import checkpoint as checkpoint_module
from hocket.train.classic_callbacks import JsonLoggerCallback as JsonLoggerCallback
from hocket.train.classic_callbacks import MLflowLoggerCallback as MLflowLoggerCallback
from hocket.train.classic_callbacks import PrintCallback as PrintCallback
from hocket.train.classic_callbacks import TBXLoggerCallback as TBXLoggerCallback
from hocket.train.classic_callbacks import TrainingCallback as TrainingCallback


@dataclass(frozen=True, kw_only=True)
class TrainRunContext:
    """Facts about a run, for callbacks."""

    experiment_name: str
    """The run's name."""
    path: Path
    """The run's folder."""
    num_workers: int
    """The world size."""
    train_loop_config: Any
    """What the trainer was given."""


class UserCallback:
    """Inherit from it, override what you need, and pass an instance in `RunConfig.callbacks`.

    Methods are called in the process that called `fit`, one at a time; training goes on meanwhile. What they raise ends the
    training and comes out of `fit`.
    """

    def after_report(
        self,
        run_context: TrainRunContext,
        metrics: list[dict[str, Any]],
        checkpoint: checkpoint_module.Checkpoint | None,
    ) -> None:
        """Called when every rank has made its n-th report.

        Args:
            run_context: The run.
            metrics: What the ranks reported, by rank.
            checkpoint: What was committed with it, if anything.
        """

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, Exception]) -> None:
        """Called when ranks failed, before the group is started again or `fit` raises.

        Args:
            run_context: The run.
            worker_exceptions: The error of each rank that failed, the first one first.
        """
