"""Sharding: each rank keeps a part of the parameters, of their gradients, and of what the optimizer keeps for them.

It is torch's ``fully_shard`` (FSDP2).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch

from hocket.train import strategies
from hocket.train.frameworks.torch.strategies import averaging


def shard(
    model: torch.nn.Module, ranks: strategies.Ranks, options: Mapping[str, Any], device: torch.device
) -> torch.nn.Module:
    """Shard a model over all ranks, in place; return it. It starts from rank 0's weights, as with
    DistributedDataParallel. Layers that are sharded already stay so."""
    if ranks.world_size == 1:
        return model
    averaging.copy_from_first(itertools.chain(model.parameters(), model.buffers()))
    given = dict(options)
    from torch.distributed import device_mesh, fsdp  # they take a second and a half to import, and few need them

    if "mesh" not in given:
        given["mesh"] = device_mesh.init_device_mesh(device.type, (ranks.world_size,))
    averaging.share_buffers(model)
    return cast("torch.nn.Module", fsdp.fully_shard(model, **given))


@contextlib.contextmanager
def keep_gradients(model: torch.nn.Module) -> Iterator[None]:
    """Have backward passes in a block keep their gradients in this rank, whole; if the model is sharded."""
    set_sync: Any = getattr(model, "set_requires_gradient_sync", None)  # an FSDPModule has it
    if set_sync is None:
        yield
        return
    set_sync(False)
    try:
        yield
    finally:
        set_sync(True)
