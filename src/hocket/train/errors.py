"""Errors that `fit` raises when training fails.

::

    HocketError
    └── TrainingFailedError         training did not reach its end; the message says why
        ├── WorkerGroupError        ranks failed: read ``.worker_failures``
        ├── ControllerError         the group could not be started: read ``.controller_failure``
        ├── PreemptionError         ranks got SIGTERM: read ``.preemption_info``
        ├── RanksDivergedError      ranks should have equal models, but do not
        └── TransferError           files of a checkpoint did not arrive as they were sent
"""

from __future__ import annotations

from hocket import exceptions
from hocket._base import texts
from hocket.train import preemption


class TrainingFailedError(exceptions.HocketError):
    """Training did not reach its end."""

    path: str = ""
    """The run's folder, like `Result.path`; empty unless `fit` raised the error. If there is a checkpoint, the error's
    last note says how to continue the run."""


class WorkerGroupError(TrainingFailedError):
    """One or more ranks failed.

    Args:
        message: The text. It starts with the rank that failed first, and shows its traceback or how its process died.
        worker_failures: The error of each failed rank, the first failure first. Ranks that were ended because another
            one failed are left out.
    """

    worker_failures: dict[int, Exception]

    def __init__(self, message: str, worker_failures: dict[int, Exception]) -> None:
        super().__init__(message, worker_failures)
        self.worker_failures = worker_failures

    def __str__(self) -> str:
        return str(self.args[0])


class ControllerError(TrainingFailedError):
    """The controller could not start the ranks, more often than `FailureConfig.controller_failure_limit` allows.

    Args:
        controller_failure: The last failure.
    """

    controller_failure: Exception

    def __init__(self, controller_failure: Exception) -> None:
        super().__init__(controller_failure)
        self.controller_failure = controller_failure

    def __str__(self) -> str:
        return f"The ranks could not be started, even after another try: {self.controller_failure}"


class PreemptionError(TrainingFailedError):
    """Ranks got SIGTERM more often than `FailureConfig.max_preemption_failures` allows, or the driver got SIGTERM.

    Args:
        preemption_info: The preempted ranks and their deadline.
        drain_timed_out: Whether work was lost, because nothing was committed between the notice and its deadline.
    """

    preemption_info: preemption.PreemptionInfo
    drain_timed_out: bool

    def __init__(self, preemption_info: preemption.PreemptionInfo, drain_timed_out: bool = False) -> None:
        super().__init__(preemption_info, drain_timed_out)
        self.preemption_info = preemption_info
        self.drain_timed_out = drain_timed_out

    def __str__(self) -> str:
        info: object = self.preemption_info
        if not isinstance(info, preemption.PreemptionInfo):  # a program may raise this error itself, with a text
            return str(info)
        ranks = self.preemption_info.preempted_ranks
        who = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {ranks}"
        if self.drain_timed_out:
            return (
                f"{who} received SIGTERM, and no checkpoint was committed before the time was over. Report a "
                "checkpoint when hocket.train.get_preemption_info() returns a value, or report checkpoints more often."
            )
        return (
            f"{who} received SIGTERM. The run's folder has its last checkpoint: fit() with the same name and "
            "storage_path goes on from it."
        )


class RanksDivergedError(TrainingFailedError):
    """Ranks should have equal models, but the training function trains a different model in each.

    The message names the first tensor that differs, the ranks, the step, the size of the difference, and possible
    causes. `DivergenceConfig` can make this error a warning.
    """


class TransferError(TrainingFailedError):
    """Files of a checkpoint did not arrive as they were sent. A rank and the driver that share no folder send files.

    On the way to the driver, the error is the rank's failure, in ``WorkerGroupError.worker_failures``. On the way to a
    rank, it is raised in the rank where the checkpoint is first used.
    """


def note_place(error: BaseException, path: str, name: str, newest: str) -> None:
    """Add to an error of `fit` where the run is, and how to continue it if it has a checkpoint.

    Args:
        error: The error, or an interrupt.
        path: The run's folder.
        name: The run's name.
        newest: The name of the run's latest checkpoint; empty if there is none.
    """
    if isinstance(error, TrainingFailedError):
        error.path = path
    note = f"The run is in {texts.escape(path, one_line=True)}; fit() with name={name!r} goes on from {newest}."
    if newest and note not in getattr(error, "__notes__", ()):
        BaseException.add_note(error, note)
