"""Hooks of the user that run beside the controller."""

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
    """What the trainer was given."""
    start_checkpoint_name: str = ""
    """The name of the checkpoint of an earlier run of this name that the run goes on from; empty if it begins anew."""
    report_count: int = 0
    """How many reports all ranks have made in this `fit`: in `UserCallback.after_report`, the number of the report. If
    the group is started again, those since the last commit come again, under the same numbers."""

    def describe_start(self) -> str:
        """Return the sentence for a run that goes on from an earlier one."""
        return (
            f"`{texts.show_name(self.experiment_name)}` goes on from {self.start_checkpoint_name} of an earlier run "
            "with this name; for a new run choose another name, or leave it out."
        )

    def describe_nothing(self) -> str:
        """Return the sentence for a run that went on from an earlier one and ended without a report."""
        return (
            f"`{texts.show_name(self.experiment_name)}` has trained nothing: the training function returned without a "
            f"report, as {self.start_checkpoint_name} of the earlier run left nothing to do. The result is that of the "
            "earlier run; for a new run choose another name, or leave it out."
        )


class UserCallback:
    """Inherit from it, override what you need, and pass an instance in `RunConfig.callbacks`.

    Methods are called in the process that called `fit`, one at a time; training goes on meanwhile. What they raise ends
    the training and comes out of `fit`. StopIteration ends it in good order: `fit` returns a `Result` of what was
    reported until then.
    """

    def before_run(self, run_context: TrainRunContext) -> None:
        """Called when `fit` begins, before any rank is started.

        Args:
            run_context: The run.
        """

    def after_arrival(self, run_context: TrainRunContext, counts: Sequence[int]) -> None:
        """Called when reports of a rank have arrived, before `after_report` of those that are complete with them.

        Args:
            run_context: The run.
            counts: How many reports each rank has made since the group was started, by rank.
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

    def after_run(self, run_context: TrainRunContext, error: BaseException | None) -> None:
        """Called when the run is over.

        Args:
            run_context: The run.
            error: What `fit` raises; None if it returns.
        """


class Enough(Exception):  # noqa: N818 (no error, but a way out)
    """A callback has ended the training in good order. It says so with StopIteration, which a training function may
    raise by mistake."""


@contextlib.contextmanager
def hearing() -> Iterator[None]:
    """Take StopIteration of a callback that is called in the block as its word for `Enough`."""
    try:
        yield
    except StopIteration as stop:
        raise Enough(*stop.args) from stop


@contextlib.contextmanager
def follow_run(run_context: TrainRunContext, user_callbacks: Sequence[UserCallback]) -> Iterator[None]:
    """Call `UserCallback.before_run`, and when the block ends `after_run` of those whose `before_run` did not raise:
    the last one first."""
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
