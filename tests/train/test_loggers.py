"""Where metrics go: lines, tables, TensorBoard, MLflow, pictures; for today's trainers and for that of 2022."""

from __future__ import annotations

import csv
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
from hocket.train import callbacks, loggers


def loop(config: dict[str, Any]) -> None:
    for step in range(config.get("first", 0), 4):
        metrics = {"step": step, "loss": 1 / (step + 1), "val": {"acc": step / 10}, "note": "a,b"}
        train.report({**metrics, "late": True} if step == 3 else metrics)
        if step == config.get("fails_at"):
            raise ValueError("no")


def fit(path: Path, *watching: train.UserCallback, **config: Any) -> train.Result:
    return train.DataParallelTrainer(
        loop,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(name="run", storage_path=path, callbacks=watching),
    ).fit()


def test_text_that_utf_8_cannot_hold(tmp_path: Path) -> None:
    trainer = train.DataParallelTrainer(
        lambda: train.report({"note": "half \ud800"}),
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(
            name="run", storage_path=tmp_path, callbacks=[loggers.CsvLogger(), loggers.JsonLinesLogger()]
        ),
    )
    trainer.fit()
    assert "half \\ud800" in (tmp_path / "run" / "metrics.csv").read_text()
    trainer.fit()
    assert (tmp_path / "run" / "metrics.csv").read_text().count("half \\ud800") == 2


def test_a_line_that_was_cut_is_ended(tmp_path: Path) -> None:
    """As where the disk was full. The rows of the next run are whole."""
    fit(tmp_path, loggers.CsvLogger(), loggers.JsonLinesLogger(), first=2)
    table, lines = tmp_path / "run" / "metrics.csv", tmp_path / "run" / "metrics.jsonl"
    for file in (table, lines):
        file.write_bytes(file.read_bytes()[:-3])
    fit(tmp_path, loggers.CsvLogger(), loggers.JsonLinesLogger(), first=2)
    with table.open(newline="") as opened:
        assert [row["step"] for row in csv.DictReader(opened)] == ["2", "3", "2", "3"]
    assert [json.loads(line)["step"] for line in lines.read_text().splitlines()[2:]] == [2, 3]


def test_a_table_that_was_cut_takes_new_columns(tmp_path: Path) -> None:
    table = tmp_path / "cut.csv"
    table.write_text('_report,_time,_rank,step\n1,0,0,"1\n2,0,0,"x",5\n')
    fit(tmp_path, loggers.CsvLogger(table), first=3)
    with table.open(newline="") as opened:
        assert "loss" in next(csv.reader(opened))


def test_lines_of_json(tmp_path: Path) -> None:
    logger = loggers.JsonLinesLogger()
    fit(tmp_path, logger)
    fit(tmp_path, logger, first=3)  # the run goes on
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["_report"], row["_rank"], row["step"]) for row in rows] == [
        *[(step + 1, 0, step) for step in range(4)],
        (1, 0, 3),
    ]
    assert rows[0]["val"] == {"acc": 0.0}


@pytest.mark.slow
@pytest.mark.usefixtures("session")
def test_all_ranks_are_logged_if_asked_for(tmp_path: Path) -> None:
    train.DataParallelTrainer(
        lambda: train.report({"rank": train.get_context().get_world_rank(), "bad": float("nan")}),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            storage_path=tmp_path,
            callbacks=[
                loggers.JsonLinesLogger(tmp_path / "deep" / "lines", all_ranks=True),
                loggers.CsvLogger(str(tmp_path / "deep" / "table"), all_ranks=True),
            ],
        ),
    ).fit()
    rows = [json.loads(line) for line in (tmp_path / "deep" / "lines").read_text().splitlines()]
    assert [(row["_report"], row["_rank"], row["rank"], row["bad"]) for row in rows] == [
        (1, 0, 0, None),
        (1, 1, 1, None),
    ]
    table = (tmp_path / "deep" / "table").read_text().splitlines()
    assert [re.sub(r",[0-9.]+,", ",T,", line, count=1) for line in table] == [
        "_report,_time,_rank,rank,bad",
        "1,T,0,0,nan",
        "1,T,1,1,nan",
    ]


def test_a_table_gets_columns_when_they_come(tmp_path: Path) -> None:
    logger = loggers.CsvLogger()
    fit(tmp_path, logger)
    fit(tmp_path, logger, first=2)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["_report", "_time", "_rank", "step", "loss", "val/acc", "note", "late"]
    assert [row["step"] for row in rows] == ["0", "1", "2", "3", "2", "3"]
    assert [row["late"] for row in rows] == ["", "", "", "True", "", "True"]
    assert rows[1]["note"] == "a,b"
    assert {file.name for file in (tmp_path / "run").iterdir()} == {"metrics.csv", "run.jsonl"}
    (tmp_path / "other").write_text("1,1,2\n")
    with pytest.raises(ValueError, match=r"must begin with a header, but its first line is \['1', '1', '2'\]"):
        fit(tmp_path, loggers.CsvLogger(tmp_path / "other"))


