"""Errors of `fit` when training fails.

::

    HocketError
    └── TrainingFailedError         training did not reach its end; the message says why
        ├── WorkerGroupError        ranks failed: read ``.worker_failures``
        ├── ControllerError         the group could not be started: read ``.controller_failure``
        ├── PreemptionError         ranks got SIGTERM: read ``.preemption_info``
        ├── RanksDivergedError      ranks that should have equal models do not
        └── TransferError           files of a checkpoint did not arrive as they were sent
"""

from __future__ import annotations

from hocket import exceptions
from hocket._base import texts
from hocket.train import preemption


class TrainingFailedError(exceptions.HocketError):
    """Training did not reach its end."""

    path: str = ""
    """The run's folder, like `Result.path`; empty where no `fit` has raised the error. What `fit` raises ends in a note
    that says how to go on, if there is a checkpoint."""


class WorkerGroupError(TrainingFailedError):
    """One or more ranks failed.

    Args:
        message: Starts with the rank that failed first, and holds its evidence: its traceback, or how its process died.
        worker_failures: The error of each rank that failed, the first one first. Ranks that were ended because another
            failed are not in it.
    """

    worker_failures: dict[int, Exception]

    def __init__(self, message: str, worker_failures: dict[int, Exception]) -> None:
        super().__init__(message, worker_failures)
        self.worker_failures = worker_failures

    def __str__(self) -> str:
        return str(self.args[0])


class ControllerError(TrainingFailedError):
    """The controller of the ranks failed, again and again: `FailureConfig.controller_failure_limit` times and once
    more.

    Args:
        controller_failure: The last failure.
    """

    controller_failure: Exception

    def __init__(self, controller_failure: Exception) -> None:
        super().__init__(controller_failure)
        self.controller_failure = controller_failure

    def __str__(self) -> str:
        return f"The ranks could not be started, also when it was tried again: {self.controller_failure}"


class PreemptionError(TrainingFailedError):
    """Ranks got SIGTERM, more often than `FailureConfig.max_preemption_failures` allows; or the process
    that called `fit` got it.

    Args:
        preemption_info: Which ranks, and until when.
        drain_timed_out: Whether nothing was committed between the notice and its deadline, so that work was lost.
    """

    preemption_info: preemption.PreemptionInfo
    drain_timed_out: bool

    def __init__(self, preemption_info: preemption.PreemptionInfo, drain_timed_out: bool = False) -> None:
        super().__init__(preemption_info, drain_timed_out)
        self.preemption_info = preemption_info
        self.drain_timed_out = drain_timed_out

    def __str__(self) -> str:
        info: object = self.preemption_info
        if not isinstance(info, preemption.PreemptionInfo):  # a user's own, raised with a text
            return str(info)
        ranks = self.preemption_info.preempted_ranks
        who = f"Rank {ranks[0]} was" if len(ranks) == 1 else f"Ranks {ranks} were"
        if self.drain_timed_out:
            return (
                f"{who} told to end (SIGTERM), and nothing was committed before the time was over. Report a "
                "checkpoint when hocket.train.get_preemption_info() returns something, or report checkpoints more "
                "often."
            )
        return (
            f"{who} told to end (SIGTERM). The run's folder has its last checkpoint: fit with the same name and "
            "storage_path goes on from it."
        )


class RanksDivergedError(TrainingFailedError):
    """Ranks that should have equal models do not: the training function trains another model in each.

    The message names the first tensor that differs, the ranks, the step, by how much, and what the causes may be.
    `DivergenceConfig` makes it a warning.
    """


class TransferError(TrainingFailedError):
    """Files of a checkpoint, sent between a rank and the driver because they share no folder, did not arrive as they
    were sent.

    On the way to the driver it is the failure of the rank, in ``WorkerGroupError.worker_failures``. On the way to a
    rank it is raised there, where the checkpoint is first used.
    """


def note_place(error: BaseException, path: str, name: str, newest: str) -> None:
    """Say in what `fit` raises where the run is, and how to go on with it if it has a checkpoint.

    Args:
        error: What it raises; an interrupt, too.
        path: The run's folder.
        name: The run's name.
        newest: The name of its latest checkpoint; empty if it has none.
    """
    if isinstance(error, TrainingFailedError):
        error.path = path
    note = f"The run is in {texts.escape(path, one_line=True)}; fit() with name={name!r} goes on from {newest}."
    if newest and note not in getattr(error, "__notes__", ()):
        BaseException.add_note(error, note)
