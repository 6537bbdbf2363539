"""Searches as viewers see them: from logs of real searches, while they run and afterwards, and from damaged ones."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import tune
from hocket._base import showing
from hocket.observe import searches
from hocket.observe.runs import lines
from hocket.observe.top import tables
from hocket.stores import trust
from hocket.tune import encoding
from tests.observe import damage

pytestmark = pytest.mark.about_local("logs, which are the same on each engine")

PROGRAM = """
import sys
import hocket
from hocket import tune

hocket.init(num_cpus=2)


def trial(config):
    for step in range(3):
        tune.report({"loss": config["x"] + 1 / (step + 1)})
    if config["x"] == 1:
        raise ValueError("<b>odd</b>")
    if config["x"] == 2:
        print("open", flush=True)
        import time
        time.sleep(600)


tune.Tuner(
    trial,
    param_space={"x": tune.grid_search([0, 1, 2])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
    run_config=tune.RunConfig(name="search", storage_path=sys.argv[1], verbose=0),
).fit()
"""


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "LOOK_SECONDS", 0.0)


def write(folder: Path, *records: dict[str, Any]) -> Path:
    """Write a log."""
    folder.mkdir(exist_ok=True)
    with (folder / searches.NAME).open("a") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
    return folder


def begin(folder: Path, **given: Any) -> Path:
    session = {"event": "session", "time": 1.0, "version": 1, "name": "trial", "metric": "loss", "mode": "min"}
    return write(folder, session | given)


def propose(folder: Path, number: int, config: Any) -> None:
    record = {"event": "trial", "id": f"t{number}", "number": number, "config": config, "tag": "", "folder": "f"}
    write(folder, record, {"event": "start", "id": f"t{number}", "time": 1.0, "iteration": 0, "checkpoint": None})


def report(folder: Path, number: int, **metrics: Any) -> None:
    write(folder, {"event": "report", "id": f"t{number}", "metrics": metrics, "time": 2.0, "seconds": 0.5})


def finish(folder: Path, number: int, **more: Any) -> None:
    write(folder, {"event": "end", "id": f"t{number}", "status": "TERMINATED", "reason": None, "error": None} | more)


def describe(folder: Path, metric: str | None = None) -> dict[str, Any]:
    looked = searches.Searches(folder)
    (line,) = looked.list_searches([])
    found = looked.describe(line["path"], metric, 100)
    assert found is not None
    return found


def test_search_that_runs_and_is_killed(tmp_path: Path, looking: None) -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "open\n"
        looked = searches.Searches()
        (line,) = looked.list_searches([program.pid])
        assert (line["name"], line["state"], line["count"]) == ("search", "running", 3)
        assert line["states"] == {"terminated": 1, "error": 1, "running": 1}
        found = looked.describe(line["path"], None, 100)
        assert found is not None
        assert (found["metric"], found["mode"], found["parameters"]) == ("loss", "min", ["x"])
        first, best, failed = found["trials"]
        assert (first["number"], first["state"], first["iterations"]) == (2, "running", 3)
        assert best["metrics"]["loss"] == pytest.approx(1 / 3, rel=1e-5)
        assert failed["state"] == "error"
        assert failed["error"].endswith("ValueError: <b>odd</b>")
        assert [one["number"] for one in found["curves"]] == [2, 0, 1]
        assert [at for at, _ in found["curves"][0]["points"]] == [0, 1, 2]
        os.kill(program.pid, signal.SIGKILL)
        program.wait()
        (line,) = looked.list_searches([program.pid])
        assert line["state"] == "interrupted"
        assert describe(tmp_path)["state"] == "interrupted"
        table = tables.build_search(found)
        assert table.remarks == ["search: running, 3 trials: 1 terminated, 1 error, 1 running."]
        assert [row[:3] for row in table.rows][1][:2] == (0, "terminated")
    finally:
        program.kill()
        program.communicate()


@pytest.mark.usefixtures("session", "looking")
def test_finished_search_of_a_folder_and_of_a_session(tmp_path: Path) -> None:
    tune.Tuner(
        lambda config: {"score": config["x"], "depth": {"inner": 1}},
        param_space={"x": tune.grid_search([0, 1]), "fixed": 3},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=tune.RunConfig(name="search", storage_path=str(tmp_path), verbose=0),
    ).fit()
    found = describe(tmp_path / "search")
    assert found == describe(tmp_path)
    assert (found["state"], found["metric"], found["parameters"]) == ("finished", "score", ["x"])
    assert [one["number"] for one in found["trials"]] == [1, 0]
    assert "depth/inner" in found["metrics"]
    assert describe(tmp_path, "depth/inner")["metric"] == "depth/inner"
    assert describe(tmp_path, "no such")["metric"] == "score"
    newest, *_ = searches.Searches().list_searches([os.getpid()])  # and those of this process's earlier sessions
    assert (newest["path"], newest["state"]) == (str(tmp_path / "search"), "finished")


def test_trial_that_goes_on_from_a_checkpoint_has_no_report_twice(tmp_path: Path) -> None:
    folder = begin(tmp_path / "search")
    propose(folder, 0, {"x": 1})
    for loss in (3.0, 2.0, 1.0):
        report(folder, 0, loss=loss)
    write(folder, {"event": "retry", "id": "t0", "error": "it died"})
    assert describe(tmp_path)["trials"][0]["state"] == "waits"
    write(folder, {"event": "start", "id": "t0", "time": 3.0, "iteration": 1, "checkpoint": "c"})
    report(folder, 0, loss=1.5)
    (curve,) = describe(tmp_path)["curves"]
    assert curve["points"] == [[0, 3.0], [1, 1.5]]


def test_numbers_of_numpy_are_shown_and_come_back_as_they_were(tmp_path: Path) -> None:
    folder = begin(tmp_path / "search")
    config = {"rate": np.float64(0.5), "depth": np.int32(3), "on": np.bool_(1), "rates": np.zeros(2)}
    line = encoding.encode({"event": "trial", "id": "t0", "number": 0, "config": config, "tag": "", "folder": "f"})
    with (folder / searches.NAME).open("ab") as file:
        file.write(line)
    (trial,) = describe(tmp_path)["trials"]
    assert trial["config"] == {"rate": 0.5, "depth": 3, "on": True, "rates": "an object"}
    again = encoding.decode(line, trust.Opener(folder, "A test"))["config"]
    assert {name: type(value) for name, value in again.items()} == {name: type(value) for name, value in config.items()}


def test_no_trial_runs_where_nobody_goes_on_with_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begin(tmp_path / "search")
    for number in range(2):
        propose(folder, number, {"x": number})
    found = describe(tmp_path)
    assert (found["state"], found["states"]) == ("interrupted", {"interrupted": 2})
    assert [one["state"] for one in found["trials"]] == ["interrupted"] * 2
    begin(folder)
    write(folder, {"event": "start", "id": "t1", "time": 3.0, "iteration": 0, "checkpoint": None})
    monkeypatch.setattr(lines, "is_locked", lambda path: True)
    assert describe(tmp_path)["states"] == {"waits": 1, "running": 1}


def test_pickled_objects_are_not_opened(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "opened"),)

    folder = begin(tmp_path / "search")
    propose(folder, 0, {"x": {"!pickle": pickle.dumps(Evil()).hex()}, "y": {"z": [1, 2]}})
    assert describe(folder)["trials"][0]["config"] == {"x": "an object", "y/z": "[1, 2]"}
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_damaged_does_not_reach_the_page(looking: None, tmp_path: Path, seed: int) -> None:
    sound: list[dict[str, Any]] = [
        {"event": "session", "name": "f", "metric": "loss", "mode": "min", "time": 1.0},
        {"event": "trial", "id": "a", "number": 0, "config": {"x": 1, "y": [1], "z": {"w": "t"}}},
        {"event": "trial", "id": "b", "number": 1, "config": {"x": 2.0, "y": [2], "z": {"w": "u"}}},
        {"event": "start", "id": "a", "iteration": 0},
        {"event": "process", "id": "a", "pid": 1},
        {"event": "report", "id": "a", "time": 2.0, "seconds": 1.0, "metrics": {"loss": 1.0, "more": {"acc": 2}}},
        {"event": "report", "id": "b", "time": 2.0, "seconds": 1.0, "metrics": {"loss": 2.0}},
        {"event": "exploit", "id": "b", "config": {"x": 3}},
        {"event": "end", "id": "a", "status": "TERMINATED", "reason": None, "error": None},
    ]
    (tmp_path / searches.NAME).write_text(damage.write_damaged(sound, random.Random(seed)))
    found = searches.Searches(tmp_path)
    for answer in (found.list_searches([]), found.describe(str(tmp_path), None, 100)):
        json.loads(showing.encode(answer), parse_constant=pytest.fail)


def test_damaged_lines_are_counted_and_a_half_written_one_waits(tmp_path: Path) -> None:
    folder = begin(tmp_path / "search")
    propose(folder, 0, {"x": 1})
    log = folder / searches.NAME
    with log.open("a") as file:
        file.write("nonsense\n")
        file.write('{"event": "report", "id": "unknown", "metrics": {}, "time": 1, "seconds": 1}\n')
        file.write('{"event": "later", "id": "t0"}\n')
        file.write('{"event": "report", "id": "t0", "metrics": {"loss": 1.0}, "ti')
    looked = searches.Searches(folder)
    (line,) = looked.list_searches([])
    found = looked.describe(line["path"], None, 100)
    assert found is not None
    assert (found["damaged"], found["trials"][0]["iterations"]) == (2, 0)
    with log.open("a") as file:
        file.write('me": 2.0, "seconds": 0.1}\n')
    found = looked.describe(line["path"], None, 100)
    assert found is not None
    assert (found["damaged"], found["trials"][0]["iterations"]) == (2, 1)


def test_another_search_of_the_same_name_is_another(tmp_path: Path, looking: None) -> None:
    folder = begin(tmp_path / "search")
    propose(folder, 0, {"x": 1})
    propose(folder, 1, {"x": 2})
    looked = searches.Searches(folder)
    assert looked.list_searches([])[0]["count"] == 2
    (folder / searches.NAME).rename(folder / "old")
    begin(folder)
    propose(folder, 0, {"x": 1})
    assert looked.list_searches([])[0]["count"] == 1


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    folder = begin(tmp_path / "search")
    propose(folder, 0, {"x": float("nan"), "name": "<img onerror=x>" * 100})
    report(folder, 0, loss=float("inf"), text="a", flag=True)
    propose(folder, 1, {"x": 2, "name": None})
    found = json.loads(showing.encode(describe(folder)), parse_constant=pytest.fail)  # browsers know no NaN
    first = next(one for one in found["trials"] if one["number"] == 0)
    assert (first["config"]["x"], first["score"], first["metrics"]["loss"]) == ("nan", None, None)
    assert len(first["config"]["name"]) <= 200


def test_many_trials_are_cut_and_said_so(tmp_path: Path) -> None:
    folder = begin(tmp_path / "search")
    count = searches.MOST_TRIALS + 20
    for number in range(count):
        propose(folder, number, {"x": number})
        report(folder, number, loss=float(count - number))
        finish(folder, number)
    found = describe(folder)
    assert (found["left_out"], len(found["trials"]), found["count"]) == (20, searches.MOST_TRIALS, count)
    assert found["trials"][0]["number"] == count - 1, "the best"


def test_association_is_of_what_matters(tmp_path: Path) -> None:
    folder = begin(tmp_path / "search")
    numbers = np.random.default_rng(3)
    for number in range(60):
        rate, kind, idle = float(numbers.random()), str(numbers.choice(["a", "b"])), int(numbers.integers(100))
        propose(folder, number, {"rate": rate, "kind": kind, "idle": idle})
        report(folder, number, loss=(rate - 0.5) ** 2 + 0.05 * (kind == "b"))
    found = {one["name"]: one["share"] for one in describe(folder)["associations"]}
    assert list(found) == ["rate", "kind", "idle"]
    assert found["rate"] > 0.4 > found["kind"] > 0.05
    assert found["idle"] < 0.1


def test_trials_that_are_equally_good_are_associated_with_nothing(tmp_path: Path) -> None:
    """The order of a grid's trials is that of its numbers."""
    folder = begin(tmp_path / "search")
    for number in range(40):
        propose(folder, number, {"x": number, "kind": "ab"[number % 2]})
        report(folder, number, loss=0.5, half=float(number % 2))
    assert describe(folder)["associations"] == [{"name": "x", "share": 0.0}, {"name": "kind", "share": 0.0}]
    shares = {one["name"]: one["share"] for one in describe(folder, "half")["associations"]}
    assert shares == {"kind": 1.0, "x": 0.0}


def test_association_needs_trials(tmp_path: Path) -> None:
    folder = begin(tmp_path / "search")
    for number in range(5):
        propose(folder, number, {"x": number})
        report(folder, number, loss=number)
    assert describe(folder)["associations"] == []


def test_folder_that_is_removed_while_somebody_looks(tmp_path: Path, looking: None) -> None:
    folder = begin(tmp_path / "search")
    looked = searches.Searches(tmp_path)
    path = looked.list_searches([])[0]["path"]
    (folder / searches.NAME).unlink()
    assert looked.list_searches([])[0]["count"] == 0
    assert looked.describe(path, None, 100) is not None
    assert looked.describe("/", None, 100) is None
    assert not lines.is_locked(folder / searches.NAME)
