"""Runners of the ranks of a run: this process, a gang of processes, or another room's way."""

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
    """Called before anything is begun, with the training function and how it shall run: raises if it cannot."""
    train: Callable[[training_run.Run], Any]
    """Runs the ranks; returns what the training function returns in rank 0."""
    stays_here: bool
    """Whether blocks of datasets which this process holds need not go to the engine."""


def choose(scaling: configs.ScalingConfig) -> Runner:
    """Return who runs the ranks in a session: this process, if there are none or the engine has no others."""
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
