"""What the training function calls: who am I, here is what I found, where did I stop."""

from __future__ import annotations

from typing import Any, final

from hocket.train import checkpoint as checkpoint_module
from hocket.train import storage, worker_session
from hocket.train.classic import functions


@final
class TrainContext:
    """A rank's place in its group. Made by `get_context`."""

    def __init__(self, info: worker_session.RankInfo) -> None:
        self._info = info

    def get_world_size(self) -> int:
        """Return how many ranks there are."""
        return self._info.world_size

    def get_world_rank(self) -> int:
        """Return this rank's index, from 0."""
        return self._info.rank

    def get_local_rank(self) -> int:
        """Return this rank's index among those on its machine."""
        return self._info.local_rank

    def get_local_world_size(self) -> int:
        """Return how many ranks there are on this rank's machine."""
        return self._info.local_world_size

    def get_node_rank(self) -> int:
        """Return the index of this rank's machine among those of the group."""
        return self._info.node_rank

    def get_experiment_name(self) -> str:
        """Return the run's name."""
        return self._info.run_storage.experiment_name

    def get_storage(self) -> storage.Storage:
        """Return where the run is kept."""
        return self._info.run_storage


def get_context() -> TrainContext:
    """Return the calling rank's place in its group.

    Raises:
        RuntimeError: It is called outside a training function.
    """
    return TrainContext(worker_session.get_session("get_context").info)


def get_checkpoint() -> checkpoint_module.Checkpoint | None:
    """Return the latest committed checkpoint of the run: what to resume from; None at a fresh start.

    On a machine that does not share the run's folder its files arrive when they are first used (`Checkpoint.path`).

    Raises:
        RuntimeError: It is called outside a training function.
    """
    return worker_session.get_session("get_checkpoint").checkpoint


@functions.serve_both
def report(
    metrics: dict[str, Any],
    checkpoint: checkpoint_module.Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
) -> None:
    """Hand metrics, and maybe a checkpoint, to the controller. In a function that `Trainer` runs: ``report(loss=0.5)``.

    Every rank must call it the same number of times. The n-th reports of all ranks belong together: rank 0's metrics go into the
    `Result`, callbacks see those of all, and the files of all ranks that gave a checkpoint become one checkpoint.

    Without a checkpoint it returns at once. With one, the files are copied, or sent to the driver if this machine does not share the
    run's folder, and it returns when the checkpoint is committed, which takes the reports of all ranks: whatever dies afterwards,
    training can resume from it.

    Args:
        metrics: Plain values by name. Tensors are refused.
        checkpoint: A folder of files; it may be removed afterwards.
        checkpoint_dir_name: The folder that the checkpoint gets in the run's folder. Default: ``checkpoint_`` and a number.

    Raises:
        TypeError: The metrics are no dict, or the checkpoint is no `Checkpoint`.
        ValueError: The metrics hold a tensor or cannot be pickled, or the name is not one folder's name.
        RuntimeError: It is called outside a training function.
    """
    worker_session.get_session("report").report(metrics, checkpoint, checkpoint_dir_name)


__test__ = {"report": report}  # a wrapped function: its examples are looked for only if it is named here
