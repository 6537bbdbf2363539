"""A trial that crashes, hangs or is killed costs that trial only; nothing waits for ever."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.tune import programs

import hocket
from hocket import exceptions, train, tune
from hocket.tune import log, schedulers
from hocket.tune.trial import Status

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("session")]


def fit(trainable: Any, path: Path, space: dict[str, Any], run: dict[str, Any] | None = None, **settings: Any) -> Any:
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(**settings),
        run_config=tune.RunConfig(name="search", storage_path=path, verbose=0, **(run or {})),
    ).fit()


@pytest.mark.parametrize("end", ["segfault", "kill", "exit", "sys.exit"])
def test_a_process_that_dies_costs_its_trial_only(end: Any, tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> dict[str, Any]:
        tune.report({"score": config["x"]})
        if config["x"] == 1:
            if end == "segfault":
                ctypes.string_at(0)
            if end == "kill":
                signal.raise_signal(signal.SIGKILL)
            if end == "exit":
                os._exit(3)
            if end == "sys.exit":
                sys.exit(3)
        return {"score": config["x"]}

    found = fit(objective, tmp_path, {"x": tune.grid_search([0, 1, 2, 3])})
    assert [one.status for one in found] == [Status.TERMINATED, Status.ERROR, Status.TERMINATED, Status.TERMINATED]
    kind = SystemExit if end == "sys.exit" else exceptions.ActorDiedError
    assert isinstance(found[1].error, kind)
    assert found[1].metrics["score"] == 1, "what it had reported stays"


def test_a_trial_that_hangs_is_ended(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> dict[str, Any]:
        if config["x"] == 0:
            threading.Event().wait()
        return {"score": config["x"]}

    found = fit(objective, tmp_path, {"x": tune.grid_search([0, 1, 2])}, trial_timeout_s=3)
    assert [one.status for one in found] == [Status.ERROR, Status.TERMINATED, Status.TERMINATED]
    assert (
        found[0].reason
        == "TuneError: The trial has not reported for 3 s, the limit of TuneConfig(trial_timeout_s=...)."
    )


def test_the_time_budget_ends_what_runs(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> None:
        if config["x"]:
            threading.Event().wait()
        while True:
            tune.report({"score": 1})
            time.sleep(0.01)

    found = fit(objective, tmp_path, {"x": tune.grid_search([0, 1, 2])}, time_budget_s=1)
    assert [one.status for one in found] == [Status.TERMINATED, Status.TERMINATED, Status.PENDING]
    assert {one.reason for one in found[:2]} == {"the time budget of the search is over"}


@pytest.mark.about_local("that it lends the CPU of who waits")
def test_nested_tasks_on_one_cpu(tmp_path: Path) -> None:
    hocket.shutdown()
    hocket.init(num_cpus=1)

    @hocket.remote
    def double(value: int) -> int:
        return value if value > 20 else hocket.get(double.remote(2 * value))

    def objective(config: dict[str, Any]) -> dict[str, Any]:
        return {"score": sum(hocket.get([double.remote(config["x"]) for _ in range(3)]))}

    found = fit(objective, tmp_path, {"x": tune.grid_search([1, 2])})
    assert [one.metrics["score"] for one in found] == [96, 96]


def test_trials_of_different_sizes_do_not_starve(tmp_path: Path) -> None:
    """The large one is the second; two CPUs."""
    order: list[int] = []

    class Follow(tune.Callback):
        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            order.append(trial.config["cpus"])

    sized = tune.with_resources(programs.report_steps, lambda config: {"CPU": config["cpus"]})
    space = {"x": 1, "cpus": tune.grid_search([1, 2, 1, 1, 2, 1])}
    found = fit(sized, tmp_path, space, {"callbacks": [Follow()]})
    assert order == [1, 2, 1, 1, 2, 1]
    assert {one.status for one in found} == {Status.TERMINATED}


def test_trainers_are_trials_with_gangs_of_their_own(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        for step in range(3):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "state").write_text(str(step))
                train.report({"loss": config["lr"] * (3 - step)}, train.Checkpoint.from_directory(folder))

    trainer = train.DataParallelTrainer(
        loop, train_loop_config={"lr": 9}, scaling_config=train.ScalingConfig(num_workers=2)
    )
    space = {"train_loop_config": {"lr": tune.grid_search([0.1, 0.2])}}
    found = fit(trainer, tmp_path, space, metric="loss", mode="min")
    assert found.get_best_result().config == {"train_loop_config": {"lr": 0.1}}
    assert [report["loss"] for report in found[1].metrics_history] == pytest.approx([0.6, 0.4, 0.2])
    assert Path(found[0].checkpoint.path, "state").read_text() == "2"
    with pytest.raises(tune.TuneError, match=r"The space of a trainer may have only the keys .* but received \['lr'\]"):
        fit(trainer, tmp_path / "b", {"lr": 1})


def climb(config: dict[str, Any]) -> None:
    """A training function whose score grows by ``rate`` in each of six steps. It fails once if there is a file."""
    checkpoint = train.get_checkpoint()
    step, score = (0, 0) if checkpoint is None else json.loads(Path(checkpoint.path, "state").read_text())
    while step < 6:
        step, score = step + 1, score + config["rate"]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state").write_text(json.dumps([step, score]))
            train.report({"score": score}, train.Checkpoint.from_directory(folder))
        if step == 2 and Path(config.get("fails", "/none")).exists():
            Path(config["fails"]).unlink()
            raise OSError("once")


def test_a_trainer_goes_on_from_another_trials_checkpoint(tmp_path: Path) -> None:
    """And not from that of its own run."""
    trainer = train.DataParallelTrainer(climb, scaling_config=train.ScalingConfig(num_workers=1))
    scheduler = schedulers.PopulationBasedTraining(
        "training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"train_loop_config": {"rate": [1, 10, 100]}},
        synch=True,
        quantile_fraction=0.5,
    )
    space = {"train_loop_config": {"rate": tune.grid_search([1, 100])}}
    found = fit(trainer, tmp_path, space, metric="score", mode="max", scheduler=scheduler)
    assert [report["score"] for report in found[1].metrics_history] == [100, 200, 300, 400, 500, 600]
    scores = [report["score"] for report in found[0].metrics_history]
    assert len(scores) == 6
    assert scores[:2] == [1, 2]
    assert 200 < scores[2] <= 300
    assert 400 < scores[4] <= 500


@pytest.mark.parametrize("how", ["resume", "restart"])
def test_a_trainer_of_a_trial_that_failed(tmp_path: Path, how: str) -> None:
    """It begins anew if its trial does, whatever its own run has."""
    (tmp_path / "fails").touch()
    trainer = train.DataParallelTrainer(climb, scaling_config=train.ScalingConfig(num_workers=1))
    space = {"train_loop_config": {"rate": 1, "fails": str(tmp_path / "fails")}}
    (failed,) = fit(trainer, tmp_path, space)
    assert [report["score"] for report in failed.metrics_history] == [1, 2]
    for name in ("0.damaged", "checkpoint_000001.damaged", "z.damaged"):  # what the run has moved aside
        shutil.copytree(Path(failed.path, "trainer", "checkpoint_000001"), Path(failed.path, "trainer", name))
    again: dict[str, Any] = {"resume_errored": True} if how == "resume" else {"restart_errored": True}
    (found,) = tune.Tuner.restore(Path(failed.path).parent, trainer, **again).fit()
    assert [report["score"] for report in found.metrics_history] == [1, 2, 3, 4, 5, 6]
    assert found.metrics["iterations_since_restore"] == (4 if how == "resume" else 6)


def fail_twice(config: dict[str, Any]) -> None:
    """Five reports; of those that come again after the first failure one is with a checkpoint."""
    folder = Path(config["folder"])
    failures = len(list(folder.glob("failed-*")))
    start = train.get_checkpoint()
    for step in range(1 if start is None else 3, 6):
        if (step, failures) in ((4, 0), (5, 1)):
            (folder / f"failed-{failures}").touch()
            raise OSError("once more")
        with tempfile.TemporaryDirectory() as made:
            saved = train.Checkpoint.from_directory(made) if (step, failures) == (2, 1) else None
            train.report({"step": step}, saved)


def test_reports_of_a_trainer_that_come_again_are_one_of_the_trials(tmp_path: Path) -> None:
    """But for one that saves what was not saved before."""
    trainer = train.DataParallelTrainer(
        fail_twice,
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(failure_config=train.FailureConfig(max_failures=2)),
    )
    (found,) = fit(trainer, tmp_path, {"train_loop_config": {"folder": str(tmp_path)}})
    assert [report["step"] for report in found.metrics_history] == [1, 2, 3, 2, 4, 5]
    assert found.checkpoint is not None


def test_a_trainer_is_stopped_by_its_search(tmp_path: Path) -> None:
    def loop() -> None:
        for step in range(1000):
            train.report({"loss": step})

    trainer = train.DataParallelTrainer(loop, scaling_config=train.ScalingConfig(num_workers=2))
    (found,) = fit(trainer, tmp_path, {}, {"stop": {"training_iteration": 3}})
    assert len(found.metrics_history) == 3
    assert found.status is Status.TERMINATED


def test_ctrl_c_ends_trials_and_the_search_can_go_on(tmp_path: Path) -> None:
    script = """
        import sys, time
        from hocket import tune
        def objective(config):
            for step in range(10_000):
                tune.report({"score": step})
                print("step", flush=True)
                time.sleep(0.01)
        tune.Tuner(objective, run_config=tune.RunConfig(name="search", storage_path=sys.argv[1], verbose=0)).fit()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors
    assert tune.Tuner.can_restore(tmp_path / "search")
    reports = [record for record in log.read(tmp_path / "search") if record["event"] == "report"]
    assert reports


