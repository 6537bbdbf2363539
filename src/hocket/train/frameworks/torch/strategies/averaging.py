"""Means over the ranks, equal starts, and equal buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist


def widen(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to add up in: halves lose too much."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@torch.no_grad()
def compute_means(tensors: Sequence[torch.Tensor], world_size: int) -> list[torch.Tensor]:
    """Return the mean over all ranks of each tensor, which may be a view of a larger one. One collective a dtype. Every
    rank must give tensors of the same shapes in the same order."""
    means: dict[int, torch.Tensor] = {}
    for dtype in dict.fromkeys(widen(tensor.dtype) for tensor in tensors):
        members = [number for number, tensor in enumerate(tensors) if widen(tensor.dtype) == dtype]
        flat = torch.cat([tensors[number].detach().reshape(-1).to(dtype) for number in members])
        if world_size > 1:
            dist.all_reduce(flat)
            flat /= world_size
        parts = torch.split(flat, [tensors[number].numel() for number in members])
        means.update({number: part.view(tensors[number].shape) for number, part in zip(members, parts, strict=True)})
    return [means[number] for number in range(len(tensors))]


@torch.no_grad()
def compute_sparse_mean(parameter: torch.Tensor, world_size: int) -> torch.Tensor:
    """Return the mean over all ranks of a parameter's gradient, as sparse as the ranks' are. A rank that has none
    counts as zero."""
    if parameter.grad is not None and not parameter.grad.is_sparse:
        raise ValueError(
            f"The gradient of a parameter of shape {tuple(parameter.shape)} is dense in this rank and sparse in "
            "another one. Use it in the same way in all ranks."
        )
    given = torch.zeros_like(parameter).to_sparse(1) if parameter.grad is None else parameter.grad
    total = given.to(widen(parameter.dtype)).coalesce()
    dist.all_reduce(total)
    return (total / world_size).to(parameter.dtype)


@torch.no_grad()
def copy_from_first(tensors: Iterable[torch.Tensor]) -> None:
    """Give all ranks rank 0's values. One collective a dtype. What has no values yet (on the meta device) or is split
    already is left alone."""
    whole = [t.detach() for t in tensors if not t.is_meta and not hasattr(t, "full_tensor")]  # which a DTensor has
    for dtype in dict.fromkeys(tensor.dtype for tensor in whole):
        members = [tensor for tensor in whole if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in members])
        dist.broadcast(flat, 0)
        for tensor, part in zip(members, torch.split(flat, [tensor.numel() for tensor in members]), strict=True):
            tensor.copy_(part.view(tensor.shape))


def share_buffers(model: torch.nn.Module, syncs: Callable[[], bool] = lambda: True) -> Any:
    """Have all ranks have rank 0's buffers after each forward pass that trains, such as the means of a batch
    normalization. DistributedDataParallel does so before the next one, so that what ranks evaluate or save in between
    differs.

    Args:
        model: What the ranks call.
        syncs: Whether this pass is one of those after which ranks meet.

    Returns:
        What removes it: its ``remove()``.
    """

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def share(called: torch.nn.Module, args: object, result: object) -> None:
        if called.training and syncs():
            ignored: Iterable[str] = getattr(called, "parameters_to_ignore", ())  # of DistributedDataParallel
            inner = getattr(called, "module", called) if ignored else called
            copy_from_first(buffer.data for name, buffer in inner.named_buffers() if name not in ignored)

    return model.register_forward_hook(share)
