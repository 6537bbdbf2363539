"""The sum of sparse tensors, such as the gradients of embeddings: everybody gets everybody's entries, and adds them
up in the order of the ranks."""

from __future__ import annotations

from typing import Any, Final

import torch

from hocket.collective.arithmetic import ReduceOp

MAX_DIMS: Final = 32
"""How many dimensions a tensor may have."""


def all_reduce(group: Any, tensor: torch.Tensor, op: ReduceOp) -> None:
    """Put the sum or the mean of all ranks' tensors into each. They have one shape, and as many entries as they like.

    Costs two messages: how many entries each rank has, and the entries, filled up to the longest.

    Args:
        group: The process group.
        tensor: Sparse (COO), on the CPU.
        op: SUM or MEAN.
    """
    if op not in (ReduceOp.SUM, ReduceOp.MEAN):
        raise ValueError(
            f"Sparse tensors can be summed or averaged, but received op={op.name}. Make them dense with .to_dense() "
            "first."
        )
    own = tensor.detach().coalesce()
    facts = torch.zeros(MAX_DIMS + 2, dtype=torch.int64)
    facts[: 2 + own.dim()] = torch.tensor([own._nnz(), own.sparse_dim(), *own.shape])
    of_ranks = _gather(group, facts)
    if any(not torch.equal(one[1:], facts[1:]) for one in of_ranks):
        shapes = [tuple(one[2:][one[2:] > 0].tolist()) for one in of_ranks]
        raise ValueError(
            f"All ranks must reduce tensors of one shape and as many sparse dimensions, but they have {shapes}."
        )
    counts = [int(one[0]) for one in of_ranks]
    most = max(counts)
    if most:
        indices = _gather(group, _fill_up(own.indices().t(), most))
        values = _gather(group, _fill_up(own.values(), most))
        own = torch.sparse_coo_tensor(
            torch.cat([part[:count] for part, count in zip(indices, counts, strict=True)]).t(),
            torch.cat([part[:count] for part, count in zip(values, counts, strict=True)]),
            own.shape,
            check_invariants=False,
        ).coalesce()
        if op is ReduceOp.MEAN:
            own = own / group.size()
    with torch.no_grad():
        tensor.copy_(own)


def _fill_up(rows: torch.Tensor, count: int) -> torch.Tensor:
    whole = rows.new_zeros((count, *rows.shape[1:]))
    whole[: len(rows)] = rows
    return whole


def _gather(group: Any, tensor: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    group.allgather([parts], [tensor]).wait()
    return parts
