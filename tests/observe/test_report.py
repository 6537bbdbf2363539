"""Reports: one file that has all in it, whatever the names and values are."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hocket import train
from hocket.cli import main
from hocket.observe.report import Curve, Report, document
from hocket.observe.runs import log

HOSTILE = [
    "</script><script>document.title='hit'</script>",
    "<!--<script>",
    "]]>",
    "<img src=x onerror=alert(1)>",
    "\ud800",
    "\x1b[31m",
    "a\u2028b",
    "&lt;",
    "'\"`${x}",
    "x" * 100_000,
]


def read_data(written: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', written, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_stays_text(text: str) -> None:
    report = Report(title=text, facts={text: text}, step_name=text)
    report.curves.append(Curve(name=text, steps=[1], values=[1]))
    report.tables[text] = [{text: text}, {"other": object()}]
    written = report.write()
    usual = Report(title="x").write()
    for mark in ("<script", "</script", "<!--", "<img"):
        assert written.lower().count(mark) == usual.lower().count(mark)
    data = read_data(written)
    assert len(data["curves"]) == 1
    assert data["tables"][0]["rows"][1][0] == ""
    written.encode("utf-8", "backslashreplace")
    assert len(written) < len(usual) + 10_000


@hypothesis.given(
    st.lists(
        st.tuples(st.one_of(st.integers(-5, 5), st.floats()), st.floats()),
        max_size=200,
    )
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_any_curve_can_be_written(points: list[tuple[float, float]]) -> None:
    report = Report(title="x")
    report.curves.append(Curve(name="c", steps=[step for step, _ in points], values=[value for _, value in points]))
    (curve,) = read_data(report.write())["curves"]
    assert curve["steps"] == sorted(curve["steps"])
    assert len(curve["steps"]) == len(curve["lines"][0]) == sum(math.isfinite(step) for step, _ in points)
    assert curve["count"] == len(points)


def test_long_curve_keeps_its_least_and_greatest() -> None:
    values = [math.sin(number / 1000) for number in range(1_000_000)]
    values[123_456], values[654_321] = 50.0, -50.0
    report = Report(title="x")
    report.curves.append(Curve(name="c", steps=range(len(values)), values=values))
    written = report.write()
    (curve,) = read_data(written)["curves"]
    assert len(curve["lines"][0]) <= document.MOST_POINTS
    kept = dict(zip(curve["steps"], curve["lines"][0], strict=True))
    assert (kept[123_456], kept[654_321]) == (50.0, -50.0)
    assert len(written) < 400_000


def test_browser_is_held_to_load_nothing() -> None:
    written = Report(title="x").write()
    assert "content=\"default-src 'none';" in written
    assert re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", written) is None


# --- of a run ---------------------------------------------------------------------------------------------------------


def fit(storage: Path, rows: list[dict[str, object]]) -> train.Result:
    def loop() -> None:
        for row in rows:
            (storage / "saved").mkdir(exist_ok=True)
            (storage / "saved" / "model").write_text("1")
            train.report(row, checkpoint=train.Checkpoint.from_directory(storage / "saved"))

    return train.DataParallelTrainer(
        loop,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(name="run", storage_path=storage),
    ).fit()


def test_diverged_runs_are_last_and_what_cannot_be_read_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, losses in {"good": [2.6], "diverged": [0.8, math.nan], "secret": [0.1]}.items():
        train.DataParallelTrainer(
            lambda config: [train.report({"loss": loss, "step": 1234567}) for loss in config["losses"]],
            train_loop_config={"losses": losses, "clip": math.inf},
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(name=name, storage_path=str(tmp_path)),
        ).fit()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "secret" not in str(path) and access(path, mode))
    capsys.readouterr()
    assert main.main(["runs", str(tmp_path), "--sort", "loss"]) == 0
    told = capsys.readouterr()
    assert told.out.index("good") < told.out.index("diverged")
    assert "1234567" in told.out
    assert "secret" in told.err
    assert "secret" not in told.out
    assert main.main(["runs", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert {one["name"]: one["metrics"] for one in found} == {
        "good": {"loss": 2.6, "step": 1234567},
        "diverged": {"loss": "nan", "step": 1234567},
    }


def test_report_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [
        {"step": 10 * number, "loss": 1 / number, "val": {"acc": number}, "note": "<b>"} for number in (1, 2, 3)
    ]
    rows[1]["extra"] = math.nan
    result = fit(tmp_path, rows)
    path = result.report()
    assert path == Path(result.path, "report.html")
    data = read_data(path.read_text())
    assert data["title"] == "run"
    assert data["step"] == "step"
    assert {curve["name"]: (curve["steps"], curve["lines"][0]) for curve in data["curves"]} == {
        "loss": ([10, 20, 30], [1.0, 0.5, 1 / 3]),
        "val/acc": ([10, 20, 30], [1, 2, 3]),
        "extra": ([10, 20, 30], [None, None, None]),
    }
    facts = dict(map(tuple, data["facts"]))
    assert float(facts.pop("seconds")) > 0
    assert facts.pop("begun").startswith("20")
    assert facts == {
        "folder": result.path,
        "state": "finished",
        "ranks": "1",
        "reports": "3",
        "checkpoints": "3",
        "step": "30",
        "loss": "0.333333",
        "val/acc": "3",
        "extra": "nan",
        "note": "<b>",
    }
    assert [len(table["rows"]) for table in data["tables"]] == [3]
    other = tmp_path / "other.html"
    assert main.main(["report", result.path, "--output", str(other)]) == 0
    assert capsys.readouterr().out == f"{other}\n"
    assert [curve["name"] for curve in read_data(other.read_text())["curves"]] == ["loss", "val/acc", "extra"]


def test_report_of_several_lines() -> None:
    report = Report(title="x")
    others = {"b": [1.0], "c": [math.inf, 2.0, 3.0]}
    report.curves.append(Curve(name="c", steps=[3, 1, 2], values=[30, 10, 20], label="a", others=others))
    (curve,) = read_data(report.write())["curves"]
    assert (curve["steps"], curve["labels"]) == ([1, 2, 3], ["a", "b", "c"])
    assert curve["lines"] == [[10, 20, 30], [None, None, 1], [2, 3, None]]


def test_report_of_a_run_that_saved_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def loop() -> None:
        for step in range(3):
            train.report({"loss": 1.0 / (step + 1)})
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        train.DataParallelTrainer(
            loop,
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(name="run", storage_path=tmp_path),
        ).fit()
    assert main.main(["report", str(tmp_path / "run")]) == 0
    path = Path(capsys.readouterr().out.strip())
    data = read_data(path.read_text())
    assert [curve["lines"][0] for curve in data["curves"]] == [[1.0, 0.5, 1 / 3]]
    assert dict(map(tuple, data["facts"]))["error"] == "ValueError: boom"
    assert data["shares"][0]["rows"][0]["label"] == "rank 0"


def fit_two(folder: Path) -> None:
    for rate in (0.1, 0.2):
        train.DataParallelTrainer(
            lambda config: [train.report({"loss": config["rate"] * step}) for step in (1, 2)],
            train_loop_config={"rate": rate, "same": 1},
            scaling_config=train.ScalingConfig(num_workers=0),
            run_config=train.RunConfig(name=f"run-{rate}", storage_path=folder),
        ).fit()


def test_runs_are_listed_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit_two(tmp_path)
    assert main.main(["runs", str(tmp_path), "--sort", "loss"]) == 0
    said = capsys.readouterr().out
    assert said.index("run-0.1") < said.index("run-0.2")
    assert "rate" in said
    assert "same" not in said, "the configurations do not differ there"
    assert main.main(["runs", str(tmp_path / "run-0.1"), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["name"], told["state"], told["metrics"]) == ("run-0.1", "finished", {"loss": 0.2})
    output = tmp_path / "compared.html"
    assert main.main(["runs", str(tmp_path), "--output", str(output)]) == 0
    data = read_data(output.read_text())
    assert [curve["labels"] for curve in data["curves"]] == [["run-0.1", "run-0.2"]]
    assert data["tables"][1]["rows"] == [["run-0.1", "0.1"], ["run-0.2", "0.2"]]


@pytest.mark.parametrize(
    ("given", "told"), [(["none"], "Found no run in 'none'"), (["--sort", "x"], "reported the metric 'x'")]
)
def test_runs_that_are_not_there(
    given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit_two(tmp_path)
    assert main.main(["runs", *([str(tmp_path)] if given[0].startswith("-") else []), *given]) == 1
    assert told in capsys.readouterr().err


def write_log(folder: Path, *ranks: dict[str, object], config: dict[str, object], error: Exception | None) -> None:
    folder.mkdir()
    written = log.RunLog(folder)
    written.begin(folder.name, config, None)
    written.begin_attempt(len(ranks), 0)
    for rank in range(len(ranks)):
        written.arrive(rank, 1)
    written.add_row(ranks, [None] * len(ranks), 0.0, None)
    written.end(error)


def test_metrics_that_are_called_like_facts_of_the_run(tmp_path: Path) -> None:
    write_log(tmp_path / "a", {"error": 0.5, "run": 7}, config={"run": 1}, error=ValueError("no"))
    write_log(tmp_path / "b", {"loss": 0.5}, config={"run": 2}, error=None)
    for command in (["report", str(tmp_path / "a")], ["runs", str(tmp_path)]):
        output = tmp_path / f"{command[0]}.html"
        assert main.main([*command, "--output", str(output)]) == 0
    facts = dict(read_data((tmp_path / "report.html").read_text())["facts"])
    assert (facts["error"], facts["error (the program's)"]) == ("ValueError: no", "0.5")
    listed, differing = read_data((tmp_path / "runs.html").read_text())["tables"]
    assert [row[0] for row in listed["rows"]] == ["a", "b"]
    assert differing["rows"] == [["a", "1"], ["b", "2"]]


@pytest.mark.parametrize(("columns", "is_wide"), [("400", True), ("", False), ("wide", False)])
def test_runs_are_as_wide_as_columns_says(
    columns: str, is_wide: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    write_log(tmp_path / "a", {"n" * 190: 0.5}, config={}, error=None)
    assert main.main(["runs", str(tmp_path)]) == 0
    assert ("n" * 190 in capsys.readouterr().out) is is_wide


def test_metric_that_not_all_ranks_report_is_compared(tmp_path: Path) -> None:
    write_log(tmp_path / "a", {}, {"loss": 0.5}, config={}, error=None)
    write_log(tmp_path / "b", {"loss": 0.25}, config={}, error=None)
    output = tmp_path / "compared.html"
    assert main.main(["runs", str(tmp_path), "--output", str(output)]) == 0
    (curve,) = read_data(output.read_text())["curves"]
    assert dict(zip(curve["labels"], curve["lines"], strict=True)) == {"a": [0.5], "b": [0.25]}


@pytest.mark.parametrize("step", [math.nan, math.inf, "ten"])
def test_steps_that_are_none_are_not_used(step: object, tmp_path: Path) -> None:
    result = fit(tmp_path, [{"step": 1, "loss": 1.0}, {"step": step, "loss": 0.5}])
    data = read_data(result.report().read_text())
    assert data["step"] == "report"
    assert next(curve for curve in data["curves"] if curve["name"] == "loss")["steps"] == [1, 2]


def test_what_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = fit(tmp_path, [{"loss": 1.0}])
    write: Any = result.report
    with pytest.raises(TypeError, match="path must be a file's path, but received 3"):
        write(3)
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "no" / "such" / "folder.html")
    assert main.main(["report", str(tmp_path / "nothing")]) == 1
    assert "hocket report: " in capsys.readouterr().err
