"""A trainer's ranks in a barrier stage: results to the bit those of a session, failures named, nothing that hangs."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import data, exceptions, train
from hocket import spark as hocket_spark
from hocket.collective.arithmetic import ReduceOp
from hocket.train import strategies, world
from hocket.train import torch as train_torch

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore"),  # Spark's own, of pandas and of sockets that it leaves to the collector
]


def fit_line(config: dict[str, Any]) -> bytes:
    """Train a line on numpy arrays, with a checkpoint of each step; a rank may fail in it."""
    joined, context = world.get_world("fit_line"), train.get_context()
    rank = context.get_world_rank()
    rng = np.random.default_rng(rank)
    inputs = rng.normal(size=(64, 4))
    targets = inputs @ np.arange(4.0)
    weights, start = np.zeros(4), 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            weights, start = np.load(f"{folder}/weights.npy"), int(Path(folder, "step").read_text()) + 1
    for step in range(start, config["steps"]):
        if step == config.get("fails_at") and rank == 1 and (checkpoint is None or not config.get("once")):
            fail(config["how"])
        gradient = inputs.T @ (inputs @ weights - targets) / 64
        joined.all_reduce(gradient, ReduceOp.MEAN)
        weights -= 0.1 * gradient
        with tempfile.TemporaryDirectory() as folder:
            np.save(f"{folder}/weights.npy", weights)
            Path(folder, "step").write_text(str(step))
            saved = train.Checkpoint.from_directory(folder) if rank == 0 else None
            train.report({"step": step, "loss": float(np.mean((inputs @ weights - targets) ** 2))}, saved)
    return weights.tobytes()


def fail(how: str) -> None:
    if how == "raises":
        raise ValueError("not a number")
    if how == "exits":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def build(folder: Path, num_workers: int = 2, max_failures: int = 0, **config: Any) -> train.DataParallelTrainer:
    return train.DataParallelTrainer(
        fit_line,
        train_loop_config={"steps": 4, **config},
        backend_config=world.WorldConfig(),
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(
            storage_path=str(folder), name="line", failure_config=train.FailureConfig(max_failures=max_failures)
        ),
    )


def test_a_run_is_to_the_bit_that_of_a_session(spark: Any, tmp_path: Path) -> None:
    found = hocket_spark.run(build(tmp_path / "spark"))
    with hocket.init(num_cpus=2, engine="local"):
        wanted = build(tmp_path / "local").fit()
    assert found.return_value == wanted.return_value
    assert found.metrics_history == wanted.metrics_history
    assert [len(found.best_checkpoints), len(found.metrics_history)] == [4, 4]
    assert found.checkpoint is not None
    with found.checkpoint.as_directory() as folder:
        assert np.load(f"{folder}/weights.npy").tobytes() == found.return_value
    assert spark.range(10).count() == 10  # Spark's workers go on


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", r"Rank 1 of 2 raised ValueError: not a number\n\nIts traceback:\n  File .*in fit_line"),
        ("exits", r"Rank 1 of 2 died: its process \(pid \d+\) exited with code 3"),
        ("is killed", r"Rank 1 of 2 died: its process \(pid \d+\) was killed by signal 9 \(SIGKILL\)"),
    ],
)
def test_a_rank_that_fails_gives_its_error(how: str, words: str, spark: Any, tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match=words) as caught:
        hocket_spark.run(build(tmp_path, fails_at=2, how=how))
    assert list(caught.value.worker_failures) == [1]
    assert isinstance(caught.value.worker_failures[1], ValueError) == (how == "raises")
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("hocket")] == []
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def test_a_run_goes_on_from_its_last_commit(spark: Any, tmp_path: Path) -> None:
    found = hocket_spark.run(build(tmp_path / "failed", fails_at=2, how="is killed", once=True, max_failures=1))
    wanted = hocket_spark.run(build(tmp_path / "whole"))
    assert found.return_value == wanted.return_value
    assert [row["step"] for row in found.metrics_history] == [0, 1, 2, 3]


def report_and_fail(config: dict[str, Any]) -> None:
    """Rank 1 raises right behind its second report, to which rank 0's checkpoint belongs."""
    checkpoint, rank = train.get_checkpoint(), train.get_context().get_world_rank()
    start = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "step").read_text()) + 1
    for step in range(start, 3):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            train.report({"step": step, "start": start}, train.Checkpoint(folder) if rank == 0 else None)
        if (step, start, rank) == (1, 0, 1):
            raise RuntimeError("behind its report")


