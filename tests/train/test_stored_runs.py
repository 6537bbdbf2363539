"""Runs that are kept in a store: what is committed is there whole or not at all, and a store that fails is told."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from http import server
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

import hocket
from hocket import exceptions, train
from hocket.stores import calls, commits
from hocket.train import loggers
from hocket.train.checkpoints import cache
from tests import conftest, s3_server, strangers

shared_place = strangers.shared_place

pytestmark = [pytest.mark.usefixtures("own_temporary"), pytest.mark.slow, pytest.mark.timeout(120)]

Store = tuple[Any, str]


@pytest.fixture
def opened(shared_ray: conftest.SharedRay) -> Iterator[None]:
    """A session on two CPUs. What is left behind is not looked at: Arrow's client keeps lines and threads."""
    with contextlib.ExitStack() as stack:
        if conftest.ENGINE == "ray":
            stack.enter_context(shared_ray.lend())
        stack.enter_context(hocket.init(num_cpus=2, engine=conftest.ENGINE))
        yield


def save(step: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if train.get_context().get_world_rank() == 0:
            Path(folder, "step").write_text(str(step))
            Path(folder, "inner").mkdir()
            Path(folder, "inner", "weights").write_bytes(bytes([step]) * 100_000)
            checkpoint = train.Checkpoint(folder)
        train.report({"step": step}, checkpoint)


def count(config: dict[str, Any]) -> int:
    """Go on from the latest checkpoint; return where that was."""
    checkpoint, start = train.get_checkpoint(), 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "step").read_text())
            assert Path(folder, "inner", "weights").read_bytes() == bytes([start]) * 100_000
    for step in range(start + 1, start + 1 + config["steps"]):
        save(step)
    return start


def fit(path: str, filesystem: Any = None, *, steps: int = 3, workers: int = 0, **config: Any) -> train.Result:
    return train.DataParallelTrainer(
        count,
        train_loop_config={"steps": steps},
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(name="run", storage_path=path, storage_filesystem=filesystem, **config),
    ).fit()


def find_left() -> list[str]:
    return [str(found) for found in Path(tempfile.gettempdir()).glob(f"{cache.FOLDER_PREFIX}*")]


READER = """
import pickle, sys
checkpoint = pickle.loads(bytes.fromhex(sys.argv[1]))
with checkpoint.as_directory() as folder:
    print(open(folder + "/step").read())
"""


