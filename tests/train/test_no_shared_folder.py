"""Ranks that do not see the run's folder: their files reach the driver, and committed ones reach them, whole or not
at all."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
from hocket.testing import Leftovers, fail_at
from hocket.train.checkpoints import cache, file_chunks, storage, uploads
from hocket.train.rank import questions, rank_info, worker_session
from hocket.train.run import controller
from tests.conftest import ENGINE
from tests.train import apart

pytestmark = pytest.mark.slow

OBSTACLE = apart.find_obstacle()

LARGE = 3 * file_chunks.CHUNK_BYTES + 12345
"""More than a rank may be ahead of the driver."""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where ranks put their copies; nothing may be left there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert list(folder.glob(f"{cache.FOLDER_PREFIX}*")) == []


@pytest.fixture
def open_session() -> Iterator[Any]:
    """Open a session when the test has armed its faults, and see that it leaves nothing behind; Ray leaves sockets
    open in its driver."""
    before = Leftovers.look()
    yield lambda: hocket.init(num_cpus=2)
    hocket.shutdown()
    if ENGINE != "ray":
        assert before.list_new() == []


def fit(function: Any, path: Path, num_workers: int = 2, spared: int = 0, **run: Any) -> train.Result:
    """Train with ranks that do not see ``path / "run"``, but for the first `spared` of them.

    Where a mount namespace is not permitted, ranks are told not to trust their eyes.
    """
    config = {"run": str(path / "run"), "notes": str(path)}
    if not OBSTACLE:
        config["cover"] = apart.Covered(path / "run", spared)  # type: ignore[assignment]  # arrives as its path
    return train.DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(name="run", storage_path=path, **run),
    ).fit()


@pytest.fixture(autouse=True)
def send_files_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    if OBSTACLE:
        monkeypatch.setattr(controller, "ALWAYS_SENDS", True)


def make_bytes(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save(files: dict[str, bytes], metrics: dict[str, Any], **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_bytes(content)
        train.report(metrics, train.Checkpoint.from_directory(folder), **options)


# --- there and back ---------------------------------------------------------------------------------------------------


def save_and_read_back(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    other = 1 - rank
    large = make_bytes(LARGE, rank)
    save({f"large-{rank}": large, f"deep/er/small-{rank}": b"s", f"empty-{rank}": b""}, {"rank": rank})
    committed = train.get_checkpoint()
    assert committed is not None
    with committed.as_directory() as folder:
        assert Path(folder, f"large-{other}").read_bytes() == make_bytes(LARGE, other)
        assert Path(folder, f"deep/er/small-{other}").read_bytes() == b"s"
        assert Path(folder, f"empty-{other}").read_bytes() == b""
    assert committed.origin == f"{config['run']}/checkpoint_000000"
    with tempfile.TemporaryDirectory() as copy:
        committed.to_directory(copy)
        names = sorted(path.name for path in Path(copy).rglob("*") if path.is_file())
    metrics = {
        "rank": rank,
        "path": committed.path,
        "names": names,
        "sees": [path.name for path in Path(config["run"]).iterdir()],
    }
    train.report(metrics)


class Collect(train.UserCallback):
    def __init__(self) -> None:
        self.rows: list[list[dict[str, Any]]] = []

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.rows.append(metrics)


@pytest.mark.parametrize("spared", [0, 1])
def test_files_of_all_ranks_arrive_and_come_back(tmp_path: Path, open_session: Any, spared: int) -> None:
    open_session()
    collect = Collect()
    result = fit(save_and_read_back, tmp_path, spared=spared, callbacks=[collect])
    assert result.checkpoint is not None
    kept = Path(result.checkpoint.path)
    assert kept == tmp_path / "run" / "checkpoint_000000"
    for rank in (0, 1):
        assert (kept / f"large-{rank}").read_bytes() == make_bytes(LARGE, rank)
    manifest = storage.get_optional_manifest(kept)
    assert manifest is not None
    assert storage.find_damage(kept, manifest) is None
    assert set(manifest["files"]) == {
        f"{name}-{rank}" for name in ("large", "deep/er/small", "empty") for rank in (0, 1)
    }
    assert not (tmp_path / "run" / ".staging").exists()
    first, second = collect.rows[1]
    assert len(first["names"]) == 7  # the manifest too
    assert first["names"] == second["names"]
    if not OBSTACLE:
        seen = [row["sees"] for row in (first, second)]
        assert seen.count([]) == 2 - spared, "a rank that was covered sees nothing"
        assert [str(kept) == row["path"] for row in (first, second)].count(True) == spared
    if not spared:
        assert first["path"] == second["path"], "ranks of one node have one copy"


def count_to_three(config: dict[str, Any]) -> int:
    rank = train.get_context().get_world_rank()
    start = train.get_checkpoint()
    first = int(Path(start.path, "step").read_text()) + 1 if start else 0
    for step in range(first, 4):
        fired = Path(config["notes"], "fired")
        if step == 2 and rank == 1 and not fired.exists():
            fired.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        save({"step" if rank == 0 else "other": str(step).encode()}, {"step": step, "first": first})
    return first


def test_a_group_that_starts_again_finds_the_last_commit(tmp_path: Path, open_session: Any) -> None:
    open_session()
    result = fit(count_to_three, tmp_path, failure_config=train.FailureConfig(max_failures=1))
    assert (tmp_path / "fired").exists()
    assert [(row["step"], row["first"]) for row in result.metrics_history] == [(0, 0), (1, 0), (2, 2), (3, 2)]
    assert result.return_value == 2


def read_and_die(config: dict[str, Any]) -> None:
    committed = train.get_checkpoint()
    if committed is None:
        save({"step": b"0"}, {})
        committed = train.get_checkpoint()
        assert committed is not None
    assert Path(committed.path, "step").read_text() == "0"
    with Path(config["notes"], "read").open("a") as notes:
        notes.write(f"{committed.path}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def test_ranks_that_are_killed_leave_no_copy(tmp_path: Path, open_session: Any, temporary: Path) -> None:
    """Each attempt reads a copy, in a folder of its own, and dies."""
    open_session()
    with pytest.raises(train.WorkerGroupError, match=r"Rank 0 of 1 died: its process"):
        fit(read_and_die, tmp_path, num_workers=1, failure_config=train.FailureConfig(max_failures=1))
    paths = (tmp_path / "read").read_text().split()
    assert [Path(path).parents[1] for path in paths] == [temporary, temporary]
    assert len(set(paths)) == 2
    assert list(temporary.iterdir()) == []


# --- damage -----------------------------------------------------------------------------------------------------------


def save_large(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    save({f"large-{rank}": make_bytes(LARGE, rank)}, {"rank": rank})


@pytest.mark.parametrize(("action", "lost"), [("flip", 0), ("cut", 1)])
def test_damage_on_the_way_is_never_committed(tmp_path: Path, open_session: Any, action: str, lost: int) -> None:
    with fail_at("train.in_upload", action=action, hit=3) as fault:
        open_session()
        with pytest.raises(train.WorkerGroupError) as caught:
            fit(save_large, tmp_path)
        assert fault.fired == 1
    (rank, error), *others = caught.value.worker_failures.items()
    assert others == []
    assert isinstance(error, train.TransferError)
    sent = hashlib.sha256(make_bytes(LARGE, rank)).hexdigest()
    match = (
        rf"^Rank {rank} of 2 failed with TransferError: File 'large-{rank}' of rank {rank}'s part of a checkpoint was damaged on "
        rf"its way: {LARGE} bytes with sha256 {sent} were sent, but {LARGE - lost} bytes with sha256 [0-9a-f]{{64}} arrived\."
    )
    with pytest.raises(train.WorkerGroupError, match=match):
        raise caught.value
    assert not (tmp_path / "run").exists(), "there is nothing to keep"


def test_damage_on_the_way_is_a_failure_that_the_policy_covers(tmp_path: Path, open_session: Any) -> None:
    with fail_at("train.in_upload", action="flip", hit=2) as fault:
        open_session()
        result = fit(save_large, tmp_path, failure_config=train.FailureConfig(max_failures=1))
        assert fault.fired == 1
    assert result.checkpoint is not None
    assert digest(Path(result.checkpoint.path, "large-1")) == hashlib.sha256(make_bytes(LARGE, 1)).hexdigest()
    assert [path.name for path in (tmp_path / "run").glob("checkpoint_*")] == ["checkpoint_000000"]


def test_a_rank_killed_while_it_sends_leaves_no_half_checkpoint(tmp_path: Path, open_session: Any) -> None:
    with fail_at("train.in_upload", action="kill", hit=3) as fault:
        open_session()
        with pytest.raises(train.WorkerGroupError, match=r"Rank \d of 2 died: its process"):
            fit(save_large, tmp_path)
        assert fault.fired == 1
    assert not (tmp_path / "run").exists()


def read_what_was_saved(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    save({f"large-{rank}": make_bytes(LARGE, rank)}, {})
    committed = train.get_checkpoint()
    assert committed is not None
    try:
        path = committed.path
    except train.TransferError as error:
        Path(config["notes"], f"error-{rank}").write_text(str(error))
        path = committed.path  # asked for again, it is sent again
    train.report({"is_right": digest(Path(path, "large-1")) == hashlib.sha256(make_bytes(LARGE, 1)).hexdigest()})


@pytest.mark.parametrize("action", ["flip", "cut"])
def test_damage_on_the_way_back_is_raised_where_it_is_read(tmp_path: Path, open_session: Any, action: str) -> None:
    with fail_at("train.in_download", action=action, hit=2) as fault:
        open_session()
        result = fit(read_what_was_saved, tmp_path)
        assert fault.fired == 1
    assert result.metrics == {"is_right": True}
    told = [path.read_text() for path in tmp_path.glob("error-*")]
    assert told
    assert "of checkpoint 'checkpoint_000000' was damaged on its way: " in told[0]


def read_back(config: dict[str, Any]) -> None:
    start = train.get_checkpoint()
    if start is None:
        save({"weights": b"right"}, {})
        start = train.get_checkpoint()
        assert start is not None
    start.to_directory(Path(config["notes"], "copy"))


class Damage(train.UserCallback):
    """Does something to the checkpoint when it is committed, and no rank has heard of it."""

    def __init__(self, how: Any) -> None:
        self.how = how

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        if checkpoint is not None:
            self.how(Path(run_context.path, "checkpoint_000000"))


@pytest.mark.parametrize(
    ("how", "match"),
    [
        (
            lambda path: (path / "weights").write_bytes(b"wrong"),
            "Rank 0 of 1 raised TransferError: File 'weights' of checkpoint",
        ),
        (
            lambda path: (path / "weights").unlink(),
            r"FileNotFoundError: The checkpoint .* has lost files .*: \['weights'\]",
        ),
        (
            lambda path: (path / storage.MANIFEST_NAME).unlink(),
            "FileNotFoundError: The checkpoint .* no longer exists",
        ),
    ],
)
def test_what_is_damaged_on_the_drivers_disk_is_not_handed_out(
    tmp_path: Path, open_session: Any, how: Any, match: str
) -> None:
    open_session()
    with pytest.raises(train.WorkerGroupError, match=match):
        fit(read_back, tmp_path, num_workers=1, callbacks=[Damage(how)])


def save_what_is_not_there(config: dict[str, Any]) -> None:
    train.report({}, train.Checkpoint("/nothing-here-to-send"))


def save_what_cannot_be_read(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "link").symlink_to("nowhere")
        train.report({}, train.Checkpoint(folder))


def label_a_copy(config: dict[str, Any]) -> None:
    save({"a": b"a"}, {})
    committed = train.get_checkpoint()
    assert committed is not None
    assert committed.get_metadata() == {}
    committed.set_metadata({"lost": True})


def report_a_copy_again(config: dict[str, Any]) -> None:
    save({"a": b"a"}, {})
    train.report({}, train.get_checkpoint(), checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (report_a_copy_again, r"raised ValueError: .* would be removed after the upload, but it lies in the run's"),
        (
            save_what_is_not_there,
            r"raised FileNotFoundError: report\(\) received a checkpoint whose folder '/nothing-here-to-send'",
        ),
        (save_what_cannot_be_read, r"raised ValueError: .*link' is a link that leads nowhere"),
        (
            label_a_copy,
            r"raised RuntimeError: set_metadata\(\) was called in a rank that has only a copy .* before report\(\)",
        ),
    ],
)
def test_what_a_rank_does_wrong_is_its_error(tmp_path: Path, open_session: Any, function: Any, match: str) -> None:
    open_session()
    with pytest.raises(train.WorkerGroupError, match=rf"^Rank 0 of 1 {match}"):
        fit(function, tmp_path, num_workers=1)


def test_a_file_that_is_removed_before_it_is_sent_is_missed(tmp_path: Path) -> None:
    info = rank_info.RankInfo(
        rank=0,
        world_size=1,
        attempt=0,
        run_storage=storage.Storage(str(tmp_path), "run"),
        use_gpu=False,
        start_checkpoint=None,
    )
    reports: list[Any] = []
    copies = cache.CheckpointCache(reports.append)
    inquiry = questions.Inquiry(reports.append)
    session = worker_session.WorkerSession(info, reports.append, inquiry, reports.append, copies)
    folder = tmp_path / "made"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text(name)
    session.report({}, train.Checkpoint(folder), None, uploads.Upload(train.CheckpointUploadMode.ASYNC))
    session._outbox.close()  # when the report is on its way
    assert [report.index for report in reports] == [0]
    (folder / "b").unlink()
    with pytest.raises(FileNotFoundError, match=r"The file 'b' of a reported checkpoint was removed before"):
        next(session.pack_offer(0))


# --- side by side -----------------------------------------------------------------------------------------------------


def send_late(config: dict[str, Any]) -> None:
    """Rank 0 reports while rank 1's files are under way: what it sends ends only when rank 0 has been heard."""
    heard = Path(config["notes"], "heard")
    if train.get_context().get_world_rank() == 0:
        for step in range(3):
            train.report({"step": step})
        heard.touch()
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "late").write_bytes(b"x" * (3 * file_chunks.CHUNK_BYTES))
        pass_point = file_chunks.pass_point

        def wait_and_pass(point: str, chunk: file_chunks.FileChunk) -> file_chunks.FileChunk:
            while not heard.exists():
                time.sleep(0.01)
            return pass_point(point, chunk)

        file_chunks.pass_point = wait_and_pass
        train.report({"step": 0}, train.Checkpoint(folder))
    for step in (1, 2):
        train.report({"step": step})


