"""Searches that were ended at any moment go on as if they had not been."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.tune import programs

from hocket import tune
from hocket.tune import history, log, schedulers
from hocket.tune.trial import Status

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("shared_session")]

SPACE = {"x": tune.uniform(0, 1), "steps": 3}
KILLS = int(os.environ.get("HOCKET_TEST_TUNE_KILLS", "6"))


def build(path: Path, marks: Path, num_samples: int = 6, name: str = "search", **run: Any) -> tune.Tuner:
    return tune.Tuner(
        programs.save_steps,
        param_space={**SPACE, "marks": str(marks)},
        tune_config=tune.TuneConfig(num_samples=num_samples, seed=5),
        run_config=tune.RunConfig(name=name, storage_path=path, verbose=0, **run),
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, shared_session: object) -> list[float]:
    """What is proposed if nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return [one.config["x"] for one in build(folder, folder, num_samples=10).fit()]


SCRIPT = """
    import json, os, signal, sys
    from hocket import tune
    from hocket.tune import log
    from tests.tune import programs
    path, marks, kill_after, dies_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), tuple(json.loads(sys.argv[4]))

    append = log.Writer.append
    written = 0

    def counting(self, *args, **kwargs):
        global written
        append(self, *args, **kwargs)
        written += 1
        if written == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    log.Writer.append = counting
    tuner = tune.Tuner(
        programs.save_steps,
        param_space={"x": tune.uniform(0, 1), "steps": 3, "marks": marks, "dies_at": dies_at},
        tune_config=tune.TuneConfig(num_samples=6, seed=5),
        run_config=tune.RunConfig(
            name="search", storage_path=path, verbose=0, failure_config=tune.FailureConfig(max_failures=1)
        ),
    )
    tuner.fit()
"""


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_driver_loses_and_repeats_nothing(number: int, undisturbed: list[float], tmp_path: Path) -> None:
    """Killed after a line of the log, cut at a random byte of it; moved; then with more samples and another rule. In
    every second search the process of a trial is killed, too, before or afterwards."""
    moment = random.Random(number)
    marks = tmp_path / "marks"
    marks.mkdir()
    kill_after = moment.randint(2, 40)
    dies_at = (undisturbed[moment.randrange(6)], moment.randint(1, 2)) if number % 2 else ()
    arguments = [str(tmp_path), str(marks), str(kill_after), json.dumps(dies_at)]
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), *arguments]
    killed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    moved = tmp_path / "moved"
    shutil.move(tmp_path / "search", moved)
    file = moved / log.NAME
    content = file.read_bytes()
    begin = content.rstrip(b"\n").rfind(b"\n") + 1
    file.write_bytes(content[: max(moment.randint(begin, len(content)), content.find(b"\n") + 1)])
    before = {one.trial.trial_id: one for one in history.read(moved)}
    done = {name for name, one in before.items() if one.trial.is_finished}
    seen = {
        name: file.read_text().split()
        for name, file in ((f"{x:.6g}", marks / f"{x:.6g}") for x in undisturbed)
        if file.exists()
    }

    found = tune.Tuner.restore(
        moved,
        programs.save_steps,
        tune_config=tune.TuneConfig(num_samples=10),
        run_config=tune.RunConfig(
            stop={"training_iteration": 2}, verbose=0, failure_config=tune.FailureConfig(max_failures=1)
        ),
    ).fit()
    assert [one.config["x"] for one in found] == undisturbed
    assert (marks / "died").exists() == bool(dies_at), "the fault fired"
    assert {one.status for one in found} == {Status.TERMINATED}
    for one in found:
        name = f"{one.config['x']:.6g}"
        steps = (marks / name).read_text().split()
        reported = [report["training_iteration"] for report in one.metrics_history]
        if one.trial_id in done:
            assert steps == seen[name], "it does not run again"
        assert reported == list(range(1, len(reported) + 1))
        assert [report["score"] for report in one.metrics_history] == pytest.approx(
            [one.config["x"] * step for step in reported]
        )
        most = 2 + (one.config["x"] in dies_at)
        assert max(Counter(steps).values()) <= most, "a step that was not committed is done again, once a kill"


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_killed_trial_goes_on_from_its_checkpoint(step: int, tmp_path: Path) -> None:
    config = {"x": 0.5, "steps": 3, "marks": str(tmp_path), "dies_at": (0.5, step)}
    found = tune.Tuner(
        programs.save_steps,
        param_space=config,
        run_config=tune.RunConfig(storage_path=tmp_path, verbose=0, failure_config=tune.FailureConfig(max_failures=1)),
    ).fit()
    assert (tmp_path / "died").exists()
    assert [report["score"] for report in found[0].metrics_history] == [0.5, 1.0, 1.5]
    assert (tmp_path / "0.5").read_text().split() == [str(one) for one in sorted([1, 2, 3, step])]


