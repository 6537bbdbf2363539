"""Checkpoints that are uploaded while training goes on, by the user's function, or not at all."""

from __future__ import annotations

import io
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
from hocket.stores import manifests
from hocket.train import CheckpointUploadMode
from hocket.train.checkpoints import storage, uploads
from hocket.train.rank import worker_session

anything: Any = train  # what the type checker refuses is given on purpose

ASYNC, SYNC, NO_UPLOAD = CheckpointUploadMode.ASYNC, CheckpointUploadMode.SYNC, CheckpointUploadMode.NO_UPLOAD


def fit(function: Any, path: Path, num_workers: int = 2, config: Any = None, **run: Any) -> train.Result:
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(name="run", storage_path=path, **run),
    ).fit()


def make_folder(**files: str) -> str:
    folder = tempfile.mkdtemp(dir=train.get_context().get_storage().storage_path)
    for name, text in files.items():
        Path(folder, name).write_text(text)
    return folder


class Gate:
    """Holds the upload of one file back until it is opened."""

    def __init__(self, path: Path) -> None:
        path.write_text("weights")
        self._is_open = threading.Event()
        self._copy = manifests.copy

        def copy(source: Path, target: Path) -> storage.FileRecord:
            if source == path:
                assert self._is_open.wait(60)
            return self._copy(source, target)

        manifests.copy = copy

    def open(self) -> None:
        manifests.copy = self._copy
        self._is_open.set()


def save_behind_a_gate(config: dict[str, Any]) -> dict[str, Any]:
    """The first upload cannot end before the training function has gone on and made two more reports."""
    rank = train.get_context().get_world_rank()
    first, second = Path(make_folder()), make_folder(step="2")
    gate = Gate(first / f"slow-{rank}")
    train.report({"step": 0}, train.Checkpoint(first), checkpoint_upload_mode=ASYNC)
    before = train.get_checkpoint()
    train.report({"step": 1})
    train.report({"step": 2}, train.Checkpoint(second), checkpoint_upload_mode=ASYNC)
    gate.open()
    found = train.get_all_reported_checkpoints()
    return {
        "before": before,
        "steps": [one.metrics["step"] for one in found],
        "folders": [str(first), second],
    }


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_training_goes_on_and_the_order_stays(tmp_path: Path, num_workers: int) -> None:
    result = fit(save_behind_a_gate, tmp_path, num_workers, {})
    folders = result.return_value.pop("folders")
    assert result.return_value == {"before": None, "steps": [0, 2]}
    assert not any(Path(folder).exists() for folder in folders)
    assert [metrics["step"] for metrics in result.metrics_history] == [0, 1, 2]
    assert result.checkpoint is not None
    kept = Path(result.path, "checkpoint_000000")
    assert (kept / "slow-0").read_text() == "weights"
    assert not Path(result.path, ".staging").exists()


def save_and_return(config: dict[str, Any]) -> str:
    folder = make_folder(**{str(train.get_context().get_world_rank()): "w" * 3_000_000})
    train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=ASYNC)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_end_waits_for_uploads(tmp_path: Path, num_workers: int) -> None:
    result = fit(save_and_return, tmp_path, num_workers, {})
    assert result.checkpoint is not None
    assert Path(result.checkpoint.path, "0").stat().st_size == 3_000_000
    assert not Path(result.return_value).exists(), "it is removed after the upload"


def test_inprocess_engine(tmp_path: Path) -> None:
    with hocket.init(num_cpus=1, engine="inprocess"):
        assert fit(save_behind_a_gate, tmp_path, 1, {}).return_value["steps"] == [0, 2]


def keep_folder(config: dict[str, Any]) -> str:
    folder = make_folder(a="1")
    train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=ASYNC, delete_local_checkpoint_after_upload=False)
    return folder


def delete_after_sync(config: dict[str, Any]) -> str:
    folder = make_folder(a="1")
    train.report({}, train.Checkpoint(folder), delete_local_checkpoint_after_upload=True)
    assert not Path(folder).exists()
    return folder


def test_whether_the_folder_is_removed_can_be_said(tmp_path: Path) -> None:
    kept = fit(keep_folder, tmp_path / "a", 0, {}).return_value
    assert [path.name for path in Path(kept).iterdir()] == ["a"]
    assert not Path(fit(delete_after_sync, tmp_path / "b", 0, {}).return_value).exists()


