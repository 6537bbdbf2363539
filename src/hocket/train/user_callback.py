"""The user's callbacks, which run in the driver beside the controller."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket._base import texts
from hocket.train.checkpoints import checkpoint as checkpoint_module


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
    """The trainer's argument of this name."""
    start_checkpoint_name: str = ""
    """The checkpoint of an earlier run of this name that this run starts from; empty if it starts anew."""
    report_count: int = 0
    """The number of reports that all ranks have made in this `fit`; in `UserCallback.after_report`, the number of the
    report. After a restart of the group, reports since the last commit come again under the same numbers."""

    def describe_start(self) -> str:
        """Return the sentence for a run that continues an earlier one."""
        return (
            f"`{texts.show_name(self.experiment_name)}` goes on from {self.start_checkpoint_name} of an earlier run "
            "with this name; for a new run choose another name, or leave it out."
        )

    def describe_nothing(self) -> str:
        """Return the sentence for a run that continued an earlier one and ended without a report."""
        return (
            f"`{texts.show_name(self.experiment_name)}` has trained nothing: the training function returned without a "
            f"report, because {self.start_checkpoint_name} of the earlier run left nothing to do. The result is that "
            "of the earlier run; for a new run choose another name, or leave it out."
        )


class UserCallback:
    """The base class of callbacks. Override the methods that you need, and pass an instance in `RunConfig.callbacks`.

    Methods are called in the process that called `fit`, one at a time, while training goes on. An error that a method
    raises ends the training, and `fit` raises it. StopIteration ends the training in good order: `fit` returns a
    `Result` of the reports until then.
    """

    def before_run(self, run_context: TrainRunContext) -> None:
        """Called when `fit` begins, before any rank starts.

        Args:
            run_context: The run.
        """

    def after_arrival(self, run_context: TrainRunContext, counts: Sequence[int]) -> None:
        """Called when reports of a rank have arrived, before `after_report` of any report that they complete.

        Args:
            run_context: The run.
            counts: The number of reports of each rank since the group was started, by rank.
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
            metrics: The ranks' metrics, by rank.
            checkpoint: The checkpoint that was committed with the report, if any.
        """

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, Exception]) -> None:
        """Called when ranks have failed, before the group is started again or `fit` raises.

        Args:
            run_context: The run.
            worker_exceptions: The error of each failed rank, the first failure first.
        """

    def after_run(self, run_context: TrainRunContext, error: BaseException | None) -> None:
        """Called when the run is over.

        Args:
            run_context: The run.
            error: The error that `fit` raises; None if `fit` returns.
        """


class Enough(Exception):  # noqa: N818 (no error, but a way out)
    """A callback has ended the training in good order. It stands for the callback's StopIteration, because a training
    function may raise that by mistake."""


@contextlib.contextmanager
def hearing() -> Iterator[None]:
    """Turn StopIteration into `Enough` for callbacks that are called in the block."""
    try:
        yield
    except StopIteration as stop:
        raise Enough(*stop.args) from stop


@contextlib.contextmanager
def follow_run(run_context: TrainRunContext, user_callbacks: Sequence[UserCallback]) -> Iterator[None]:
    """Call `UserCallback.before_run` of all callbacks, and at the end of the block `after_run` in reverse order.

    A callback gets no `after_run` if its `before_run` raised or was not reached."""
    error: BaseException | None = None

    def end(callback: UserCallback) -> None:
        callback.after_run(run_context, error)

    with contextlib.ExitStack() as stack:
        try:
            for callback in user_callbacks:
                callback.before_run(run_context)
                stack.callback(end, callback)
            yield
        except BaseException as caught:
            error = caught
            raise
