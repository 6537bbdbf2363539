"""Checkpoints: handles on folders, committed whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket import train
from hocket.train import configs
from hocket.train.checkpoints import storage
from hocket.train.rank import reports
from hocket.train.run import attempt, checkpoint_manager


def make_folder(path: Path, **files: str) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def test_handle(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a", weights="w")
    checkpoint = train.Checkpoint.from_directory(folder)
    assert checkpoint.path == str(folder)
    assert checkpoint == train.Checkpoint(str(folder))
    assert hash(checkpoint) == hash(train.Checkpoint(folder))
    assert checkpoint != train.Checkpoint(tmp_path)
    with checkpoint.as_directory() as where:
        assert where == str(folder)
    copy = checkpoint.to_directory(tmp_path / "b")
    assert Path(copy, "weights").read_text() == "w"


def test_metadata(tmp_path: Path) -> None:
    checkpoint = train.Checkpoint(tmp_path)
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"epoch": 1})
    checkpoint.update_metadata({"step": 2})
    assert train.Checkpoint(tmp_path).get_metadata() == {"epoch": 1, "step": 2}


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    checkpoint = train.Checkpoint(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"gone' does not exist\. Was it removed"):
        checkpoint.to_directory(tmp_path)


class Bench:
    """Commits checkpoints as the controller does, with files given by rank."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.sources = path / "sources"
        self.storage = storage.Storage(str(path / "runs"), "run")
        storage.open_storage(self.storage)
        self.manager = checkpoint_manager.CheckpointManager(self.storage, configs.CheckpointConfig(**config))
        self.count = 0

    def commit(self, metrics: dict[str, Any], *files_by_rank: dict[str, str] | None) -> train.Checkpoint:
        row = []
        for rank, files in enumerate(files_by_rank or ({"weights": "w"},)):
            staged = None
            if files is not None:
                source = make_folder(self.sources / f"{self.count}-{rank}", **files)
                staged = storage.stage(self.storage, f"0-{self.count}-{rank}", str(source))
            row.append(reports.Report(self.count, reports.encode_metrics(metrics), staged, None))
        self.count += 1
        return self.manager.commit(row, metrics)

    def list_names(self) -> list[str]:
        return sorted(path.name for path in self.storage.path.glob("checkpoint_*"))