def test_failed_trials_go_on_or_begin_anew_if_told(tmp_path: Path) -> None:
    def objective(config: dict[str, Any]) -> None:
        if not Path(config["marks"], "mended").exists():
            programs.save_steps({**config, "steps": 2})
            raise OSError("broken")
        programs.save_steps(config)

    def fit(*, resume_errored: bool = False, restart_errored: bool = False) -> tune.Result:
        tuner = tune.Tuner.restore(
            tmp_path / "search", objective, resume_errored=resume_errored, restart_errored=restart_errored
        )
        return tuner.fit()[0]

    config = {"x": 1, "steps": 4, "marks": str(tmp_path)}
    run = tune.RunConfig(name="search", storage_path=tmp_path, verbose=0)
    (first,) = tune.Tuner(objective, param_space=config, run_config=run).fit()
    assert first.status is Status.ERROR
    (tmp_path / "mended").touch()
    assert fit().status is Status.ERROR
    assert fit(resume_errored=True).status is Status.TERMINATED
    assert (tmp_path / "1").read_text().split() == ["1", "2", "3", "4"]
    assert fit(restart_errored=True).status is Status.TERMINATED, "it has not failed"
    assert (tmp_path / "1").read_text().split() == ["1", "2", "3", "4"]


def test_errors_name_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(tune.TuneError, match=r"There is no search in .*: it has no search.jsonl"):
        tune.Tuner.restore(tmp_path, programs.save_steps)
    assert not tune.Tuner.can_restore(tmp_path)
    build(tmp_path, tmp_path, num_samples=1).fit()
    assert tune.Tuner.can_restore(tmp_path / "search")
    (tmp_path / "search" / "tuner.pickle").unlink()
    with pytest.raises(
        tune.TuneError, match=r"param_space of the search in .* could not be kept \(tuner.pickle is missing\)"
    ):
        tune.Tuner.restore(tmp_path / "search", programs.save_steps)


def test_damage_is_told(tmp_path: Path) -> None:
    build(tmp_path, tmp_path, num_samples=1).fit()
    file = tmp_path / "search" / log.NAME
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([lines[0], b"{spoiled", *lines[1:]]))
    with pytest.raises(tune.TuneError, match=r"Line 2 of .* is damaged"):
        history.read(tmp_path / "search")
    file.write_bytes(json.dumps({"event": "session", "version": 99}).encode() + b"\n")
    with pytest.raises(tune.TuneError, match="was written by a newer Hocket"):
        tune.Tuner.restore(tmp_path / "search", programs.save_steps).fit()


def test_two_writers(tmp_path: Path) -> None:
    writer = log.Writer(tmp_path)
    try:
        with pytest.raises(tune.TuneError, match="is still running"):
            log.Writer(tmp_path)
    finally:
        writer.close()


def test_a_narrower_space(tmp_path: Path) -> None:
    build(tmp_path, tmp_path, num_samples=2).fit()
    found = tune.Tuner.restore(
        tmp_path / "search",
        programs.save_steps,
        param_space={"x": tune.uniform(0.4, 0.5), "steps": 1, "marks": str(tmp_path)},
        tune_config=tune.TuneConfig(num_samples=8),
    ).fit()
    assert len(found) == 8
    assert all(0.4 <= one.config["x"] <= 0.5 for one in found[2:])


def test_a_stop_rule_about_metrics_that_were_not_reported(tmp_path: Path) -> None:
    def report(config: dict[str, Any]) -> None:
        for step in range(1, 4):
            tune.report({"score": step, "seen": config["x"]} if (tmp_path / "later").exists() else {"score": step})

    space, run = {"x": tune.uniform(0, 1)}, tune.RunConfig(name="search", storage_path=tmp_path, verbose=0)
    tune.Tuner(report, param_space=space, run_config=run).fit()
    (tmp_path / "later").touch()
    found = tune.Tuner.restore(
        tmp_path / "search",
        report,
        tune_config=tune.TuneConfig(num_samples=2),
        run_config=tune.RunConfig(verbose=0, stop=lambda trial_id, result: result["seen"] < 2),
    ).fit()
    assert [len(one.metrics_history) for one in found] == [3, 1]