def test_a_log_that_cannot_be_written_ends_the_search(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        from hocket import tune
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        def objective(config):
            for step in range(10_000):
                tune.report({"score": step})
        class FillDisk(tune.Callback):
            def on_trial_result(self, *args, **info):
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        run = tune.RunConfig(name="search", storage_path=sys.argv[1], verbose=0, callbacks=[FillDisk()])
        tune.Tuner(objective, run_config=run).fit()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "TuneError: The log of the search cannot be written" in found.stderr, found.stderr
    assert len(list(log.read(tmp_path / "search"))) > 50, "what was written is whole"


def test_others_hold_a_cpu(tmp_path: Path) -> None:
    """An actor of the program holds one of two CPUs: one trial at a time begins, and all end."""
    holder = hocket.remote(num_cpus=1)(programs.Holder).remote()
    hocket.get(holder.touch.remote())
    found = fit(programs.report_steps, tmp_path, {"x": tune.grid_search([1, 2, 3])})
    assert [one.status for one in found] == [Status.TERMINATED] * 3
    del holder


def test_two_searches_at_once(tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    def search(name: str) -> None:
        found[name] = fit(programs.report_steps, tmp_path / name, {"x": tune.grid_search([1, 2, 3])})

    threads = [threading.Thread(target=search, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.status for name in "ab" for one in found[name]} == {Status.TERMINATED}


def test_a_killed_trial_gives_back_the_ranks_of_its_trainer(tmp_path: Path) -> None:
    def loop() -> None:
        train.report({"step": 1})
        threading.Event().wait()

    trainer = train.DataParallelTrainer(loop, scaling_config=train.ScalingConfig(num_workers=2))
    (found,) = fit(trainer, tmp_path, {}, trial_timeout_s=4)
    assert found.status is Status.ERROR
    assert fit(programs.report_steps, tmp_path / "b", {"x": 1})[0].status is Status.TERMINATED


class Unreadable:
    """Comes apart where it is unpickled in another process."""

    def __reduce__(self) -> Any:
        return programs.refuse_elsewhere, (os.getpid(),)


def test_a_configuration_that_cannot_travel(tmp_path: Path) -> None:
    found = fit(programs.report_steps, tmp_path, {"x": 1, "odd": tune.grid_search([Unreadable(), 1])})
    assert [one.status for one in found] == [Status.ERROR, Status.TERMINATED]
    assert "not here" in found[0].reason
    with pytest.raises(tune.TuneError, match=r"lock object .* cannot be kept in the log of a search: TypeError"):
        fit(programs.report_steps, tmp_path / "b", {"x": 1, "odd": threading.Lock()})


def test_an_error_that_cannot_be_read_here(tmp_path: Path) -> None:
    class OddError(Exception):
        def __reduce__(self) -> Any:
            return programs.refuse_elsewhere, (os.getpid(),)

    def objective(config: dict[str, Any]) -> None:
        raise OddError("told all the same")

    (found,) = fit(objective, tmp_path, {})
    assert found.status is Status.ERROR
    assert found.reason.endswith("OddError: told all the same")


def test_late_reports_of_a_thread_are_in_no_other_trial(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> None:
        if config["x"] == 0:
            begun = threading.Event()

            def report_on() -> None:
                begun.wait()
                for _ in range(20):
                    time.sleep(0.05)
                    tune.report({"of": 0})

            threading.Thread(target=report_on, daemon=True).start()
            begun.set()
            return
        for _ in range(10):
            time.sleep(0.05)
            tune.report({"of": config["x"]})

    found = fit(objective, tmp_path, {"x": tune.grid_search([0, 1, 2])}, max_concurrent_trials=1)
    assert [{report["of"] for report in one.metrics_history} for one in found[1:]] == [{1}, {2}]


def test_trials_that_name_one_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Each trial needs a folder of its own, but .* returned 'same'"):
        fit(programs.save_steps, tmp_path, {"x": tune.grid_search([1, 2])}, trial_dirname_creator=lambda trial: "same")


def test_files_of_two_trials_are_two(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> None:
        Path("model").mkdir()
        Path("model", "x").write_text(str(config["x"]))
        tune.report({"x": config["x"]}, checkpoint=tune.Checkpoint.from_directory("model"))

    found = fit(objective, tmp_path, {"x": tune.grid_search([1, 2, 3])})
    assert [Path(one.checkpoint.path, "x").read_text() for one in found] == ["1", "2", "3"]


def test_a_function_that_catches_everything_reports_no_more(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> None:
        for step in range(6):
            try:
                tune.report({"step": step})
            except BaseException:  # noqa: BLE001 (a user's)
                continue

    (found,) = fit(objective, tmp_path, {}, {"stop": {"training_iteration": 3}})
    assert len(found.metrics_history) == 3


def test_a_searcher_that_never_proposes_and_a_scheduler_that_never_chooses(tmp_path: Path) -> None:
    with pytest.raises(tune.TuneError, match=r"Silent.suggest\(\) returned None, but no trial is running"):
        fit(programs.report_steps, tmp_path, {"x": 1}, search_alg=programs.Silent())
    with pytest.raises(
        tune.TuneError, match=r"Idle.choose_trial_to_run\(\) returned None, but no trial is running, and 1"
    ):
        fit(programs.report_steps, tmp_path / "b", {"x": 1}, scheduler=programs.Idle(), num_samples=-1)
    with pytest.raises(tune.TuneError, match=r"must return CONTINUE, PAUSE, STOP or NOOP, but returned 'BOGUS'"):
        fit(programs.report_steps, tmp_path / "c", {"x": 1}, scheduler=programs.Bogus())


def test_a_step_or_a_callback_asks_for_a_checkpoint(tmp_path: Path) -> None:
    class Ask(tune.Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            result["should_checkpoint"] = result["training_iteration"] == 2

    run = {"callbacks": [Ask()], "stop": {"training_iteration": 4}}
    (found,) = fit(programs.Counting, tmp_path, {"x": 1}, run)
    assert [metrics["training_iteration"] for _, metrics in found.best_checkpoints] == [2, 4], "at its end, too"