def test_a_run_is_kept_in_a_store(s3_store: Store, opened: None) -> None:
    filesystem, bucket = s3_store
    kept = train.CheckpointConfig(num_to_keep=2)
    before = find_left()
    result = fit(f"{bucket}/runs", filesystem, workers=2, checkpoint_config=kept, callbacks=[loggers.CsvLogger()])
    assert result.checkpoint is not None
    assert (result.path, result.filesystem) == (f"{bucket}/runs/run", filesystem)
    assert (result.checkpoint.path, result.checkpoint.filesystem) == (f"{result.path}/checkpoint_000002", filesystem)
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [2, 3]
    names = [".hocket-manifest.json", "inner/weights", "step"]
    expected = [f"checkpoint_00000{number}/{name}" for number in (1, 2) for name in names]
    assert s3_server.list_names(filesystem, result.path) == [*expected, "metrics.csv", "run.jsonl"]
    assert set(find_left()) <= set(before), "the working folder is gone"
    found = subprocess.run(
        [sys.executable, "-c", READER, pickle.dumps(result.checkpoint).hex()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "3\n", "another process reads it"


def test_a_run_goes_on_from_what_the_store_has(s3_store: Store, opened: None) -> None:
    filesystem, bucket = s3_store
    logged = [loggers.CsvLogger()]
    assert fit(bucket, filesystem, workers=2, callbacks=logged).return_value == 0
    again = fit(bucket, filesystem, workers=2, steps=2, callbacks=logged)
    assert (again.return_value, again.metrics) == (3, {"step": 5})
    assert len(again.best_checkpoints) == 5, "those of the first run, too"
    for checkpoint, metrics in again.best_checkpoints:
        with checkpoint.as_directory() as folder:
            assert Path(folder, "step").read_text() == str(metrics["step"])
    found = train.Result.from_path(again.path, storage_filesystem=filesystem)
    assert found.best_checkpoints == again.best_checkpoints
    assert found.get_best_checkpoint("step", "min") == again.best_checkpoints[0][0]
    with filesystem.open_input_stream(f"{again.path}/metrics.csv") as file:
        assert file.read().decode().count("\n") == 6, "the logger went on with its file"


@pytest.mark.parametrize("how", ["memory", "file", "fsspec"])
def test_other_stores(how: str, tmp_path: Path) -> None:
    path, filesystem = {
        "memory": (f"memory://{tmp_path.name}", None),
        "file": (f"file://{tmp_path}", None),
        "fsspec": (str(tmp_path), pytest.importorskip("fsspec").filesystem("file")),
    }[how]
    assert fit(path, filesystem).return_value == 0
    result = fit(path, filesystem)
    assert result.return_value == 3
    assert result.checkpoint is not None
    assert Path(result.checkpoint.to_directory(tmp_path / "copy"), "step").read_text() == "6"
    assert (tmp_path / "run").is_dir() == (how != "memory"), "a folder of this machine is used as it is"
    assert train.Result.from_path(result.path, storage_filesystem=result.filesystem).metrics == {"step": 6}
    if how != "fsspec":
        assert train.Result.from_path(f"{path}/run").checkpoint == result.checkpoint


@pytest.fixture
def google_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bucket in a store that speaks as Google's does."""
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="needs pip install gcp-storage-emulator")
    storage = importlib.import_module("gcp_storage_emulator.storage").Storage(use_memory_fs=True)
    serve = functools.partial(emulator.RequestHandler, storage)
    usual, alone = emulator.Router.handle, threading.Lock()

    def handle_alone(router: object, method: str) -> None:
        with alone:  # its threads write down a dictionary that another one changes
            usual(router, method)

    monkeypatch.setattr(emulator.Router, "handle", handle_alone)
    with server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        place = f"127.0.0.1:{listening.server_port}"
        fs.GcsFileSystem(anonymous=True, endpoint_override=place, scheme="http", project_id="p").create_dir("bucket")
        yield f"gs://anonymous@bucket/runs?endpoint_override={place}&scheme=http"
        listening.shutdown()
        thread.join()


def test_googles_store(google_address: str, opened: None) -> None:
    """It speaks of what is not there in its own way. The emulator gives no parts of files, which Parquet needs."""
    assert fit(google_address, workers=2).return_value == 0
    assert fit(google_address, workers=2, steps=1).return_value == 3
    outer, _, how = google_address.partition("?")
    found = train.Result.from_path(f"{outer}/run?{how}")
    assert found.metrics == {"step": 4}
    for checkpoint, metrics in found.best_checkpoints:
        with checkpoint.as_directory() as folder:
            assert Path(folder, "step").read_text() == str(metrics["step"])


def test_a_checkpoint_in_a_store(s3_store: Store, tmp_path: Path) -> None:
    filesystem, bucket = s3_store
    result = fit(bucket, filesystem, steps=1)
    checkpoint = train.Checkpoint(f"{bucket}/run/checkpoint_000000", filesystem=filesystem)
    assert checkpoint == result.checkpoint
    assert checkpoint != train.Checkpoint(f"{bucket}/run/checkpoint_000000")
    assert checkpoint == pickle.loads(pickle.dumps(checkpoint))
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"epoch": 3})
    checkpoint.update_metadata({"best": True})
    assert result.checkpoint.get_metadata() == {"epoch": 3, "best": True}
    with checkpoint.as_directory() as folder:
        assert Path(folder, "step").read_text() == "1"
    assert not Path(folder).exists(), "the copy is gone"
    gone = train.Checkpoint(f"{bucket}/run/gone", filesystem=filesystem)
    with pytest.raises(FileNotFoundError, match=r"There is no checkpoint '.*/run/gone' in the store"):
        gone.to_directory(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"There is no checkpoint '.*/run/gone' in the store"):
        gone.set_metadata({})
    with filesystem.open_output_stream(f"{checkpoint.path}/step") as file:
        file.write(b"2")
    with pytest.raises(train.TransferError, match=r"is damaged in the store: 'step' has changed since it was saved"):
        checkpoint.to_directory(tmp_path / "damaged")
    with filesystem.open_output_stream(f"{bucket}/plain/weights") as file:
        file.write(b"w")
    foreign = train.Checkpoint(f"{bucket}/plain", filesystem=filesystem)
    assert Path(foreign.to_directory(tmp_path / "plain"), "weights").read_bytes() == b"w", "one that has no manifest"


