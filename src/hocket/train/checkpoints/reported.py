"""Words for checkpoints that were reported: how they come into the run's folder, and how far they are."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hocket.train.checkpoints import checkpoint as checkpoint_module


class CheckpointUploadMode(enum.Enum):
    """How `report` brings a checkpoint's files into the run's folder.

    Example:
        >>> from hocket import train
        >>> train.CheckpointUploadMode.ASYNC.default_delete_local_checkpoint_after_upload()
        True
    """

    SYNC = "SYNC"
    """Before `report` returns, which it does when the checkpoint is committed."""
    ASYNC = "ASYNC"
    """While training goes on. The folder is the upload's until then, and is removed after it."""
    NO_UPLOAD = "NO_UPLOAD"
    """Not at all: the files are there already. `report` returns when the checkpoint is committed."""

    def default_delete_local_checkpoint_after_upload(self) -> bool:
        """Tell whether `report` removes the folder after the upload if it is not told."""
        return self is CheckpointUploadMode.ASYNC


class CheckpointConsistencyMode(enum.Enum):
    """The state for which `get_all_reported_checkpoints` waits."""

    COMMITTED = "COMMITTED"
    """That all reports which this rank has made are committed."""
    VALIDATED = "VALIDATED"
    """That all validations which they asked for have ended too."""


class ReportedCheckpointStatus(enum.Enum):
    """How far a checkpoint is. It is committed in all cases."""

    COMMITTED = "COMMITTED"
    """No validation was asked for."""
    PENDING_VALIDATION = "PENDING_VALIDATION"
    """Its validation has not ended."""
    VALIDATED = "VALIDATED"
    """What its validation returned is among its metrics."""
    VALIDATION_TIMEOUT = "VALIDATION_TIMEOUT"
    """Its validation took longer than `ValidationTaskConfig.timeout_s`."""
    VALIDATION_FAILED = "VALIDATION_FAILED"
    """Its validation raised, or its process died."""


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A committed checkpoint, as `get_all_reported_checkpoints` gives it."""

    checkpoint: checkpoint_module.Checkpoint
    metrics: dict[str, object]
    """Rank 0's metrics of its report, and what its validation returned."""
    status: ReportedCheckpointStatus
