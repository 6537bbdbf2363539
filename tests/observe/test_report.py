"""Reports: one file that has all in it, whatever the names and values are."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hocket import train
from hocket.cli import main
from hocket.observe.report import Curve, Report, document

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
    assert len(curve["steps"]) == len(curve["values"]) == sum(math.isfinite(step) for step, _ in points)
    assert curve["count"] == len(points)


def test_long_curve_keeps_its_least_and_greatest() -> None:
    values = [math.sin(number / 1000) for number in range(1_000_000)]
    values[123_456], values[654_321] = 50.0, -50.0
    report = Report(title="x")
    report.curves.append(Curve(name="c", steps=range(len(values)), values=values))
    written = report.write()
    (curve,) = read_data(written)["curves"]
    assert len(curve["values"]) <= document.MOST_POINTS
    kept = dict(zip(curve["steps"], curve["values"], strict=True))
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
    assert {curve["name"]: (curve["steps"], curve["values"]) for curve in data["curves"]} == {
        "loss": ([10, 20, 30], [1.0, 0.5, 1 / 3]),
        "val/acc": ([10, 20, 30], [1, 2, 3]),
        "extra": ([20], [None]),
    }
    assert dict(map(tuple, data["facts"])) == {
        "folder": result.path,
        "reports": "3",
        "step": "30",
        "loss": "0.333333",
        "val/acc": "3",
        "note": "<b>",
    }
    assert [len(table["rows"]) for table in data["tables"]] == [3]
    other = tmp_path / "other.html"
    assert main.main(["report", result.path, "--output", str(other)]) == 0
    assert capsys.readouterr().out == f"{other}\n"
    assert [curve["name"] for curve in read_data(other.read_text())["curves"]] == ["loss", "val/acc", "extra"]


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
