"""The ways of a checkpoint's files into the run's folder: at once, or in a thread while training goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.checkpoints import kept, reported, storage

UploadFn = Callable[[checkpoint_module.Checkpoint, str], checkpoint_module.Checkpoint]
"""The type of `report`'s `checkpoint_upload_fn`."""


@dataclass(frozen=True, slots=True)
class Upload:
    """The way of one checkpoint into the run's folder.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: The values contradict each other.
    """

    mode: reported.CheckpointUploadMode = reported.CheckpointUploadMode.SYNC
    deletes: bool | None = None
    """Whether the rank's folder is removed when the checkpoint is committed. None: the mode's default."""
    function: UploadFn | None = None
    """The user's own upload function."""

    def __post_init__(self) -> None:
        if not isinstance(self.mode, reported.CheckpointUploadMode):
            raise TypeError(
                f"checkpoint_upload_mode must be a CheckpointUploadMode, but received {self.mode!r}. Write "
                "CheckpointUploadMode.ASYNC."
            )
        if self.function is not None and not callable(self.function):
            raise TypeError(
                f"checkpoint_upload_fn must be a function of a checkpoint and a name, but received {self.function!r}. "
                "Pass the function itself."
            )
        if self.mode is reported.CheckpointUploadMode.NO_UPLOAD:
            if self.function is not None:
                raise ValueError(
                    "checkpoint_upload_fn was given, but checkpoint_upload_mode is NO_UPLOAD, so the function would "
                    "not be called. Leave one of the two out."
                )
            if self.deletes:
                raise ValueError(
                    "delete_local_checkpoint_after_upload=True with CheckpointUploadMode.NO_UPLOAD would remove the "
                    "only copy. Leave it out."
                )

    @property
    def is_asynchronous(self) -> bool:
        """Whether training goes on during the upload."""
        return self.mode is reported.CheckpointUploadMode.ASYNC

    @property
    def stays(self) -> bool:
        """Whether the user puts the files into the run's folder."""
        return self.function is not None or self.mode is reported.CheckpointUploadMode.NO_UPLOAD

    @property
    def deletes_afterwards(self) -> bool:
        """Whether the rank's folder is removed when the checkpoint is committed."""
        if self.deletes is None:
            return self.mode.default_delete_local_checkpoint_after_upload()
        return self.deletes

    def check(self, run_storage: storage.Storage, source: str) -> None:
        """Raise if the folder to remove afterwards holds the run's folder, or lies in it."""
        if not self.deletes_afterwards:
            return
        run, folder = run_storage.path.resolve(), Path(source).resolve()
        if run.is_relative_to(folder) or folder.is_relative_to(run):
            raise ValueError(
                f"The checkpoint's folder {source!r} would be removed after the upload, but it "
                f"{'holds' if run.is_relative_to(folder) else 'lies in'} the run's folder {str(run)!r}. Write the "
                "checkpoint into a temporary folder, or pass delete_local_checkpoint_after_upload=False."
            )

    def call(
        self, run_storage: storage.Storage, checkpoint: checkpoint_module.Checkpoint, name: str
    ) -> storage.Adopted:
        """Upload the files with the user's function, if there is one; return where the files are."""
        if self.function is not None:
            returned: object = self.function(checkpoint, name)
            if not isinstance(returned, checkpoint_module.Checkpoint):
                raise ValueError(
                    "checkpoint_upload_fn must return the Checkpoint that it has uploaded, but returned "
                    f"{returned!r}. Write return Checkpoint(path)."
                )
            checkpoint = returned
        if checkpoint.place is not None:
            raise ValueError(
                f"checkpoint_upload_fn returned {checkpoint!r}, which is in a store, but it must return a checkpoint "
                "in the run's folder on this machine. Leave checkpoint_upload_fn out: with "
                "RunConfig(storage_path='s3://...') report() sends checkpoints to the store."
            )
        folder = Path(checkpoint.path)
        if folder.parent != run_storage.path.resolve():
            raise ValueError(
                f"A checkpoint that report() does not upload itself must be a folder in the run's folder, "
                f"{str(run_storage.path)!r}, but is {str(folder)!r}. Write it to "
                "Path(get_context().get_storage().path, name), or leave out the mode NO_UPLOAD or checkpoint_upload_fn."
            )
        if not kept.is_name(folder.name):
            raise ValueError(
                f"A checkpoint that report() does not upload itself must have {kept.NAME_RULE}, but is "
                f"{str(folder)!r}. Give the folder another name."
            )
        storage.check_source(str(folder))
        return storage.Adopted(str(folder))


class Outbox:
    """A queue of jobs for one thread, which starts with the first job.

    Args:
        fail: Takes the first error of a job. Later jobs are skipped.
    """

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._fail = fail
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left = 0
        self._has_failed = False
        self._changed = threading.Condition()

    @property
    def is_idle(self) -> bool:
        """Whether all jobs are done."""
        return self._left == 0

    def put(self, job: Callable[[], None]) -> None:
        """Add a job behind all earlier jobs."""
        with self._changed:
            self._left += 1
        self._queue.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hocket-upload", daemon=True)
            self._thread.start()

    def wait_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs are done or skipped; return whether they are in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._left == 0, timeout_s)

    def close(self, *, discard: bool = False) -> None:
        """End the thread after all jobs; with `discard`, after the present job."""
        self._has_failed |= discard
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            if not self._has_failed:
                try:
                    job()
                except Exception as error:  # noqa: BLE001 (it is raised where the user waits)
                    self._has_failed = True
                    self._fail(error)
            with self._changed:
                self._left -= 1
                self._changed.notify_all()
