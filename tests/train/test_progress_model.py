"""What the progress display counts, at times that the tests choose."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hocket.train.progress import model, text


def run(metrics: list[dict[str, Any]], config: Any = None, *, every: float = 1.0, **keys: Any) -> model.Snapshot:
    """Return what is shown after one rank has reported so much, each `every` seconds."""
    progress = model.Progress(model.Keys(**keys), config, 0.0)
    for number, one in enumerate(metrics, 1):
        progress.note_arrivals([number], number * every)
        progress.note_row([one], number * every)
    return progress.look(len(metrics) * every)


@pytest.mark.parametrize(
    ("metrics", "config", "expected"),
    [
        ([{"x": 1}] * 3, None, ("report", 3, 3, None)),
        ([{"step": 0}, {"step": 1}], {"num_steps": 10}, ("step", 1, 2, 10)),
        ([{"step": 1}, {"step": 2}], {"steps": 10}, ("step", 2, 2, 10)),
        ([{"epoch": 0, "num_epochs": 4}], {"num_epochs": 5}, ("epoch", 0, 1, 4)),  # the metrics come first
        ([{"epoch": 3}], {"steps": 5}, ("epoch", 3, 3, None)),  # of something else
        ([{"step": 5, "epoch": 0}], {"epochs": 2, "max_steps": 0}, ("step", 5, 5, None)),
        ([{"step": "first"}], [1], ("report", 1, 1, None)),
    ],
)
def test_how_far_it_is(metrics: list[dict[str, Any]], config: Any, expected: tuple[Any, ...]) -> None:
    found = run(metrics, config)
    assert (found.step_name, found.step, found.done, found.total) == expected


def test_names_that_are_given_count() -> None:
    metrics = [{"batch": 10 * n, "step": 1, "val": {"nll": 0.5}, "loss": 9, "seen": 64} for n in (1, 2, 3)]
    found = run(metrics, step="batch", total=60, loss="val/nll", samples="seen")
    assert (found.step, found.total, found.loss_name, found.loss) == (30, 60, "val/nll", 0.5)
    assert (found.steps_per_s, found.samples_per_s, found.left_s) == (10, 64, 3)


def test_speed_and_time_left_are_those_of_the_last_seconds() -> None:
    progress = model.Progress(model.Keys(), {"num_steps": 1000}, 0.0)
    now = 0.0
    for step in range(200):
        now += 10.0 if step < 100 else 0.5
        progress.note_arrivals([step + 1, step + 1], now)
        progress.note_row([{"step": step, "samples": 8}, {"step": step, "samples": 24}], now)
    found = progress.look(now)
    assert (found.steps_per_s, found.samples_per_s, found.left_s) == (2.0, 64.0, 400.0)
    assert found.elapsed_s == now


def test_fast_reports_are_counted_over_a_window_and_not_one_by_one() -> None:
    found = run([{"step": step} for step in range(5000)], every=1e-3)
    assert found.steps_per_s == pytest.approx(1000, rel=1e-6)


def test_nothing_is_made_up() -> None:
    first = run([{"loss": float("nan")}], {"steps": 3})
    assert (first.steps_per_s, first.samples_per_s, first.left_s) == (None, None, None)
    assert (first.loss_name, first.lags, first.restarts) == ("loss", (), 0)
    backwards = run([{"step": 3}, {"step": 2}], {"steps": 9})
    assert (backwards.steps_per_s, backwards.left_s) == (None, None)
    assert run([{"train_loss": 1}]).loss_name == "train_loss"
    assert run([{"samples_per_second": 7.5}]).samples_per_s == 7.5


def test_lag_is_behind_the_first_and_grows_while_a_rank_is_waited_for() -> None:
    progress = model.Progress(model.Keys(), None, 0.0)
    for row in range(1, 41):
        progress.note_arrivals([row, row - 1, row - 1], row)
        progress.note_arrivals([row, row, row - 1], row + 0.25)
        progress.note_arrivals([row, row, row], row + 0.5)
        progress.note_row([{}, {}, {}], row + 0.5)
    assert [lag.seconds for lag in progress.look(40.5).lags] == pytest.approx([0, 0.25, 0.5], abs=1e-3)
    progress.note_arrivals([43, 41, 40], 41.0)  # rank 0 may be several reports ahead
    lags = progress.look(47.0).lags
    assert [lag.is_waited_for for lag in lags] == [False, False, True]
    assert lags[2].seconds == 6.0


def test_after_a_failure_it_begins_again() -> None:
    progress = model.Progress(model.Keys(), {"steps": 100}, 0.0)
    for step in range(1, 4):
        progress.note_arrivals([step, step], step)
        progress.note_row([{"step": step}] * 2, step)
    progress.note_arrivals([4, 3], 3.5)
    progress.note_failure()
    assert progress.look(50.0).restarts == 1
    assert all(lag.seconds == 0 for lag in progress.look(50.0).lags)
    progress.note_arrivals([1, 1], 60.0)
    progress.note_row([{"step": 3}] * 2, 60.0)
    found = progress.look(61.0)
    assert (found.step, found.steps_per_s) == (3, None)  # the time between is no time of training
    progress.note_arrivals([1, 1, 1], 62.0)  # an elastic group that has grown
    assert len(progress.look(62.0).lags) == 3


def test_what_is_no_finite_number_is_not_counted_with() -> None:
    nan, inf = float("nan"), float("inf")
    odd = {"step": nan, "epoch": inf, "samples": nan, "samples_per_second": nan, "samples_per_s": -inf, "loss": nan}
    found = run([odd] * 3, {"num_epochs": inf}, total=inf)
    assert (found.step_name, found.done, found.total, found.samples_per_s, found.left_s) == (
        "report",
        3,
        None,
        None,
        None,
    )
    assert text.build_line("run", found) == "run: report 3, loss nan, 1 reports/s"
    assert run([{"step": 1}, {"step": 2}], {"num_steps": inf}).left_s is None


def test_reports_that_come_again_count_once() -> None:
    progress = model.Progress(model.Keys(total=4), None, 0.0)
    for at, number in enumerate([1, 2, 3, 2, 3, 4]):
        progress.note_arrivals([number], at)
        progress.note_row([{}], at, number)
    assert progress.look(6.0).done == 4


def build(**changes: Any) -> model.Snapshot:
    values: dict[str, Any] = {
        "step_name": "step",
        "step": 119,
        "done": 120,
        "total": 1000,
        "loss_name": "loss",
        "loss": 0.34567,
        "steps_per_s": 12.34,
        "samples_per_s": 5120.0,
        "elapsed_s": 10,
        "left_s": 83,
        "lags": (),
        "restarts": 0,
    }
    return model.Snapshot(**{**values, **changes})


def test_lines() -> None:
    lags = (model.Lag(0, 0.0, False), model.Lag(1, 2.5, True))
    assert text.build_line("run", build()) == "run: step 120/1,000, loss 0.3457, 5,120 samples/s, 1:23 left"
    assert text.build_line("run", build(total=None, left_s=None, samples_per_s=None, loss=None, lags=lags)) == (
        "run: step 119, 12 steps/s, rank 1 is 2.5 s behind"
    )
    assert text.build_last_line("run", build(restarts=2), None) == (
        "run: done after 0:10, step 120/1,000, loss 0.3457, 5,120 samples/s, restarts 2"
    )
    assert text.build_last_line("run", build(), KeyError("x")).startswith("run: failed with KeyError after 0:10, step")
    many = tuple(model.Lag(rank, rank / 100, False) for rank in range(64))
    assert text.build_lag_line(build(lags=many)).startswith("last of 64 ranks  63: 630 ms  62: 620 ms")
    assert text.build_lag_line(build(lags=lags)) == "lag of ranks  0: 0 ms  1: 2.5 s…"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_line_is_narrower_than_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lags = (model.Lag(0, 0.0, False), model.Lag(1, 2.5, True))
    lines = [
        re.sub(r"\x1b\[[0-9;]*m", "", line)
        for line in text.Painter("hocket_train_run-2026-11-21").paint(build(lags=lags), width)
    ]
    assert all(len(line) < width and "\n" not in line for line in lines)
    assert "step 120/1,000" in lines[0]
    assert ("hocket_train_run" in lines[0], "━" in lines[0]) == (width > 80, width >= 80)
    assert lines[1] == "lag of ranks  0: 0 ms  1: 2.5 s…"
