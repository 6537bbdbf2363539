"""`Sharded`: data parallel, fully sharded, tensor parallel and their products train what one process does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import train

pytest.importorskip("torch", reason="needs PyTorch: pip install 'hocket[torch]'")

from hocket.train import strategies
from hocket.train.strategies import Sharded
from hocket.train.torch import TorchTrainer
from tests.train import sharded_programs as programs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_session"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def session_cpus() -> int:
    return 4


def run(function: Any, path: Path, strategy: Sharded | None, num_workers: int = 2, **config: Any) -> train.Result:
    return TorchTrainer(
        function,
        train_loop_config=config,
        strategy=strategy,
        scaling_config=train.ScalingConfig(num_workers=num_workers, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(storage_path=str(path)),
    ).fit()


def fit(function: Any, path: Path, strategy: Sharded | None, num_workers: int = 2, **config: Any) -> Any:
    return run(function, path, strategy, num_workers, **config).return_value


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, shared_session: object) -> dict[str, Any]:
    """What one process makes of it."""
    path = tmp_path_factory.mktemp("alone")
    found: dict[str, Any] = fit(programs.train_transformer, path, None, num_workers=1, batch_size=8)
    return found


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        (Sharded(mesh={"data": 2}), 1.0),
        (Sharded(mesh={"data": 2}, shard_along="data"), 0.5),
        (Sharded(mesh={"data": 2}, shard_along="data", bucket_bytes=0), 0.5),
        (Sharded(mesh={"model": 2}, layout=programs.TENSOR_PARALLEL), 0.55),
        (Sharded(mesh={"data": 2, "model": 2}, layout=programs.TENSOR_PARALLEL), 0.55),
        (Sharded(mesh={"model": 2, "data": 2}, layout=programs.TENSOR_PARALLEL, shard_along=["data"]), 0.28),
        (Sharded(mesh={"data": 4}, shard_along=["data"], bucket_bytes=16 << 10), 0.25),
    ],
    ids=["data", "fully", "fully, layers alone", "tensor", "both", "both fully", "fully on four, blocks"],
)
def test_a_transformer_trains_as_in_one_process(
    strategy: Sharded, kept: float, alone: dict[str, Any], tmp_path: Path
) -> None:
    parts = strategy.locate_batch(0, strategy.world_size)[1]
    result = run(programs.train_transformer, tmp_path, strategy, strategy.world_size, batch_size=8 // parts)
    found: Any = result.return_value
    for name, value in alone["weights"].items():
        np.testing.assert_allclose(found["weights"][name], value, rtol=0, atol=1e-5, err_msg=name)
    assert found["kept"] == pytest.approx(kept, abs=0.01)
    assert found["norm"] == pytest.approx(alone["norm"], rel=1e-4), "clip_grad_norm_ sees the whole gradient"
    check_usage(result.sharding, strategy, sum(value.nbytes for value in alone["weights"].values()))


def check_usage(found: train.ShardingUsage | None, strategy: Sharded, everything: int) -> None:
    """What was counted is what the layouts say, and what a look at them says without a plan."""
    assert found is not None
    assert found.measured is not None
    assert found.measured == found.predicted
    assert found.steps == 2 * programs.ROWS // 8
    kept, tied = found.predicted.parameters, programs.WORDS * programs.WIDTH * 4
    everything -= tied  # it is among the weights twice, of two layers
    assert found.optimizer == found.predicted.gradients == kept, "SGD keeps a momentum"
    whole = found.predicted.gathered + found.predicted.reduced
    if strategy.mesh == {"data": 2}:
        times = 2 if strategy.bucket_bytes == 0 else 1  # that the tied one travels
        assert whole == everything + (times - 1) * tied  # an all-reduce, or half of it there and half of it back
        if not strategy.shard_along:
            assert found.received == {"all-reduce": whole, "all-gather": 0, "reduce-scatter": 0, "all-to-all": 0}
    assert (found.gathered_again > 0) == (strategy.bucket_bytes < everything)
    assert found.gathered_again <= found.predicted.gathered
    assert (found.other > 0) == ("model" in strategy.mesh), "activations"
    assert sum(found.received.values()) == pytest.approx(whole + found.gathered_again + found.other, abs=4)
    assert found.peak_memory > 50 << 20


def test_a_recurrent_layer_and_gradients_of_two_batches(tmp_path: Path) -> None:
    expected = fit(programs.train_recurrent, tmp_path / "one", None, num_workers=1, parts=[(0, 1)])
    strategy = Sharded(mesh={"data": 2}, shard_along="data")
    found = fit(programs.train_recurrent, tmp_path, strategy, parts=[(0, 2), (1, 2)])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("size", [0, 600, 32 << 20])
def test_blocks_may_run_in_parts_twice_or_again(size: int, tmp_path: Path) -> None:
    expected = fit(programs.train_roundabout, tmp_path / "one", None, num_workers=1, parts=[(0, 1)])
    strategy = Sharded(mesh={"data": 2}, shard_along="data", bucket_bytes=size)
    found = fit(programs.train_roundabout, tmp_path, strategy, parts=[(0, 2), (1, 2)])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "strategy",
    [
        Sharded(mesh={"data": 2}, shard_along="data", bucket_bytes=1000),
        Sharded(mesh={"model": 2}, shard_along="model"),
    ],
    ids=["fully", "tensor"],
)
def test_parts_of_a_model_and_copies(strategy: Sharded, tmp_path: Path) -> None:
    expected = fit(programs.train_coder, tmp_path / "one", None, num_workers=1, parts=[(0, 1)])
    parts = [strategy.locate_batch(rank, 2) for rank in range(2)]
    found = fit(programs.train_coder, tmp_path, strategy, parts=parts)
    assert ("mean" in found) == ("model" in strategy.mesh)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("size", [0, 1000])
def test_means_that_a_layer_keeps_are_those_of_rank_0(size: int, tmp_path: Path) -> None:
    strategy = Sharded(mesh={"data": 2}, shard_along="data", bucket_bytes=size)
    found = fit(programs.normalize_batches, tmp_path, strategy)
    assert found[:2] == found[2:] != [0, 0]


def test_means_that_a_layer_keeps_without_gradients_are_those_of_rank_0(tmp_path: Path) -> None:
    strategy = Sharded(mesh={"data": 2}, shard_along="data")
    found = fit(programs.normalize_batches, tmp_path, strategy, again=True)
    assert found[:2] == found[2:] != [0, 0]


@pytest.mark.parametrize("size", [0, 600, 32 << 20])
def test_a_layer_may_write_a_mean_of_another_one_as_it_computes(size: int, tmp_path: Path) -> None:
    expected = fit(programs.train_follower, tmp_path / "one", None, num_workers=1, parts=[(0, 1)])
    strategy = Sharded(mesh={"data": 2}, shard_along="data", bucket_bytes=size)
    found = fit(programs.train_follower, tmp_path, strategy, parts=[(0, 2), (1, 2)])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("axis", ["data", "model"])
def test_copies_of_a_part_and_of_a_model_that_has_lost_a_layer(axis: str, tmp_path: Path) -> None:
    expected = fit(programs.train_copies, tmp_path / "one", None, num_workers=1, parts=[(0, 1)])
    strategy = Sharded(mesh={axis: 2}, shard_along=axis)
    found = fit(programs.train_copies, tmp_path, strategy, parts=[strategy.locate_batch(rank, 2) for rank in range(2)])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)


def test_a_model_beside_the_one_that_is_trained(tmp_path: Path) -> None:
    strategy = Sharded(mesh={"data": 2}, layout={"0.weight": ["data", "unsharded"]})
    found = run(programs.train_beside_a_teacher, tmp_path, strategy).sharding
    assert found is not None
    assert (found.steps, found.predicted.parameters, found.predicted.gradients) == (2, 80, 80)


def test_ranks_that_use_different_layers(tmp_path: Path) -> None:
    told = fit(programs.take_other_layers, tmp_path, Sharded(mesh={"data": 2}, shard_along="data"))
    assert re.match(r"The parameter '0.weight' has a gradient in the ranks \[0\] only", told), told


def test_compiled_models(tmp_path: Path) -> None:
    strategy = Sharded(mesh={"data": 2}, shard_along="data", bucket_bytes=0)
    assert fit(programs.run_compiled, tmp_path, strategy) <= 1e-6


def test_penalties_on_gradients(tmp_path: Path) -> None:
    expected = fit(programs.penalize, tmp_path / "one", None, num_workers=1, parts=[(0, 1)])
    strategy = Sharded(mesh={"data": 2}, shard_along="data")
    found = fit(programs.penalize, tmp_path, strategy, parts=[(0, 2), (1, 2)])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("axis", "patterns"),
    [
        ("data", ["Embedding wrote into its parameters", "sparse=False", "have changed", "have changed"]),
        (
            "model",
            [r"embedding\(max_norm=0.1\) writes into its table", "sparse=False", "create_graph", "inplace operation"],
        ),
    ],
)
def test_what_cannot_be_right_is_said(axis: str, patterns: list[str], tmp_path: Path) -> None:
    strategy = Sharded(mesh={axis: 2}, shard_along=axis, bucket_bytes=0)
    for text, pattern in zip(fit(programs.write_wrongly, tmp_path, strategy), patterns, strict=True):
        assert re.search(pattern, text), text


def test_convolutions_and_torch_s_own_attention_compute_with_parts(tmp_path: Path) -> None:
    expected = fit(programs.train_picture, tmp_path / "one", None, num_workers=1)
    found = fit(programs.train_picture, tmp_path, Sharded(mesh={"model": 2}, layout=programs.PICTURE_LAYOUT))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5, err_msg=name)


def test_layers_that_compute_with_parts_compute_right(tmp_path: Path) -> None:
    assert len(fit(programs.compare_layers, tmp_path, Sharded(mesh={"model": 2}, shard_along="model"))) == 17


def test_attention_that_several_ranks_would_draw_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(train.WorkerGroupError, match=r"dropout_p=0.5\) draws random numbers, .* Cut the heads"):
        fit(programs.drop_in_attention, tmp_path, Sharded(mesh={"model": 2}, shard_along="model"))


def test_layers_may_use_parameters_of_others(tmp_path: Path) -> None:
    expected = fit(programs.train_borrower, tmp_path / "one", None, num_workers=1, parts=[(0, 1)])
    strategy = Sharded(mesh={"data": 2}, shard_along="data")
    found = fit(programs.train_borrower, tmp_path, strategy, parts=[(0, 2), (1, 2)])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    "strategy",
    [
        Sharded(mesh={"data": 2}, shard_along="data"),
        Sharded(mesh={"data": 2, "model": 2}, layout=programs.TENSOR_PARALLEL, shard_along="data"),
    ],
)
def test_a_model_is_saved_in_parts_and_loaded(strategy: Sharded, tmp_path: Path) -> None:
    folder = str(tmp_path / "model")
    assert fit(programs.save_and_load, tmp_path, strategy, strategy.world_size, folder=folder) == 0


def test_an_optimizer_goes_on_on_another_mesh(tmp_path: Path) -> None:
    four = Sharded(mesh={"data": 2, "model": 2}, layout=programs.TENSOR_PARALLEL, shard_along="data")
    two = Sharded(mesh={"data": 2}, shard_along="data")
    halves: dict[str, Any] = {"parts": [(0, 2), (1, 2)]}
    quarters: dict[str, Any] = {"parts": [(0, 2), (0, 2), (1, 2), (1, 2)]}
    first, rest = str(tmp_path / "first"), str(tmp_path / "rest")
    expected = fit(programs.train_on, tmp_path, two, steps=4, save=rest, **halves)
    fit(programs.train_on, tmp_path, two, steps=2, save=first, **halves)
    again = fit(programs.train_on, tmp_path, two, steps=2, load=first, save=rest, **halves)
    elsewhere = fit(programs.train_on, tmp_path, four, 4, steps=2, load=first, save=rest, **quarters)
    for name, value in expected.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)
        np.testing.assert_allclose(elsewhere[name], value, rtol=0, atol=1e-5, err_msg=name)


def test_one_rank_changes_nothing(alone: dict[str, Any], tmp_path: Path) -> None:
    result = run(programs.train_transformer, tmp_path, Sharded(mesh={"data": 1}), num_workers=1, batch_size=8)
    found: Any = result.return_value
    assert result.sharding is None
    for name, value in alone["weights"].items():
        np.testing.assert_array_equal(found["weights"][name], value)


def test_a_layer_that_raises_has_its_parameters_back(tmp_path: Path) -> None:
    assert fit(programs.raise_in_a_layer, tmp_path, Sharded(mesh={"data": 2}, shard_along="data")) == ["4", "DTensor"]


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"mesh": {}}, ValueError, "A mesh needs an axis"),
        ({"mesh": {"data": 0}}, ValueError, "'data' has 0"),
        ({"mesh": {"data": "2"}}, TypeError, "a dict of names and sizes"),
        ({"mesh": {"data": 2}, "shard_along": "model"}, ValueError, "received the axis 'model'"),
        ({"mesh": {"data": 2}, "layout": {".*": ["modle"]}}, ValueError, "received the axis 'modle'"),
        ({"mesh": {"data": 2}, "layout": {".*": "data"}}, TypeError, "Write ['data']"),
        ({"mesh": ["data"]}, TypeError, "mesh must be a dict of names and sizes, but received ['data']"),
        ({"mesh": {"data": 2}, "layout": ["data"]}, TypeError, "layout must be a dict of patterns"),
        (
            {"mesh": {"data": 2}, "layout": {"(": ["data"]}},
            ValueError,
            "must be regular expressions, but received '(': ",
        ),
        ({"mesh": {"data": 2}, "layout": {".*": None}}, TypeError, "'.*' has None"),
        ({"mesh": {"data": 2}, "layout": {".*": [None]}}, TypeError, "has None for a dim"),
        ({"mesh": {"data": 2}, "shard_along": 1}, TypeError, "shard_along must name axes, but received 1"),
        ({"mesh": {"data": 2}, "batch_dims": "dat"}, ValueError, "batch_dims=['dat'] names none of them"),
        ({"mesh": {"data": 2}, "bucket_bytes": 1.5}, TypeError, "bucket_bytes must be an int, but received 1.5"),
        ({"mesh": {"data": 2}, "bucket_bytes": -1}, ValueError, "bucket_bytes must be 0 or more, but received -1"),
    ],
)
def test_descriptions_that_mean_nothing(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        Sharded(**arguments)


@pytest.mark.parametrize(
    ("function", "strategy", "config", "text"),
    [
        (programs.prepare_only, Sharded(mesh={"data": 3}), {}, "has 3 places, but there are 2 ranks"),
        (programs.prepare_only, Sharded(mesh={"data": 2}, layout={"kernel": ["data"]}), {}, "matches no parameter"),
        (
            programs.prepare_only,
            Sharded(mesh={"data": 2}, layout={"words.weight": ["data"]}),
            {},
            "The layout of the parameter 'words.weight' does not fit it",
        ),
        (programs.prepare_only, Sharded(mesh={"data": 2}), {"parallel_strategy": "fsdp"}, "Sharded keeps parts"),
        (programs.prepare_twice, Sharded(mesh={"data": 2}), {}, "spread already"),
        (programs.prepare_compiled, Sharded(mesh={"data": 2}), {}, "model = torch.compile(prepare_model(model))"),
        (programs.add_a_layer_later, Sharded(mesh={"data": 2}), {}, "has a new parameter, '1.weight', since"),
        (programs.load_others, Sharded(mesh={"data": 2}), {}, "parameters without assign=True"),
        (
            programs.save_what_an_optimizer_lists,
            Sharded(mesh={"data": 2}),
            {"folder": "never"},
            "SGD keeps 'state/0/history', a list",
        ),
        (programs.step_with_old_parameters, Sharded(mesh={"data": 2}), {}, "Make the optimizer after"),
    ],
)
def test_what_cannot_be_is_refused(
    function: Any, strategy: Sharded, config: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(train.WorkerGroupError, match=re.escape(text)):
        fit(function, tmp_path, strategy, **config)


def test_other_frameworks_say_so() -> None:
    with pytest.raises(TypeError, match=r"Use TorchTrainer, JaxTrainer or KerasTrainer, or AllReduce\(\) here"):
        Sharded(mesh={"data": 2}).open(strategies.Ranks(0, 2))
