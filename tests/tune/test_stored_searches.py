"""Searches that are kept in a store: restored from it alone, and never with a log of more than is there."""

from __future__ import annotations

import pickle
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from tests import s3_server

import hocket
from hocket import exceptions, train, tune
from hocket.train.checkpoints import cache
from hocket.tune.integration import ray_train

pytestmark = [pytest.mark.usefixtures("own_temporary"), pytest.mark.slow, pytest.mark.timeout(120)]

Store = tuple[Any, str]


def objective(config: dict[str, Any]) -> None:
    start, checkpoint = 0, tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "step").read_text())
    for step in range(start + 1, 5):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            tune.report({"loss": config["x"] / step, "step": step, "start": start}, checkpoint=train.Checkpoint(folder))


def build(path: str, filesystem: Any = None, xs: tuple[int, ...] = (1, 2), trainable: Any = objective) -> tune.Tuner:
    return tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search(list(xs))},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
        run_config=tune.RunConfig(
            name="search",
            storage_path=path,
            storage_filesystem=filesystem,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        ),
    )


def read_step(result: Any) -> str:
    with result.checkpoint.as_directory() as folder:
        return Path(folder, "step").read_text()


@pytest.mark.parametrize("engine", ["local", "inprocess"])
def test_a_search_is_kept_in_a_store(engine: str, s3_store: Store) -> None:
    filesystem, bucket = s3_store
    before = set(Path(tempfile.gettempdir()).glob(f"{cache.FOLDER_PREFIX}*"))
    with hocket.init(num_cpus=2, engine=engine):
        grid = build(f"{bucket}/searches", filesystem).fit()
    assert (grid.experiment_path, grid.filesystem) == (f"{bucket}/searches/search", filesystem)
    best = grid.get_best_result()
    assert (best.config, best.metrics["step"], read_step(best)) == ({"x": 1}, 4, "4")
    assert best.path.startswith(grid.experiment_path)
    assert best.filesystem.get_file_info(best.path).type == fs.FileType.Directory
    assert [metrics["step"] for _, metrics in best.best_checkpoints] == [3, 4]
    names = s3_server.list_names(filesystem, grid.experiment_path)
    assert sum(name.endswith("/step") for name in names) == 4, "two of each trial"
    assert not any(part.startswith(".") for name in names for part in name.split("/")[:-1]), "nothing half done"
    with filesystem.open_input_stream(f"{grid.experiment_path}/tuner.pickle") as file:
        assert b"secret" not in file.read()
    assert set(Path(tempfile.gettempdir()).glob(f"{cache.FOLDER_PREFIX}*")) <= before, "the working folder is gone"
    restored = tune.Tuner.restore(grid.experiment_path, objective, storage_filesystem=filesystem)
    assert [one.metrics["step"] for one in restored.get_results()] == [4, 4]
    assert tune.Tuner.can_restore(grid.experiment_path, filesystem)
    assert not tune.Tuner.can_restore(f"{bucket}/gone", filesystem)
    with pytest.raises(tune.TuneError, match=rf"There is no search in '{bucket}/gone'"):
        tune.Tuner.restore(f"{bucket}/gone", objective, storage_filesystem=filesystem)


def test_a_second_search_of_a_name_leaves_the_first_ones_files(
    s3_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    filesystem, bucket = s3_store
    with hocket.init(num_cpus=2, engine="inprocess"):
        first = build(bucket, filesystem, (1,)).fit()
        before = set(s3_server.list_names(filesystem, first.experiment_path))
        second = build(bucket, filesystem, (2, 3)).fit()
    assert "A new search begins in" in caplog.text
    after = set(s3_server.list_names(filesystem, first.experiment_path))
    assert before <= after
    assert {name for name in after - before if re.fullmatch(r"(search|tuner)-.*", name.rpartition("/")[2])} == {
        f"search-{first[0].trial_id[:6]}.jsonl",
        f"tuner-{first[0].trial_id[:6]}.pickle",
    }
    for grid, xs in ((first, [1]), (second, [2, 3])):
        assert [(one.config["x"], read_step(one)) for one in grid] == [(x, "4") for x in xs]


DRIVER = """
import sys
import hocket
from tests import s3_server
from tests.tune import test_stored_searches as here
with hocket.init(num_cpus=2, engine=sys.argv[3]):
    here.build(sys.argv[2], s3_server.open_store(int(sys.argv[1]))).fit()
"""


@pytest.mark.parametrize("engine", ["local", "inprocess"])
def test_a_search_that_is_killed_goes_on_elsewhere(engine: str, s3_store: Store, s3_proxy: s3_server.Proxy) -> None:
    filesystem, bucket = s3_store
    s3_proxy.fault, s3_proxy.only = "hang", "checkpoint_000002/step?partNumber"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(s3_proxy.port), bucket, engine])
    assert s3_proxy.reached.wait(60)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    path = f"{bucket}/search"
    assert any("/.pending/checkpoint_000002" in name for name in s3_server.list_names(filesystem, path))
    tuner = tune.Tuner.restore(path, objective, storage_filesystem=filesystem)
    assert [(one.metrics["step"], read_step(one)) for one in tuner.get_results()] == [(2, "2")], "half a save is none"
    with hocket.init(num_cpus=2, engine=engine):
        grid = tuner.fit()
    assert [(one.metrics["step"], one.metrics["start"], read_step(one)) for one in grid] == [(4, 2, "4"), (4, 0, "4")]
    assert not any(
        part.startswith(".") for name in s3_server.list_names(filesystem, path) for part in name.split("/")[:-1]
    )


