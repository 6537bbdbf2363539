"""Attention on torch's ``DTensor``: each rank computes its own heads and rows of the batch.

torch 2.13 has no rule for `scaled_dot_product_attention` on CPUs. It splits the function into operations with rules,
and searches a common layout for more than a minute. But each head of each row is independent. So such dims stay cut,
and each rank computes its part. Only other dims of queries, keys and values, if they are cut, are gathered first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import tensor as torch_tensor


def attend(
    function: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: object = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **more: object,
) -> object:
    """Return the result of `function`, torch's ``scaled_dot_product_attention``, as a DTensor.

    Args:
        function: The attention of plain tensors.
        query: The queries, of shape (..., places, width) like `key` and `value`. One of the three is a DTensor.
        key: The keys.
        value: The values.
        attn_mask: As in torch; a DTensor, or a plain tensor that all ranks have; or None.
        dropout_p: As in torch. Each rank draws for its own heads and rows.
        is_causal: As in torch.
        **more: The other keyword arguments.
    """
    mesh = next(one.device_mesh for one in (query, key, value) if isinstance(one, torch_tensor.DTensor))
    query, key, value = (_spread(one, mesh) for one in (query, key, value))
    # Along each axis, the first of them that is cut by heads or rows sets the placement of all.
    placements = [_choose(mesh_dim, (query, key, value)) for mesh_dim in range(mesh.ndim)]
    if dropout_p and any(one.is_replicate() and mesh.size(dim) > 1 for dim, one in enumerate(placements)):
        raise NotImplementedError(
            f"scaled_dot_product_attention(dropout_p={dropout_p}) draws random numbers, which would differ between "
            "ranks that compute the same heads. Cut the heads along every axis of the mesh, or use dropout_p=0."
        )
    parts = [one.redistribute(placements=placements).to_local() for one in (query, key, value)]
    mask = None if attn_mask is None else _cut_mask(_spread(attn_mask, mesh), placements, query.ndim)
    found = function(*parts, attn_mask=mask, dropout_p=dropout_p, is_causal=is_causal, **more)
    return torch_tensor.DTensor.from_local(found, mesh, placements, run_check=False)


def _spread(one: Any, mesh: Any) -> object:
    if isinstance(one, torch_tensor.DTensor):
        return one
    return torch_tensor.DTensor.from_local(one, mesh, [torch_tensor.Replicate()] * mesh.ndim, run_check=False)


def _choose(mesh_dim: int, given: tuple[Any, ...]) -> Any:
    """Return the common placement along an axis of the mesh."""
    for one in given:
        placement = one.placements[mesh_dim]
        if placement.is_shard() and placement.dim % one.ndim < one.ndim - 2 and _is_alike(placement.dim, given):
            return placement
    return torch_tensor.Replicate()


def _is_alike(dim: int, given: tuple[Any, ...]) -> bool:
    """Tell whether a dim has the same length in all; otherwise, as with fewer heads of keys, parts would not match."""
    return len({one.ndim for one in given}) == 1 and len({one.shape[dim] for one in given}) == 1


def _cut_mask(mask: Any, placements: list[Any], rank: int) -> torch.Tensor:
    """Return this rank's part of a mask. The mask's dims are the last dims of the queries, or have length 1."""
    missing = rank - mask.ndim
    wanted = []
    for placement in placements:
        dim = placement.dim % rank - missing if placement.is_shard() else -1
        cut = dim >= 0 and mask.shape[dim] > 1
        wanted.append(torch_tensor.Shard(dim) if cut else torch_tensor.Replicate())
    found: torch.Tensor = mask.redistribute(placements=wanted).to_local()
    return found
