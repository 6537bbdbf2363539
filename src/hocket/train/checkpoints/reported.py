"""Modes and states of reported checkpoints: how their files reach the run's folder, and how far they are."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hocket.train.checkpoints import checkpoint as checkpoint_module


class CheckpointUploadMode(enum.Enum):
    """The ways in which `report` brings a checkpoint's files into the run's folder.

    Example:
        >>> from hocket import train
        >>> train.CheckpointUploadMode.ASYNC.default_delete_local_checkpoint_after_upload()
        True
    """

    SYNC = "SYNC"
    """`report` copies the files, and returns when the checkpoint is committed."""
    ASYNC = "ASYNC"
    """The upload runs while training goes on. The folder must stay until then, and is removed after the upload."""
    NO_UPLOAD = "NO_UPLOAD"
    """The files are in the run's folder already. `report` returns when the checkpoint is committed."""

    def default_delete_local_checkpoint_after_upload(self) -> bool:
        """Return whether `report` removes the folder after the upload by default."""
        return self is CheckpointUploadMode.ASYNC


class CheckpointConsistencyMode(enum.Enum):
    """The state for which `get_all_reported_checkpoints` waits."""

    COMMITTED = "COMMITTED"
    """All reports of this rank are committed."""
    VALIDATED = "VALIDATED"
    """All reports of this rank are committed, and their validations have ended."""


class ReportedCheckpointStatus(enum.Enum):
    """The state of a committed checkpoint."""

    COMMITTED = "COMMITTED"
    """No validation was requested."""
    PENDING_VALIDATION = "PENDING_VALIDATION"
    """The validation has not ended."""
    VALIDATED = "VALIDATED"
    """The validation has ended, and its metrics are among the checkpoint's."""
    VALIDATION_TIMEOUT = "VALIDATION_TIMEOUT"
    """The validation took longer than `ValidationTaskConfig.timeout_s`."""
    VALIDATION_FAILED = "VALIDATION_FAILED"
    """The validation raised an error, or its process died."""


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A committed checkpoint, as `get_all_reported_checkpoints` returns it."""

    checkpoint: checkpoint_module.Checkpoint
    metrics: dict[str, object]
    """Rank 0's metrics of the report, and the metrics of the validation."""
    status: ReportedCheckpointStatus
