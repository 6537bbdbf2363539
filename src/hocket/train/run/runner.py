"""Runners of a run's ranks: this process, a group of processes, or the runner of another package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from hocket.core import session
from hocket.train import configs
from hocket.train.run import backend, controller, in_process, training_run


@final
@dataclass(frozen=True, kw_only=True)
class Runner:
    """One way to run ranks."""

    prepare: Callable[[Callable[..., Any], backend.BackendConfig, configs.ScalingConfig], None]
    """Called before anything starts, with the training function and its settings; raises if it cannot run."""
    train: Callable[[training_run.Run], Any]
    """Runs the ranks, and returns the training function's value in rank 0."""
    stays_here: bool
    """Whether the ranks run in this process, so that its blocks of datasets need not go to the engine."""


def choose(scaling: configs.ScalingConfig) -> Runner:
    """Return the runner for a session: this process, if there are no workers or the engine has no other processes."""
    runs_here = scaling.min_workers == 0 or "processes" in session.get_engine().limits
    return HERE if runs_here else GANG


def _expect_gang(
    function: Callable[..., object], config: backend.BackendConfig, scaling: configs.ScalingConfig
) -> None:
    session.get_engine().tasks.expect_work(config.list_modules(function))


def _train_gang(run: training_run.Run) -> object:
    return controller.Controller(run).train()


HERE = Runner(prepare=lambda function, config, scaling: None, train=in_process.train, stays_here=True)
GANG = Runner(prepare=_expect_gang, train=_train_gang, stays_here=False)