def test_what_was_reported_before_a_failure_is_kept(spark: Any, tmp_path: Path) -> None:
    failure = train.FailureConfig(max_failures=1)
    trainer = train.DataParallelTrainer(
        report_and_fail,
        train_loop_config={},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path), failure_config=failure),
    )
    found = hocket_spark.run(trainer)
    assert [(row["step"], row["start"]) for row in found.metrics_history] == [(0, 0), (1, 0), (2, 2)]


def test_a_job_that_is_cancelled_is_told(spark: Any, tmp_path: Path) -> None:
    def wait() -> None:
        (tmp_path / f"at-{train.get_context().get_world_rank()}").touch()
        threading.Event().wait(120)

    def cancel() -> None:
        while len([*tmp_path.glob("at-*")]) < 2:
            threading.Event().wait(0.05)
        spark.sparkContext.cancelAllJobs()

    trainer = train.DataParallelTrainer(
        wait,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path / "runs")),
    )
    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(train.TrainingFailedError, match="Spark ended the barrier stage"):
        hocket_spark.run(trainer)
    thread.join()


def fit_torch(config: dict[str, Any]) -> list[bytes]:
    import torch

    torch.manual_seed(0)
    model = train_torch.prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen, loss = 0, torch.zeros(())
    for _ in range(2):
        for batch in train.get_dataset_shard("train").iter_torch_batches(batch_size=8):
            inputs = batch["x"].float().reshape(-1, 1)
            loss = ((model(inputs) - 2 * inputs) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(inputs)
    train.report({"seen": seen, "loss": loss.item()})
    return [parameter.detach().numpy().tobytes() for parameter in model.parameters()]


def test_torch_trains_on_rows_of_sparks_to_the_bit_as_in_a_session(spark: Any, tmp_path: Path) -> None:
    def build_torch(name: str) -> train_torch.TorchTrainer:
        return train_torch.TorchTrainer(
            fit_torch,
            train_loop_config={},
            datasets={"train": rows},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=str(tmp_path), name=name),
        )

    rows = data.from_spark(spark.range(0, 100, 1, 3).selectExpr("id / 100 AS x")).random_shuffle(seed=1)
    with hocket.init(num_cpus=2, engine="local"):
        found = hocket_spark.run(build_torch("spark"), spark=spark)
        wanted = build_torch("local").fit()
    assert found.return_value == wanted.return_value
    assert found.metrics == wanted.metrics
    assert found.metrics is not None
    assert found.metrics["seen"] == 100  # of each epoch a half
    assert [path.name for path in (tmp_path / "spark").iterdir()] == ["run.jsonl"], (
        "nothing that Spark or the ranks wrote"
    )


def test_too_few_slots_are_said_before_anything_is_started(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(
        exceptions.InfeasibleResourcesError, match=r"num_workers=3 needs one task slot for each worker.*has 2"
    ):
        hocket_spark.run(build(tmp_path, num_workers=3))
    with pytest.raises(ValueError, match="num_workers=0 runs the training function in the driver"):
        hocket_spark.run(build(tmp_path, num_workers=0))


def test_what_needs_other_processes_is_refused(spark: Any, tmp_path: Path) -> None:
    trainer = train_torch.TorchTrainer(
        fit_torch,
        strategy=strategies.ParameterServer(),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(ValueError, match="ParameterServer needs other processes besides the ranks"):
        hocket_spark.run(trainer)


def test_what_cannot_be_sent_is_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(exceptions.SerializationError, match=r"cannot be sent to Spark's tasks: TypeError"):
        hocket_spark.run(build(tmp_path, lock=threading.Lock()))


def test_what_cannot_be_read_here_is_named(spark: Any, tmp_path: Path) -> None:
    class Odd:
        def __reduce__(self) -> Any:
            return int, ("one",)

    trainer = train.DataParallelTrainer(Odd, run_config=train.RunConfig(storage_path=str(tmp_path)))
    with pytest.raises(train.WorkerGroupError, match="Rank 0 of 1 raised ValueError: invalid literal for int"):
        hocket_spark.run(trainer)


def test_ranks_that_report_unequally_are_told(spark: Any, tmp_path: Path) -> None:
    def report_once() -> None:
        if train.get_context().get_world_rank() == 0:
            train.report({"x": 1})

    trainer = train.DataParallelTrainer(
        report_once,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(train.TrainingFailedError, match="Every rank must call report"):
        hocket_spark.run(trainer)