class Writer:
    """Stands in for TensorBoard's."""

    made: list[Writer]

    def __init__(self, folder: str, flush_secs: int) -> None:
        self.folder = folder
        self.scalars: list[tuple[str, float, int]] = []
        self.is_closed = False
        self.made.append(self)

    def add_scalar(self, key: str, number: float, *, global_step: int) -> None:
        assert not self.is_closed
        self.scalars.append((key, number, global_step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    """What is written through a tensorboardX that is not the real one."""
    made: list[Writer] = []
    module = types.ModuleType("tensorboardX")
    module.SummaryWriter = type("SummaryWriter", (Writer,), {"made": made})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    return made


def test_tensorboard(tmp_path: Path, writers: list[Writer]) -> None:
    fit(tmp_path, loggers.TensorBoardLogger(), loggers.TensorBoardLogger(tmp_path / "mine", step_key="none"), first=2)
    assert [writer.folder for writer in writers] == [str(tmp_path / "run" / "tensorboard"), str(tmp_path / "mine")]
    assert all(writer.is_closed for writer in writers)
    assert writers[0].scalars[:3] == [("step", 2.0, 2), ("loss", 1 / 3, 2), ("val/acc", 0.2, 2)]
    assert [step for _, _, step in writers[1].scalars] == [1, 1, 1, 2, 2, 2, 2]


def test_tensorboard_of_2022(tmp_path: Path, writers: list[Writer]) -> None:
    def report() -> None:
        for loss in (1.0, 0.5):
            train.report(loss=loss, val={"acc": 0.1}, name="x")

    with hocket.init(engine="inprocess"):
        trainer = train.Trainer("none", 1, logdir=tmp_path)
        trainer.start()
        trainer.run(report, callbacks=[callbacks.TBXLoggerCallback()])
        trainer.shutdown()
    (writer,) = writers
    assert (writer.folder, writer.is_closed) == (str(tmp_path / "run_001"), True)
    scalars = [scalar for scalar in writer.scalars if not scalar[0].startswith("ray/train/_")]
    assert scalars == [
        *[("ray/train/loss", 1.0, 1), ("ray/train/val/acc", 0.1, 1)],
        *[("ray/train/loss", 0.5, 2), ("ray/train/val/acc", 0.1, 2)],
    ]


class Server:
    """Stands in for MLflow: the package, its client, and what they keep."""

    def __init__(self) -> None:
        self.experiments = {"digits": "7"}
        self.runs: dict[str, dict[str, Any]] = {}
        tracking: Any = types.ModuleType("mlflow.tracking")
        tracking.MlflowClient = self.connect
        module: Any = types.ModuleType("mlflow")
        module.tracking, module.entities = tracking, types.SimpleNamespace(Metric=lambda *parts: parts)
        self.module = module

    def connect(self, tracking_uri: str | None) -> Server:
        assert tracking_uri in (None, "http://there")
        return self

    def get_experiment(self, number: str) -> Any:
        return number if number in self.experiments.values() else None

    def get_experiment_by_name(self, name: str) -> Any:
        return types.SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments) + 10))

    def create_run(self, experiment_id: str, *, tags: dict[str, Any], run_name: str) -> Any:
        number = str(len(self.runs))
        self.runs[number] = {
            "experiment": experiment_id,
            "name": run_name,
            "tags": tags,
            "params": {},
            "metrics": [],
            "files": [],
        }
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=number))

    def log_param(self, run_id: str, key: str, value: str) -> None:
        self.runs[run_id]["params"][key] = value

    def log_batch(self, run_id: str, metrics: list[Any]) -> None:
        assert len(metrics) <= 1000, "MLflow refuses more"
        self.runs[run_id]["metrics"] += [(key, number, step) for key, number, _, step in metrics]

    def log_artifacts(self, run_id: str, folder: str) -> None:
        self.runs[run_id]["files"].append(folder)

    def set_terminated(self, run_id: str, *, status: str) -> None:
        self.runs[run_id]["status"] = status


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setitem(sys.modules, "mlflow", made.module)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", made.module.tracking)
    return made


def test_mlflow(tmp_path: Path, server: Server) -> None:
    logger = loggers.MLflowLogger("http://there", experiment_name="new", tags={"a": 1})
    fit(tmp_path, logger, first=3, nested={"lr": 0.1})
    with pytest.raises(ValueError, match="no"):
        fit(tmp_path, logger, fails_at=0)
    fit(tmp_path, loggers.MLflowLogger(experiment_id="7"))
    fit(tmp_path, loggers.MLflowLogger())
    first, failed, by_id, default = server.runs.values()
    assert first == {
        "experiment": "11",
        "name": "run",
        "tags": {"a": 1},
        "params": {"first": "3", "nested/lr": "0.1"},
        "metrics": [("step", 3.0, 3), ("loss", 0.25, 3), ("val/acc", 0.3, 3), ("late", 1.0, 3)],
        "files": [],
        "status": "FINISHED",
    }
    assert (failed["status"], by_id["experiment"], default["experiment"]) == ("FAILED", "7", "0")
    with pytest.raises(ValueError, match="MLflow has no experiment with the id '99'"):
        fit(tmp_path, loggers.MLflowLogger(experiment_id="99"))
    with pytest.raises(ValueError, match="cannot both be given, but received 'a' and '7'"):
        loggers.MLflowLogger(experiment_name="a", experiment_id="7")


