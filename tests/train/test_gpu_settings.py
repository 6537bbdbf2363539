"""What ranks with GPUs are told, as far as it shows on a machine without one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hocket import train
from hocket.train.frameworks.torch import config, devices
from hocket.train.rank import rank_placement
from hocket.train.torch import TorchConfig, TorchTrainer, prepare_model

pytestmark = pytest.mark.timeout(120)

GPUS = [torch.device("cuda", 0), torch.device("cuda", 1)]


def run(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tensors_on_the_host_have_collectives_beside_nccl() -> None:
    assert config.choose_backend(use_gpu=True) == "cpu:hocket,cuda:nccl"
    assert config.choose_backend(use_gpu=False) == "hocket"


@pytest.mark.parametrize(
    ("held", "library"),
    [
        ([("one", "0"), ("one", "1")], "nccl"),
        ([("one", "0"), ("other", "0")], "nccl"),
        ([("one", "0"), ("one", "0")], "gloo"),
        ([("one", "GPU-7"), ("other", "0"), ("one", "GPU-7")], "gloo"),
    ],
)
def test_ranks_that_share_a_gpu_do_not_use_nccl(held: list[tuple[str, str]], library: str) -> None:
    """NCCL refuses two ranks on one GPU."""
    places = [
        rank_placement.RankPlacement(rank_placement.Introduction(node, 1, (gpu,), "/tmp"), 0, 1, 0)
        for node, gpu in held
    ]
    assert config.choose_backend(use_gpu=True, places=places) == f"cpu:hocket,cuda:{library}"


@pytest.mark.usefixtures("session")
def test_ranks_train_with_a_backend_for_each_kind_of_device(tmp_path: Path) -> None:
    def train_loop() -> tuple[float, list[int], list[float]]:
        torch.manual_seed(train.get_context().get_world_rank())
        model = prepare_model(torch.nn.Linear(3, 1))
        model(torch.ones(2, 3) * (train.get_context().get_world_rank() + 1)).sum().backward()
        total = torch.ones(1)
        dist.all_reduce(total)
        found: list[Any] = [None, None]
        dist.all_gather_object(found, dist.get_rank())
        slope = next(model.parameters()).grad
        assert slope is not None
        return total.item(), found, slope.flatten().tolist()

    trained = TorchTrainer(
        train_loop,
        torch_config=TorchConfig(backend="cpu:hocket"),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=str(tmp_path)),
    ).fit()
    assert trained.return_value == (2.0, [0, 1], [3.0] * 3), "gradients of 2 and 4 are averaged"


def test_distributed_data_parallel_is_told_the_gpu_of_a_model_that_is_there() -> None:
    def build(*places: torch.device) -> Any:
        return [types.SimpleNamespace(device=place) for place in places]

    there = devices.list_ddp_options(build(GPUS[0], GPUS[0]), GPUS[0])
    assert there == {"device_ids": [GPUS[0]], "output_device": GPUS[0]}
    assert devices.list_ddp_options(build(*GPUS), GPUS[0]) == {}, "a model in parts on two GPUs"
    assert devices.list_ddp_options(build(torch.device("cpu")), GPUS[0]) == {}, "a model that is not to be moved"
    assert devices.list_ddp_options(build(torch.device("cpu")), torch.device("cpu")) == {}


@pytest.mark.parametrize(("num_gpus", "part"), [(0.5, "0.450"), (0.25, "0.225"), (1, "None"), (2, "None"), (0, "None")])
def test_jax_takes_the_ranks_share_of_a_gpus_memory(num_gpus: float, part: str) -> None:
    source = f"""
        import os
        from hocket.train.frameworks.jax import processes
        processes.set_up(1, {num_gpus}, 2)
        print(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION"))
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.3"
        processes.set_up(1, {num_gpus}, 2)
        print(os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"])
    """
    assert run(source).split() == [part, "0.3"]


@pytest.mark.parametrize(("use_gpu", "device"), [(True, "cuda"), (False, "cpu")])
@pytest.mark.parametrize("is_loaded", [True, False])
def test_keras_computes_on_the_ranks_own_device(use_gpu: bool, device: str, is_loaded: bool) -> None:
    """The process that ranks are forks of has imported Keras, and may have seen a GPU that a rank lacks."""
    source = f"""
        import os
        os.environ["KERAS_BACKEND"] = "torch"
        if {is_loaded}:
            import keras
        from hocket.train.frameworks import tf_config
        tf_config.choose_keras_backend("torch", 1, {use_gpu})
        from keras.src.backend.torch import core
        print(core.get_device())
    """
    assert run(source).split() == [device]
