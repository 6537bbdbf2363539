"""Sharding by torch's ``fully_shard`` (FSDP2).

Each rank keeps a part of the parameters, of their gradients, and of the optimizer's state.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast, final

import torch

from hocket._base.internals import torch as torch_internals
from hocket.train import strategies
from hocket.train.frameworks.torch.strategies import averaging


def shard(
    model: torch.nn.Module, ranks: strategies.Ranks, options: Mapping[str, Any], device: torch.device
) -> torch.nn.Module:
    """Shard a model over all ranks, in place; return it. The model starts from rank 0's weights, as with
    DistributedDataParallel. Layers that are sharded already stay so."""
    if ranks.world_size == 1:
        return model
    averaging.copy_from_first(itertools.chain(model.parameters(), model.buffers()))
    given = dict(options)
    from torch.distributed import device_mesh, fsdp  # a second and a half to import, and few runs need them

    if "mesh" not in given:
        given["mesh"] = device_mesh.init_device_mesh(device.type, (ranks.world_size,))
    averaging.share_buffers(model)
    sharded = cast("torch.nn.Module", fsdp.fully_shard(model, **given))
    follow_zero_grad(sharded, sharded.parameters, lambda: [sharded])
    sharded.register_forward_pre_hook(_CheckParameters(sharded), prepend=True)
    return sharded


def follow_zero_grad(
    owner: Any,
    list_parameters: Callable[[], Iterable[torch.Tensor]],
    list_models: Callable[[], Iterable[torch.nn.Module]],
) -> None:
    """Make ``zero_grad`` forget gradients of backward passes in `keep_gradients`, too. torch's ``fully_shard`` keeps
    them elsewhere, and would add them to the next step.

    Args:
        owner: An optimizer, or a model.
        list_parameters: Returns the owner's parameters.
        list_models: Returns the models that are sharded by then.
    """
    original = owner.zero_grad

    @torch_internals.skip_compiler
    def zero_grad(set_to_none: bool = True) -> None:
        original(set_to_none)
        mine = set(list_parameters())
        for model in list_models():
            torch_internals.forget_kept_gradients(model, mine)

    owner.zero_grad = zero_grad  # as torch's schedulers do with step()


@final
class _CheckParameters:
    """A hook that raises if a model has other parameters than when sharded: new ones would be each rank's own."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._known = dict(model.named_parameters(remove_duplicate=False))

    def __call__(self, model: torch.nn.Module, args: object) -> None:
        now = dict(model.named_parameters(remove_duplicate=False))
        is_apart = all(hasattr(one, "placements") for one in now.values())  # otherwise torch has put them together
        new = [
            name for name, one in now.items() if name not in self._known or (is_apart and one is not self._known[name])
        ]
        if new or len(now) < len(self._known):
            raise RuntimeError(
                "The model's parameters changed after prepare_model() sharded it: "
                f"{', '.join(new[:4]) or 'some are gone'}. Append, replace, tie and parametrize layers first, and then "
                "prepare the model; or use parallel_strategy='ddp'."
            )


@contextlib.contextmanager
def keep_gradients(model: torch.nn.Module) -> Iterator[None]:
    """In a block, keep the gradients of backward passes in this rank, whole, if the model is sharded."""
    set_sync: Any = getattr(model, "set_requires_gradient_sync", None)  # an FSDPModule has it
    if set_sync is None:
        yield
        return
    set_sync(False)
    try:
        yield
    finally:
        set_sync(True)
