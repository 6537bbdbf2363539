"""A search, from a space to its results, on each engine."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.tune import programs

from hocket import exceptions, train, tune
from hocket.tune import configs, history, log
from hocket.tune.run import results
from hocket.tune.trial import Status

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("any_session")]


@pytest.fixture
def run_config(tmp_path: Path) -> tune.RunConfig:
    return tune.RunConfig(name="search", storage_path=tmp_path, verbose=0)


def search(
    trainable: Any, path: Path, space: dict[str, Any], *, stop: Any = None, callbacks: Any = (), **settings: Any
) -> tune.ResultGrid:
    kept = ("failure_config", "checkpoint_config", "log_to_file")
    run = {name: settings.pop(name) for name in kept if name in settings}
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(**settings),
        run_config=tune.RunConfig(name="search", storage_path=path, verbose=0, stop=stop, callbacks=callbacks, **run),
    ).fit()


def test_a_grid_in_its_order_with_all_reports(tmp_path: Path) -> None:
    found = search(programs.report_steps, tmp_path, {"x": tune.grid_search([3, 1, 2])}, metric="score", mode="max")
    assert [one.config["x"] for one in found] == [3, 1, 2]
    assert [[report["score"] for report in one.metrics_history] for one in found] == [[3, 6, 9], [1, 2, 3], [2, 4, 6]]
    assert found.get_best_result().config == {"x": 3}
    assert found.get_best_result(mode="min").config == {"x": 1}
    assert (found.num_terminated, found.num_errors, found.errors) == (3, 0, [])
    last = found[0].metrics
    assert last["training_iteration"] == 3
    assert last["done"] is True
    assert last["trial_id"] == found[0].trial_id
    assert last["pid"] > 0
    assert last["time_total_s"] >= last["time_this_iter_s"] > 0
    frame = found.get_dataframe(filter_metric="score", filter_mode="min")
    assert list(frame["score"]) == [3, 1, 2]
    assert list(frame["config/x"]) == [3, 1, 2]
    assert found[1].metrics_dataframe["score"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("scope", ["last", "all", "avg", "last-5-avg", "last-10-avg"])
def test_scopes(tmp_path: Path, scope: str) -> None:
    def objective(config: dict[str, Any]) -> Any:
        yield from ({"score": value} for value in config["values"])

    values = [[9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], [4.0, 4.0, 4.0, 3.0, 3.0, 0.0, 0.5], [float("nan")]]
    found = search(objective, tmp_path, {"values": tune.grid_search(values)})
    expected = {"last": 0, "all": 0, "avg": 1, "last-5-avg": 1, "last-10-avg": 1}[scope]
    assert found.get_best_result("score", "max", scope).config["values"] == values[expected]
    with pytest.raises(ValueError, match=r"scope must be one of"):
        found.get_best_result("score", "max", "first")


def test_what_is_returned_is_a_report_and_nothing_is_none(tmp_path: Path) -> None:
    found = search(lambda config: {"score": 1} if config["x"] else None, tmp_path, {"x": tune.grid_search([0, 1])})
    assert found[0].metrics == {}
    assert found[1].metrics["score"] == 1

    def count(config: dict[str, Any]) -> Any:
        yield 3
        yield 4.5

    numbers = search(count, tmp_path / "numbers", {})
    assert numbers[0].metrics_dataframe["_metric"].tolist() == [3, 4.5]
    assert [one.status for one in found] == [Status.TERMINATED] * 2


def test_a_trial_that_raises_fails_alone(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> None:
        tune.report({"score": config["x"]})
        if config["x"] == 1:
            raise KeyError("one")

    found = search(objective, tmp_path, {"x": tune.grid_search([0, 1, 2])})
    assert [one.status for one in found] == [Status.TERMINATED, Status.ERROR, Status.TERMINATED]
    assert isinstance(found[1].error, KeyError)
    assert found[1].reason == "KeyError: 'one'"
    assert "line" in (history.read(tmp_path / "search")[1].text or ""), "its traceback"


def test_stop_rules(tmp_path: Path) -> None:
    found = search(
        programs.Counting, tmp_path, {"x": tune.grid_search([1, 5])}, stop={"score": 10, "training_iteration": 4}
    )
    assert [[report["score"] for report in one.metrics_history] for one in found] == [[1, 2, 3, 4], [5, 10]]
    assert {one.reason for one in found} == {"a stop rule of the search"}


def test_functions_are_left_from_their_report(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> None:
        step = 0
        try:
            while True:
                step += 1
                tune.report({"score": step})
        finally:
            (tmp_path / "left").write_text(str(step))

    search(objective, tmp_path, {}, stop={"training_iteration": 3})
    assert (tmp_path / "left").read_text() == "3"


def test_checkpoints_are_kept_as_told(tmp_path: Path) -> None:
    kept = tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order="min")
    (found,) = search(programs.save_steps, tmp_path, {"x": 1, "steps": 5}, checkpoint_config=kept)
    assert [metrics["score"] for _, metrics in found.best_checkpoints] == [2, 1], "the best last"
    assert found.checkpoint is not None
    assert json.loads(Path(found.checkpoint.path, "state.json").read_text()) == {"step": 5, "x": 1}
    assert found.metrics["checkpoint_dir_name"] == Path(found.checkpoint.path).name
    best = found.get_best_checkpoint("score", "min")
    assert best is not None
    assert json.loads(Path(best.path, "state.json").read_text())["step"] == 1


def test_classes_save_as_told(tmp_path: Path) -> None:
    config = tune.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True)
    (found,) = search(programs.Counting, tmp_path, {"x": 1}, stop={"training_iteration": 5}, checkpoint_config=config)
    assert [metrics["training_iteration"] for _, metrics in found.best_checkpoints] == [2, 4, 5]


def test_a_trial_that_fails_goes_on_from_its_checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    def objective(config: dict[str, Any]) -> None:
        programs.save_steps({"x": 1, "steps": 2})
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").write_text("")
            raise OSError("once")
        programs.save_steps({"x": 1, "steps": 4})

    (found,) = search(objective, tmp_path, {}, failure_config=tune.FailureConfig(max_failures=1))
    assert [report["score"] for report in found.metrics_history][-1] == 4
    assert found.status is Status.TERMINATED
    assert found.metrics["iterations_since_restore"] == found.metrics["training_iteration"] - 2
    events = [record["event"] for record in log.read(tmp_path / "search")]
    assert events.count("retry") == 1


def test_fail_fast(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> None:
        raise ValueError(f"bad {config['x']}")

    space = {"x": tune.grid_search(list(range(20)))}
    found = search(objective, tmp_path, space, failure_config=tune.FailureConfig(fail_fast=True))
    assert 1 <= len(found) < 20
    with pytest.raises(ValueError, match=r"bad \d"):
        search(objective, tmp_path / "b", space, failure_config=tune.FailureConfig(fail_fast="raise"))


def test_callbacks_hear_everything_in_order(tmp_path: Path) -> None:
    heard: list[str] = []

    class Follow(tune.Callback):
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("on_trial") or name in ("setup", "on_experiment_end"):
                return lambda *args, **info: heard.append(name)
            return super().__getattribute__(name)

    search(programs.save_steps, tmp_path, {"x": 1, "steps": 2}, callbacks=[Follow()])
    assert heard == [
        "setup",
        "on_trial_start",
        "on_trial_save",
        "on_trial_result",
        "on_trial_save",
        "on_trial_result",
        "on_trial_complete",
        "on_experiment_end",
    ]


def test_parameters_and_resources(tmp_path: Path) -> None:
    def objective(config: dict[str, Any], data: list[int]) -> dict[str, Any]:
        return {"score": sum(data), "cpus": tune.get_context().get_trial_resources().required_resources["CPU"]}

    given = tune.with_resources(tune.with_parameters(objective, data=[1, 2]), {"cpu": 0.5})
    (found,) = search(given, tmp_path, {})
    assert (found.metrics["score"], found.metrics["cpus"]) == (3, 0.5)


def test_context(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> dict[str, Any]:
        context = tune.get_context()
        Path(context.get_trial_dir(), "note").write_text("here")
        return {"told": [context.get_experiment_name(), context.get_trial_id(), context.get_trial_name()]}

    (found,) = search(objective, tmp_path, {})
    assert found.metrics["told"] == ["search", found.trial_id, f"objective_{found.trial_id}"]
    assert Path(found.path, "note").read_text() == "here"


def test_the_same_seed_is_the_same_search(tmp_path: Path) -> None:
    space = {"x": tune.uniform(0, 1), "inner": {"y": tune.choice([1, 2, 3])}}
    found = [
        [
            one.config
            for one in search(
                programs.report_steps, tmp_path / str(most), space, num_samples=6, seed=3, max_concurrent_trials=most
            )
        ]
        for most in (1, 2)
    ]
    assert found[0] == found[1]
    assert len({one["x"] for one in found[0]}) == 6


def test_nan_never_wins_and_says_so(tmp_path: Path) -> None:
    found = search(lambda config: {"loss": config["x"]}, tmp_path, {"x": tune.grid_search([math.nan, 2.0])})
    assert found.get_best_result("loss", "min").config == {"x": 2.0}
    assert found.get_best_result("loss", "max").config == {"x": 2.0}
    with pytest.raises(
        tune.TuneError, match=r"No trial has reported the metric 'acc'; the reported metrics are \['loss'\]"
    ):
        found.get_best_result("acc", "max")
    with pytest.raises(ValueError, match="No metric is given"):
        found.get_best_result()


def test_a_list_is_one_value_of_a_space(tmp_path: Path) -> None:
    found = search(lambda config: {"loss": config["x"]}, tmp_path, {"x": [1, 2, 3]})
    with pytest.raises(
        tune.TuneError,
        match=r"No trial has reported 'loss' as a number; one of its values is \[1, 2, 3\]. Report a number. 'x' is a "
        r"list, and .* write 'x': tune.grid_search\(\[1, 2, 3\]\) or tune.choice\(\[1, 2, 3\]\)\.$",
    ):
        found.get_best_result("loss", "min")
    failed = search(lambda config: {"loss": 0.5 * config["net"]["x"]}, tmp_path / "failed", {"net": {"x": (1, 2)}})
    with pytest.raises(tune.TuneError, match=r"TypeError: can't multiply .*'net/x' is a list.*grid_search\(\(1, 2\)\)"):
        failed.get_best_result("loss", "min")


def test_a_metric_that_is_never_reported_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        tune.TuneError, match=r"No report of trial \w+ has the metric 'accuracy'; its last one has \['loss'\]"
    ):
        search(lambda config: {"loss": 1}, tmp_path, {}, metric="accuracy", mode="max")


def test_two_searches_of_one_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in Ray a new search begins in the same folder. Nothing of the earlier one is lost, or hidden by the new."""
    first = search(save_once, tmp_path, {"x": 1})
    assert caplog.messages == []
    second = search(save_once, tmp_path, {"x": tune.grid_search([2, 3])})
    [message] = caplog.messages
    folder, [earlier] = Path(first.experiment_path), Path(first.experiment_path).glob("search-*.jsonl")
    assert message.startswith(
        f"A new search begins in '{folder}', which has an earlier search. The files of its trials stay there"
    )
    assert f"its log is called {earlier.name} now" in message
    assert [[one.config["x"] for one in grid] for grid in (first, second)] == [[1], [2, 3]]
    for result in [*first, *second]:
        with result.checkpoint.as_directory() as kept:
            assert Path(kept, "x").read_text() == str(result.config["x"])
    prefix = first[0].trial_id.partition("_")[0]
    assert earlier.name == f"search-{prefix}.jsonl"
    assert [one.config for one in tune.ResultGrid(folder, prefix=prefix)] == [{"x": 1}]
    assert len(tune.ExperimentAnalysis(folder).trials) == 2
    assert len(tune.Tuner.restore(folder, save_once).fit()) == 2, "the latest one goes on"


