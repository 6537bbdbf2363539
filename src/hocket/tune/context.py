"""The functions for a trial's function: report, where did I stop, which trial am I."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, final

from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.checkpoints import storage
from hocket.tune import resources
from hocket.tune.worker import trial_session

P = ParamSpec("P")


def _tell_of_keywords(report: Callable[P, None]) -> Callable[P, None]:
    """Return `report` so that metrics given by keywords, as Ray Tune once took them, raise with the call to write
    instead."""
    names = frozenset(inspect.signature(report).parameters)

    @functools.wraps(report)
    def tell(*args: P.args, **kwargs: P.kwargs) -> None:
        if not names.issuperset(kwargs):
            raise TypeError(
                f"report() takes one dict in a trial's function, but received the keywords {sorted(kwargs)}. Write "
                "report({'loss': 0.5}), with checkpoint=... beside it."
            )
        report(*args, **kwargs)

    return tell


@_tell_of_keywords
def report(metrics: Mapping[str, object], *, checkpoint: checkpoint_module.Checkpoint | None = None) -> None:
    """Hand metrics, and maybe a checkpoint, to the search, and wait until it has decided whether the trial goes on.

    If it does not, the function is left from here: its ``finally`` blocks and context managers run.

    Args:
        metrics: Plain values by name. Tensors are refused.
        checkpoint: A folder of files, which are copied; it may be removed afterwards.

    Raises:
        TypeError: The metrics are no dict, or the checkpoint is no `Checkpoint`.
        ValueError: The metrics hold a tensor or cannot be pickled.
        RuntimeError: It is called outside a trial.

    Example:
        >>> from hocket import tune
        >>> def objective(config):
        ...     for step in range(3):
        ...         tune.report({"score": config["x"] * step})
        >>> tuner = tune.Tuner(objective, param_space={"x": 2}, run_config=tune.RunConfig(verbose=0))
        >>> tuner.fit()[0].metrics["score"]
        4
    """
    trial_session.get_session("report").report_now(metrics, checkpoint)


def get_checkpoint() -> checkpoint_module.Checkpoint | None:
    """Return what the trial goes on from: its latest checkpoint, or another trial's; None at a fresh start.

    Raises:
        RuntimeError: It is called outside a trial.
    """
    return trial_session.get_session("get_checkpoint").checkpoint


@final
class TuneContext:
    """A trial's place in its search. Made by `get_context`."""

    def __init__(self, session: trial_session.TrialSession) -> None:
        self._told = session.assignment
        self._storage = session.trial_storage

    def get_experiment_name(self) -> str:
        """Return the search's name."""
        return self._told.experiment.rpartition("/")[2]

    def get_trial_name(self) -> str:
        """Return the trial's name."""
        return self._told.name

    def get_trial_id(self) -> str:
        """Return the trial's id."""
        return self._told.trial_id

    def get_trial_resources(self) -> resources.PlacementGroupFactory:
        """Return what the trial holds; ``required_resources`` has it by resource name."""
        return resources.PlacementGroupFactory([self._told.resources])

    def get_trial_dir(self) -> str:
        """Return a folder for files of the trial, which is made if need be."""
        self._storage.path.mkdir(parents=True, exist_ok=True)
        return str(self._storage.path)

    def get_world_size(self) -> int:
        """Return 1: a trial is one process."""
        return 1

    def get_world_rank(self) -> int:
        """Return 0, as the others."""
        return 0

    get_local_rank = get_node_rank = get_world_rank
    get_local_world_size = get_world_size

    def get_storage(self) -> storage.Storage:
        """Return where the trial is kept."""
        return self._storage


def get_context() -> TuneContext:
    """Return the calling trial's place in its search.

    Raises:
        RuntimeError: It is called outside a trial.
    """
    return TuneContext(trial_session.get_session("get_context"))
