"""`Sharded` in Keras on JAX: data parallel, fully sharded and tensor parallel models train as in one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import train

pytest.importorskip("jax", reason="needs JAX: pip install 'hocket[jax]'")
pytest.importorskip("keras", reason="needs Keras: pip install 'hocket[keras]'")
pytest.importorskip("safetensors", reason="needs safetensors: pip install safetensors")

from hocket.train.keras import KerasConfig, KerasTrainer, Sharded
from tests.train import sharded_keras_programs as programs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_session"), pytest.mark.timeout(180)]

FULLY = Sharded(mesh={"data": 2}, shard_along="data")
TENSOR = Sharded(mesh={"model": 2}, layout=programs.TENSOR_PARALLEL)
BOTH = Sharded(mesh={"data": 2, "model": 2}, layout=programs.TENSOR_PARALLEL)
ALL = Sharded(mesh={"model": 2, "data": 2}, layout=programs.TENSOR_PARALLEL, shard_along=["data"])


@pytest.fixture(scope="module")
def session_cpus() -> int:
    return 4


def fit(function: Any, path: Path, strategy: Sharded | None, num_workers: int = 0, **config: Any) -> train.Result:
    return KerasTrainer(
        function,
        train_loop_config=config,
        strategy=strategy,
        keras_config=KerasConfig(backend="jax"),
        scaling_config=train.ScalingConfig(
            num_workers=num_workers or (strategy.world_size if strategy else 1), resources_per_worker={"CPU": 0.5}
        ),
        run_config=train.RunConfig(storage_path=str(path), failure_config=train.FailureConfig(max_failures=1)),
    ).fit()


def train_in_parts(strategy: Sharded, path: Path, **config: Any) -> Any:
    parts = strategy.locate_batch(0, strategy.world_size)[1]
    result = fit(programs.train_network, path, strategy, parts=parts, mesh=dict(strategy.mesh), **config)
    found = result.sharding
    assert found is not None
    assert found.predicted.parameters > found.predicted.gradients > 0, "a batch normalization has means of its own"
    assert found.optimizer >= 2 * found.predicted.gradients, "Adam's averages"
    assert found.steps > 0
    assert found.received["all-reduce"] > 0, "of gradients, as XLA has compiled it"
    return result.return_value


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, shared_session: object) -> Any:
    """What one process makes of it, without a strategy."""
    return fit(programs.train_network, tmp_path_factory.mktemp("alone"), None, parts=1).return_value


def check_same(found: Any, expected: Any) -> None:
    for one, other in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert set(found["history"]) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert found["history"] == pytest.approx(expected["history"], abs=1e-5)
    assert found["tested"] == pytest.approx(expected["tested"], abs=1e-5)
    np.testing.assert_allclose(found["guessed"], expected["guessed"], rtol=0, atol=1e-4)


def check_rows(found: Any, strategy: Sharded) -> None:
    """Each row was trained on once an epoch, in the ranks that have a batch together."""
    size = strategy.world_size
    parts = [strategy.locate_batch(rank, size)[0] for rank in range(size)]
    firsts = [found["seen"][parts.index(part)] for part in sorted(set(parts))]
    for part, seen in zip(parts, found["seen"], strict=True):
        assert seen == firsts[part], "ranks that share a part have the same rows"
    for epoch in range(len(firsts[0])):
        counts = programs.count_rows(firsts, epoch, len(firsts))
        assert len(counts) == programs.ROWS
        assert set(counts.values()) == {1}


@pytest.mark.long
def test_a_killed_rank_and_what_it_trains_then(alone: Any, tmp_path: Path) -> None:
    """The second attempt goes on with the epoch after the checkpoint. Also a cell of the matrix."""
    found = train_in_parts(FULLY, tmp_path, folder=str(tmp_path))
    assert (tmp_path / "killed").exists()
    check_same(found, alone)
    check_rows(found, FULLY)
    assert [len(seen) for seen in found["seen"]] == [2, 2], "epochs 1 and 2"


def test_fully_sharded_saved_loaded_and_misused(alone: Any, tmp_path: Path) -> None:
    found = train_in_parts(FULLY, tmp_path, saved=str(tmp_path / "saved"))
    check_same(found, alone)
    check_rows(found, FULLY)
    assert [len(seen) for seen in found["seen"]] == [3, 3]
    assert found["kept"] == (pytest.approx(0.5, abs=0.01), pytest.approx(0.5, abs=0.02))
    assert found["files"] == [True] * 5, "Keras's own files"
    assert found["again"] == [False, True, False, True]
    expected = [
        r"TypeError: With Sharded fit\(\) takes the result of prepare_arrays\(\)",
        r"TypeError: With Sharded evaluate\(\) takes the result of prepare_arrays\(\)",
        r"TypeError: With Sharded predict\(\) takes rows that are the same in all ranks",
        r"TypeError: With Sharded train_on_batch\(\) does not know",
        r"ValueError: .*compiled with run_eagerly=True or jit_compile=False",
        r"ValueError: .*steps_per_execution=2",
    ]
    for pattern, text in zip(expected, found["refused"], strict=True):
        assert re.match(pattern, text), text


@pytest.mark.long
def test_tensor_parallel_and_on_one_rank_after_it(alone: Any, tmp_path: Path) -> None:
    found = train_in_parts(TENSOR, tmp_path, saved=str(tmp_path / "saved"))
    check_same(found, alone)
    check_rows(found, TENSOR)
    assert found["kept"][0] < 0.65
    assert "The rule 'net/up/kernel' of Sharded(layout=...) matches no parameter" in found["refused"][-1]
    one = Sharded(mesh={"data": 1})
    whole, kept = fit(programs.load_elsewhere, tmp_path, one, saved=str(tmp_path / "saved")).return_value
    for value, expected in zip(whole, found["weights"], strict=True):
        np.testing.assert_array_equal(value, expected)
    assert kept == 1.0


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        (Sharded(mesh={"data": 2}), 1.0),
        (BOTH, 0.6),
        (ALL, 0.3),
        (Sharded(mesh={"data": 4}, shard_along="data"), 0.25),
    ],
    ids=["data", "both", "both fully", "fully on four"],
)
def test_other_meshes_train_as_one_process(strategy: Sharded, kept: float, alone: Any, tmp_path: Path) -> None:
    found = train_in_parts(strategy, tmp_path)
    check_same(found, alone)
    check_rows(found, strategy)
    assert found["kept"] == (pytest.approx(kept, abs=0.04), pytest.approx(kept, abs=0.04))


@pytest.mark.long
def test_dropout_is_that_of_one_process(tmp_path: Path) -> None:
    expected = fit(programs.train_network, tmp_path, None, parts=1, dropout=0.2).return_value
    check_same(train_in_parts(FULLY, tmp_path, dropout=0.2), expected)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match="has 3 places, but there are 2 ranks"):
        fit(programs.load_elsewhere, tmp_path, Sharded(mesh={"data": 3}), num_workers=2)


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_other_backends_are_refused_at_once(backend: str) -> None:
    with pytest.raises(
        ValueError, match=rf"on JAX only, but Keras computes with '{backend}' here. Write keras_config="
    ):
        KerasTrainer(print, strategy=FULLY, keras_config=KerasConfig(backend=backend))


def test_joined_processes_are_jaxs() -> None:
    with pytest.raises(ValueError, match="joins JAX's processes, but the backend is 'torch'"):
        KerasConfig(backend="torch", distributed=True)
