"""The functions that a training function calls: for the rank's place, its reports, and the run's checkpoints."""

from __future__ import annotations

from typing import Any, final

from hocket.train import preemption, refusals
from hocket.train import validation as validation_module
from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.checkpoints import reported, storage, uploads
from hocket.train.rank import questions, rank_info, report_forms, worker_session


@final
class TrainContext:
    """A rank's place in its group. Made by `get_context`."""

    def __init__(self, info: rank_info.RankInfo) -> None:
        self._info = info

    def get_world_size(self) -> int:
        """Return the number of ranks."""
        return self._info.world_size

    def get_world_rank(self) -> int:
        """Return this rank's index, from 0."""
        return self._info.rank

    def get_local_rank(self) -> int:
        """Return this rank's index among those on its machine."""
        return self._info.local_rank

    def get_local_world_size(self) -> int:
        """Return the number of ranks on this rank's machine."""
        return self._info.local_world_size

    def get_node_rank(self) -> int:
        """Return the index of this rank's machine among those of the group."""
        return self._info.node_rank

    def get_experiment_name(self) -> str:
        """Return the run's name."""
        return self._info.run_storage.experiment_name

    def get_storage(self) -> storage.Storage:
        """Return the place of the run's folder."""
        return self._info.run_storage

    get_metadata = refusals.build_method("TrainContext", "get_metadata")
    get_trial_name = refusals.build_method("TrainContext", "get_trial_name")
    get_trial_id = refusals.build_method("TrainContext", "get_trial_id")
    get_trial_resources = refusals.build_method("TrainContext", "get_trial_resources")
    get_trial_dir = refusals.build_method("TrainContext", "get_trial_dir")


def get_context() -> TrainContext:
    """Return the calling rank's place in its group.

    Raises:
        RuntimeError: The function is called outside a training function.
    """
    return TrainContext(worker_session.get_session("get_context").info)


def get_checkpoint() -> checkpoint_module.Checkpoint | None:
    """Return the run's latest committed checkpoint, to resume from; None at a fresh start.

    On a machine that does not share the run's folder, the files arrive at their first use (`Checkpoint.path`).

    Raises:
        RuntimeError: The function is called outside a training function.
    """
    return worker_session.get_session("get_checkpoint").checkpoint


def get_preemption_info() -> preemption.PreemptionInfo | None:
    """Return the ranks that got SIGTERM, the same in every rank; None if no rank did.

    If there are some, report a checkpoint and go on: the group starts again after the commit, and no work is lost. The
    function waits until every rank has called it, which costs a round trip to the driver. If steps are short, call it
    every few steps.

    Raises:
        RuntimeError: The function is called outside a training function.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> def loop():
        ...     for step in range(3):
        ...         checkpoint = None
        ...         with tempfile.TemporaryDirectory() as folder:
        ...             if step == 2 or train.get_preemption_info() is not None:
        ...                 checkpoint = train.Checkpoint(folder)  # with files in it
        ...             train.report({"step": step}, checkpoint)
        >>> trainer = train.DataParallelTrainer(
        ...     loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().metrics
        {'step': 2}
    """
    session = worker_session.get_session("get_preemption_info")
    info: preemption.PreemptionInfo | None = session.meet(questions.PREEMPTION, None)
    return info


