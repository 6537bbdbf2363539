"""Unusual loops of PyTorch: right, or refused in words, with each strategy; and what the net finds by itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'hocket[torch]'")

from hocket import train  # noqa: E402 (torch may be missing)
from hocket.train import strategies  # noqa: E402 (the same)
from hocket.train.torch import TorchTrainer  # noqa: E402 (the same)
from tests.train import unusual_loops  # noqa: E402 (the same)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("shared_session"),
    pytest.mark.about_local("memory that the processes of one machine share"),
]

SHARDED = strategies.Sharded(mesh={"data": 2}, shard_along=["data"])
REPLICATED = strategies.Sharded(mesh={"data": 2})

NO_SPREADING = "parameters changed after prepare_model|no prepared model has, but they have different values"
APPENDED = "The model has a new parameter"
ONLY_DDP = "find_unused_parameters"
FINDING = ["unused_layer_that_is_found", "layer_that_one_rank_uses", "layer_that_one_rank_uses_in_no_sync"]
BY_TORCH = "got mixed torch.Tensor and DTensor|appears to not have been used|setStorage|not support deepcopy|chunk_cat"
UNEQUAL = "parameters that were added later, but they have different values in the ranks"
OUTSIDE_OF_SERVERS = "ParameterServer holds parameters of prepared models"
BESIDE = ["parameter_outside", "parameter_outside_that_is_replaced", "parameter_outside_with_a_closure"]
NOT_PREPARED = "This Adam has no parameter of a prepared model, so each rank would train"
OWN_OPTIMIZER = ["head_with_an_optimizer_of_its_own", "head_alone"]
NOT_PREPARED_LBFGS = {"lbfgs_that_nobody_prepared": "works in the optimizer's step, but this LBFGS was not prepared"}
BY_TORCHS_OPTIMIZERS = dict.fromkeys(["rprop", "adafactor"], "Sharding propagation failed")
OUTSIDE = "LocalSGD averages parameters of prepared models"

REFUSED: dict[str, dict[str, str]] = {
    "AllReduce": {
        "replaced_and_forgotten": "in place of parameters that this SGD still steps",
        "unused_layer": "has not used the layers of `second.weight`, `second.bias`",
    },
    "fsdp": {
        "optimizer_before": r"This SGD has the parameters that the model had before prepare_model\(\) spread them",
        "optimizer_after_a_forward_pass": "made while the model's parameters were gathered",
        **dict.fromkeys(
            ["appended", "replaced", "tied_later", "parameter_registered_later", "normed_later"], NO_SPREADING
        ),
        **dict.fromkeys(FINDING, ONLY_DDP),
        **BY_TORCHS_OPTIMIZERS,
        "lbfgs_that_nobody_prepared": "Sharding propagation failed",  # its layers have dims that two ranks cannot halve
        "all_accumulated": r"all backward passes were in no_sync\(\)",
        **dict.fromkeys(
            [
                *[
                    "around_by_a_method",
                    "around_then_clipped",
                    "second_loss_around",
                    "layer_alone",
                    "written_gradients",
                ],
                *["gradient_penalty", "averaged_copy", "sparse_table", "sparse_table_around"],
            ],
            BY_TORCH,
        ),
    },
    "Sharded": {
        "optimizer_before": r"This SGD has the parameters that the model had before prepare_model\(\) spread them",
        **dict.fromkeys(
            ["appended", "replaced", "replaced_and_forgotten", "parameter_registered_later", "normed_later"], APPENDED
        ),
        **BY_TORCHS_OPTIMIZERS,
        **dict.fromkeys(FINDING, ONLY_DDP),
        **dict.fromkeys(
            ["sparse_table", "sparse_table_around"], "has a sparse gradient, which Sharded does not add up"
        ),
    },
    "LocalSGD": {
        **NOT_PREPARED_LBFGS,
        **dict.fromkeys(BESIDE, OUTSIDE),
        **dict.fromkeys(OWN_OPTIMIZER, NOT_PREPARED),
        **dict.fromkeys(["appended", "replaced"], UNEQUAL),
        **dict.fromkeys(FINDING, ONLY_DDP),
    },
    "ParameterServer": {
        **NOT_PREPARED_LBFGS,
        **{
            name: f"have no {kind}. Use one of torch.optim"
            for name, kind in (("rprop", "Rprop"), ("adafactor", "Adafactor"))
        },
        **dict.fromkeys(BESIDE, OUTSIDE_OF_SERVERS),
        **dict.fromkeys(OWN_OPTIMIZER, NOT_PREPARED),
        **dict.fromkeys(FINDING, ONLY_DDP),
    },
}
REFUSED["Sharded, replicated"] = {
    name: words for name, words in REFUSED["Sharded"].items() if name not in BY_TORCHS_OPTIMIZERS
}
REFUSED["DiLoCo"] = REFUSED["LocalSGD"]

OWN_STEPS = {"scaled_by_hand", "around_then_clipped", "clipped", "clipped_by_value", *BY_TORCHS_OPTIMIZERS}
"""With local SGD each rank clips its own gradient, or steps by its sign or its size, and that is no mean yet."""


def fit(loop: Any, path: Path, strategy: Any = None, action: str = "error", ranks: int = 2, **config: Any) -> Any:
    trainer = TorchTrainer(
        loop,
        train_loop_config=config or None,
        strategy=strategy or strategies.AllReduce(),
        scaling_config=train.ScalingConfig(num_workers=ranks),
        run_config=train.RunConfig(storage_path=path, divergence_config=train.DivergenceConfig(action)),
    )
    return trainer.fit().return_value


@pytest.fixture(scope="module")
def alone() -> dict[str, list[Any]]:
    return {name: unusual_loops.read_weights(way(unusual_loops.Alone())) for name, way in unusual_loops.WAYS.items()}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["AllReduce", "LocalSGD", "DiLoCo"])
def test_a_loop_is_one_process_with_the_whole_batch_or_refused(
    name: str, alone: dict[str, list[Any]], tmp_path: Path
) -> None:
    chosen = {
        "AllReduce": strategies.AllReduce(),
        "LocalSGD": strategies.LocalSGD(1),
        "DiLoCo": strategies.LocalSGD(1, outer=strategies.Nesterov(lr=1.0, momentum=1e-9)),
    }
    check_ways(name, chosen[name], "ddp", alone, tmp_path)


@pytest.mark.timeout(240)
def test_a_loop_on_servers_is_one_process_or_refused(alone: dict[str, list[Any]], tmp_path: Path) -> None:
    """With one rank: the updates of several are not those of the whole batch."""
    check_ways("ParameterServer", strategies.ParameterServer(), "ddp", alone, tmp_path, ranks=1)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["fsdp", "Sharded", "Sharded, replicated"])
def test_a_loop_over_a_spread_model_is_so_too(name: str, alone: dict[str, list[Any]], tmp_path: Path) -> None:
    chosen = {"fsdp": strategies.AllReduce(), "Sharded": SHARDED, "Sharded, replicated": REPLICATED}
    check_ways(name, chosen[name], "fsdp" if name == "fsdp" else "ddp", alone, tmp_path)


def check_ways(
    name: str, strategy: Any, parallel_strategy: str, alone: dict[str, list[Any]], tmp_path: Path, ranks: int = 2
) -> None:
    found = fit(
        unusual_loops.run_all,
        tmp_path,
        strategy,
        "ignore",  # models whose training was refused half way differ
        ranks,
        ways=list(unusual_loops.WAYS),
        parallel_strategy=parallel_strategy,
    )
    right = 0
    for way, weights in found.items():
        if way in REFUSED[name]:
            with pytest.raises(AssertionError, match=REFUSED[name][way]):
                assert isinstance(weights, list), weights
            continue
        assert isinstance(weights, list), f"{way}: {weights}"
        if name not in ("LocalSGD", "DiLoCo") or way not in OWN_STEPS:
            for one, other in zip(weights, alone[way], strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, msg=lambda text, way=way: f"{way}: {text}")
        right += 1
    assert right + len(REFUSED[name]) == len(unusual_loops.WAYS) >= 50


# --- one rank does something else -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "match"), unusual_loops.UNEQUAL_WAYS.items(), ids=str)
def test_what_one_rank_does_alone_ends_the_run(way: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(train.TrainingFailedError, match=match):
        fit(unusual_loops.run_unequal, tmp_path, way=way)


def test_sharded_models_say_what_torch_refuses(tmp_path: Path) -> None:
    with pytest.raises(train.TrainingFailedError, match=r"(?s)mixed torch\.Tensor.*Call model\(x\), not"):
        fit(unusual_loops.run_one, tmp_path, way="around_by_a_method", parallel_strategy="fsdp")


def test_a_spread_layer_that_lost_a_parameter_is_named(tmp_path: Path) -> None:
    with pytest.raises(train.TrainingFailedError, match=r"A Linear has lost the parameters \['weight', 'bias'\]"):
        fit(unusual_loops.freeze_by_a_constant, tmp_path, SHARDED)


@pytest.mark.parametrize(("strategy", "remedy"), [(SHARDED, "strategy=AllReduce"), (None, "parallel_strategy='ddp'")])
def test_optimizers_that_cannot_compute_with_parts_are_explained(strategy: Any, remedy: str, tmp_path: Path) -> None:
    kind = "ddp" if strategy else "fsdp"
    with pytest.raises(train.TrainingFailedError, match=f"no rule for how this optimizer computes with.*{remedy}"):
        fit(unusual_loops.run_one, tmp_path, strategy, way="rprop", parallel_strategy=kind)


def test_static_graphs_refuse_no_sync(tmp_path: Path) -> None:
    with pytest.raises(train.TrainingFailedError, match=r"no_sync\(\) does not work with .*static_graph"):
        fit(unusual_loops.accumulate_statically, tmp_path)


def test_all_ranks_leave_out_a_step_whose_gradients_overflow_in_one(tmp_path: Path) -> None:
    found = fit(unusual_loops.overflow_in_one_rank, tmp_path)
    assert [one["moved"] for one in found] == pytest.approx([0, 0.25, 0.25], rel=1e-3)
    assert [one["beside"] for one in found] == pytest.approx([0, -0.25, -0.5], rel=1e-3)
    assert [one["scale"] for one in found] == [65536.0, 32768.0, 32768.0]


def test_clipping_in_float16_sees_true_gradients(tmp_path: Path) -> None:
    found = fit(unusual_loops.clip_in_float16, tmp_path)
    assert found["norm"] == pytest.approx(1, rel=1e-3)
    assert found["moved"] == pytest.approx([1, 0.2], rel=1e-3)  # by the norm, by each of four values
    assert found["overflow"] == {"moved": 0.0, "scale": 32768.0}  # clip_grad_value_ has made it finite
    assert found["two optimizers"] == pytest.approx([0.5, 0.5], rel=1e-3)
    assert found["accumulated"] == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("parallel_strategy", ["ddp", "fsdp", None])
def test_buffers_are_rank_zeros_whenever_a_rank_looks(parallel_strategy: str | None, tmp_path: Path) -> None:
    config = {"parallel_strategy": parallel_strategy} if parallel_strategy else {"sharded": True}
    first, second = fit(unusual_loops.read_buffers, tmp_path, None if parallel_strategy else SHARDED, **config)
    assert first == second


def test_the_same_rows_in_all_ranks_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hocket.train"):
        fit(unusual_loops.load_unprepared, tmp_path, prepares=True)
        assert caplog.messages == []
        fit(unusual_loops.load_unprepared, tmp_path, prepares=False)
    assert ["compute with the same rows" in message for message in caplog.messages] == [True]


def test_the_first_step_says_what_hooks_on_gradients_see(tmp_path: Path) -> None:
    (said,) = fit(unusual_loops.hook_gradients, tmp_path)
    assert "`head.weight`. As with DistributedDataParallel, a hook sees the gradient of its rank" in said


def test_an_optimizer_of_what_is_left_alone_steps_each_ranks_own(tmp_path: Path) -> None:
    assert fit(unusual_loops.step_what_is_left_alone, tmp_path) == [-1.0, -2.0]


def test_a_model_that_is_prepared_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(train.TrainingFailedError, match="received a model that is in DistributedDataParallel"):
        fit(unusual_loops.prepare_twice, tmp_path)


def test_complex_parameters_are_compared(tmp_path: Path) -> None:
    assert fit(unusual_loops.train_complex_numbers, tmp_path) == ["torch.complex64"] * 2


# --- the net alone ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_the_net_finds_what_is_not_made_right(tmp_path: Path) -> None:
    """Without all that makes these loops right, DistributedDataParallel trains another model in each rank."""
    found = {}
    for way in unusual_loops.DIVERGING:
        try:
            fit(unusual_loops.run_bare, tmp_path, way=way)
        except train.RanksDivergedError as error:
            found[way] = str(error)
    assert found.keys() == set(unusual_loops.DIVERGING)
    assert all("in report 1 (after" in message for message in found.values())