def fail_in_the_background(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 1:
        train.report({}, train.Checkpoint("/nothing/is/here"), checkpoint_upload_mode=ASYNC)
    else:
        train.report({})
    if config["waits"]:
        threading.Event().wait(600)  # the error ends it


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("waits", [True, False])
def test_a_failed_upload_ends_the_training_and_names_the_rank(tmp_path: Path, waits: bool) -> None:
    match = r"^Rank 1 of 2 raised FileNotFoundError: report\(\) received a checkpoint whose folder '/nothing/is/here'"
    with pytest.raises(train.WorkerGroupError, match=match) as caught:
        fit(fail_in_the_background, tmp_path, config={"waits": waits})
    assert list(caught.value.worker_failures) == [1]


def test_files_that_are_removed_before_they_are_uploaded_are_missed(tmp_path: Path) -> None:
    def loop() -> None:
        first, second = Path(make_folder()), make_folder(a="1", b="2")
        gate = Gate(first / "slow")
        train.report({}, train.Checkpoint(first), checkpoint_upload_mode=ASYNC)
        train.report({}, train.Checkpoint(second), checkpoint_upload_mode=ASYNC)
        Path(second, "b").unlink()
        gate.open()

    with pytest.raises(FileNotFoundError, match=r"The file 'b' of a reported checkpoint was removed before"):
        fit(loop, tmp_path, 0)
    assert not (tmp_path / "run" / "checkpoint_000001").exists()


@pytest.mark.parametrize("then", [lambda: None, lambda: train.report({}), train.get_all_reported_checkpoints])
def test_a_failed_upload_without_workers(tmp_path: Path, then: Any) -> None:
    def loop() -> None:
        train.report({}, train.Checkpoint("/nothing/is/here"), checkpoint_upload_mode=ASYNC)
        then()

    with pytest.raises(FileNotFoundError, match="'/nothing/is/here' does not exist"):
        fit(loop, tmp_path, 0)
    assert not any(thread.name == "hocket-upload" for thread in threading.enumerate())


def upload(checkpoint: train.Checkpoint, name: str) -> train.Checkpoint:
    """Write shards into the agreed folder, as a user's own uploader does."""
    folder = Path(train.get_context().get_storage().path, name)
    return train.Checkpoint(checkpoint.to_directory(folder))


def upload_by_oneself(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    for step, mode in enumerate((SYNC, ASYNC)):
        folder = make_folder(**{f"shard-{rank}": str(step)})
        name = config["name"] and f"{config['name']}-{step}"
        train.report(
            {"step": step}, train.Checkpoint(folder), name, checkpoint_upload_mode=mode, checkpoint_upload_fn=upload
        )


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(("num_workers", "name"), [(0, None), (2, None), (2, "mine")])
def test_a_function_of_the_user_uploads(tmp_path: Path, num_workers: int, name: str | None) -> None:
    newest = Path()
    for first in (0, 2)[: 1 if name else 2]:  # names do not clash with those of an earlier run
        result = fit(upload_by_oneself, tmp_path, num_workers, {"name": name})
        assert len(result.best_checkpoints) == first + 2
        newest = Path(result.best_checkpoints[-1][0].path)
        assert sorted(path.name for path in newest.glob("shard-*")) == [
            f"shard-{r}" for r in range(max(1, num_workers))
        ]
        manifest = storage.get_optional_manifest(newest)
        assert manifest is not None
        assert storage.find_damage(newest, manifest) is None
        assert train.Result.from_path(result.path).checkpoint == result.checkpoint
    if name:
        assert newest.name == "mine-1"


def write_in_place(config: dict[str, Any]) -> None:
    context = train.get_context()
    folder = Path(context.get_storage().path, "in-place")
    folder.mkdir(exist_ok=True)
    (folder / f"shard-{context.get_world_rank()}").write_text("w")
    train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=NO_UPLOAD)
    assert train.get_checkpoint() == train.Checkpoint(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_files_that_are_there_become_a_checkpoint(tmp_path: Path) -> None:
    result = fit(write_in_place, tmp_path, 2, {})
    manifest = storage.get_optional_manifest(tmp_path / "run" / "in-place")
    assert manifest is not None
    assert sorted(manifest["files"]) == ["shard-0", "shard-1"]
    with pytest.raises(FileExistsError, match=r"in-place' is committed already\. Give each"):
        fit(write_in_place, tmp_path, 0, {})
    assert train.Result.from_path(result.path).checkpoint == result.checkpoint


def upload_unequally(config: dict[str, Any]) -> None:
    context = train.get_context()
    folder = Path(context.get_storage().path, f"in-place-{context.get_world_rank()}")
    folder.mkdir()
    mode = SYNC if config["mixed"] and context.get_world_rank() else NO_UPLOAD
    train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=mode)


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("mixed", "match"), [(False, "but gave .*in-place-0', .*in-place-1']"), (True, "left the upload to")]
)
def test_ranks_must_upload_in_the_same_way(tmp_path: Path, mixed: bool, match: str) -> None:
    with pytest.raises(train.TrainingFailedError, match=match):
        fit(upload_unequally, tmp_path, config={"mixed": mixed})


def report_own_run(**options: Any) -> None:
    train.report({}, train.Checkpoint(train.get_context().get_storage().path), **options)


