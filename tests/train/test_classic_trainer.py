"""The trainer of 2022: its life, its conversation with the ranks, what it does when they fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
from hocket.compat.classic import checkpoints, ranks
from hocket.train.callbacks import JsonLoggerCallback, PrintCallback, TrainingCallback
from hocket.train.rank import questions, report_forms
from tests.conftest import wait_until_cpus_are_free

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[train.Trainer]:
    """One rank in this process."""
    with hocket.init(engine="inprocess"):
        made = train.Trainer("none", 1, logdir=tmp_path)
        made.start()
        yield made
        made.shutdown()


@pytest.fixture
def two(tmp_path: Path, session: hocket.SessionContext) -> Iterator[train.Trainer]:
    """Two ranks in processes."""
    made = train.Trainer("none", 2, logdir=tmp_path / "log", max_retries=1)
    made.start()
    yield made
    made.shutdown()
    wait_until_cpus_are_free()


class Recorder(TrainingCallback):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        self.calls.append(("start", Path(logdir).name, config))

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        self.calls.append([result["step"] for result in results])

    def finish_training(self, error: bool = False, **info: Any) -> None:
        self.calls.append(("finish", error))


class Broken(TrainingCallback):
    def finish_training(self, error: bool = False, **info: Any) -> None:
        raise OSError("the disk is full")


def count(config: dict[str, Any]) -> tuple[int, int, int, int]:
    for step in range(config.get("steps", 2)):
        train.report(step=step + 10 * train.world_rank())
        train.save_checkpoint(step=step, rank=train.world_rank())
    return train.world_rank(), train.local_rank(), train.world_size(), os.getpid()


def fail_in_rank_1() -> None:
    train.report(step=0)
    if train.world_rank() == 1:
        raise KeyError("rank 1 cannot go on")
    train.report(step=1)


def end_early_in_rank_1() -> None:
    if train.world_rank() == 0:
        train.report(step=0)


def test_each_callback_hears_of_the_end_though_another_fails_there(trainer: train.Trainer) -> None:
    first, last = Recorder(), Recorder()
    with pytest.raises(OSError, match="the disk is full"):
        trainer.run(lambda: None, callbacks=[first, Broken(), last])
    assert first.calls[-1] == last.calls[-1] == ("finish", False)


def test_a_run_that_is_left_in_the_middle_takes_no_part_in_the_next(trainer: train.Trainer) -> None:
    may_go, is_gone = threading.Event(), threading.Event()

    def compute_for_long() -> None:
        may_go.wait()
        try:
            train.report(step=-1)
        finally:
            is_gone.set()

    def loop() -> None:
        train.report(step=0)
        may_go.set()
        is_gone.wait()
        train.report(step=1)

    trainer.run_iterator(compute_for_long)
    assert [results[0]["step"] for results in trainer.run_iterator(loop)] == [0, 1]


@pytest.mark.slow
def test_ranks_stay_from_run_to_run(two: train.Trainer, capsys: Any) -> None:
    recorder, log = Recorder(), JsonLoggerCallback(workers_to_log=[0, 1])
    first = two.run(count, callbacks=[recorder, log, PrintCallback()])
    assert [each[:3] for each in first] == [(0, 0, 2), (1, 1, 2)]
    assert recorder.calls == [("start", "run_001", {}), [0, 10], [1, 11], ("finish", False)]
    assert log.log_path == two.logdir / "run_001" / "results.json"
    rows = json.loads(log.log_path.read_text())
    assert [[result["step"] for result in row] for row in rows] == [[0, 10], [1, 11]]
    assert [row[1]["_training_iteration"] for row in rows] == [1, 2]
    assert rows[0][0].keys() == {"step", "_timestamp", "_time_this_iter_s", "_training_iteration"}
    assert json.loads(capsys.readouterr().out.partition("]\n")[0] + "]")[1]["step"] == 10
    assert (two.latest_checkpoint or {})["rank"] == 0

    second = two.run(count, {"steps": 1})
    assert [each[3] for each in second] == [each[3] for each in first]  # the same processes
    assert two.latest_run_dir == two.logdir / "run_002"


@pytest.mark.slow
def test_what_a_rank_raises_comes_out_and_the_trainer_goes_on(two: train.Trainer) -> None:
    recorder = Recorder()
    with pytest.raises(KeyError, match="rank 1 cannot go on") as caught:
        two.run(fail_in_rank_1, callbacks=[recorder])
    assert caught.value.__notes__ == ["It was raised in rank 1 of 2."]
    assert recorder.calls[1:] == [[0, 0], ("finish", True)]
    with pytest.raises(RuntimeError, match=r"rank 0 called report\(\); rank 1 returned"):
        two.run(end_early_in_rank_1)
    assert [each[0] for each in two.run(count)] == [0, 1]


def refuse_to_be_read() -> None:
    raise OSError("it cannot be read here")


class Unreadable:
    """A training function that comes into no rank."""

    def __call__(self) -> None: ...
    def __reduce__(self) -> Any:
        return refuse_to_be_read, ()


@pytest.mark.slow
def test_a_function_that_ranks_cannot_read_is_an_error_and_no_wait(two: train.Trainer) -> None:
    with pytest.raises(Exception, match="it cannot be read here"):  # on Ray it is a SystemError with this text
        two.run(Unreadable())


def die_once() -> tuple[int, int]:
    start = (train.load_checkpoint() or {"step": -1})["step"] + 1
    for step in range(start, 3):
        if step == 2 and start == 0 and train.world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        train.save_checkpoint(step=step)
    return start, int(os.environ["HOOK_WAS_HERE"])


def die_always() -> None:
    if train.world_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train.report(step=0)


def set_hook() -> None:
    os.environ["HOOK_WAS_HERE"] = "1"


@pytest.mark.slow
@pytest.mark.usefixtures("session")
@pytest.mark.needs("death_evidence")
def test_dead_ranks_are_replaced_and_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    trainer = train.Trainer("none", 2, logdir=tmp_path, max_retries=1)
    trainer.start(initialization_hook=set_hook)
    assert trainer.run(die_once) == [(2, 1), (2, 1)]
    assert trainer.latest_checkpoint_dir is not None
    assert sorted(file.name for file in trainer.latest_checkpoint_dir.iterdir()) == [
        f"checkpoint_{number:06d}" for number in (1, 2, 3)
    ]
    with pytest.raises(train.WorkerGroupError, match=r"Rank 1 of 2 died: .*SIGKILL"):
        trainer.run(die_always)
    trainer.shutdown()
    wait_until_cpus_are_free()


def average_rank(config: dict[str, Any]) -> tuple[float, list[float]]:
    import torch

    from hocket.train.torch import prepare_model

    torch.manual_seed(train.world_rank())
    model = prepare_model(torch.nn.Linear(1, 1, bias=False))  # broadcasts rank 0's
    model(torch.full((1, 1), float(train.world_rank()))).sum().backward()
    train.save_checkpoint(model=model)
    saved = (train.load_checkpoint() or {})["model"]
    assert type(saved) is torch.nn.Linear
    gradient = next(model.parameters()).grad
    assert gradient is not None
    return gradient.item(), [parameter.item() for parameter in saved.parameters()]


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_torch_ranks_are_joined(tmp_path: Path) -> None:
    trainer = train.Trainer(backend="torch", num_workers=2, logdir=tmp_path)
    trainer.start()
    (first, weights), (second, other_weights) = trainer.run(average_rank)
    assert (first, second, weights) == (0.5, 0.5, other_weights)
    trainer.shutdown()


def read_tf_config() -> Any:
    return json.loads(os.environ["TF_CONFIG"])


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_tensorflow_ranks_know_each_other(tmp_path: Path) -> None:
    trainer = train.Trainer(backend="tensorflow", num_workers=2, logdir=tmp_path)
    trainer.start()
    first, second = trainer.run(read_tf_config)
    assert [each["task"] for each in (first, second)] == [{"type": "worker", "index": rank} for rank in (0, 1)]
    workers = first["cluster"]["worker"]
    assert workers == second["cluster"]["worker"]
    assert len({address for address in workers if address.startswith("127.0.0.1:")}) == 2
    trainer.shutdown()


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "classic_trainer.py")]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "three epochs: [[0, 1, 2], [0, 1, 2]]",
        "five epochs:  [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]",
    ]


REPORT = questions.HandOver("report", b"", None)
SAVE = questions.HandOver("save_checkpoint", None, None)


@pytest.mark.parametrize(
    ("taken", "message"),
    [
        ([REPORT, SAVE], "rank 0 called report(); rank 1 called save_checkpoint()"),
        ([None, REPORT], "rank 0 returned; rank 1 called report()"),
    ],
)
def test_ranks_must_do_the_same(tmp_path: Path, taken: list[questions.HandOver | None], message: str) -> None:
    class Fake(ranks.Ranks):
        def take(self) -> list[questions.HandOver | None]:
            return taken

        def finish(self) -> list[Any]:
            return []

        def shutdown(self, *, is_clean: bool) -> None: ...
        def _begin(self, work: Any, shared: Any) -> None: ...
        def _ask(self, rank: int) -> None: ...
        def _receive(self) -> Any: ...

    ended: list[bool] = []
    store = checkpoints.CheckpointStore(tmp_path, train.CheckpointStrategy(), None)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        list(train.TrainingIterator(lambda blob, is_again: Fake(2), store, 3, ended.append))
    assert ended == [False]


# --- in this process --------------------------------------------------------------------------------------------------


def test_reports_are_taken_one_by_one(trainer: train.Trainer) -> None:
    said = []

    def loop() -> str:
        for step in range(3):
            said.append(step)
            train.report(step=step)
        return "done"

    reports = trainer.run_iterator(loop)
    assert next(reports)[0]["step"] == 0
    assert said == [0]  # it waits until this report is dealt with
    assert reports.get_final_results() is None
    assert not reports.is_finished()
    assert [results[0]["step"] for results in reports] == [1, 2]
    assert reports.is_finished()
    assert reports.get_final_results() == ["done"]

    reports = trainer.run_iterator(loop)
    assert reports.get_final_results(force=True) == ["done"]
    assert list(reports) == []

    abandoned = trainer.run_iterator(loop)
    next(abandoned)
    assert trainer.run(loop) == ["done"]
    assert list(abandoned) == []
    assert not abandoned.is_finished()


def test_the_best_checkpoints_are_kept(trainer: train.Trainer) -> None:
    def save(scores: Any) -> None:
        for score in scores["of"]:
            train.save_checkpoint(loss=score)

    def run(scores: list[Any], **strategy: Any) -> list[str]:
        trainer.run(save, {"of": scores}, checkpoint_strategy=train.CheckpointStrategy(**strategy))
        assert trainer.latest_checkpoint_dir is not None
        folder = trainer.latest_checkpoint_dir
        return sorted(file.name[-1] for file in folder.iterdir()) if folder.is_dir() else []

    by_loss = {"checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}
    assert run([3.0, float("nan"), 1, 2.0], num_to_keep=2, **by_loss) == ["3", "4"]
    assert (trainer.best_checkpoint or {})["loss"] == 1
    assert (trainer.latest_checkpoint or {})["loss"] == 2.0
    assert run([float("nan"), 5.0], num_to_keep=1, **by_loss) == ["2"]
    assert run([1, 2, 3], num_to_keep=1) == ["3"]  # by time, and of equals the newest
    assert run([1, 2]) == ["1", "2"]
    path = trainer.best_checkpoint_path
    assert path is not None
    assert train.Trainer.load_checkpoint_from_path(path)["loss"] == 2
    assert run([1], num_to_keep=0) == []
    assert (trainer.latest_checkpoint, trainer.best_checkpoint_path) != (None, None)
    assert trainer.best_checkpoint is None
    for scores, message in (([1, "2"], "loss='2'"), ([True], "loss=True")):
        with pytest.raises(ValueError, match=f"must be a number in every checkpoint, but .* {message}"):
            run(scores, **by_loss)
    with pytest.raises(ValueError, match=r"checkpoint_score_attribute is 'x', which every checkpoint must have"):
        run([1], checkpoint_score_attribute="x")


def test_a_run_begins_from_a_checkpoint(trainer: train.Trainer, tmp_path: Path) -> None:
    assert trainer.run(train.load_checkpoint) == [None]
    assert trainer.run(train.load_checkpoint, checkpoint={"step": 3}) == [{"step": 3}]
    trainer.run(lambda: train.save_checkpoint(step=4))
    assert trainer.run(lambda: (train.load_checkpoint() or {})["step"], checkpoint=trainer.best_checkpoint_path) == [4]
    assert trainer.latest_checkpoint is None  # the last run saved nothing
    with pytest.raises(FileNotFoundError, match="There is no checkpoint file"):
        trainer.run(count, checkpoint=tmp_path / "none")
    with pytest.raises(TypeError, match="checkpoint must be a dict or the path of a file, but received 3"):
        trainer.run(count, checkpoint=3)  # type: ignore[arg-type]


def test_details_are_reported_if_asked_for(trainer: train.Trainer, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRAIN_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS", "1")
    (results,) = trainer.run_iterator(lambda: train.report(loss=1))
    assert results[0].keys() >= {"_date", "_hostname", "_node_ip", "_pid", "_time_total_s"}


def test_report_serves_both_forms_and_says_which_is_meant(trainer: train.Trainer, tmp_path: Path) -> None:
    (results,) = trainer.run_iterator(lambda: train.report(validation=0.9, metrics=1))  # names of today's arguments
    assert (results[0]["validation"], results[0]["metrics"]) == (0.9, 1)
    for call in (lambda: train.report({"loss": 1}), lambda: train.report(metrics={"loss": 1}, checkpoint=None)):
        with pytest.raises(TypeError, match=r"Write report\(loss=0.5\), and save_checkpoint"):
            trainer.run(call)

    def fit(function: Any) -> train.Result:
        return train.DataParallelTrainer(
            function,
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(storage_path=tmp_path),
        ).fit()

    assert fit(lambda: train.report({"rank": train.world_rank()})).metrics == {"rank": 0}
    with pytest.raises(TypeError, match=r"received the keywords \['loss'\]. Write report\(\{'loss': 0.5\}\)"):
        fit(lambda: train.report(loss=1))
    with pytest.raises(RuntimeError, match=r"report\(\{...\}, checkpoint=Checkpoint.from_directory"):
        fit(lambda: train.save_checkpoint(step=1))
    with pytest.raises(RuntimeError, match=r"call get_checkpoint\(\)"):
        fit(train.load_checkpoint)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (train.world_rank, 0),
        (train.local_rank, 0),
        (train.world_size, 1),
        (train.load_checkpoint, None),
        (lambda: train.save_checkpoint(step=1), None),
        (lambda: train.report(loss=1), None),
    ],
)
def test_outside_of_a_training_function_it_is_said_once(call: Any, value: Any) -> None:
    report_forms._warned.clear()
    with pytest.warns(UserWarning, match=r"was called outside a training function"):
        assert call() == value
    assert call() == value
    with pytest.raises(RuntimeError, match="outside a training function"):
        train.report({"loss": 1})


def test_it_must_be_started(tmp_path: Path) -> None:
    trainer = train.Trainer("none", 1, logdir=tmp_path)
    for call in (lambda: trainer.run(count), lambda: trainer.run_iterator(count), trainer.shutdown):
        with pytest.raises(RuntimeError, match="This Trainer is not active"):
            call()
    with hocket.init(engine="inprocess"):
        trainer.start()
        with pytest.raises(RuntimeError, match="started already"):
            trainer.start()
        trainer.shutdown()
        with pytest.raises(RuntimeError, match="This Trainer is not active"):
            trainer.run(count)
        with pytest.raises(ValueError, match="runs one rank, but num_workers is 2"):
            train.Trainer("none", 2, logdir=tmp_path).start()


def add_up_ranks_in_torch() -> float:
    import torch

    import hocket.train.horovod.torch as hvd

    hvd.init()
    return float(hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum))


def add_up_ranks_in_keras() -> float:
    import hocket.train.horovod.keras as hvd

    hvd.init()
    return float(hvd.allreduce(float(hvd.rank()), op=hvd.Sum))


@pytest.mark.usefixtures("session")
def test_ranks_are_joined_for_the_verbs_of_horovod(tmp_path: Path) -> None:
    from hocket.train.keras import KerasConfig

    for backend, function in (("horovod", add_up_ranks_in_torch), (KerasConfig(), add_up_ranks_in_keras)):
        trainer = train.Trainer(backend, 2, logdir=tmp_path)
        trainer.start()
        assert trainer.run(function) == [1.0, 1.0]
        trainer.shutdown()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_workers": 0}, ValueError, "num_workers must be 1 or more, but received 0"),
        ({"num_workers": "2"}, ValueError, "num_workers must be 1 or more, but received '2'"),
        ({"max_retries": -2}, ValueError, "max_retries must be -1"),
        ({"backend": "mpi"}, ValueError, r"backend must be one of \['torch', 'tensorflow', 'horovod', 'none'\]"),
        ({"backend": 3}, TypeError, "or a BackendConfig, but received 3"),
        ({"resources_per_worker": {"GPU": 1}}, ValueError, "but use_gpu is False"),
        ({"resources_per_worker": {"GPU": 0}, "use_gpu": True}, ValueError, "use_gpu=True needs GPUs"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        train.Trainer(**{"backend": "none", "num_workers": 1, "logdir": tmp_path, **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"train_func": 3}, TypeError, "train_func must be a function, but received 3"),
        ({"train_func": lambda a, b: None}, ValueError, "but takes 2: a, b"),
        ({"config": [1]}, TypeError, r"config must be a dict, but received \[1\]"),
        ({"dataset": [1]}, NotImplementedError, r"Pass datasets=\{'train': dataset\} to TorchTrainer"),
        ({"checkpoint_strategy": 2}, TypeError, "must be a CheckpointStrategy, but received 2"),
        ({"callbacks": [train.UserCallback()]}, TypeError, r"hocket.train.callbacks.TrainingCallback"),
        ({"callbacks": [JsonLoggerCallback(workers_to_log=1)]}, ValueError, "There is no rank 1 to log: the run has 1"),
    ],
)
def test_bad_runs(trainer: train.Trainer, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        trainer.run(**{"train_func": count, **arguments})


def test_bad_values_inside(trainer: train.Trainer) -> None:
    with pytest.raises(ValueError, match=r"report\(\) takes values that can be pickled"):
        trainer.run(lambda: train.report(made=threading.Lock()))
    with pytest.raises(ValueError, match=r"num_to_keep must be 0 or more"):
        train.CheckpointStrategy(num_to_keep=-1)
    with pytest.raises(ValueError, match=r"checkpoint_score_order must be 'max' or 'min', but received 'best'"):
        train.CheckpointStrategy(checkpoint_score_order="best")
    with pytest.raises(TypeError, match=r"workers_to_log must be a rank"):
        JsonLoggerCallback(workers_to_log="0")  # type: ignore[arg-type]
