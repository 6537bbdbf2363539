"""The queue of validations, which run one after the other beside the training.

A validation outlives the attempt that requested it. If the end of the driver interrupts a validation, the next run of
that name repeats it, because the checkpoint's manifest has the request.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from hocket import exceptions
from hocket._base import texts
from hocket.core import api, session
from hocket.engine import contract
from hocket.train import validation
from hocket.train.checkpoints import reported
from hocket.train.rank import reports
from hocket.train.run import checkpoint_manager

Status = reported.ReportedCheckpointStatus


@dataclass(frozen=True)
class _Running:
    """A validation under way."""

    ref: contract.AnyRef
    record: checkpoint_manager.Committed
    deadline: float | None


class ValidationQueue:
    """The validations of a run. Used by one thread."""

    def __init__(self, config: validation.ValidationConfig, manager: checkpoint_manager.CheckpointManager) -> None:
        self._task = config.build_task()
        self._config = config
        self._manager = manager
        self._running: _Running | None = None

    def find_obstacle(self, held: Mapping[str, float]) -> str:
        """Return why no validation can run beside ranks with these resources; an empty string if one can."""
        needed, there = self._config.resources, api.cluster_resources()
        if all(held.get(name, 0.0) + amount <= there.get(name, 0.0) for name, amount in needed.items()):
            return ""
        return f"a validation needs {needed}, and the ranks hold {dict(held)} of {there}"

    def start(self) -> list[contract.AnyRef]:
        """Start the next validation if none runs; return the references to wait for before `settle`."""
        if self._running is None:
            record = next(iter(self._manager.list_unvalidated()), None)
            if record is None:
                return []
            assert record.task is not None, "a record that waits for a validation has its task"
            ref = self._task.remote(self._config.fn, record.checkpoint, record.task.fn_kwargs)
            seconds = record.task.timeout_s
            self._running = _Running(ref, record, None if seconds is None else time.monotonic() + seconds)
        return [self._running.ref]

    @property
    def due(self) -> float | None:
        """When the running validation must have ended; None if none runs or its time is not limited."""
        return None if self._running is None else self._running.deadline

    def settle(self, now: float) -> None:
        """Note the outcome of the running validation, if it has ended or its time is over."""
        running = self._running
        if running is None:
            return
        metrics: reports.Metrics | None = None
        if api.wait([running.ref], timeout=0)[0]:
            status, metrics = self._read(running)
        elif running.deadline is not None and now >= running.deadline:
            status = Status.VALIDATION_TIMEOUT
            api.cancel(running.ref, force=True)
            warn(running.record, f"took longer than timeout_s={running.record.task and running.record.task.timeout_s}")
        else:
            return
        self._running = None
        self._manager.settle_validation(running.record.number, status, metrics)

    @staticmethod
    def _read(running: _Running) -> tuple[Status, reports.Metrics | None]:
        try:
            return Status.VALIDATED, api.get(running.ref)
        except exceptions.HocketError as error:  # a failed validation does no harm to the training
            warn(running.record, f"failed: {error}")
            return Status.VALIDATION_FAILED, None

    def finish(self) -> None:
        """Wait until nothing is left to validate."""
        while refs := self.start():
            api.wait(refs, timeout=None if self.due is None else max(0.0, self.due - time.monotonic()))
            self.settle(time.monotonic())

    def abandon(self) -> None:
        """Cancel the running validation. The next run of that name repeats it."""
        running, self._running = self._running, None
        if running is not None and session.is_initialized():
            with contextlib.suppress(exceptions.HocketError):
                api.cancel(running.ref, force=True)


def run_here(config: validation.ValidationConfig, manager: checkpoint_manager.CheckpointManager) -> None:
    """Run all waiting validations in this process, where a time limit cannot be kept."""
    for record in manager.list_unvalidated():
        assert record.task is not None, "a record that waits for a validation has its task"
        try:
            metrics = config.run(record.checkpoint, record.task)
        except Exception as error:  # a failed validation does no harm to the training
            if contract.is_from_handler(error):  # an alarm's error is meant for everything that runs here
                raise
            warn(record, f"failed with {texts.describe(error)}")
            manager.settle_validation(record.number, Status.VALIDATION_FAILED)
        else:
            manager.settle_validation(record.number, Status.VALIDATED, metrics)


def warn(record: checkpoint_manager.Committed, what: str) -> None:
    """Warn about a validation that has brought no metrics."""
    warnings.warn(f"The validation of {record.checkpoint} {what}", stacklevel=2)
