"""PyTorch's implementation of the framework contract."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import torch
import torch.distributed as dist

from hocket import ps
from hocket.collective.world import World
from hocket.train import strategies
from hocket.train.frameworks import contract
from hocket.train.frameworks.torch import config, rank_state
from hocket.train.frameworks.torch import strategies as torch_strategies
from hocket.train.frameworks.torch.strategies import on_arrays, served_optimizers, tables
from hocket.train.rank import worker_session


@final
class TorchFramework(contract.Framework[rank_state.RankState]):
    """PyTorch: modules that change in place, and a process group."""

    name = "torch"

    @property
    def overrides(self) -> Mapping[type[strategies.Strategy], object]:
        return torch_strategies.OVERRIDES

    def build_config(self) -> config.TorchConfig:
        return config.TorchConfig()

    def open(
        self, session: worker_session.WorkerSession, strategy: strategies.Strategy, caller: str
    ) -> rank_state.RankState:
        return rank_state.RankState(session, strategy)

    def get_collectives(self, caller: str) -> strategies.Collectives:
        return on_arrays.GroupCollectives() if dist.is_initialized() else World(0, [[0]])

    def to_host(self, values: object, caller: str) -> strategies.Array:
        if not isinstance(values, torch.Tensor):
            raise TypeError(f"{caller} takes a tensor, but received {values!r}. Write torch.tensor(values).")
        values = values.detach().cpu()
        array: strategies.Array = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        return array

    def from_host(self, array: strategies.Array) -> torch.Tensor:
        return torch.from_numpy(np.array(array))

    def cross(self, arrays: Sequence[Any], change: contract.Change) -> list[object]:
        def visit() -> list[torch.Tensor]:
            on_host = [np.array(tables.to_array(array)) for array in arrays]
            change([array.reshape(-1) for array in on_host])
            return [
                torch.from_numpy(found).to(array.device, array.dtype)
                for found, array in zip(on_host, arrays, strict=True)
            ]

        outside: Any = torch.compiler.disable(visit)  # type: ignore[no-untyped-call]  # torch does not say
        found: list[Any] = outside()
        return found

    def list_weights(self, model: torch.nn.Module) -> list[tuple[str, strategies.Array]]:
        return [(name, np.array(tables.to_array(tensor))) for name, tensor in _list_tensors(model)]

    @torch.no_grad()
    def set_weights(self, model: torch.nn.Module, arrays: Sequence[strategies.Array]) -> torch.nn.Module:
        for (_, tensor), array in zip(_list_tensors(model), arrays, strict=True):
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(array)))
        return model

    def convert_optimizer(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> ps.Optimizer:
        group = next(group for group in optimizer.param_groups if any(parameter is other for other in group["params"]))
        return served_optimizers.convert(optimizer, group)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is not deterministic without it


def _list_tensors(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return parameters and buffers, named as in ``state_dict``, without wrappers."""
    inner = getattr(model, "module", model) if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    return [(name, value) for name, value in inner.state_dict().items() if isinstance(value, torch.Tensor)]


FRAMEWORK: Final = TorchFramework()