def test_a_rank_that_sends_does_not_keep_others_waiting(tmp_path: Path, open_session: Any) -> None:
    open_session()
    result = fit(send_late, tmp_path)
    assert [row["step"] for row in result.metrics_history] == [0, 1, 2]
    assert result.checkpoint is not None
    assert set(Path(result.checkpoint.path, "late").read_bytes()) == {ord("x")}


def report_from_two_threads(config: dict[str, Any]) -> None:
    sender = threading.Thread(target=save, args=({"large": make_bytes(LARGE, 5)}, {"step": 0}))
    sender.start()
    while worker_session.get_session("test")._count == 0:
        pass
    train.report({"step": 1})
    sender.join()


def test_reports_keep_their_order_behind_files(tmp_path: Path, open_session: Any) -> None:
    open_session()
    collect = Collect()
    result = fit(report_from_two_threads, tmp_path, num_workers=1, callbacks=[collect])
    assert [row["step"] for row in result.metrics_history] == [0, 1]


# --- who shares, and what is left -------------------------------------------------------------------------------------


def test_a_token_is_seen_where_it_was_left_and_nowhere_else(tmp_path: Path) -> None:
    here, there = (storage.Storage(str(tmp_path / name), "run") for name in ("here", "there"))
    token, other = storage.leave_token(here), storage.leave_token(there)
    assert storage.sees_token(here, token)
    assert not storage.sees_token(there, token)
    assert not storage.sees_token(here, other)
    assert not storage.sees_token(here, "")


