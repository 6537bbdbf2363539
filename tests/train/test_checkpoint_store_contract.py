"""Each way of checkpoints into a run's folder, against the contract of what stores checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import fsspec  # type: ignore[import-untyped,unused-ignore]  # it has no stubs
import pytest

from hocket import train
from hocket.stores import places
from hocket.testing.checkpoint_store_contract import CheckpointStore, CheckpointStoreContract
from hocket.train import configs
from hocket.train.checkpoints import file_chunks, replica, storage
from hocket.train.rank import reports
from hocket.train.run import checkpoint_manager

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.about_local("nothing: it needs no engine, and forks, which a Ray in this process does not bear"),
]


class Shared:
    """Ranks that share the run's folder with the driver, which commits what they have staged."""

    def __init__(self, place: Path, num_to_keep: int | None) -> None:
        self.storage = storage.Storage(str(place), "run")
        with storage.hold_storage(self.storage):
            config = configs.CheckpointConfig(num_to_keep=num_to_keep)
            self._manager = checkpoint_manager.CheckpointManager(self.storage, config)

    def stage(self, source: Path, rank: int, step: int) -> storage.Staged | storage.Adopted:
        return storage.stage(self.storage, f"0-{step}-{rank}", str(source))

    def save(self, sources: Sequence[Path], step: int) -> None:
        metrics = {"step": step}
        row = [
            reports.Report(step, reports.encode_metrics(metrics), self.stage(source, rank, step), None)
            for rank, source in enumerate(sources)
        ]
        self._manager.commit(row, metrics)

    def list_steps(self) -> list[int]:
        return [record.metrics["step"] for record in self._manager.committed]

    def open_checkpoint(self, step: int) -> Path:
        return next(
            Path(record.checkpoint.path) for record in self._manager.committed if record.metrics["step"] == step
        )


class Sent(Shared):
    """Ranks that share no folder with the driver: the files travel in chunks."""

    def stage(self, source: Path, rank: int, step: int) -> storage.Staged:
        storage.check_source(str(source))
        folders, names = storage.list_contents(str(source))
        target = self.storage.staging_path / f"0-{step}-{rank}"
        unpacker = file_chunks.Unpacker(target, f"rank {rank}'s checkpoint", is_durable=True)
        try:
            for chunk in file_chunks.pack(str(source), folders, names, {}, chunk_bytes=1_000_000):
                unpacker.take(chunk)
            return unpacker.finish()
        finally:
            unpacker.close()


class Uploaded(Shared):
    """Ranks that bring the files into the run's folder themselves."""

    def stage(self, source: Path, rank: int, step: int) -> storage.Adopted:
        storage.check_source(str(source))
        storage.list_contents(str(source))
        folder = self.storage.path / f"mine-{step}"
        shutil.copytree(source, folder, dirs_exist_ok=True)
        return storage.Adopted(str(folder))


class Stored(Shared):
    """A run that is kept in a store, which is a folder that fsspec writes to."""

    def __init__(self, place: Path, num_to_keep: int | None) -> None:
        self._copies = place.parent / "copies"
        shutil.rmtree(place.parent / "work", ignore_errors=True)
        self.storage = storage.Storage(str(place.parent / "work"), "run")
        storage.open_storage(self.storage)
        self.filesystem = fsspec.filesystem("dir", path=str(place), fs=fsspec.filesystem("file", auto_mkdir=True))
        stored = replica.Replica(places.find_place("run", self.filesystem, "a test"), self.storage)
        stored.open()
        config = configs.CheckpointConfig(num_to_keep=num_to_keep)
        self._manager = checkpoint_manager.CheckpointManager(self.storage, config, None, stored)
        self._manager.bring_newest()

    def open_checkpoint(self, step: int) -> Path:
        record = next(record for record in self._manager.committed if record.metrics["step"] == step)
        target = self._copies / str(step)
        shutil.rmtree(target, ignore_errors=True)
        return Path(self._manager.publish(record).to_directory(target))


class TestSharedFolder(CheckpointStoreContract):
    def open_store(self, place: Path, num_to_keep: int | None = None) -> CheckpointStore:
        return Shared(place, num_to_keep)


class TestSentFiles(CheckpointStoreContract):
    def open_store(self, place: Path, num_to_keep: int | None = None) -> CheckpointStore:
        return Sent(place, num_to_keep)


