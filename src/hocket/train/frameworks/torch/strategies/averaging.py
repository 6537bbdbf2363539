"""Means over the ranks, equal starts, and equal buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist

from hocket._base.internals import torch as torch_internals

Tensor = TypeVar("Tensor", bound=torch.Tensor)


def widen(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which tensors are added up. Sums of halves would lose too much."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@torch.no_grad()
def compute_means(tensors: Sequence[torch.Tensor], world_size: int) -> list[torch.Tensor]:
    """Return the mean over all ranks of each tensor, which may be a view of a larger one. One collective per dtype. All
    ranks must pass tensors of the same shapes in the same order."""
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
    """Return the mean over all ranks of a parameter's gradient, as sparse as the ranks' gradients. A rank without a
    gradient counts as zero."""
    if parameter.grad is not None and not parameter.grad.is_sparse:
        raise ValueError(
            f"The gradient of a parameter of shape {tuple(parameter.shape)} is dense in this rank and sparse in "
            "another one. Use the parameter in the same way in all ranks."
        )
    given = torch.zeros_like(parameter).to_sparse(1) if parameter.grad is None else parameter.grad
    total = given.to(widen(parameter.dtype)).coalesce()
    dist.all_reduce(total)
    return (total / world_size).to(parameter.dtype)


@torch.no_grad()
def copy_from_first(tensors: Iterable[torch.Tensor]) -> None:
    """Give all ranks rank 0's values. One collective per dtype. Tensors without values (on the meta device), and those
    that are already split, are left alone."""
    whole = [t.detach() for t in tensors if not t.is_meta and not hasattr(t, "full_tensor")]  # a DTensor has it
    for dtype in dict.fromkeys(tensor.dtype for tensor in whole):
        members = [tensor for tensor in whole if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in members])
        dist.broadcast(flat, 0)
        for tensor, part in zip(members, torch.split(flat, [tensor.numel() for tensor in members]), strict=True):
            tensor.copy_(part.view(tensor.shape))


@torch.no_grad()
def average_gradients(parameters: Sequence[Tensor], wanted: Sequence[bool], world_size: int) -> list[Tensor]:
    """Give each rank the mean gradient of the parameters for which any rank wants it; return these parameters. Ranks
    without a gradient for one count as zero.

    Args:
        parameters: The parameters; the same in all ranks.
        wanted: For each, whether this rank's gradient is its own and is to be averaged.
        world_size: The number of ranks.
    """
    if world_size == 1 or not parameters:
        return []
    gradients = [parameter.grad for parameter in parameters]
    kinds = [
        [float(one is not None and is_wanted), float(one is not None and one.is_sparse)]
        for one, is_wanted in zip(gradients, wanted, strict=True)
    ]
    flags, *_ = compute_means([torch.tensor(kinds, device=parameters[0].device)], world_size)
    dense: list[Tensor] = []
    sparse: list[Tensor] = []
    for parameter, (share, sparse_share) in zip(parameters, flags.tolist(), strict=True):
        if share:
            (sparse if sparse_share else dense).append(parameter)
    given = [torch.zeros_like(one) if one.grad is None else one.grad for one in dense]
    for parameter, mean in zip(dense, compute_means(given, world_size), strict=True):
        if parameter.grad is None:
            parameter.grad = mean.to(parameter.dtype)
        else:
            parameter.grad.copy_(mean)  # in place: it may be a view of memory that DistributedDataParallel sends
    for parameter in sparse:
        parameter.grad = compute_sparse_mean(parameter, world_size)
    return [*dense, *sparse]


def is_any(flag: bool, device: torch.device, world_size: int) -> bool:
    """Return whether a flag is set in any rank. All ranks call it."""
    if world_size == 1:
        return flag
    found = torch.tensor(float(flag), device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


@torch.no_grad()
def require_equal(tensors: Sequence[torch.Tensor], what: str) -> None:
    """Raise in all ranks if any tensor differs from rank 0's.

    Args:
        tensors: The tensors; the same list in all ranks.
        what: The tensors' description, for the message.
    """
    mine = [tensor.detach().clone() for tensor in tensors]
    copy_from_first(mine)
    differ = [not torch.equal(one, other) for one, other in zip(mine, tensors, strict=True)]
    if tensors:
        flag = torch.tensor([float(any(differ))], device=tensors[0].device)
        dist.all_reduce(flag)
        if flag.item():
            raise RuntimeError(
                f"An optimizer steps {what}, but they have different values in the ranks, so the ranks' gradients do "
                "not belong together. Make them part of the model before prepare_model(), or give them the same values "
                "in all ranks, as with torch.manual_seed(0)."
            )


@final
class _ShareBuffers:
    """A hook after forward passes. It gives all ranks rank 0's buffers."""

    def __init__(self) -> None:
        #: How often each buffer had been changed by the end of the last forward pass.
        self._versions: list[int] = []

    @torch_internals.skip_compiler
    def __call__(self, called: Any, args: object, result: object) -> None:
        if not called.training or torch_internals.is_joined(called):
            return
        ignored: Iterable[str] = getattr(called, "parameters_to_ignore", ())  # of DDP, as the next two attributes
        inner = called.module if ignored else called
        buffers = [buffer for name, buffer in inner.named_buffers() if name not in ignored]
        # In no_sync the ranks meet for buffers that a forward pass has changed, since the program may evaluate before
        # the next pass. With find_unused_parameters, the change may differ between ranks.
        is_due = getattr(called, "require_backward_grad_sync", True) or called.find_unused_parameters
        if is_due or _read_versions(buffers) != self._versions:
            copy_from_first(buffer.data for buffer in buffers)
        self._versions = _read_versions(buffers)


def _read_versions(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [torch_internals.read_version(tensor) for tensor in tensors]


def share_buffers(model: torch.nn.Module) -> Any:
    """Give all ranks rank 0's buffers, such as the means of a batch normalization, after each forward pass that trains.
    Return a handle, which ends that with ``remove()``. DistributedDataParallel itself shares buffers before the next
    pass, so ranks would evaluate or save different ones in between."""
    return model.register_forward_hook(_ShareBuffers())
