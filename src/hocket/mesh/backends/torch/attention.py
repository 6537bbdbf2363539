"""Attention on torch's ``DTensor``: heads, and rows of the batch, are computed where they are.

torch 2.13 has no rule for `scaled_dot_product_attention` on processors: it takes it apart into operations that have,
and looks for a way of spreading all of these, for more than a minute. But each head of each row is computed by itself.
So what is cut along such dims stays cut, and a rank computes its part. Only queries, keys and values that are cut
along their places or their width are put together first.
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
    """Return what `function`, torch's ``scaled_dot_product_attention``, returns, as a DTensor.

    Args:
        function: What computes it on plain tensors.
        query: Of the shape (..., places, width), as `key` and `value`; one of the three is a DTensor.
        key: The keys.
        value: The values.
        attn_mask: As torch's, a DTensor or a plain tensor that all ranks have; or None.
        dropout_p: As torch's. Each rank draws for the heads and rows that it has.
        is_causal: As torch's.
        **more: The other arguments, by name.
    """
    mesh = next(one.device_mesh for one in (query, key, value) if isinstance(one, torch_tensor.DTensor))
    query, key, value = (_spread(one, mesh) for one in (query, key, value))
    # Along an axis the first of them that is cut by heads or rows says how all are.
    placements = [_choose(mesh_dim, (query, key, value)) for mesh_dim in range(mesh.ndim)]
    if dropout_p and any(one.is_replicate() and mesh.size(dim) > 1 for dim, one in enumerate(placements)):
        raise NotImplementedError(
            f"scaled_dot_product_attention(dropout_p={dropout_p}) draws random numbers, which would be others in each "
            "rank that computes the same heads. Cut the heads along every axis of the mesh, or use dropout_p=0."
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
    """Return how all of them are spread along an axis of the mesh."""
    for one in given:
        placement = one.placements[mesh_dim]
        if placement.is_shard() and placement.dim % one.ndim < one.ndim - 2 and _is_alike(placement.dim, given):
            return placement
    return torch_tensor.Replicate()


def _is_alike(dim: int, given: tuple[Any, ...]) -> bool:
    """Tell whether a dim is as long in all: with fewer heads of keys, or one row for all, parts would not meet."""
    return len({one.ndim for one in given}) == 1 and len({one.shape[dim] for one in given}) == 1


def _cut_mask(mask: Any, placements: list[Any], rank: int) -> torch.Tensor:
    """Return what a rank needs of a mask, whose dims are the last ones of the queries', or one long."""
    missing = rank - mask.ndim
    wanted = []
    for placement in placements:
        dim = placement.dim % rank - missing if placement.is_shard() else -1
        cut = dim >= 0 and mask.shape[dim] > 1
        wanted.append(torch_tensor.Shard(dim) if cut else torch_tensor.Replicate())
    found: torch.Tensor = mask.redistribute(placements=wanted).to_local()
    return found
