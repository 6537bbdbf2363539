"""The functions that a trial's function calls to report, to find its checkpoint and to learn which trial it is."""

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
    """Return `report` with a check: metrics as keywords, as in old Ray Tune, raise an error with the right call."""
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
    """Send metrics, and maybe a checkpoint, to the search, and wait until it decides whether the trial goes on.

    If the trial does not go on, this call leaves the function; ``finally`` blocks and context managers run.

    Args:
        metrics: Plain values by name. Tensors are refused.
        checkpoint: A folder of files. They are copied, so you may remove the folder afterwards.

    Raises:
        TypeError: The metrics are no dict, or the checkpoint is no `Checkpoint`.
        ValueError: The metrics hold a tensor or cannot be pickled.
        RuntimeError: The caller is outside a trial.

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
    """Return the checkpoint that the trial goes on from, its own latest or another trial's; None at a fresh start.

    Raises:
        RuntimeError: The caller is outside a trial.
    """
    return trial_session.get_session("get_checkpoint").checkpoint


@final
class TuneContext:
    """A trial's place in its search. `get_context` returns it."""

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
        """Return the trial's resources; ``required_resources`` has them by name."""
        return resources.PlacementGroupFactory([self._told.resources])

    def get_trial_dir(self) -> str:
        """Return a folder for the trial's files; create it if needed."""
        self._storage.path.mkdir(parents=True, exist_ok=True)
        return str(self._storage.path)

    def get_world_size(self) -> int:
        """Return 1: a trial is one process."""
        return 1

    def get_world_rank(self) -> int:
        """Return 0: a trial is one process."""
        return 0

    get_local_rank = get_node_rank = get_world_rank
    get_local_world_size = get_world_size

    def get_storage(self) -> storage.Storage:
        """Return the storage of the trial."""
        return self._storage


def get_context() -> TuneContext:
    """Return the calling trial's place in its search.

    Raises:
        RuntimeError: The caller is outside a trial.
    """
    return TuneContext(trial_session.get_session("get_context"))