def test_an_address_says_where(s3_port: int, s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    where = f"?endpoint_override=127.0.0.1:{s3_port}&scheme=http&region=us-east-1"
    result = fit(f"s3://{s3_store[1]}/runs{where}", steps=1)
    assert result.path == f"{s3_store[1]}/runs/run"
    found = train.Checkpoint(f"s3://{s3_store[1]}/runs/run/checkpoint_000000{where}")
    with found.as_directory() as folder:
        assert Path(folder, "step").read_text() == "1"
    assert repr(found) == f"Checkpoint('s3://{s3_store[1]}/runs/run/checkpoint_000000')", "without what may be secret"


def test_what_a_training_function_may_not_report(s3_store: Store) -> None:
    filesystem, bucket = s3_store

    def loop() -> None:
        train.report({}, train.Checkpoint(f"{bucket}/x", filesystem=filesystem))

    trainer = train.DataParallelTrainer(
        loop,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(name="run", storage_path=bucket, storage_filesystem=filesystem),
    )
    with pytest.raises(ValueError, match=r"report\(\) takes a checkpoint in a folder on this machine, .*as_directory"):
        trainer.fit()
    assert s3_server.list_names(filesystem, f"{bucket}/run") == [], "a run that has nothing leaves nothing"


def test_a_name_is_given_once(s3_store: Store) -> None:
    filesystem, bucket = s3_store

    def loop() -> None:
        for name in ("first", "second", "third", "first"):
            with tempfile.TemporaryDirectory() as folder:
                train.report({"name": name}, train.Checkpoint(folder), checkpoint_dir_name=name)

    trainer = train.DataParallelTrainer(
        loop,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(name="run", storage_path=bucket, storage_filesystem=filesystem),
    )
    with pytest.raises(FileExistsError, match=r"checkpoint '.*/run/first' exists already\. Give each"):
        trainer.fit()
    assert len(train.Result.from_path(f"{bucket}/run", filesystem).best_checkpoints) == 3


def test_a_damaged_checkpoint_is_passed_over(s3_store: Store) -> None:
    filesystem, bucket = s3_store
    fit(bucket, filesystem)
    with filesystem.open_output_stream(f"{bucket}/run/checkpoint_000002/step") as file:
        file.write(b"9")
    with pytest.warns(UserWarning, match="checkpoint_000002' is damaged and not used: 'step' has changed"):
        again = fit(bucket, filesystem, steps=1)
    assert again.return_value == 2
    assert len(again.best_checkpoints) == 3
    assert "checkpoint_000002.damaged/step" in s3_server.list_names(filesystem, f"{bucket}/run"), "it is moved aside"
    filesystem.delete_file(f"{bucket}/run/checkpoint_000001/inner/weights")
    with pytest.warns(UserWarning, match="checkpoint_000001' is damaged and not used: 'inner/weights' is missing"):
        assert len(train.Result.from_path(again.path, filesystem).best_checkpoints) == 2


DRIVER = """
import sys
from tests import s3_server
from tests.train import test_stored_runs
test_stored_runs.fit(sys.argv[2], s3_server.open_store(int(sys.argv[1])), steps=3)
"""


@pytest.mark.parametrize("where", ["checkpoint_000001/inner/weights", "checkpoint_000001/.hocket-manifest.json"])
def test_a_driver_that_is_killed_while_it_sends(where: str, s3_store: Store, s3_proxy: s3_server.Proxy) -> None:
    filesystem, bucket = s3_store
    s3_proxy.fault, s3_proxy.only = "hang", f"PUT /{bucket}/run/{where}"
    before = set(find_left())
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(s3_proxy.port), bucket])
    assert s3_proxy.reached.wait(60)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    names = s3_server.list_names(filesystem, f"{bucket}/run")
    assert ".pending/checkpoint_000001" in names
    found = train.Result.from_path(f"{bucket}/run", filesystem)
    assert (found.metrics, len(found.best_checkpoints)) == ({"step": 1}, 1), "half a checkpoint is none"
    half = train.Checkpoint(f"{bucket}/run/checkpoint_000001", filesystem=filesystem)
    with pytest.raises(FileNotFoundError, match="or it was not committed"):
        half.to_directory()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is damaged
        again = fit(bucket, filesystem, steps=1)
    assert (again.return_value, again.metrics) == (1, {"step": 2})
    assert not [
        name for name in s3_server.list_names(filesystem, f"{bucket}/run") if name.startswith((".pending", ".writer"))
    ]
    assert set(find_left()) <= before, "the working folder of the killed one is gone, too"