@pytest.mark.parametrize("how", ["rule", "scheduler"])
def test_a_decision_is_done_that_a_kill_came_before(how: str, tmp_path: Path) -> None:
    """The log ends with the report at which the trial was to end."""
    scheduler = schedulers.ASHAScheduler(max_t=2, grace_period=2) if how == "scheduler" else None
    stop = {"training_iteration": 2} if how == "rule" else None
    tuner = tune.Tuner(
        programs.save_steps,
        param_space={"x": 1, "steps": 5},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(name="search", storage_path=tmp_path, verbose=0, stop=stop),
    )
    tuner.fit()
    file = tmp_path / "search" / log.NAME
    lines = file.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if b'"event": "report"' in line)
    file.write_bytes(b"".join(lines[: last + 1]))
    (found,) = tune.Tuner.restore(tmp_path / "search", programs.save_steps).fit()
    assert [report["score"] for report in found.metrics_history] == [1, 2]
    assert found.reason == ("a stop rule of the search" if how == "rule" else "its scheduler")


def test_one_config_is_for_several_searches(tmp_path: Path) -> None:
    config = tune.TuneConfig(
        metric="score", mode="max", scheduler=schedulers.ASHAScheduler(max_t=4, reduction_factor=2), seed=1
    )
    found = []
    for name in "ab":
        run = tune.RunConfig(name=name, storage_path=tmp_path, verbose=0)
        space = {"x": tune.grid_search([3, 2, 1]), "steps": 4}
        grid = tune.Tuner(programs.report_steps, param_space=space, tune_config=config, run_config=run).fit()
        found.append(len(grid[0].metrics_history))
    assert found == [4, 4]


class CountReports(tune.Callback):
    """Counts reports, over all of a search's sessions; the plug is pulled at one of them."""

    def __init__(self, fails_at: int | None) -> None:
        self.reports, self.fails_at = 0, fails_at
        self.calls: list[str] = []

    def setup(self, stop: object = None, *args: Any, **info: Any) -> None:
        self.calls.append("setup")

    def get_state(self) -> Any:
        return {"reports": self.reports}

    def set_state(self, state: Any) -> None:
        self.calls.append("set_state")
        self.reports = state["reports"]

    def on_trial_result(self, *about: Any, **info: Any) -> None:
        self.reports += 1
        if self.reports == self.fails_at:
            raise ConnectionError("pulled the plug")


def test_callbacks_know_what_they_knew(tmp_path: Path) -> None:
    def build(*callbacks: tune.Callback) -> tune.RunConfig:
        return tune.RunConfig(name="search", storage_path=tmp_path, verbose=0, callbacks=list(callbacks))

    tuner = tune.Tuner(
        programs.report_steps,
        param_space={"x": tune.grid_search([1, 2]), "steps": 3},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=build(tune.Callback(), CountReports(fails_at=4)),
    )
    with pytest.raises(ConnectionError):
        tuner.fit()
    second = CountReports(fails_at=None)
    found = tune.Tuner.restore(
        tmp_path / "search", programs.report_steps, run_config=build(tune.Callback(), second)
    ).fit()
    assert [one.status for one in found] == [Status.TERMINATED] * 2
    assert second.calls == ["setup", "set_state"]
    assert second.reports == 4 + 3, "the first trial, one report of the second, and all of it once more"
    other = tune.Tuner.restore(tmp_path / "search", programs.report_steps, run_config=build(CountReports(None)))
    assert len(other.fit()) == 2, "what another class knew is not for it"


def test_a_wrong_setting_leaves_no_search_behind(tmp_path: Path) -> None:
    def build(**config: Any) -> tune.Tuner:
        run = tune.RunConfig(
            name="search", storage_path=tmp_path, verbose=0, checkpoint_config=tune.CheckpointConfig(**config)
        )
        return tune.Tuner(programs.report_steps, param_space={"x": 1}, run_config=run)

    with pytest.raises(ValueError, match="checkpoint_frequency and checkpoint_at_end are for classes"):
        build(checkpoint_frequency=1).fit()
    assert len(build().fit()) == 1
