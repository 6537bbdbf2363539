"""What strangers have tried: odd folders, values, settings and objects."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tune import programs

from hocket import train, tune
from hocket.train.checkpoints import storage
from hocket.tune import logger, schedulers
from hocket.tune.run import retention
from hocket.tune.schedulers.pb2 import PB2
from hocket.tune.search import BasicVariantGenerator, Searcher
from hocket.tune.trial import Status, Trial

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("session")]


def search(function: Any, path: Path, space: dict[str, Any], run: dict[str, Any] | None = None, **settings: Any) -> Any:
    return tune.Tuner(
        function,
        param_space=space,
        tune_config=tune.TuneConfig(**settings),
        run_config=tune.RunConfig(name="search", storage_path=path, verbose=0, **(run or {})),
    ).fit()


def test_a_folder_that_cannot_be_made_costs_its_trial_only(tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "taken").write_text("a file")
    names = {1: "taken", 2: "free"}
    found = search(
        programs.report_steps,
        tmp_path,
        {"x": tune.grid_search([1, 2])},
        trial_dirname_creator=lambda trial: names[trial.config["x"]],
    )
    assert [one.status for one in found] == [Status.ERROR, Status.TERMINATED]
    assert "The trial's folder cannot be created or entered" in str(found[0].error)


@pytest.mark.parametrize(
    ("name", "fault"),
    [("a\0b", "NUL"), ("a" * 256, "256 bytes"), ("\ud800", "surrogate"), ("é" * 128, "256 bytes"), ("..", r"'\.\.'")],
)
def test_names_that_no_folder_can_have(tmp_path: Path, name: str, fault: str) -> None:
    with pytest.raises(ValueError, match=rf"must return the name of one folder, but returned .*{fault}"):
        search(programs.report_steps, tmp_path, {"x": 1}, trial_dirname_creator=lambda trial: name)


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def leave(config: dict[str, Any]) -> dict[str, Any]:
        Path(config["gone"]).rmdir()
        return {"score": 1}

    def enter(config: dict[str, Any]) -> dict[str, Any]:
        return {"score": 1 if Path.cwd().is_dir() else 0}

    def both(config: dict[str, Any]) -> dict[str, Any]:
        return leave(config) if config["first"] else enter(config)

    monkeypatch.chdir(gone)
    space = {"first": tune.grid_search([True, False]), "gone": str(gone)}
    found = search(both, tmp_path, space, max_concurrent_trials=1)
    assert [one.metrics["score"] for one in found] == [1, 1]
    assert not gone.exists(), "the fault fired"
    monkeypatch.chdir(tmp_path)


def test_trials_left_out_do_not_hold_up_a_deterministic_search(tmp_path: Path) -> None:
    class Interrupt(tune.Callback):
        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            if trial.number == 3:
                raise ConnectionError("pulled the plug")

    settings: dict[str, Any] = {"num_samples": 8, "seed": 1, "deterministic": True, "max_concurrent_trials": 2}
    with pytest.raises(ConnectionError):
        search(programs.report_steps, tmp_path, {"x": tune.uniform(0, 1)}, {"callbacks": [Interrupt()]}, **settings)
    found = tune.Tuner.restore(
        tmp_path / "search", programs.report_steps, resume_unfinished=False, run_config=tune.RunConfig(verbose=0)
    ).fit()
    assert len(found) == 8
    assert [one.status for one in found][4:] == [Status.TERMINATED] * 4


def test_keys_that_optuna_cannot_tell_apart(tmp_path: Path) -> None:
    optuna = pytest.importorskip("hocket.tune.search.optuna")
    pytest.importorskip("optuna", reason="needs Optuna: pip install 'hocket[tune]'")
    space: dict[Any, Any] = {1: tune.uniform(0, 1), "1": tune.uniform(5, 6)}
    with pytest.raises(ValueError, match=r"several with the name '1', such as the keys 1 and '1'\. Rename one of them"):
        search(programs.report_steps, tmp_path, space, search_alg=optuna.OptunaSearch(), metric="score", mode="max")


def return_x(config: dict[str, Any]) -> dict[str, Any]:
    return {"score": float(config["score"]), "word": "text"}


@pytest.mark.parametrize(
    "values",
    [
        list(np.arange(1, 13)),
        [0.1, float("nan"), 0.3],
        [1, 2**70, 3],
        [1, 10**400, 3],
        ["$\\bad$", "b", "c"],
        [True, False, None],
        [np.float32(0.5), 1, "x"],
    ],
    ids=lambda values: str(values)[:20],
)
def test_pictures_of_odd_values(tmp_path: Path, values: list[Any]) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'hocket[plot]'")
    space = {"$a$": tune.grid_search(values), "score": tune.uniform(0, 1)}
    found = search(return_x, tmp_path, space, metric="score", mode="max", seed=1)
    for kind in ("history", "parallel", "slices", "importance", "lineage"):
        found.plot(kind).savefig(tmp_path / "drawn.png")
    assert set(found.get_importances()) == {"$a$", "score"}
    if len(values) == 12:
        assert found.plot("slices").axes[0].get_xlim()[1] > 11, "numbers of numpy are numbers"
    assert "word" in found.get_dataframe("word", "max")
    with pytest.raises(TypeError, match="metric must be a metric's name, but received 5"):
        found.get_best_result(5, "min")


def log_and_print(config: dict[str, Any]) -> dict[str, Any]:
    logging.basicConfig()
    logging.getLogger().warning("trial %s", config["x"])
    sys.stdout.writelines([f"line of {config['x']}\n"])
    return {"score": 1}


def test_handlers_of_one_trial_write_for_those_after_it(tmp_path: Path) -> None:
    space = {"x": tune.grid_search([1, 2, 3])}
    found = search(log_and_print, tmp_path, space, {"log_to_file": True}, max_concurrent_trials=1)
    for one in found:
        assert f"trial {one.config['x']}" in Path(one.path, "stderr").read_text()
        assert Path(one.path, "stdout").read_text() == f"line of {one.config['x']}\n"


@pytest.mark.parametrize("value", ["relu", None, float("nan"), [1]])
def test_pb2_needs_numbers(tmp_path: Path, value: Any) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install scikit-learn")
    pb2 = PB2("training_iteration", perturbation_interval=1, hyperparam_bounds={"m": {"y": [0.0, 1.0]}})
    with pytest.raises(tune.TuneError, match=r"PB2 changes 'm/y' from 0\.0 to 1\.0, so each trial must begin with a n"):
        search(programs.report_steps, tmp_path, {"x": 1, "m": {"y": value}}, scheduler=pb2, metric="score", mode="max")


def test_bounds_of_numpys_numbers() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install scikit-learn")
    pb2 = PB2(hyperparam_bounds={"x": [np.int64(0), np.int64(10)]})
    assert type(pb2.complete_config({}, 0)["x"]) is int
    with pytest.raises(tune.TuneError, match="PB2 needs the hyperparameters that it may change"):
        PB2(hyperparam_bounds={"x": {}})


@pytest.mark.parametrize("returned", [np.float32(2), np.int64(2), 2])
def test_numbers_that_a_function_returns(tmp_path: Path, returned: Any) -> None:
    (found,) = search(lambda config: returned, tmp_path, {})
    assert found.metrics["_metric"] == 2


class Doubling(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.value = 1

    def step(self) -> dict[str, Any]:
        self.value *= 2
        return {"score": self.value, "done": self.value == 8}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"value": self.value}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.value = checkpoint["value"]


def test_a_class_saves_when_it_ends(tmp_path: Path) -> None:
    (found,) = search(Doubling, tmp_path, {})
    assert found.checkpoint is not None
    (without,) = search(
        Doubling, tmp_path / "b", {}, {"checkpoint_config": tune.CheckpointConfig(checkpoint_at_end=False)}
    )
    assert without.checkpoint is None


class Counting(schedulers.FIFOScheduler):
    reports = 0

    def on_trial_result(self, controls: Any, trial: Any, result: Any) -> Any:
        self.reports += 1
        return super().on_trial_result(controls, trial, result)


class Proposing(Searcher):
    proposed = 0

    def suggest(self, trial_id: str) -> Any:
        self.proposed += 1
        return {"x": self.proposed}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        pass


def test_what_a_program_gives_is_what_runs(tmp_path: Path) -> None:
    scheduler, searcher = Counting(), Proposing()
    settings: dict[str, Any] = {"scheduler": scheduler, "search_alg": searcher, "num_samples": 2}
    search(programs.report_steps, tmp_path, {}, **settings)
    assert (scheduler.reports, searcher.proposed) == (6, 2)
    search(programs.report_steps, tmp_path / "b", {}, **settings)
    assert (scheduler.reports, searcher.proposed) == (6, 2), "another search has copies of what they were"


@dataclass
class Recorded(Proposing):
    """Has no hash, as dataclasses have none."""

    note: str = ""


def test_a_searcher_without_a_hash_is_copied(tmp_path: Path) -> None:
    searcher = Recorded()
    for name in "ab":
        found = search(programs.report_steps, tmp_path / name, {}, search_alg=searcher, num_samples=2)
        assert [one.config["x"] for one in found] == [1, 2]
    assert searcher.proposed == 0


def test_callbacks_have_all_trials(tmp_path: Path) -> None:
    class Sum(tune.Callback):
        def setup(self, *args: Any, total_num_samples: Any = None, **info: Any) -> None:
            self.most: list[int] = []

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self.most.append(len(trials))

        def on_experiment_end(self, trials: Any, **info: Any) -> None:
            self.ends = [(trial.number, trial.status) for trial in trials]

    callback = Sum()
    search(programs.report_steps, tmp_path, {"x": tune.grid_search([1, 2, 3])}, {"callbacks": [callback]})
    assert callback.ends == [(number, Status.TERMINATED) for number in range(3)]
    assert max(callback.most) == 3


def test_experiments(tmp_path: Path) -> None:
    two = tune.Experiment("two", programs.report_steps, config={"x": 2}, storage_path=tmp_path)
    assert [one.metrics["score"] for one in tune.run_experiments(two, verbose=0)] == [6]


UNTYPED: Any = tune


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: UNTYPED.run_experiments(5), TypeError, "experiments must be an Experiment, .* received 5"),
        (
            lambda: UNTYPED.run_experiments({"a": 5}),
            TypeError,
            "An experiment must be a dict with the key 'run'.* 'a' is 5",
        ),
        (lambda: UNTYPED.run(print, name="q", resume="BLAH"), ValueError, "resume must be True, False or one of"),
        (lambda: UNTYPED.run(print, name="q", resume_config=5), TypeError, "resume_config must be a ResumeConfig"),
        (lambda: UNTYPED.Tuner.restore(None, print), TypeError, "path must be the folder of a search, .* None"),
        (lambda: UNTYPED.Tuner.can_restore(5), TypeError, "path must be the folder of a search, but received 5"),
        (lambda: UNTYPED.Tuner.restore("a", print, run_config=5), TypeError, "run_config must be a RunConfig"),
        (lambda: UNTYPED.Tuner.restore("a", print, resume_errored="x"), TypeError, "resume_errored must be True or"),
        (
            lambda: UNTYPED.RunConfig(stop={1: 2}),
            TypeError,
            "The keys of stop must be names of metrics, but one is 1",
        ),
        (
            lambda: UNTYPED.TuneConfig(metric="", mode="min"),
            TypeError,
            "metric must be a metric's name, but received ''",
        ),
        (lambda: UNTYPED.RunConfig(verbose=-3), ValueError, "verbose must be 0 or more, but received -3"),
        (
            lambda: UNTYPED.TuneConfig(num_sample=3),
            TypeError,
            "TuneConfig has no argument num_sample. Did you mean num_samples=3",
        ),
        (lambda: UNTYPED.RunConfig(max_failures=3), TypeError, r"Write failure_config=FailureConfig\(max_failures=3\)"),
        (lambda: UNTYPED.CheckpointConfig(checkpoint_freq=3), TypeError, "Did you mean checkpoint_frequency=3"),
        (lambda: UNTYPED.Tuner(print, num_samples=3), TypeError, r"Write tune_config=TuneConfig\(num_samples=3\)"),
        (lambda: UNTYPED.Tuner(print, {"x": 1}), TypeError, r"Name it, as in Tuner\(\.\.\., param_space=\.\.\.\)"),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


class CopyAtOnce(schedulers.FIFOScheduler):
    """At the second report of trial 1, trial 0 is to go on as it."""

    def on_trial_result(self, controls: Any, trial: Any, result: Any) -> Any:
        if trial.number == 1 and result["training_iteration"] == 2:
            controls.exploit(controls.get_trials()[0], trial, {**trial.config, "number": 0})
        return self.CONTINUE


@pytest.mark.parametrize("is_saved", [True, False], ids=["goes on", "fails"])
def test_a_trial_goes_on_from_the_checkpoint_of_when_it_was_decided(tmp_path: Path, is_saved: bool) -> None:
    """Also if the other one is far ahead before the trial leaves its function, or has failed."""
    signals = tmp_path / "signals"
    signals.mkdir()

    def wait_for(name: str) -> None:
        while not (signals / name).exists():
            time.sleep(0.01)

    def train(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        step = 0 if checkpoint is None else int(Path(checkpoint.path, "step").read_text())
        while step < 8:
            if config["number"] == 0 and step == 0:
                (signals / "begun").touch()
                wait_for("ahead")
            if config["number"] == 1 and step == 0:
                wait_for("begun")
            if step == 6:
                (signals / "ahead").touch()
                assert is_saved or config["number"] == 0
            step += 1
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "step").write_text(str(step))
                tune.report({"score": step}, checkpoint=tune.Checkpoint.from_directory(folder))

    config = tune.RunConfig(
        name="search", storage_path=tmp_path, verbose=0, checkpoint_config=tune.CheckpointConfig(num_to_keep=1)
    )
    tune_config = tune.TuneConfig(metric="score", mode="max", scheduler=CopyAtOnce())
    space = {"number": tune.grid_search([0, 1])}
    found = tune.Tuner(train, param_space=space, tune_config=tune_config, run_config=config).fit()
    (taken,) = found[0].exploits
    assert taken.iteration == 2
    assert [report["score"] for report in found[0].metrics_history] == [1, *range(3, 9)]
    assert [one.status for one in found] == [Status.TERMINATED, Status.TERMINATED if is_saved else Status.ERROR]
    for one in found:
        assert len(list(Path(one.path).glob("checkpoint_*"))) == 1, "those that others go on from go with the others"


class EndsOthers(schedulers.FIFOScheduler):
    """At the second report of the first trial it ends all others."""

    looks_ahead = True

    def on_trial_result(self, controls: Any, trial: Any, result: Any) -> Any:
        for other in controls.get_trials():
            if trial.number == 0 and result["training_iteration"] == 2 and other is not trial:
                controls.stop_trial(other)
        return self.CONTINUE


def test_a_trial_that_is_ended_while_it_waits_for_room_does_not_begin(tmp_path: Path) -> None:
    held = tune.with_resources(programs.report_steps, {"cpu": 2})
    found = search(held, tmp_path, {"x": tune.grid_search([1, 2, 3])}, scheduler=EndsOthers())
    assert [(len(one.metrics_history), one.reason) for one in found][:2] == [(3, "it returned"), (0, "its scheduler")]
    assert {one.status for one in found} == {Status.TERMINATED}


def test_a_trial_that_its_scheduler_has_ended_is_not_tried_again(tmp_path: Path) -> None:
    """Also if it fails on its way out."""

    def train(config: dict[str, Any]) -> None:
        for step in range(1, 5):
            try:
                tune.report({"score": config["x"] * step})
            except BaseException as stopped:
                raise OSError("on the way out") from stopped

    asha = schedulers.ASHAScheduler(max_t=9, reduction_factor=2)
    found = search(
        train,
        tmp_path,
        {"x": tune.grid_search([2, 1])},
        {"failure_config": tune.FailureConfig(max_failures=3)},
        metric="score",
        mode="max",
        scheduler=asha,
        max_concurrent_trials=1,
    )
    assert [(len(one.metrics_history), one.reason) for one in found] == [(4, "it returned"), (1, "its scheduler")]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_searcher_may_keep_fewer_trials_under_way_than_a_deterministic_search(tmp_path: Path, limit: int) -> None:
    searcher = BasicVariantGenerator(max_concurrent=limit)
    found = search(
        programs.report_steps,
        tmp_path,
        {"x": tune.uniform(0, 1)},
        search_alg=searcher,
        num_samples=6,
        deterministic=True,
        max_concurrent_trials=3,
    )
    assert len(found) == 6


def test_copies_of_checkpoints_stay_in_a_trials_folder(tmp_path: Path) -> None:
    """Only what it has committed and not reported is removed when it goes on."""

    def train(config: dict[str, Any]) -> None:
        start = tune.get_checkpoint()
        if start is None:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "weights").write_text("w")
                tune.report({"score": 1}, checkpoint=tune.Checkpoint.from_directory(folder))
            raise OSError("once")
        if not Path("copy").exists():
            start.to_directory("copy")
            raise OSError("twice")

    (found,) = search(train, tmp_path, {}, {"failure_config": tune.FailureConfig(max_failures=2)})
    assert found.error is None
    assert (Path(found.path) / "copy" / "weights").read_text() == "w"


def test_what_was_committed_and_not_reported_is_removed(tmp_path: Path) -> None:
    own = storage.Storage(str(tmp_path), "trial")
    (tmp_path / "source").mkdir()
    for name in ("checkpoint_000000", "checkpoint_000001", "best"):
        storage.commit(own, name, [storage.stage(own, name, str(tmp_path / "source"))], {})
    train.Checkpoint(own.path / "best").to_directory(own.path / "copy")
    retention.give(own.path / "best", own.path / "checkpoint_000002")
    (own.path / "plots").mkdir()
    retention.remove_strays(own.path, ["checkpoint_000000"])
    assert sorted(inner.name for inner in own.path.iterdir()) == ["checkpoint_000000", "copy", "plots"]


@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_table_of_a_trial_that_goes_on(tmp_path: Path, is_new_process: bool) -> None:
    """Its columns stay those of the first report, though there are others later."""
    trial = Trial("t", 0, {}, "", path=str(tmp_path))
    callback = logger.CSVLoggerCallback()
    for start in (1, 3):
        callback = logger.CSVLoggerCallback() if is_new_process else callback
        callback.log_trial_start(trial)
        for step in (start, start + 1):
            callback.log_trial_result(0, trial, {"new": 0, "step": step} if start == 3 else {"step": step, "old": "a"})
        if is_new_process:
            callback.log_trial_end(trial)
    callback.log_trial_end(trial)
    assert (tmp_path / "progress.csv").read_text().split() == ["step,old", "1,a", "2,a", "3,", "4,"]


def test_trials_may_report_another_number_of_iterations(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        start = tune.get_checkpoint()
        for step in range(1 if start is None else 3, 5):
            with tempfile.TemporaryDirectory() as folder:
                given = tune.Checkpoint.from_directory(folder) if step == 2 else None
                tune.report({"score": step, "training_iteration": 100 * step}, checkpoint=given)
            if start is None and step == 3:
                raise OSError("once")

    (found,) = search(train, tmp_path, {}, {"failure_config": tune.FailureConfig(max_failures=1)})
    assert [report["score"] for report in found.metrics_history] == [1, 2, 3, 4]
    assert [report["training_iteration"] for report in found.metrics_history] == [100, 200, 300, 400]