def get_all_reported_checkpoints(
    consistency_mode: reported.CheckpointConsistencyMode = reported.CheckpointConsistencyMode.VALIDATED,
    timeout_s: float | None = None,
) -> list[reported.ReportedCheckpoint]:
    """Return the run's existing checkpoints, oldest first, including those of earlier attempts and runs.

    The function waits until all reports of this rank are committed, and validated if they requested that. A report is
    committed when all ranks have made it.

    Args:
        consistency_mode: ``COMMITTED`` does not wait for validations.
        timeout_s: The most seconds to wait; after that, the known checkpoints are returned. None waits without end.

    Raises:
        TypeError: The mode is not a `CheckpointConsistencyMode`.
        ValueError: The time-out is negative.
        RuntimeError: The function is called outside a training function.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> def loop():
        ...     for step in range(2):
        ...         with tempfile.TemporaryDirectory() as folder:
        ...             train.report({"step": step}, train.Checkpoint(folder))
        ...     for found in train.get_all_reported_checkpoints():
        ...         print(found.metrics, found.status.value)
        >>> trainer = train.DataParallelTrainer(
        ...     loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> result = trainer.fit()
        {'step': 0} COMMITTED
        {'step': 1} COMMITTED
    """
    if not isinstance(consistency_mode, reported.CheckpointConsistencyMode):
        raise TypeError(
            f"consistency_mode must be a CheckpointConsistencyMode, but received {consistency_mode!r}. Write "
            "CheckpointConsistencyMode.COMMITTED."
        )
    if timeout_s is not None and timeout_s < 0:
        raise ValueError(
            f"timeout_s must be 0 or more seconds, or None, but received {timeout_s!r}. Leave it out to wait without a "
            "limit."
        )
    session = worker_session.get_session("get_all_reported_checkpoints")
    return session.list_checkpoints(consistency_mode, timeout_s)


@report_forms.serve_both
def report(
    metrics: dict[str, Any],
    checkpoint: checkpoint_module.Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: reported.CheckpointUploadMode = reported.CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: uploads.UploadFn | None = None,
    validation: bool | validation_module.ValidationTaskConfig = False,
) -> None:
    """Send metrics and optionally a checkpoint to the controller. In functions of `Trainer`: ``report(loss=0.5)``.

    Every rank must call `report` the same number of times. The n-th reports of all ranks belong together: rank 0's
    metrics go into the `Result`, callbacks see the metrics of all ranks, and the files of all ranks that pass a
    checkpoint become one checkpoint.

    Without a checkpoint, `report` returns at once. With one, the files are copied, or sent to the driver if this
    machine does not share the run's folder. `report` then returns when the checkpoint is committed, which takes the
    reports of all ranks. From then on, training can resume from it, whatever dies.

    With ``CheckpointUploadMode.ASYNC``, `report` returns at once, and the upload runs while training goes on. Commits
    keep the order of the reports, and the end of the training function waits for them. A failed upload ends the
    training with its error.

    Args:
        metrics: Plain values by name. Tensors are refused.
        checkpoint: A folder of files. It may be removed after `report`; in mode ``ASYNC``, only after the commit.
        checkpoint_dir_name: The checkpoint's name in the run's folder. Default: ``checkpoint_`` and a number.
        checkpoint_upload_mode: Whether training waits for the upload. With ``NO_UPLOAD``, `checkpoint` is a folder in
            the run's folder, ``get_context().get_storage().path``, and becomes a checkpoint in place.
        delete_local_checkpoint_after_upload: Whether `checkpoint` is removed after the commit. Default: only in mode
            ``ASYNC``.
        checkpoint_upload_fn: Replaces the copy. It is called with the checkpoint and the name of a folder, writes the
            files into the folder of that name in the run's folder, and returns that folder as a checkpoint.
        validation: Whether to validate the checkpoint by the trainer's `ValidationConfig`; a `ValidationTaskConfig`
            overrides its settings.

    Raises:
        TypeError: The metrics are not a dict, the checkpoint is not a `Checkpoint`, or another type is wrong.
        ValueError: The metrics hold a tensor or cannot be pickled; the name is not one folder's name; a validation is
            requested without a checkpoint or without a `ValidationConfig`; or the folder to remove holds files that
            must stay.
        RuntimeError: The function is called outside a training function.

    Example:
        >>> import tempfile
        >>> from hocket import train
        >>> def loop():
        ...     folder = tempfile.mkdtemp()  # the upload removes it
        ...     mode = train.CheckpointUploadMode.ASYNC
        ...     train.report({"step": 0}, train.Checkpoint(folder), checkpoint_upload_mode=mode)
        >>> trainer = train.DataParallelTrainer(
        ...     loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... )
        >>> trainer.fit().checkpoint is not None
        True
    """
    session = worker_session.get_session("report")
    upload = uploads.Upload(checkpoint_upload_mode, delete_local_checkpoint_after_upload, checkpoint_upload_fn)
    session.report(metrics, checkpoint, checkpoint_dir_name, upload, validation)


__test__ = {"report": report}  # doctest finds the examples of a wrapped function only here
