"""The log of a run, and what is read from it: while the run goes on, after kills, and later."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hocket
from hocket import train
from hocket._base import showing, spending
from hocket.engine import descendants
from hocket.observe import training
from hocket.observe.runs import advice, history, log
from hocket.train import user_callback
from tests.observe import damage

SPENT = spending.Spent(1.0, 0.25, 0.0, 0.0, 0.0, 10, 0)


def read(folder: Path) -> history.RunHistory:
    found = history.RunHistory(folder)
    found.update()
    return found


def begin(folder: Path, size: int = 1, start: str | None = None) -> log.RunLog:
    written = log.RunLog(folder)
    written.begin("run", {"rate": 0.1, "inner": {"depth": 2}}, start)
    written.begin_attempt(size, 0)
    return written


def add(written: log.RunLog, *metrics: dict[str, object], checkpoint: str | None = None) -> None:
    for rank in range(len(metrics)):
        written.arrive(rank, 1)
    written.add_row(metrics, [SPENT] * len(metrics), 0.0, checkpoint)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = begin(tmp_path, 2)
    found = read(tmp_path)
    assert (found.state, len(found), found.facts.ranks) == ("running", 0, 2)
    assert found.facts.config == {"rate": 0.1, "inner/depth": 2}
    add(written, {"loss": 0.5, "note": "a", "inner": {"x": 1}}, {"loss": math.nan})
    add(written, {"loss": 0.25}, {"loss": math.inf, "late": True}, checkpoint="checkpoint_000000")
    assert found.update()
    assert not found.update(), "there is nothing new"
    first, second = found.get_curve("loss")
    assert first.tolist() == [0.5, 0.25]
    assert second.tolist()[1] == math.inf
    assert found.get_curve("inner/x")[0].tolist()[0] == 1
    assert np.isnan(found.get_curve("late")[0]).all(), "rank 0 did not report it"
    assert found.texts == {"note": "a"}
    assert found.get_last("loss") == 0.25
    assert found.facts.checkpoints == {"checkpoint_000000": 1}
    assert found.sum_spent(2)[0].total == 2.0
    written.end(None)
    found.update()
    assert found.state == "finished"


def test_rows_after_the_last_checkpoint_are_repeated(tmp_path: Path) -> None:
    written = begin(tmp_path)
    for step in range(3):
        add(written, {"step": step}, checkpoint="checkpoint_000000" if step == 0 else None)
    written.begin_attempt(1, 1)
    for step in (1, 2, 3):
        add(written, {"step": step})
    written.end(RuntimeError("boom"))
    found = read(tmp_path)
    assert found.get_curve("step")[0].tolist() == [0, 1, 2, 3]
    assert (found.state, found.facts.error) == ("failed", "RuntimeError: boom")


def test_a_run_of_the_same_name_goes_on_at_its_checkpoint_or_begins_anew(tmp_path: Path) -> None:
    written = begin(tmp_path)
    for step in range(3):
        add(written, {"step": step}, checkpoint=f"checkpoint_{step:06d}")
    written.end(None)
    written = begin(tmp_path, start="checkpoint_000001")
    add(written, {"step": 20})
    written.end(None)
    found = read(tmp_path)
    assert found.get_curve("step")[0].tolist() == [0, 1, 20]
    written = begin(tmp_path)
    add(written, {"step": 30})
    assert found.update()
    assert found.get_curve("step")[0].tolist() == [30]
    written.end(None)
    found.update()


def test_the_end_of_a_log_that_is_removed_is_read(tmp_path: Path) -> None:
    written = begin(tmp_path)
    found = read(tmp_path)
    written.end(ValueError("boom"))
    assert not (tmp_path / log.NAME).exists(), "nothing was reported"
    found.update()
    assert (found.state, found.facts.error) == ("failed", "ValueError: boom")


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"\xff\n", b"{}\n", b'{"is":"row"}\n', b"[]\n", b"null\n", b"\n", b"{\n"])))
def test_damaged_lines_are_counted(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("run")
    written = begin(folder)
    add(written, {"step": 1})
    with (folder / log.NAME).open("ab") as file:
        file.writelines(lines)
    add(written, {"step": 2})
    written.end(None)
    found = read(folder)
    assert found.get_curve("step")[0].tolist() == [1, 2]
    assert found.facts.damaged == len(lines)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_damaged_does_not_reach_the_page(tmp_path: Path, seed: int) -> None:
    rank = [1, 0, 0, 0, 0, 1, 1]
    row = {"metrics": [{"l": 1.0}, {"l": 2}], "late": [0, 1], "behind": 0.0, "spent": [rank, rank], "checkpoint": "c"}
    sound: list[dict[str, Any]] = [
        {"is": "run", "at": 1.0, "name": "n", "pid": 1, "config": {"a": 1}, "start": None},
        {"is": "attempt", "at": 1.0, "number": 0, "ranks": 2, "kept": 0},
        {"is": "places", "at": 1.0, "pids": [1, 2], "nodes": ["a", "b"], "node": "a"},
        {"is": "ahead", "at": 1.0, "counts": [1, 2]},
        {"is": "row", "at": 1.0, **row},
        {"is": "failure", "at": 1.0, "errors": {"0": "x"}},
        {"is": "end", "at": 2.0, "error": None},
    ]
    (tmp_path / log.NAME).write_text(damage.write_damaged(sound, random.Random(seed)))
    runs = training.Runs(tmp_path)
    for found in (runs.list_runs([]), runs.describe(str(tmp_path), 100), read(tmp_path).facts.config):
        json.loads(showing.encode(found), parse_constant=pytest.fail)
    runs.close()


def test_numbers_beyond_floats_and_keys_that_raise(tmp_path: Path) -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError("odd")

    written = begin(tmp_path)
    add(written, {"large": 10**5000, "small": -(10**400), "loss": 1.0, Odd(): 2.0, "lost": 3.0})  # type: ignore[dict-item]
    written.end(None)
    found = read(tmp_path)
    assert {name: found.get_curve(name)[0].tolist() for name in found.names} == {
        "large": [math.inf],
        "small": [-math.inf],
        "loss": [1.0],
    }
    assert found.facts.damaged == 0


def test_a_metric_that_is_no_number_any_more_is_said(tmp_path: Path) -> None:
    written = begin(tmp_path)
    for loss in (3.0, 2.0, math.nan, math.inf):
        add(written, {"loss": loss, "step": 1})
    found = read(tmp_path)
    assert math.isinf(found.get_last("loss") or 0.0)
    assert found.find_unfit() == {"loss": (2, 0)}
    runs = training.Runs(tmp_path)
    runs.list_runs([])
    shown = runs.describe(str(tmp_path), 100) or {}
    assert shown["advice"][0] == "`loss` has been NaN or infinite since report 3, in rank 0."
    assert (shown["lasts"], shown["ranks"][0]["status"]) == ({"loss": "inf", "step": 1.0}, "starts")
    add(written, {"loss": 1.0})
    written.end(None)
    found.update()
    assert (found.find_unfit(), found.get_last("loss")) == ({}, 1.0)
    runs.close()


def test_values_are_counted_where_not_all_reports_have_one(tmp_path: Path) -> None:
    written = begin(tmp_path, 2)
    add(written, {"loss": 1.0}, {"loss": 2.0})
    add(written, {"loss": 0.5, "val": 7.0}, {"loss": 1.5, "other": 8.0})
    written.end(None)
    found = read(tmp_path)
    assert [found.count_values(name) for name in ("loss", "val", "other")] == [2, 1, 1]
    assert found.get_last("other") == 8.0, "rank 1 alone has it"


def test_curves_are_drawn_to_their_own_height(tmp_path: Path) -> None:
    written = begin(tmp_path)
    values = [1234561.0 + step for step in range(12)]
    small = [1e6 + 1e-3 * step for step in range(12)]
    for value, other in zip(values, small, strict=True):
        add(written, {"step": value, "small": other})
    written.end(None)
    runs = training.Runs(tmp_path)
    runs.list_runs([])
    shown = runs.describe(str(tmp_path), 100) or {}
    assert shown["curves"]["step"] == [values]
    assert np.allclose(shown["curves"]["small"][0], small, rtol=0, atol=1e-7)
    runs.close()


def test_reports_stay_until_a_run_of_the_same_name_has_one(tmp_path: Path) -> None:
    written = begin(tmp_path)
    for step in range(5):
        add(written, {"step": step})
    written.end(ValueError("no"))
    again = begin(tmp_path)
    found = read(tmp_path)
    assert (len(found), found.get_last("step")) == (5, 4.0)
    add(again, {"step": 7})
    found.update()
    assert (len(found), found.get_last("step")) == (1, 7.0)
    again.end(KeyboardInterrupt())
    found.update()
    assert found.state == "interrupted"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_holds_up_nobody(tmp_path: Path, kind: str) -> None:
    (tmp_path / "good").mkdir()
    begin(tmp_path / "good").end(None)
    path = tmp_path / "odd" / log.NAME
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert history.find_runs(tmp_path) == [tmp_path / "good"]
    with pytest.raises(FileNotFoundError):
        history.RunHistory(path.parent)
    with pytest.warns(UserWarning, match="The training goes on"):
        begin(path.parent).end(None)


def test_the_end_is_written_behind_a_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, is_full = os.write, False

    def fill(descriptor: int, data: memoryview) -> int:
        if not is_full:
            return write(descriptor, data)
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:-10])

    monkeypatch.setattr(os, "write", fill)
    written = begin(tmp_path)
    add(written, {"loss": 1.0})
    is_full = True
    with pytest.warns(UserWarning, match="No space left.* The training goes on"):
        add(written, {"loss": 0.5})
    is_full = False
    add(written, {"loss": 0.25})  # it would have the wrong number
    written.end(None)
    found = read(tmp_path)
    assert (len(found), found.state, found.facts.damaged) == (1, "finished", 1)


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    written = begin(tmp_path)
    add(written, {"step": 1})
    written.end(None)
    whole = (tmp_path / log.NAME).read_bytes()
    found = None
    for size in range(1, len(whole) + 1):
        (tmp_path / log.NAME).write_bytes(whole[:size])
        found = found or history.RunHistory(tmp_path)
        found.update()
    assert found is not None
    assert (len(found), found.state, found.facts.damaged) == (1, "finished", 0)


def test_a_folder_without_a_log(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no run\.jsonl in .* Give the folder of a run"):
        history.RunHistory(tmp_path)


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 50))
def test_thin_curves_keep_the_least_and_the_greatest(count: int, bins: int) -> None:
    curve = np.random.default_rng(count).normal(size=count)
    curve[count // 2 :: 7] = math.nan
    rows, (drawn,) = history.thin([curve], bins)
    assert len(rows) == len(drawn) <= max(2 * bins, 2)
    assert (np.diff(rows) >= 0).all()
    known = curve[np.isfinite(curve)]
    if len(known):
        assert (np.nanmin(drawn), np.nanmax(drawn)) == (known.min(), known.max())


# --- real runs --------------------------------------------------------------------------------------------------------


def fit(folder: Path, loop: Any, workers: int = 2, **given: Any) -> train.Result:
    return train.DataParallelTrainer(
        loop,
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(name="run", storage_path=folder, **given),
    ).fit()


def report_steps() -> None:
    rank = train.get_context().get_world_rank()
    for step in range(5):
        train.report({"step": step, "rank": rank})


@pytest.mark.usefixtures("session")
def test_the_log_has_what_each_rank_reported(tmp_path: Path) -> None:
    result = fit(tmp_path, report_steps)
    found = read(Path(result.path))
    assert [curve.tolist() for curve in found.get_curve("rank")] == [[0] * 5, [1] * 5]
    assert found.get_curve("step")[0].tolist() == [row["step"] for row in result.metrics_history]
    assert (found.state, found.facts.counts) == ("finished", [5, 5])
    assert len(found.get_late()) == 2


@pytest.mark.about_local("its timeline")
@pytest.mark.usefixtures("session")
def test_steps_and_reports_are_on_the_timeline(tmp_path: Path) -> None:
    fit(tmp_path, report_steps)
    found = hocket.timeline() or []
    by_category = {kind: [event for event in found if event["cat"] == kind] for kind in ("step", "report")}
    assert {kind: len(events) for kind, events in by_category.items()} == {"step": 10, "report": 10}
    assert len({event["pid"] for event in by_category["step"]}) == 2
    for step, report in zip(by_category["step"], by_category["report"], strict=True):
        assert step["dur"] >= 0
        assert report["dur"] > 0


@pytest.mark.about_local("the processes of ranks")
@pytest.mark.usefixtures("session")
def test_a_killed_rank_is_in_the_log(tmp_path: Path) -> None:
    def loop() -> None:
        train.report({"step": 0}, train.Checkpoint(str(tmp_path / "kept")))  # so the report has come
        if train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        train.report({"step": 1})

    (tmp_path / "kept").mkdir()
    with pytest.raises(train.WorkerGroupError):
        fit(tmp_path, loop)
    found = read(tmp_path / "run")
    (failure,) = found.facts.failures
    assert "signal 9" in failure.errors[1]
    assert found.state == "failed"
    assert len(found.facts.pids) == 2


@pytest.mark.usefixtures("session")
def test_nothing_is_left_of_a_run_that_failed_before_it_reported(tmp_path: Path) -> None:
    def loop() -> None:
        raise ValueError("boom")

    with pytest.raises(train.TrainingFailedError):
        fit(tmp_path, loop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("session")
def test_a_log_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "run" / log.NAME).mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"The log of this run, .*run\.jsonl.*, is not written any more"):
        result = fit(tmp_path, report_steps)
    assert len(result.metrics_history) == 5


class _Die(user_callback.UserCallback):
    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        if metrics[0]["step"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def die_in_the_middle(folder: str) -> None:
    fit(Path(folder), report_steps, callbacks=[_Die()])


@pytest.mark.about_local("a driver that is killed")
def test_a_killed_driver_leaves_what_was_reported(tmp_path: Path) -> None:
    code = f"from tests.observe import test_runs; test_runs.die_in_the_middle({str(tmp_path)!r})"
    ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    found = read(tmp_path / "run")
    assert found.state == "interrupted"
    assert found.get_curve("step")[0].tolist() == [0, 1, 2, 3]


def test_lines_are_json_that_others_can_read(tmp_path: Path) -> None:
    written = begin(tmp_path)
    add(written, {"name": "<b>\n\x1b[31m\ud800", "many": {str(number): number for number in range(1000)}})
    written.end(None)
    lines = [json.loads(line) for line in (tmp_path / log.NAME).read_bytes().splitlines()]
    assert [line["is"] for line in lines] == ["run", "attempt", "row", "end"]
    assert len(lines[2]["metrics"][0]) == log.MOST_METRICS


# --- what is said of it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spent", "behind", "word"),
    [
        ([(10, 6, 0, 0, 0, 100, 0)], 0, "Waiting for data takes 60 %"),
        ([(10, 0, 5, 0, 0, 100, 100), (10, 6, 0, 0, 0, 100, 100)], 0, "In rank 1 waiting for data takes 60 %"),
        ([(10, 0, 6, 0, 0, 100, 100), (10, 0, 0, 0, 0, 100, 100)], 0, "Rank 1 works 2.5 times as long"),
        ([(10, 0, 2, 2, 0, 5000, 100), (10, 0, 2, 2, 0, 5000, 100)], 0, "the batches are small"),
        ([(10, 0, 0, 0, 5, 100, 0)], 0, "report() takes 50 %"),
        ([(10, 0, 0, 0, 0, 100, 0)], 5, "The driver takes reports 5 s after"),
        ([(10, 0, 0, 0, 0, 100, 0)], 0, ""),
        ([(10, 1, 1, 1, 1, 100, 100), (10, 1, 1, 1, 1, 100, 100)], 0, ""),
        ([(0, 0, 0, 0, 0, 0, 0)], 0, ""),
        ([], 0, ""),
    ],
)
def test_advice(spent: list[tuple[float, ...]], behind: float, word: str) -> None:
    found = advice.explain([spending.Spent._make(one) for one in spent], behind)
    assert found == [] if not word else word in found[0]


def test_ranks_that_wait_for_a_slow_one_have_no_small_batches() -> None:
    spent = [spending.Spent(10, 0, 8, 0, 0, 250, 250), spending.Spent(10, 0, 0, 0, 0, 250, 250)]
    (text,) = advice.explain(spent)
    assert text.startswith("Rank 1 works 5.0 times as long")


def test_batches_are_timed() -> None:
    sums = spending.Spending()
    before = sums.read(0.0)
    assert list(sums.time_batches(iter("abc"))) == ["a", "b", "c"]
    after = spending.subtract(sums.read(1.0), before)
    assert (after.total, after.batches) == (1.0, 3)
    assert 0 < after.data < 1
    with pytest.raises(ZeroDivisionError):
        list(sums.time_batches(1 // number for number in (1, 0)))


# --- a glimpse --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, ValueError('{"is":"row",\n{"is":"attempt",')])
def test_a_glimpse_says_what_all_of_the_log_says(tmp_path: Path, error: BaseException | None) -> None:
    written = begin(tmp_path, 2)
    for step in range(30):
        add(written, {"loss": step, "note": '\n{"is":"row",'}, {"loss": step})
    written.end(error)
    seen, found = history.take_glimpse(tmp_path / log.NAME), read(tmp_path)
    assert seen is not None
    assert (seen.rows, seen.ranks, seen.name) == (len(found), 2, "run") == (30, 2, "run")
    assert (seen.error, seen.started, seen.ended) == (found.facts.error, found.facts.started, found.facts.ended)


def test_there_is_no_glimpse_of_a_run_that_may_have_more_to_say(tmp_path: Path) -> None:
    written = begin(tmp_path)
    add(written, {"loss": 1})
    file = tmp_path / log.NAME
    assert history.take_glimpse(file) is None, "it goes on"
    written.begin_attempt(1, 0)
    written.end(None)
    assert history.take_glimpse(file) is None, "rows are repeated"
    file.write_text("nonsense\n")
    assert history.take_glimpse(file) is None
    file.write_text('{"is":"run","at":1}\n{"is":"attempt",}\n{"is":"end"}\n')
    assert history.take_glimpse(file) is None
    file.write_text("")
    assert history.take_glimpse(file) is None


def test_a_run_that_is_over_is_read_when_somebody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LOOK_SECONDS", 0.0)
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        written = begin(tmp_path / str(number))
        add(written, {"loss": number})
        written.end(None)
    runs = training.Runs(tmp_path)
    listed = runs.list_runs([])
    assert [(line["rows"], line["state"]) for line in listed] == [(1, "finished")] * 3
    assert len(runs._known) == 0
    shown = runs.describe(listed[1]["path"], 100)
    assert shown is not None
    assert shown["curves"] == {"loss": [[1.0]]}
    assert runs.list_runs([]) == listed, "it says the same of one that was read"
    written = log.RunLog(tmp_path / "2")
    written.begin("run", {}, None)
    written.begin_attempt(1, 0)
    assert [line["state"] for line in runs.list_runs([])] == ["running", "finished", "finished"]
    written.end(None)
    runs.close()


def test_numbers_of_numpy_are_in_the_configuration(tmp_path: Path) -> None:
    written = log.RunLog(tmp_path)
    config = {"rate": np.float32(0.5), "depth": np.int64(3), "deep": {"on": np.bool_(1)}, "rates": np.zeros(2)}
    written.begin("run", config, None)
    written.end(None)
    assert read(tmp_path).facts.config == {"rate": 0.5, "depth": 3, "deep/on": True}


def test_ranks_on_other_nodes_are_elsewhere(tmp_path: Path) -> None:
    written = begin(tmp_path, 2)
    written.place([os.getpid(), os.getpid()], ["here", "there"], "here")
    runs = training.Runs(tmp_path)
    runs.list_runs([])
    shown = runs.describe(str(tmp_path), 100) or {}
    assert [one["status"] for one in shown["ranks"]] == ["runs", "elsewhere"]
    written.end(None)
    runs.close()


def test_what_an_earlier_run_of_the_name_had_is_none_of_a_new_one(tmp_path: Path) -> None:
    written = begin(tmp_path, 2)
    add(written, {"loss": 2, "old": 1, "note": "a"}, {"loss": 2})
    written.fail({1: ValueError("no")})
    written.end(ValueError("no"))
    written = begin(tmp_path)
    add(written, {"loss": 1})
    written.end(None)
    found = read(tmp_path)
    assert (found.names, found.texts, len(found.get_curve("loss"))) == (["loss"], {}, 1)
    assert (found.facts.attempts, found.facts.failures, len(found.get_late())) == (1, [], 1)
    assert len(found.sum_spent(1)) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_a_run_of_another_user_that_goes_on_at_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"], user=65534) as other:
        line = {"is": "run", "at": time.time() - 60, "name": "n", "pid": 1, "config": {}, "start": None}
        row = {"is": "row", "at": time.time() - 60, "metrics": [{}], "late": [0.0], "checkpoint": "c"}
        again = {**line, "at": time.time() + 60, "pid": other.pid, "start": "c"}
        (tmp_path / log.NAME).write_text("".join(json.dumps(one) + "\n" for one in (line, row, again)))
        monkeypatch.setattr(descendants, "is_another_users", lambda pid: pid == other.pid)
        found = read(tmp_path)
        assert found.state == "running"
        found.close()
        other.kill()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
@pytest.mark.parametrize(("after", "state"), [(60.0, "running"), (-60.0, "interrupted")])
def test_a_run_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: float, state: str) -> None:
    with subprocess.Popen(["sleep", "60"], user=65534) as other:
        line = {"is": "run", "at": time.time() + after, "name": "n", "pid": other.pid, "config": {}, "start": None}
        (tmp_path / log.NAME).write_text(json.dumps(line) + "\n")
        monkeypatch.setattr(descendants, "is_another_users", lambda pid: pid == other.pid)  # root may look at all
        found = read(tmp_path)
        assert found.state == state
        found.close()
        other.kill()
    assert read(tmp_path).state == "interrupted"
