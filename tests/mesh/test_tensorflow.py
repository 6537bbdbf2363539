"""TensorFlow's own DTensor, set up in one process and over the ranks of a trainer."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import train
from hocket.train.tensorflow import TensorflowTrainer
from tests.mesh.test_jax import Runner

pytestmark = [
    # It is not imported here: Keras would be for it alone in this process.
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs pip install 'hocket[tensorflow]'"),
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.about_local("TensorFlow in workers of its own"),
]


def call(name: str) -> Any:
    """Run a program of `tensorflow_programs`, which is imported where it runs."""
    from tests.mesh import tensorflow_programs

    return getattr(tensorflow_programs, name)()


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str], Any]]:
    with hocket.init(num_cpus=2):
        runner = hocket.remote(num_cpus=0)(Runner).remote()
        yield lambda name: hocket.get(runner.run.remote(call, name), timeout=200)


@pytest.mark.parametrize("name", ["use_one_process", "convert_layouts", "refuse_clusters"])
def test_one_process(run: Callable[[str], Any], name: str) -> None:
    run(name)


def fit(name: str, path: Path) -> Any:
    return TensorflowTrainer(
        lambda: call(name),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=path),
    ).fit()


def test_a_mesh_over_the_ranks_of_a_trainer(run: Callable[[str], Any], tmp_path: Path) -> None:
    (losses, specs), client = fit("train_over_ranks", tmp_path).return_value
    assert client == [0, 2]
    assert specs == ["unsharded", "model"]
    assert losses == pytest.approx(run("take_steps_alone"), abs=1e-6)


def test_a_rank_that_dies_is_named(run: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(train.TrainingFailedError, match=r"Rank 1 of 2 died: .*SIGKILL"):
        fit("die_in_a_step", tmp_path)
