"""`Sharded` in JAX: data parallel, fully sharded, tensor parallel and their products train what one process does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import train

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'hocket[jax]'")
pytest.importorskip("optax", reason="needs Optax: pip install optax")
pytest.importorskip("safetensors", reason="needs safetensors: pip install safetensors")

from hocket.train.jax import JaxTrainer  # noqa: E402 (JAX may be missing)
from hocket.train.strategies import Sharded  # noqa: E402 (JAX may be missing)
from tests.train import sharded_jax_programs as programs  # noqa: E402 (JAX may be missing)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_session"), pytest.mark.timeout(180)]

FULLY = Sharded(mesh={"data": 2}, shard_along="data")
TENSOR = Sharded(mesh={"model": 2}, layout=programs.TENSOR_PARALLEL)
BOTH = Sharded(mesh={"data": 2, "model": 2}, layout=programs.TENSOR_PARALLEL)
ALL = Sharded(mesh={"model": 2, "data": 2}, layout=programs.TENSOR_PARALLEL, shard_along=["data"])


@pytest.fixture(scope="module")
def session_cpus() -> int:
    return 4


def fit(function: Any, path: Path, strategy: Sharded | None, num_workers: int = 0, **config: Any) -> train.Result:
    return JaxTrainer(
        function,
        train_loop_config=config,
        strategy=strategy,
        scaling_config=train.ScalingConfig(
            num_workers=num_workers or (strategy.world_size if strategy else 1), resources_per_worker={"CPU": 0.5}
        ),
        run_config=train.RunConfig(storage_path=str(path), failure_config=train.FailureConfig(max_failures=1)),
    ).fit()


def train_in_parts(strategy: Sharded, path: Path, **config: Any) -> Any:
    parts = strategy.locate_batch(0, strategy.world_size)[1]
    result = fit(programs.train_perceptron, path, strategy, parts=parts, **config)
    check_usage(result.sharding, strategy)
    return result.return_value


def check_usage(found: train.ShardingUsage | None, strategy: Sharded) -> None:
    """Beside what the layouts say is what XLA has compiled."""
    assert found is not None
    assert found.measured is None
    assert found.steps >= 6
    kept, whole = found.predicted, 4 * sum(np.size(leaf) for leaf in jax.tree.leaves(programs.make_params(0)))
    assert kept.gradients == kept.parameters
    assert (kept.parameters < whole) == (strategy != Sharded(mesh=strategy.mesh))
    assert found.optimizer == pytest.approx(2 * kept.parameters, abs=8), "AdamW's averages, and the number of steps"
    received = sum(found.received.values())
    if strategy == FULLY:
        assert kept.gathered == kept.reduced == kept.parameters
        assert received >= kept.gathered + kept.reduced, "XLA adds gradients up whole, and cuts them then"
    assert received > 0


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, shared_session: object) -> Any:
    """What one process makes of it."""
    return fit(programs.train_perceptron, tmp_path_factory.mktemp("alone"), None, parts=1).return_value


def check_same(found: Any, expected: Any) -> None:
    pairs = jax.tree.map(lambda *pair: pair, found["weights"], expected["weights"], is_leaf=lambda one: one is None)
    for one, other in jax.tree.leaves(pairs, is_leaf=lambda pair: isinstance(pair, tuple)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    assert found["accuracy"] == expected["accuracy"]


def test_a_killed_rank_and_what_it_trains_then(alone: Any, tmp_path: Path) -> None:
    """Fully sharded; the second attempt goes on at the step after the checkpoint, with the state in parts."""
    found = train_in_parts(FULLY, tmp_path, folder=str(tmp_path), saved=str(tmp_path / "saved"))
    assert (tmp_path / "killed").exists()
    check_same(found, alone)
    assert found["kept"] == (0.5, 0.5), "what is divisible by two is halved, and Adam's averages with it"
    for text in found["refused"]:
        assert re.search(r"TypeError: .*spread over the ranks. Call hocket.train.jax.gather", text)
    steps = len(alone["seen"]) // 3
    rows = [set(seen) for seen in found["seen"]]  # rank 0's, of epochs 1 and 2
    assert len(rows) == 2 * steps
    assert all(mine < set(whole) for mine, whole in zip(rows[:-1], alone["seen"][steps:-1], strict=True))


@pytest.mark.long
def test_tensor_parallel_and_on_one_rank_after_it(alone: Any, tmp_path: Path) -> None:
    found = train_in_parts(TENSOR, tmp_path, saved=str(tmp_path / "saved"))
    check_same(found, alone)
    assert found["kept"][0] == found["kept"][1] < 0.6
    assert found["seen"] == alone["seen"], "both ranks have all rows"
    one = Sharded(mesh={"data": 1})
    whole, kept, loss = fit(
        programs.load_elsewhere, tmp_path, one, saved=str(tmp_path / "saved"), batch_size=8
    ).return_value
    check_bits(whole, found["weights"])
    assert kept == (1.0, 1.0)
    assert np.isfinite(loss)


def check_bits(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        (Sharded(mesh={"data": 2}), 1.0),
        (BOTH, 0.53),
        (ALL, 0.27),
        (Sharded(mesh={"data": 4}, shard_along="data"), 0.25),
    ],
    ids=["data", "both", "both fully", "fully on four"],
)
def test_other_meshes_train_as_one_process(strategy: Sharded, kept: float, alone: Any, tmp_path: Path) -> None:
    found = train_in_parts(strategy, tmp_path)
    check_same(found, alone)
    assert found["kept"] == (pytest.approx(kept, abs=0.04), pytest.approx(kept, abs=0.04))


@pytest.mark.long
def test_what_four_ranks_have_saved_two_load(alone: Any, tmp_path: Path) -> None:
    found = train_in_parts(ALL, tmp_path, saved=str(tmp_path / "saved"))
    whole, kept, _ = fit(
        programs.load_elsewhere, tmp_path, FULLY, saved=str(tmp_path / "saved"), batch_size=4
    ).return_value
    check_bits(whole, found["weights"])
    assert kept == (0.5, 0.5)


def test_rows_of_ones_own(tmp_path: Path) -> None:
    shape, column, mean, uneven, odd = fit(programs.prepare_rows, tmp_path, Sharded(mesh={"data": 2})).return_value
    assert (shape, column, mean) == ((6,), [0, 0, 0, 1, 1, 1], 0.5)
    assert uneven.startswith("ValueError: prepare_batch() needs equally many rows in all ranks, but they have [3, 4].")
    assert odd.startswith("ValueError: prepare_batch() takes arrays with equally many rows")


# --- bad input --------------------------------------------------------------------------------------------------------


def test_what_an_optimizer_keeps_may_have_other_shapes_than_the_rules_fit(tmp_path: Path) -> None:
    strategy = Sharded(mesh={"model": 2}, layout={".*kernel": ["unsharded", "model"]})
    found = fit(programs.place_what_an_optimizer_keeps, tmp_path, strategy).return_value
    assert found == {(6,): True, (8,): True, (8, 6): False}


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    strategy = Sharded(mesh={"data": 1}, layout={"words/table": ["data"], "nothing": ["data"]})
    first, second, third = fit(programs.call_wrongly, tmp_path, strategy).return_value
    assert first.startswith("ValueError: Sharded must know the parameters before the optimizer does.")
    assert second.startswith("ValueError: The rule 'words/table' of Sharded(layout=...) matches no parameter")
    assert third.startswith("ValueError: The rule 'nothing' of Sharded(layout=...) matches no parameter")


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match="has 3 places, but there are 2 ranks"):
        fit(programs.call_wrongly, tmp_path, Sharded(mesh={"data": 3}), num_workers=2)
