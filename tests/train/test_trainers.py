"""The trainers of all frameworks are one: the same arguments, the same documentation, the same files."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from hocket import train
from hocket.train import data_parallel_trainer, frameworks

TRAINERS = {
    "torch": "TorchTrainer",
    "jax": "JaxTrainer",
    "keras": "KerasTrainer",
    "tensorflow": "TensorflowTrainer",
    "xgboost": "XGBoostTrainer",
    "lightgbm": "LightGBMTrainer",
}

FILES = {"checkpoints", "config", "evaluation", "framework", "loaders", "models", "seeds", "trainer"}
"""The modules of each framework that trains with this package's strategies."""


def test_the_options_are_those_of_the_base_class() -> None:
    parameters = inspect.signature(train.DataParallelTrainer).parameters
    options = data_parallel_trainer.TrainerOptions.__annotations__
    assert list(parameters) == ["train_loop_per_worker", "train_loop_config", "backend_config", *list(options)[1:]]
    for name, kind in options.items():
        assert kind.__forward_arg__ == parameters[name].annotation, name


@pytest.mark.parametrize("room", TRAINERS)
def test_a_trainer_shows_all_of_its_arguments(room: str) -> None:
    module = pytest.importorskip(f"hocket.train.{room}")
    trainer = getattr(module, TRAINERS[room])
    parameters = inspect.signature(trainer).parameters
    assert list(parameters)[:2] == ["train_loop_per_worker", "train_loop_config"]
    assert parameters.keys() > data_parallel_trainer.TrainerOptions.__annotations__.keys()
    assert "options" not in parameters
    text = inspect.getdoc(trainer) or ""
    section = text.partition("Args:\n")[2].partition("\n\n")[0]
    shown = [line.strip().partition(":")[0] for line in section.splitlines() if line[:5].count(" ") == 4]
    assert shown == list(parameters)
    assert "Raises:" in text


def test_each_framework_has_the_same_files() -> None:
    folder = Path(frameworks.__path__[0])
    for name in ("torch", "jax", "keras"):
        found = {path.stem for path in (folder / name).glob("*.py")}
        assert found >= FILES, f"{name} lacks {sorted(FILES - found)}"
    for path in folder.glob("**/trainer.py"):
        assert (path.parent / "config.py").exists(), path
