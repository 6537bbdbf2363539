"""Loggers of services, with their own clients, which write files where there is no service."""

from __future__ import annotations

import json
import zipfile

import pytest

from hocket import train
from hocket.train import loggers

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.filterwarnings("default")]  # the clients' own


def loop(config):
    for step in range(1, 4):
        train.report({"step": step, "loss": config["lr"] / step, "val": {"loss": 1.0}})


def fit(logger, tmp_path):
    return train.DataParallelTrainer(
        loop,
        train_loop_config={"lr": 0.5},
        scaling_config=train.ScalingConfig(num_workers=0),
        run_config=train.RunConfig(name="digits", storage_path=tmp_path, callbacks=[logger]),
    ).fit()


def test_wandb(tmp_path):
    wandb = pytest.importorskip("wandb", reason="needs wandb: make test-long installs it")
    fit(loggers.WandbLogger("digits", mode="offline", settings=wandb.Settings(console="off")), tmp_path)
    (folder,) = (tmp_path / "digits" / "wandb").glob("offline-run-*")
    (log,) = folder.glob("*.wandb")
    found = log.read_bytes()
    assert all(text in found for text in (b"digits", b"lr", b"loss", b"0.25", b"0.1666"))
    assert wandb.run is None  # the program's own run is not touched


def test_comet(tmp_path):
    pytest.importorskip("comet_ml", reason="needs comet_ml: make test-long installs it")
    logger = loggers.CometLogger(project_name="digits", offline_directory=str(tmp_path / "comet"), api_key="none")
    fit(logger, tmp_path)
    (archive,) = (tmp_path / "comet").glob("*.zip")
    with zipfile.ZipFile(archive) as files:
        lines = files.read("messages.json").decode().splitlines()
    metrics = [entry["payload"]["metric"] for entry in map(json.loads, lines) if entry["type"] == "metric_msg"]
    losses = [one["metricValue"] for one in metrics if one["metricName"] == "loss"]
    assert losses == [0.5, 0.25, 0.5 / 3]


def test_an_experiment_or_its_settings():
    pytest.importorskip("comet_ml", reason="needs comet_ml: make test-long installs it")
    with pytest.raises(ValueError, match="takes an experiment, or the settings of a new one"):
        loggers.CometLogger(object(), project_name="digits")