class TestOwnUpload(CheckpointStoreContract):
    def open_store(self, place: Path, num_to_keep: int | None = None) -> CheckpointStore:
        return Uploaded(place, num_to_keep)


class TestStore(CheckpointStoreContract):
    limits: ClassVar = {"damage": "What is read is a copy. tests/train/test_stored_runs.py damages the store."}

    def open_store(self, place: Path, num_to_keep: int | None = None) -> CheckpointStore:
        return Stored(place, num_to_keep)

    @pytest.mark.parametrize("kind", ["many", "large", "deep"])  # names are text in stores, and nothing is in no folder
    def test_what_is_saved_is_found_whole(self, kind: str, place: Path, tmp_path: Path) -> None:
        super().test_what_is_saved_is_found_whole(kind, place, tmp_path)


class Trained:
    """A trainer: each save is a run of that name, which reports one checkpoint; who reads asks for the run's result."""

    def __init__(
        self, place: Path, num_to_keep: int | None, upload_mode: train.CheckpointUploadMode, *, reads_first: bool = True
    ) -> None:
        self._place = place
        self._num_to_keep = num_to_keep
        self._mode = upload_mode
        self._found: list[tuple[train.Checkpoint, dict[str, Any]]] = []
        if reads_first and (place / "run").exists():
            self._found = train.Result.from_path(place / "run").best_checkpoints

    def save(self, sources: Sequence[Path], step: int) -> None:
        def report() -> None:
            train.report(
                {"step": step},
                train.Checkpoint(sources[0]),
                checkpoint_upload_mode=self._mode,
                delete_local_checkpoint_after_upload=False,
            )

        checkpoints = train.CheckpointConfig(num_to_keep=self._num_to_keep)
        result = train.DataParallelTrainer(
            report,
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(name="run", storage_path=self._place, checkpoint_config=checkpoints),
        ).fit()
        self._found = result.best_checkpoints

    def list_steps(self) -> list[int]:
        return [metrics["step"] for _, metrics in self._found]

    def open_checkpoint(self, step: int) -> Path:
        return next(Path(checkpoint.path) for checkpoint, metrics in self._found if metrics["step"] == step)


class TestTrainer(CheckpointStoreContract):
    mode = train.CheckpointUploadMode.SYNC
    limits: ClassVar = {
        "parts": "Without workers there is one rank.",
        "errors": "A run passes over a checkpoint that it cannot read when it begins.",
    }

    def open_store(self, place: Path, num_to_keep: int | None = None) -> CheckpointStore:
        return Trained(place, num_to_keep, self.mode)


class TestTrainerInTheBackground(TestTrainer):
    mode = train.CheckpointUploadMode.ASYNC


class Naive:
    """Copies into the final folder."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def save(self, sources: Sequence[Path], step: int) -> None:
        for source in sources:
            shutil.copytree(source, self._place / str(step), dirs_exist_ok=True)

    def list_steps(self) -> list[int]:
        return sorted(int(folder.name) for folder in self._place.iterdir())

    def open_checkpoint(self, step: int) -> Path:
        return self._place / str(step)


class NaiveContract(CheckpointStoreContract):
    def open_store(self, place: Path, num_to_keep: int | None = None) -> CheckpointStore:
        return Naive(place)


@pytest.mark.parametrize(
    "test",
    [
        "test_a_save_that_is_killed_anywhere_is_whole_or_not_there",
        "test_a_save_that_fails_anywhere_is_whole_or_not_there",
        "test_the_order_is_that_of_the_commits",
        "test_those_beyond_num_to_keep_are_removed",
    ],
)
def test_mistakes_are_found(test: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, shutil.Error)):
        getattr(NaiveContract(), test)(tmp_path / "place", tmp_path)


class RemovesTooEarly(Shared):
    """Makes room before the next checkpoint is there."""

    def save(self, sources: Sequence[Path], step: int) -> None:
        for record in self._manager.committed:
            shutil.rmtree(record.checkpoint.path)
        super().save(sources, step)


def test_a_store_that_removes_before_it_commits_is_found(tmp_path: Path) -> None:
    class Judge(CheckpointStoreContract):
        def open_store(self, place: Path, num_to_keep: int | None = None) -> CheckpointStore:
            return RemovesTooEarly(place, num_to_keep)

    with pytest.raises(AssertionError, match="after use"):
        Judge().test_one_is_left_wherever_a_save_that_replaces_it_is_killed(tmp_path / "place", tmp_path)