def test_files_of_all_ranks_are_merged(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    checkpoint = bench.commit({"loss": 1.0}, None, {"shard-1": "b"}, {"shard-2": "c", "deep/er": "d"})
    found = {
        path.relative_to(checkpoint.path).as_posix() for path in Path(checkpoint.path).rglob("*") if path.is_file()
    }
    assert found == {"shard-1", "shard-2", "deep/er", storage.MANIFEST_NAME}
    assert list(bench.storage.staging_path.iterdir()) == []


def test_files_of_one_name_with_different_contents(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.warns(UserWarning, match=r"the lowest rank's were kept: \['state'\]\. Save them in rank 0 only"):
        checkpoint = bench.commit({}, {"state": "first", "same": "s"}, {"state": "second", "same": "s"})
    assert Path(checkpoint.path, "state").read_text() == "first"


def test_the_best_are_kept_and_the_latest(tmp_path: Path) -> None:
    bench = Bench(tmp_path, num_to_keep=2, checkpoint_score_attribute="val/loss", checkpoint_score_order="min")
    for loss in (3.0, 1.0, 2.0, float("nan")):
        bench.commit({"val": {"loss": loss}})
    assert bench.list_names() == ["checkpoint_000001", "checkpoint_000002", "checkpoint_000003"]
    best = [record.metrics["val"]["loss"] for record in bench.manager.sort_by_score()]
    assert best[:2] == [1.0, 2.0]


def test_a_missing_score_is_an_error(tmp_path: Path) -> None:
    bench = Bench(tmp_path, checkpoint_score_attribute="accuracy")
    with pytest.raises(ValueError, match=r"score_attribute is 'accuracy'.* rank 0 reported \['loss'\]"):
        bench.commit({"loss": 1.0})


def test_a_later_run_finds_what_was_committed_and_nothing_else(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.commit({"epoch": 0})
    newest = bench.commit({"epoch": 1})
    newest.set_metadata({"note": "may be added later"})
    make_folder(bench.storage.path / "checkpoint_000002", weights="no manifest: not ours, or half done")
    storage.stage(bench.storage, "0-9-0", newest.path)
    make_folder(bench.storage.path / "plots", picture="not ours")
    with (
        storage.hold_storage(bench.storage),
        pytest.warns(UserWarning, match="checkpoint_000002' is damaged and not used: it has no manifest") as caught,
    ):
        again = Bench(tmp_path)
    assert len(caught) == 1
    assert again.manager.latest == newest
    assert [record.metrics["epoch"] for record in again.manager.committed] == [0, 1]
    assert not again.storage.staging_path.exists()


def test_a_copy_that_the_user_has_made_is_his(tmp_path: Path) -> None:
    """It is not removed, and takes no other one's place; what was renamed is gone on from."""
    bench = Bench(tmp_path, num_to_keep=2)
    first = bench.commit({})
    copy = first.to_directory(bench.storage.path / "best")
    again = bench
    for _ in range(3):
        again = Bench(tmp_path, num_to_keep=2)
        again.commit({})
    assert sorted(path.name for path in bench.storage.path.glob("[!.]*")) == [
        "best",
        "checkpoint_000002",
        "checkpoint_000003",
    ]
    Path(copy, "weights").write_text("changed")
    renamed = (bench.storage.path / again.manager.latest_name).rename(bench.storage.path / "renamed")
    last = Bench(tmp_path, num_to_keep=1)
    assert last.manager.latest == train.Checkpoint(renamed)
    assert last.manager.next_number == 4
    last.commit({})
    assert Path(copy).exists()
    assert renamed.exists()


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first = bench.commit({})
    second = bench.commit({})
    Path(second.path, "weights").write_text("cut")
    with pytest.warns(
        UserWarning, match=r"checkpoint_000001' is damaged .*'weights' has changed .*3 bytes now, 1 then"
    ):
        again = Bench(tmp_path)
    assert again.manager.latest == first
    third = again.commit({})
    assert third == second, "the name is free again"
    assert Path(f"{second.path}.damaged", "weights").read_text() == "cut", "what was there is kept"
    last = Bench(tmp_path)
    assert last.manager.latest == third
    Path(third.path, storage.MANIFEST_NAME).write_text("{")
    with pytest.warns(UserWarning, match=r"checkpoint_000001' is damaged and not used: its manifest cannot be read"):
        last.manager.pass_over_damaged()
    with pytest.warns(UserWarning, match="its manifest cannot be read"):
        assert Bench(tmp_path).manager.latest == last.manager.latest == first
    Path(third.path, storage.MANIFEST_NAME).unlink()
    with pytest.warns(UserWarning, match="it has no manifest, so it was not committed, or has lost files"):
        bare = Bench(tmp_path)
    assert bare.manager.latest == first
    assert bare.commit({}) == third, "the name is free again"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of a file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"Only root can mount a small file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def save_large(config: dict[str, Any]) -> None:
    for step in range(config["steps"]):
        train.report({"step": step}, train.Checkpoint(config["large"]))


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    large = make_folder(tmp_path / "large", weights="w" * 100_000)

    def fit(steps: int) -> train.Result:
        return train.DataParallelTrainer(
            save_large,
            train_loop_config={"large": str(large), "steps": steps},
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(name="run", storage_path=small_disk),
        ).fit()

    match = (
        r"the disk of '.*/\.staging' has too little space for it \(\d.* bytes are free without it\).* Free some space"
    )
    with pytest.raises(OSError, match=match) as caught:
        fit(3)
    assert caught.value.errno == errno.ENOSPC
    before = train.Result.from_path(small_disk / "run")
    assert [metrics["step"] for metrics in before.metrics_history] == [0, 1], "earlier commits are whole"
    left = sorted(path.name for path in (small_disk / "run").iterdir())
    assert left == ["checkpoint_000000", "checkpoint_000001", "run.jsonl"]
    shutil.rmtree(before.best_checkpoints[0][0].path)
    result = fit(1)
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path).name == "checkpoint_000002"


@pytest.mark.usefixtures("session")
def test_a_full_disk_of_the_driver(small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files come through the driver it is not the rank that fails, and another try would not help."""
    monkeypatch.setattr(attempt, "ALWAYS_SENDS", True)
    large = make_folder(tmp_path / "large", weights="w" * 150_000)
    trainer = train.DataParallelTrainer(
        save_large,
        train_loop_config={"large": str(large), "steps": 2},
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(
            name="run", storage_path=small_disk, failure_config=train.FailureConfig(max_failures=-1)
        ),
    )
    with pytest.raises(train.TrainingFailedError, match=r"\(\d+,\d+ bytes are free without it\)"):
        trainer.fit()
    assert len(train.Result.from_path(small_disk / "run").metrics_history) == 1


def test_a_disk_that_is_full_when_a_run_starts(small_disk: Path) -> None:
    run = storage.Storage(str(small_disk), "run")
    storage.open_storage(run)
    (small_disk / "others").write_bytes(b"o" * 256 * 1024)
    with pytest.raises(OSError, match=r"the disk of .* has too little space for it .* Free some space") as caught:
        storage.leave_token(run)
    assert caught.value.errno == errno.ENOSPC


def test_the_manifest_holds_plain_numbers(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    checkpoint = Bench(tmp_path).commit({"loss": np.float32(0.5)})
    manifest = json.loads(Path(checkpoint.path, storage.MANIFEST_NAME).read_text())
    assert manifest["metrics"] == {"loss": 0.5}
    assert manifest["files"]["weights"]["size_bytes"] == 1


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "source", weights="w", **{"inner/bias": "b"})
    scan = os.scandir

    def fail(path: Any) -> Any:
        if Path(path).name == "inner":
            raise PermissionError(errno.EACCES, "on purpose", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(PermissionError, match=r"on purpose: '.*/inner'"):
        storage.list_contents(str(folder))


def test_a_folder_that_cannot_be_copied_leaves_nothing_to_the_next_one(tmp_path: Path) -> None:
    """A rank that catches the error may report another folder, whose files go to the same place."""
    run = storage.Storage(str(tmp_path), "run")
    large = make_folder(tmp_path / "large", a="a", b="b" * 8192)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            storage.stage(run, "part", str(large))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    staged = storage.stage(run, "part", str(make_folder(tmp_path / "small", c="c")))
    assert sorted(one.name for one in Path(staged.path).iterdir()) == sorted(staged.files) == ["c"]


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    make_folder(bench.storage.path / "checkpoint_000000", weights="w")
    with pytest.raises(FileExistsError, match=r"exists already\. Give each report"):
        bench.commit({})