@pytest.mark.usefixtures("send_files_anyway")
def test_what_a_killed_driver_left_is_removed_by_the_next(tmp_path: Path, temporary: Path, open_session: Any) -> None:
    left, foreign = temporary / f"{cache.FOLDER_PREFIX}left", temporary / "mine"
    for folder in (left, foreign):
        folder.mkdir()
        (folder / ".lock").touch()
    open_session()
    with pytest.raises(train.WorkerGroupError, match="died: its process"):
        fit(read_and_die, tmp_path, num_workers=1)
    assert list(temporary.iterdir()) == [foreign]


def test_storage_path_is_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_session: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    open_session()
    for given, found in (("relative", tmp_path / "relative"), ("~/home", tmp_path / "home")):
        result = train.DataParallelTrainer(
            save_large, train_loop_config={}, run_config=train.RunConfig(name="run", storage_path=given)
        ).fit()
        assert result.path == str(found / "run")


# --- while training goes on -------------------------------------------------------------------------------------------


def save_asynchronously(config: dict[str, Any]) -> dict[str, Any]:
    rank = train.get_context().get_world_rank()
    folders = []
    for step in range(2):
        folder = tempfile.mkdtemp(dir=config["notes"])
        Path(folder, f"large-{rank}").write_bytes(make_bytes(LARGE, step))
        mode = train.CheckpointUploadMode.ASYNC
        train.report({"step": step}, train.Checkpoint(folder), checkpoint_upload_mode=mode)
        folders.append(folder)
    found = train.get_all_reported_checkpoints()
    with found[1].checkpoint.as_directory() as copy:
        content = Path(copy, f"large-{1 - rank}").read_bytes()
    return {
        "is_equal": content == make_bytes(LARGE, 1),
        "left": [folder for folder in folders if Path(folder).exists()],
    }


def test_files_arrive_while_training_goes_on(tmp_path: Path, open_session: Any) -> None:
    open_session()
    result = fit(save_asynchronously, tmp_path)
    assert result.return_value == {"is_equal": True, "left": []}
    for step in range(2):
        for rank in range(2):
            kept = tmp_path / "run" / f"checkpoint_{step:06d}" / f"large-{rank}"
            assert kept.read_bytes() == make_bytes(LARGE, step)


def upload_where_it_is_not_seen(config: dict[str, Any]) -> None:
    train.report({}, train.Checkpoint(config["run"]), checkpoint_upload_mode=train.CheckpointUploadMode.NO_UPLOAD)


def test_a_rank_cannot_say_that_files_are_where_it_does_not_look(tmp_path: Path, open_session: Any) -> None:
    open_session()
    with pytest.raises(
        train.WorkerGroupError, match=r"NO_UPLOAD .* need the run's folder, .* rank [01] does not see it"
    ):
        fit(upload_where_it_is_not_seen, tmp_path)