def test_mlflow_with_very_many_metrics(tmp_path: Path, server: Server) -> None:
    train.DataParallelTrainer(
        lambda: train.report({f"of layer {number}": number for number in range(2500)}),
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(storage_path=tmp_path, callbacks=[loggers.MLflowLogger()]),
    ).fit()
    assert [number for _, number, _ in server.runs["0"]["metrics"]] == list(range(2500))


def test_mlflow_of_2022(tmp_path: Path, server: Server) -> None:
    with hocket.init(engine="inprocess"):
        trainer = train.Trainer("none", 1, logdir=tmp_path)
        trainer.start()
        callback = callbacks.MLflowLoggerCallback(experiment_name="digits", save_artifact=True)
        trainer.run(lambda config: train.report(loss=config["x"]), {"x": 2}, callbacks=[callback])
        with pytest.raises(KeyError, match="x"):
            trainer.run(lambda config: config["x"], callbacks=[callback])
        trainer.shutdown()
    good, bad = server.runs.values()
    assert (good["experiment"], good["params"], good["files"]) == ("7", {"x": "2"}, [str(tmp_path / "run_001")])
    assert [entry for entry in good["metrics"] if entry[0] == "loss"] == [("loss", 2.0, 1)]
    assert (good["status"], bad["status"], bad["name"]) == ("FINISHED", "FAILED", "run_002")


def test_a_curve(tmp_path: Path) -> None:
    result = fit(tmp_path, loggers.LossCurve(), loggers.LossCurve(tmp_path / "acc.svg", keys=["val/acc"]))
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "acc.svg").read_text()
    path = loggers.save_curve(result.metrics_history, tmp_path / "on_demand.png", ["val/acc", "loss"], step_key="loss")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"the 4 reports have no number called 'acc', but \['step', 'loss', 'val/acc'"):
        loggers.save_curve(result.metrics_history, tmp_path / "no.png", ["acc"])
    with pytest.raises(ValueError, match=r"have no number whose name ends in 'loss'"):
        loggers.save_curve([{"acc": 1}], tmp_path / "no.png")
    with pytest.warns(UserWarning, match="No curve was drawn. There is nothing to draw: .* 'nope'"):
        fit(tmp_path, loggers.LossCurve(keys=["nope"]))
    with pytest.raises(ValueError, match="no"):
        fit(tmp_path, loggers.LossCurve(tmp_path / "failed.png"), fails_at=1)
    assert (tmp_path / "failed.png").exists()


@pytest.mark.parametrize(
    ("missing", "make", "message"),
    [
        (
            ("tensorboardX", "torch.utils.tensorboard"),
            loggers.TensorBoardLogger,
            r"pip install 'hocket\[tensorboard\]'",
        ),
        (("tensorboardX", "torch.utils.tensorboard"), callbacks.TBXLoggerCallback, r"'hocket\[tensorboard\]'"),
        (("mlflow", "mlflow.tracking"), loggers.MLflowLogger, r"pip install 'hocket\[mlflow\]'"),
        (("mlflow", "mlflow.tracking"), callbacks.MLflowLoggerCallback, r"'hocket\[mlflow\]'"),
        (("matplotlib", "matplotlib.figure"), loggers.LossCurve, r"pip install 'hocket\[plot\]'"),
    ],
)
def test_what_is_missing_is_named_before_the_training(
    missing: tuple[str, ...], make: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=message):
        make()


@pytest.mark.parametrize("make", [loggers.JsonLinesLogger, loggers.CsvLogger, loggers.LossCurve])
def test_bad_paths(make: Any) -> None:
    with pytest.raises(TypeError, match="A logger's path must be a str or a Path, but received 3"):
        make(3)


def test_keys_of_a_curve_are_names_in_a_list() -> None:
    make: Any = loggers.LossCurve
    for keys in ("loss", 3):
        with pytest.raises(TypeError, match="keys must be a list of metrics' names"):
            make(keys=keys)


def test_a_full_disk_ends_the_log_and_not_the_training(tmp_path: Path) -> None:
    logger = loggers.JsonLinesLogger("/dev/full")
    for _ in range(2):  # it tries again with the next run
        with pytest.warns(UserWarning, match=r"JsonLinesLogger could not write, .*No space left") as told:
            result = fit(tmp_path, logger, loggers.CsvLogger())
        assert len(told) == 1
        assert len(result.metrics_history) == 4
    assert (tmp_path / "run" / "metrics.csv").read_text().count("\n") == 9


def test_what_json_cannot_hold_of_a_configuration_is_text() -> None:
    assert loggers._make_plain({"a": [1, None]}) == {"a": [1, None]}
    assert str(loggers._make_plain(object())).startswith("<object object at ")