def report_made(name: str, **settings: Any) -> None:
    """Report a folder that is made in the run's folder."""
    folder = Path(train.get_context().get_storage().path, name)
    folder.mkdir()
    train.report({}, train.Checkpoint(folder), **settings)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: anything.report({}, checkpoint_upload_mode="ASYNC"),
            TypeError,
            "must be a CheckpointUploadMode, .* 'ASYNC'",
        ),
        (
            lambda: anything.report({}, checkpoint_upload_fn=1),
            TypeError,
            "checkpoint_upload_fn must be a function .* 1",
        ),
        (
            lambda: train.report({}, checkpoint_upload_mode=NO_UPLOAD, checkpoint_upload_fn=upload),
            ValueError,
            "the function would not be called. Leave one of the two out",
        ),
        (
            lambda: train.report({}, checkpoint_upload_mode=NO_UPLOAD, delete_local_checkpoint_after_upload=True),
            ValueError,
            "would remove the only copy",
        ),
        (
            lambda: report_own_run(checkpoint_upload_mode=ASYNC),
            ValueError,
            r"it holds the run's folder .* temporary folder",
        ),
        (lambda: report_own_run(checkpoint_upload_mode=NO_UPLOAD), ValueError, "must be a folder in the run's folder"),
        (
            lambda: report_made("mine.damaged", checkpoint_upload_mode=NO_UPLOAD),
            ValueError,
            r"not start with '\.' or end with '\.damaged', but is '.*mine\.damaged'\. Give the folder another name",
        ),
        (
            lambda: report_made("a", checkpoint_upload_fn=lambda one, _: train.Checkpoint(f"{one.path}.damaged")),
            ValueError,
            r"end with '\.damaged', but is '.*a\.damaged'",
        ),
        (
            lambda: report_own_run(checkpoint_upload_fn=lambda checkpoint, name: name),
            ValueError,
            r"checkpoint_upload_fn must return the Checkpoint .* returned 'checkpoint_0",
        ),
    ],
)
def test_what_report_refuses(tmp_path: Path, call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        fit(call, tmp_path, 0)


def test_a_committed_checkpoint_is_not_removed_by_reporting_it_again(tmp_path: Path) -> None:
    def loop() -> None:
        train.report({}, train.Checkpoint(make_folder(a="1")))
        committed = train.get_checkpoint()
        train.report({}, committed, checkpoint_upload_mode=ASYNC)

    with pytest.raises(ValueError, match=r"would be removed after the upload, but it lies in the run's folder"):
        fit(loop, tmp_path, 0)
    assert len(train.Result.from_path(tmp_path / "run").metrics_history) == 1


def save_and_fail(config: dict[str, Any]) -> None:
    folder = make_folder(large="x" * 20_000_000)
    train.report({"step": 0}, train.Checkpoint(folder), checkpoint_upload_mode=ASYNC)
    raise ValueError("after its report")


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.usefixtures("session")
def test_what_was_reported_before_a_failure_is_uploaded(tmp_path: Path, num_workers: int) -> None:
    with pytest.raises((ValueError, train.WorkerGroupError), match="after its report"):
        fit(save_and_fail, tmp_path, num_workers)
    found = train.Result.from_path(tmp_path / "run").checkpoint
    assert found is not None
    assert Path(found.path, "large").stat().st_size == 20_000_000


def report_file(config: dict[str, Any]) -> None:
    train.report({}, train.Checkpoint(Path(make_folder(weights="1"), "weights")))


def test_a_checkpoint_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match=r"which is a file\. A checkpoint is a folder: put the file into one"):
        fit(report_file, tmp_path, 0)


def test_nothing_follows_a_failure() -> None:
    done: list[str] = []
    failures: list[Exception] = []
    outbox = uploads.Outbox(failures.append)

    def fail() -> None:
        raise LookupError("full")

    outbox.put(lambda: done.append("first"))
    outbox.put(fail)
    outbox.put(lambda: done.append("never"))
    assert outbox.wait_idle()
    outbox.close()
    assert done == ["first"]
    assert [str(error) for error in failures] == ["full"]


def move_on_behind_a_gate() -> None:
    position = {"epoch": 1}
    worker_session.get_session("test").track("loader", lambda: dict(position))
    folder = Path(make_folder())
    gate = Gate(folder / "slow")
    train.report({}, train.Checkpoint(folder), checkpoint_upload_mode=ASYNC)
    position["epoch"] = 2
    gate.open()


def test_a_checkpoint_has_the_positions_of_its_report_and_not_of_its_upload(tmp_path: Path) -> None:
    result = fit(move_on_behind_a_gate, tmp_path, num_workers=0)
    assert result.checkpoint is not None
    manifest = storage.get_optional_manifest(Path(result.checkpoint.path))
    assert manifest is not None
    assert manifest["positions"] == {"loader": {"epoch": 1}}


def test_what_is_appended_to_a_file_while_it_is_copied_is_left_out(tmp_path: Path) -> None:
    """Else there might be no end."""
    log = tmp_path / "log"
    log.write_bytes(b"x" * 10)

    class Grows(io.BytesIO):
        def write(self, data: Any) -> int:
            with log.open("ab") as file:
                file.write(b"y" * 10)
            return super().write(data)

    copy = Grows()
    with log.open("rb") as reader:
        record = manifests.read_open(reader, copy)
    assert (copy.getvalue(), record.size_bytes) == (b"x" * 10, 10)
    assert log.stat().st_size == 20
