"""Callbacks that end a training in good order."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from hocket import train
from hocket.train import loggers


def fit(losses, callback, tmp_path, num_workers=0):
    def loop():
        for step, loss in enumerate(losses):
            train.report({"step": step, **({} if loss is None else {"val": {"loss": loss}})})

    trainer = train.DataParallelTrainer(
        loop,
        scaling_config=train.ScalingConfig(num_workers=num_workers),
        run_config=train.RunConfig(storage_path=tmp_path, callbacks=[callback]),
    )
    return trainer.fit()


@pytest.mark.parametrize(
    ("settings", "losses", "count", "reason"),
    [
        ({"patience": 2}, [3, 2, 2.5, 2.5, 1], 4, "val/loss has not improved on 2.0 for 2 reports"),
        ({"patience": 2}, [3, 2, 2.5, 1, 1.5], 5, ""),
        ({"patience": 1, "min_delta": 0.5}, [3, 2, 1.6, 1], 3, "val/loss has not improved on 2.0 for 1 reports"),
        ({"mode": "max", "patience": 1}, [1, 2, 3, 3, 4], 4, "val/loss has not improved on 3.0 for 1 reports"),
        ({"threshold": 0.5}, [1, 0.5, 0.1], 2, "val/loss is 0.5, which reaches the threshold 0.5"),
        ({}, [1, math.nan, 0.1], 2, "val/loss is nan"),
        ({"check_finite": False}, [1, math.nan, 0.1], 3, ""),
        ({"patience": 1}, [1, None, None, 0.5, None, 0.7], 6, "val/loss has not improved on 0.5 for 1 reports"),
    ],
)
def test_early_stopping(settings, losses, count, reason, tmp_path):
    stopping = train.EarlyStopping("val/loss", **settings)
    for _ in range(2):  # it begins anew with each run
        result = fit(losses, stopping, tmp_path)
        assert (len(result.metrics_history), stopping.reason) == (count, reason)


def test_a_metric_that_never_comes_is_told(tmp_path):
    with pytest.warns(UserWarning, match=r"no report has a number called 'nope'\. Name .*: \['step', 'val/loss'\]"):
        assert len(fit([3, 2], train.EarlyStopping("nope"), tmp_path).metrics_history) == 2


@pytest.mark.slow
@pytest.mark.needs("processes")
def test_reports_that_come_again_count_once(session, tmp_path):
    """A failure after the report of step 4, which goes back to the commit with step 2."""

    def loop():
        checkpoint = train.get_checkpoint()
        for step in range(int(Path(checkpoint.path, "step").read_text()) + 1 if checkpoint else 0, 8):
            folder = tmp_path / f"saved-{step}"
            if step == 2:
                folder.mkdir()
                (folder / "step").write_text("2")
            train.report({"loss": max(10 - step, 4)}, train.Checkpoint(folder) if step == 2 else None)
            if step == 4 and checkpoint is None:
                raise RuntimeError("on purpose")

    stopping = train.EarlyStopping("loss", patience=1)
    result = train.DataParallelTrainer(
        loop,
        scaling_config=train.ScalingConfig(num_workers=1),
        run_config=train.RunConfig(
            storage_path=tmp_path,
            failure_config=train.FailureConfig(max_failures=1),
            callbacks=[loggers.CsvLogger(), loggers.LossCurve(), stopping],
        ),
    ).fit()
    assert [one["loss"] for one in result.metrics_history] == [10, 9, 8, 7, 6, 5, 4, 4]
    assert (stopping.best, stopping.reason) == (4, "loss has not improved on 4.0 for 1 reports")
    loggers.save_curve(result.metrics_history, tmp_path / "again.png")
    assert Path(result.path, "loss.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    with Path(result.path, "metrics.csv").open() as file:
        rows = [(int(row["_report"]), int(row["loss"])) for row in csv.DictReader(file)]
    again = [(number, max(11 - number, 4)) for number in range(1, 9)]
    assert rows == again[:5] + again[3:]


@pytest.mark.slow
@pytest.mark.needs("processes")
def test_ranks_are_ended_and_the_result_is_there(session, tmp_path):
    result = fit([1.0] * 100_000, train.EarlyStopping("val/loss", patience=3), tmp_path, num_workers=2)
    assert [report["step"] for report in result.metrics_history] == [0, 1, 2, 3]
    assert result.error is None


def test_a_training_function_that_raises_stop_iteration_has_failed(tmp_path):
    def loop():
        train.report({"step": 0})
        next(iter(()))

    trainer = train.DataParallelTrainer(
        loop, scaling_config=train.ScalingConfig(num_workers=0), run_config=train.RunConfig(storage_path=tmp_path)
    )
    with pytest.raises(StopIteration):
        trainer.fit()


def test_a_time_limit(tmp_path):
    assert len(fit([1.0] * 10, train.TimeLimit(1e-9), tmp_path).metrics_history) == 1
    assert len(fit([1.0] * 10, train.TimeLimit(1e9), tmp_path).metrics_history) == 10


def build_untyped(kind: Any, *args: object, **settings: object) -> object:
    return kind(*args, **settings)


@pytest.mark.parametrize(
    ("build", "kind", "message"),
    [
        (
            lambda: build_untyped(train.EarlyStopping, None),
            TypeError,
            "metric must be a metric's name, but received None",
        ),
        (lambda: train.EarlyStopping("loss", mode="less"), ValueError, "mode must be 'min' or 'max'"),
        (lambda: train.EarlyStopping("loss", patience=0), ValueError, "patience must be 1 report or more"),
        (
            lambda: build_untyped(train.EarlyStopping, "loss", patience=1.5),
            TypeError,
            "patience must be a whole number",
        ),
        (lambda: train.EarlyStopping("loss", min_delta=-1), ValueError, "min_delta must be 0 or more"),
        (lambda: build_untyped(train.EarlyStopping, "loss", threshold="low"), TypeError, "threshold must be a number"),
        (lambda: build_untyped(train.TimeLimit, "1h"), TypeError, "seconds must be a number, but received '1h'"),
        (lambda: train.TimeLimit(0), ValueError, "seconds must be more than 0"),
    ],
)
def test_bad_settings(build, kind, message):
    with pytest.raises(kind, match=message):
        build()