def test_trials_of_two_searches_have_folders_of_their_own(tmp_path: Path) -> None:
    def fit(x: int) -> str:
        config = tune.TuneConfig(trial_dirname_creator=lambda trial: "same")
        run = tune.RunConfig(name="two", storage_path=tmp_path, verbose=0)
        return tune.Tuner(save_once, param_space={"x": x}, tune_config=config, run_config=run).fit()[0].path

    first, second = Path(fit(1)), Path(fit(2))
    assert [(one.name, (one / "checkpoint_000000" / "x").read_text()) for one in (first, second)] == [
        ("same", "1"),
        (second.name, "2"),
    ]
    assert re.fullmatch("same_[0-9a-f]{6}", second.name)


def test_a_search_that_goes_on_is_not_set_aside(tmp_path: Path) -> None:
    with contextlib.closing(log.Writer(tmp_path)) as writer:
        writer.append("session", prefix="abcdef")
        with pytest.raises(
            tune.TuneError, match=r"The search in .* is still running: another fit\(\), here or in another"
        ):
            log.set_aside(tmp_path, "tuner.pickle")
    assert log.set_aside(tmp_path, "tuner.pickle") == "abcdef"
    assert [path.name for path in tmp_path.iterdir()] == ["search-abcdef.jsonl"]