def test_what_is_left_half_done_is_removed(s3_store: Store) -> None:
    filesystem, bucket = s3_store
    fit(bucket, filesystem, steps=1)
    for path in (".pending/checkpoint_000007", "checkpoint_000007/weights", "mine/notes"):
        with filesystem.open_output_stream(f"{bucket}/run/{path}") as file:
            file.write(b"x")
    fit(bucket, filesystem, steps=1)
    names = s3_server.list_names(filesystem, f"{bucket}/run")
    assert "mine/notes" in names, "what is not ours stays"
    assert not any("000007" in name for name in names)


def test_refused_credentials_are_told(s3_store: Store, s3_proxy: s3_server.Proxy) -> None:
    filesystem = s3_server.open_store(s3_proxy.port, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
    s3_proxy.fault = "denied"
    with pytest.raises(exceptions.StoreAccessError, match=r"refuses to write '.*/run/\.writer'.*Check the credentials"):
        fit(s3_store[1], filesystem)
    with pytest.raises(PermissionError, match=r"refuses to list '.*/run'"):
        train.Result.from_path(f"{s3_store[1]}/run", filesystem)
    with pytest.raises(PermissionError, match="refuses to list"):
        train.Checkpoint(f"{s3_store[1]}/run/x", filesystem=filesystem).to_directory()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_store_that_is_gone_in_the_middle_ends_the_run(
    workers: int, s3_store: Store, s3_proxy: s3_server.Proxy, opened: None
) -> None:
    direct, bucket = s3_store
    filesystem = s3_server.open_store(s3_proxy.port, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
    s3_proxy.fault, s3_proxy.only = "cut", f"PUT /{bucket}/run/checkpoint_000001/step"
    with pytest.raises(
        exceptions.StoreError, match=r"cannot write '.*checkpoint_000001/step'.* after 3 tries.*network"
    ):
        fit(bucket, filesystem, workers=workers)
    assert s3_proxy.count >= calls.TRIES
    assert fit(bucket, direct, workers=workers).return_value == 1, "earlier commits are whole"


def test_a_store_that_says_nothing_is_given_up(
    s3_store: Store, s3_proxy: s3_server.Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PATIENCE_SECONDS", 1.0)
    filesystem = s3_server.open_store(s3_proxy.port, request_timeout=50)
    s3_proxy.fault = "hang"
    with pytest.raises(exceptions.StoreError, match=r"did not write .* within 1 s.*HOCKET_STORE_TIMEOUT_S"):
        fit(s3_store[1], filesystem)


def test_a_store_that_is_busy_is_asked_again(s3_store: Store, s3_proxy: s3_server.Proxy) -> None:
    filesystem = s3_server.open_store(s3_proxy.port, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
    s3_proxy.fault = "once"
    assert fit(s3_store[1], filesystem, steps=1).metrics == {"step": 1}
    assert s3_proxy.count > 2, "the fault fired"


def test_one_run_of_a_name_at_a_time(s3_store: Store) -> None:
    filesystem, bucket = s3_store

    class FitsAgain(train.UserCallback):
        def before_run(self, run_context: train.TrainRunContext) -> None:
            fit(bucket, filesystem)

    with pytest.raises(train.TrainingFailedError, match=r"The run 'run' is already running in '.*/run'"):
        fit(bucket, filesystem, callbacks=[FitsAgain()])


def test_a_run_that_another_machine_has_taken_over_ends(s3_store: Store) -> None:
    filesystem, bucket = s3_store

    class TakesOver(train.UserCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            with filesystem.open_output_stream(f"{bucket}/run/{commits.WRITER}") as file:
                file.write(b"another machine's")

    with pytest.raises(exceptions.StoreError, match=r"Another process has begun to write to '.*/run'"):
        fit(bucket, filesystem, callbacks=[TakesOver()])
    assert train.Result.from_path(f"{bucket}/run", filesystem).metrics == {"step": 1}


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_validation_is_noted_in_the_store(workers: int, s3_store: Store) -> None:
    filesystem, bucket = s3_store

    def loop() -> None:
        for step in (1, 2, 3):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "step").write_text(str(step))
                train.report({"step": step}, train.Checkpoint(folder), validation=True)

    def validate(checkpoint: train.Checkpoint) -> dict[str, Any]:
        with checkpoint.as_directory() as folder:
            return {"square": int(Path(folder, "step").read_text()) ** 2}

    train.DataParallelTrainer(
        loop,
        scaling_config=train.ScalingConfig(num_workers=workers and 1),
        run_config=train.RunConfig(name="run", storage_path=bucket, storage_filesystem=filesystem),
        validation_config=train.ValidationConfig(validate),
    ).fit()
    found = train.Result.from_path(f"{bucket}/run", filesystem)
    assert [metrics["square"] for _, metrics in found.best_checkpoints] == [1, 4, 9]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:Exception in thread ray_print_logs")  # as in conftest
@pytest.mark.skipif(conftest.ENGINE == "ray", reason="All tests run on Ray then.")
def test_on_ray(s3_store: Store, shared_ray: conftest.SharedRay) -> None:
    filesystem, bucket = s3_store
    with conftest.open_session("ray", shared_ray):
        assert fit(bucket, filesystem, workers=2, steps=1).metrics == {"step": 1}
        again = fit(bucket, filesystem, workers=2, steps=1)
    assert (again.return_value, json.loads(json.dumps(again.metrics))) == (1, {"step": 2})


@strangers.needs_root
def test_what_a_stranger_left_at_a_working_folder_is_not_touched(
    shared_place: Path, s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He has links to the user's folders at the names that earlier runs had, and at those that may come."""
    filesystem, bucket = s3_store
    home = shared_place.parent / "home"
    (home / "thesis").mkdir(parents=True)
    (home / "thesis" / "data").write_text("precious")
    (home / ".lock").touch()
    seen: list[str] = []

    class Looks(train.UserCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            seen.extend(path.name for path in shared_place.iterdir())

    def lay() -> None:
        for name in {*seen, f"{cache.FOLDER_PREFIX}{os.getuid()}-{'0' * 16}"}:
            (shared_place / name).symlink_to(home)

    fit(bucket, filesystem, steps=1, callbacks=[Looks()])
    assert seen, "a run has a working folder"
    strangers.run_as_other(lay)
    traps = sorted(shared_place.iterdir())
    assert fit(bucket, filesystem, steps=1).metrics == {"step": 2}
    assert (home / "thesis" / "data").read_text() == "precious"
    assert sorted(home.iterdir()) == [home / ".lock", home / "thesis"]
    assert sorted(shared_place.iterdir()) == traps