def test_other_stores_and_tune_run(tmp_path: Path) -> None:
    with hocket.init(num_cpus=2, engine="inprocess"):
        for path in (f"memory://{tmp_path.name}", f"file://{tmp_path}"):
            for resume in (None, "AUTO"):
                analysis = tune.run(
                    objective,
                    config={"x": 3},
                    name="search",
                    metric="loss",
                    mode="min",
                    storage_path=path,
                    verbose=0,
                    resume=resume,
                )
                assert read_step(analysis.trials[0]) == "4"
            assert tune.ResultGrid(f"{path}/search")[0].metrics["step"] == 4
    assert (tmp_path / "search").is_dir(), "a folder of this machine is used as it is"


def test_a_copy_of_a_checkpoint_is_files_like_others(tmp_path: Path) -> None:
    """Also if the trial has changed it; a search that goes on has it too."""

    def copying(config: dict[str, Any]) -> None:
        objective(config)
        if not Path("copy").exists():
            train.Checkpoint("checkpoint_000003").to_directory("copy")
            Path("copy", "step").write_text("changed")
            train.Checkpoint("checkpoint_000003").to_directory(".")

    (tmp_path / "store").mkdir()
    filesystem = fs.SubTreeFileSystem(str(tmp_path / "store"), fs.LocalFileSystem())
    with hocket.init(num_cpus=1):
        build("searches", filesystem, (1,), copying).fit()
        config = tune.TuneConfig(num_samples=2)
        found = tune.Tuner.restore("searches/search", copying, storage_filesystem=filesystem, tune_config=config).fit()
    assert [one.error for one in found] == [None, None]
    for one in found:
        assert (tmp_path / "store" / one.path / "copy" / "step").read_text() == "changed"
        assert read_step(one) == "4"


def test_a_trainer_in_a_trial(s3_store: Store) -> None:
    filesystem, bucket = s3_store

    def loop(config: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text("1")
            train.report({"loss": config["x"]}, train.Checkpoint(folder))

    def fit_inside(config: dict[str, Any]) -> None:
        train.DataParallelTrainer(
            loop,
            train_loop_config=config,
            scaling_config=train.ScalingConfig(num_workers=1),
            run_config=train.RunConfig(
                name=f"run-{config['x']}",
                storage_path=f"{bucket}/runs",
                storage_filesystem=filesystem,
                callbacks=[ray_train.TuneReportCallback()],
            ),
        ).fit()

    with hocket.init(num_cpus=3):
        grid = build(bucket, filesystem, trainable=fit_inside).fit()
        assert [read_step(one) for one in grid] == ["1", "1"]
        trainer = train.DataParallelTrainer(loop, scaling_config=train.ScalingConfig(num_workers=1))
        found = tune.Tuner(
            trainer,
            param_space={"train_loop_config": {"x": 1}},
            run_config=tune.RunConfig(name="trainer", storage_path=bucket, storage_filesystem=filesystem, verbose=0),
        ).fit()
    assert read_step(found[0]) == "1"
    assert pickle.loads(pickle.dumps(found[0].checkpoint)) == found[0].checkpoint


def test_a_store_that_is_gone_ends_the_search(s3_store: Store, s3_proxy: s3_server.Proxy) -> None:
    direct, bucket = s3_store
    filesystem = s3_server.open_store(s3_proxy.port, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
    s3_proxy.fault, s3_proxy.only = "cut", "checkpoint_000002/step?partNumber"
    with hocket.init(num_cpus=2, engine="inprocess"):
        with pytest.raises(exceptions.StoreError, match=r"cannot write '.*checkpoint_000002/step'.*after 3 tries"):
            build(bucket, filesystem).fit()
        tuner = tune.Tuner.restore(f"{bucket}/search", objective, storage_filesystem=direct)
        assert [one.metrics["step"] for one in tuner.fit()] == [4, 4]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has the unknown scheme 'floppy'"):
        tune.RunConfig(storage_path="floppy://a")
    with pytest.raises(ValueError, match="has the unknown scheme 'floppy'"):
        tune.Tuner.restore("floppy://a/b", objective)
    with pytest.raises(TypeError, match="filesystem must be one of pyarrow's or fsspec's"):
        tune.Tuner.restore(tmp_path, objective, storage_filesystem=3)