def test_a_new_search_unpickles_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    line = b'{"event": "session", "version": 99, "prefix": "../up", "x": {"!pickle": "no pickle"}}\n'
    (tmp_path / "name" / "search.jsonl").write_bytes(line)
    run = tune.RunConfig(name="name", storage_path=tmp_path, verbose=0)
    assert len(tune.Tuner(save_once, param_space={"x": 1}, run_config=run).fit()) == 1
    [kept] = (tmp_path / "name").glob("search-*.jsonl")
    assert kept.read_bytes() == line


def save_once(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_text(str(config["x"]))
        tune.report({"x": config["x"]}, checkpoint=tune.Checkpoint(folder))


def test_tune_run(tmp_path: Path) -> None:
    analysis = tune.run(
        programs.report_steps,
        config={"x": tune.grid_search([1, 2])},
        metric="score",
        mode="max",
        storage_path=tmp_path,
        name="old",
        verbose=0,
    )
    assert analysis.best_config == {"x": 2}
    assert analysis.best_result["score"] == 6
    assert analysis.dataframe()["score"].tolist() == [3, 6]
    again = tune.run(programs.report_steps, name="old", storage_path=tmp_path, resume=True, verbose=0)
    assert len(again.trials) == 2
    with pytest.raises(tune.TuneError, match=r"1 of 1 trials failed; the first is \w+: ZeroDivisionError"):
        tune.run(lambda config: 1 / 0, storage_path=tmp_path, verbose=0)


def test_more_than_there_is(tmp_path: Path) -> None:
    with pytest.raises(
        exceptions.InfeasibleResourcesError, match=r"Trial \w+ needs .*but the session has 0 of unobtainium"
    ):
        search(tune.with_resources(programs.report_steps, {"unobtainium": 1}), tmp_path, {"x": 1})
    with pytest.raises(exceptions.InfeasibleResourcesError, match=r"start with more: hocket\.init\(num_gpus=\.\.\.\)"):
        search(tune.with_resources(programs.report_steps, {"gpu": 99}), tmp_path / "gpu", {"x": 1})
    with pytest.raises(exceptions.InfeasibleResourcesError, match=r"Did you mean 'cpu' by 'cpus'\?$"):
        search(tune.with_resources(programs.report_steps, {"cpus": 1}), tmp_path / "cpus", {"x": 1})


@pytest.mark.parametrize("kind", ["history", "curves", "parallel", "slices", "importance", "lineage"])
def test_pictures(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'hocket[plot]'")
    space = {"x": tune.loguniform(1e-3, 1), "inner": {"name": tune.choice(["a", "b"])}}
    found = search(programs.report_steps, tmp_path, space, num_samples=4, seed=1, metric="score", mode="max")
    found.plot(kind).savefig(tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"plot\(\) draws one of \['history'"):
        found.plot("pie")
    with pytest.raises(ValueError, match="No trial has a finite value of 'acc'"):
        found.plot(kind, metric="acc", mode="max")


def test_what_counts(tmp_path: Path) -> None:
    space = {"x": tune.uniform(0, 1), "name": tune.choice(["a", "b"]), "steps": 1}
    found = search(programs.report_steps, tmp_path, space, num_samples=30, seed=1, metric="score", mode="max")
    counts = found.get_importances()
    assert list(counts) == ["x", "name"]
    assert counts["x"] > 0.9
    assert sum(counts.values()) == pytest.approx(1)
    with pytest.raises(ValueError, match="Importances need at least two trials with a value, but there are 0"):
        found.get_importances("acc")


def test_a_notebook_shows_a_table(tmp_path: Path) -> None:
    space = {"x": tune.grid_search([1, 3]), "name": "<b>", "steps": 1}
    shown = search(programs.report_steps, tmp_path, space, metric="score", mode="max")._repr_html_()
    assert shown.index("x=3") < shown.index("x=1")
    assert "name=&#x27;&lt;b&gt;&#x27;" in shown
    assert "<p>2 trials: 2 terminated</p>" in shown


def print_and_report(config: dict[str, Any]) -> None:
    print("step one of", config["x"])
    print("careful", file=sys.stderr)
    tune.report({"score": 1})
    print(sys.stdout.isatty(), end="")
    raise KeyError("after the report")


@pytest.mark.parametrize(
    ("given", "files"),
    [(True, ("stdout", "stderr")), (("a", "b"), ("a", "b")), ("both", ("both", "both"))],
)
def test_what_trials_print(tmp_path: Path, given: Any, files: tuple[str, str]) -> None:
    found = search(print_and_report, tmp_path, {"x": tune.grid_search([1, 2])}, log_to_file=given)
    for number, one in enumerate(found, 1):
        out, err = (Path(one.path, name).read_text() for name in files)
        assert out.startswith(f"step one of {number}\n")
        assert out.endswith("False")
        assert "careful\n" in err
        assert (out == err) == (given == "both")


@pytest.mark.parametrize(
    ("kind", "name", "value", "error", "match"),
    [
        (tune.TuneConfig, "seed", -1, ValueError, "seed must be 0 or more, but received -1"),
        (tune.TuneConfig, "reuse_actors", "yes", TypeError, "reuse_actors must be True or False, .* 'yes'"),
        (tune.TuneConfig, "deterministic", 1, TypeError, "deterministic must be True or False, but received 1"),
        (tune.TuneConfig, "trial_name_creator", "a", TypeError, "trial_name_creator must be a function"),
        (tune.TuneConfig, "num_samples", -2, ValueError, "num_samples must be 1 or more, or -1 .* received -2"),
        (tune.RunConfig, "verbose", "x", TypeError, "verbose must be an int, 0 or more, but received 'x'"),
        (tune.RunConfig, "log_to_file", 3, TypeError, "log_to_file must be True, a file name, or two file names, .* 3"),
        (tune.RunConfig, "log_to_file", "a/b", ValueError, "log_to_file names files .* but received 'a/b'"),
        (tune.FailureConfig, "max_failures", -2, ValueError, "max_failures must be 0 or more, or -1 .* -2"),
        (tune.FailureConfig, "fail_fast", 1, ValueError, "fail_fast must be True, False or 'raise', .* 1"),
        (tune.CheckpointConfig, "num_to_keep", 0, ValueError, "num_to_keep must be 1 or more, or None .* 0"),
        (tune.CheckpointConfig, "checkpoint_frequency", -1, ValueError, "checkpoint_frequency must be 0 or more"),
        (tune.CheckpointConfig, "checkpoint_at_end", "x", TypeError, "checkpoint_at_end must be True or False"),
        (tune.ResumeConfig, "errored", "skip", TypeError, "errored must be a ResumeConfig.ResumeType .* 'skip'"),
    ],
)
def test_bad_settings(kind: Any, name: str, value: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        kind(**{name: value})


def test_a_table(tmp_path: Path) -> None:
    found = search(programs.report_steps, tmp_path, {"x": tune.grid_search([1, 3, 2])}, metric="score", mode="max")
    lines = found.report(most=2).splitlines()
    assert lines[0].split()[:3] == ["trial", "score", "reports"]
    assert [line.split()[1] for line in lines[1:3]] == ["9", "6"]
    assert lines[1].endswith("it returned; x=3")
    assert lines[3] == "3 trials: 3 terminated"


class Told(tune.ProgressReporter):
    """A user's own."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def setup(
        self, start_time: Any = None, total_samples: Any = None, metric: Any = None, mode: Any = None, **info: Any
    ) -> None:
        self.told.append((total_samples, metric))

    def should_report(self, trials: Any, done: bool = False) -> bool:
        return done or any(trial.last_result for trial in trials)

    def report(self, trials: Any, done: bool, *sys_info: str) -> None:
        self.told.append((len(trials), done))


def test_a_reporter_is_called_and_a_table_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter, space = Told(), {"x": tune.grid_search([1, 2]), "model": {"name": "a" * 50}}
    run = tune.RunConfig(name="told", storage_path=tmp_path, progress_reporter=reporter)
    config = tune.TuneConfig(metric="score", mode="max")
    tune.Tuner(programs.report_steps, param_space=space, tune_config=config, run_config=run).fit()
    assert reporter.told[0] == (1, "score")
    assert reporter.told[-1] == (2, True)
    assert len(reporter.told) > 2

    table = tune.CLIReporter(metric_columns={"score": "points"}, sort_by_metric=True, max_report_frequency=0)
    run = tune.RunConfig(name="printed", storage_path=tmp_path, progress_reporter=table)
    tune.Tuner(programs.report_steps, param_space=space, tune_config=config, run_config=run).fit()
    printed = capsys.readouterr().out
    assert printed.count("\n== ") >= 1, "while it runs, and at the end"
    title, head, first, second = printed[printed.rindex("== ") :].splitlines()[:4]
    assert title.endswith("2 TERMINATED")
    assert head.split() == ["trial", "status", "x", "model/name", "points"]
    assert first.split()[1:] == ["TERMINATED", "2", "a" * 17 + "...", "6"]
    assert second.split()[-1] == "3"

    notebook = tune.JupyterNotebookReporter(metric_columns=["score"])
    assert "<th>score</th></tr></table>" in notebook.build_html([])


def test_a_reporter_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"progress_reporter must be a ProgressReporter, but received 'x'\. Write CLI"):
        tune.RunConfig(progress_reporter="x")  # type: ignore[arg-type]
    with pytest.raises(
        TypeError,
        match=r"metric_columns must be a list of names, or a dict from names to headings, but received 'loss'",
    ):
        tune.CLIReporter(metric_columns="loss")
    with pytest.raises(ValueError, match="max_progress_rows must be 0 or more, but received -1"):
        tune.CLIReporter(max_progress_rows=-1)


def report_unevenly(config: dict[str, Any]) -> None:
    """Trials that were begun later end earlier, now and then."""
    for _ in range(1 + int(config["x"] * 1000) % 40):
        tune.report({"score": (config["x"] - 0.3) ** 2})


@pytest.mark.parametrize("cpus", [0.25, 1])
def test_a_sampler_that_learns_proposes_the_same_however_many_run(tmp_path: Path, cpus: float) -> None:
    optuna = pytest.importorskip("hocket.tune.search.optuna", reason="needs Optuna: pip install 'hocket[tune]'")
    pytest.importorskip("optuna")

    def run(name: str, each: float, count: int = 25) -> list[float]:
        found = search(
            tune.with_resources(report_unevenly, {"cpu": each}),
            tmp_path / name,
            {"x": tune.uniform(0, 1)},
            metric="score",
            mode="min",
            num_samples=count,
            seed=1,
            search_alg=optuna.OptunaSearch(),
            max_concurrent_trials=4,
            deterministic=True,
        )
        return [one.config["x"] for one in found]

    alone = run("one at a time", 2)
    assert run("some at once", cpus) == alone
    restored = tune.Tuner.restore(
        tmp_path / "one at a time" / "search",
        report_unevenly,
        tune_config=tune.TuneConfig(
            metric="score",
            mode="min",
            num_samples=28,
            search_alg=optuna.OptunaSearch(),
            max_concurrent_trials=4,
            deterministic=True,
        ),
    )
    assert [one.config["x"] for one in restored.fit()] == run("more", 1, 28)


def test_whether_failures_raise_is_a_flag(tmp_path: Path) -> None:
    wrong: Any = "x"
    with pytest.raises(TypeError, match="raise_on_failed_trial must be True or False, but received 'x'"):
        tune.run(programs.report_steps, storage_path=tmp_path, verbose=0, raise_on_failed_trial=wrong)


def test_what_a_run_of_training_is_told_will_do(tmp_path: Path) -> None:
    kept = train.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    given = train.RunConfig(name="of training", storage_path=tmp_path, checkpoint_config=kept)
    found = configs.read_run_config(given)
    assert isinstance(found, tune.RunConfig)
    assert (found.name, found.storage_path, found.checkpoint_config.num_to_keep) == ("of training", tmp_path, 1)
    tune.Tuner(lambda config: None, run_config=given)
    with pytest.raises(TypeError, match="a search cannot use its worker_runtime_env"):
        tune.Tuner(lambda config: None, run_config=train.RunConfig(worker_runtime_env={"env_vars": {"A": "1"}}))


def test_names_of_metrics_that_hocket_adds(tmp_path: Path) -> None:
    (result,) = search(lambda config: {"loss": 1}, tmp_path, {"x": 1})
    assert set(result.metrics) == results.ADDED | {"loss"}
