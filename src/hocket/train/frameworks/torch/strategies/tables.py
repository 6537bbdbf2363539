"""Embeddings whose rows are on servers.

A forward pass fetches the rows that its batch names; the rank has no other rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np
import numpy.typing as npt
import torch

from hocket import ps

if TYPE_CHECKING:
    from hocket.train.strategies import ps_client


def find_tables(model: torch.nn.Module, min_rows: int) -> Iterator[tuple[torch.nn.Embedding, torch.Tensor]]:
    """Yield the embeddings of a model that move by rows, and their weights.

    They are the sparse and the large ones. An embedding is left out if its weight has a second use, which needs a whole
    tensor, or if its class is the user's, which may do anything with the weight.

    Args:
        model: The model.
        min_rows: The number of rows from which an embedding is large.
    """
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for module in model.modules():
        if type(module) is not torch.nn.Embedding or uses.get(id(module.weight), 0) != 1:
            continue
        if module.weight.requires_grad and (module.sparse or module.num_embeddings >= min_rows):
            yield module, module.weight


@final
class ServedEmbedding(torch.nn.Embedding):
    """An embedding with its rows on servers.

    Its weight has the shape and the place that it had, but no memory. A gradient is sparse, with the rows of the batch.
    Other code that reads the weight gets NaN, so a loss, a norm or an evaluation that needs the rows is visibly wrong.
    ``state_dict()`` has the rows.
    """

    _client: ps_client.Client
    _table: ps.Embedding

    @staticmethod
    def adopt(module: torch.nn.Embedding, table: ps.Embedding, client: ps_client.Client) -> None:
        """Turn an embedding into this class, and release its rows."""
        if module.max_norm is not None:
            raise ValueError(
                f"The embedding `{table.name}` has max_norm={module.max_norm}, which changes rows when they are looked "
                "up, but the rows are on servers. Leave max_norm out, or use ParameterServer(min_table_rows=...) with "
                "sparse=False to keep the whole embedding in each rank."
            )
        module.__class__ = ServedEmbedding
        weight = module.weight
        unknown = torch.full((1, 1), math.nan, dtype=weight.dtype, device=weight.device)
        weight.data = unknown.expand(weight.shape)
        object.__setattr__(module, "_client", client)
        object.__setattr__(module, "_table", table)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Look rows up."""
        weight = self.weight
        found = self._client.look_up(
            self._table, input.detach().cpu().numpy(), begins_step=self.training and torch.is_grad_enabled()
        )
        rows = torch.from_numpy(found.rows).to(weight.device, weight.dtype)
        places = torch.from_numpy(found.places).to(weight.device)
        ids = torch.from_numpy(found.ids)
        padding = None
        if self.padding_idx is not None:
            place = int(np.searchsorted(found.ids, self.padding_idx))
            padding = place if place < len(found.ids) and found.ids[place] == self.padding_idx else None
        result: torch.Tensor = _Lookup.apply(weight, rows, places, ids, padding, self.scale_grad_by_freq)  # type: ignore[no-untyped-call]
        return result

    def __deepcopy__(self, memo: dict[int, object]) -> NoReturn:
        raise TypeError(
            f"The rows of `{self._table.name}` are on servers, so a copy of the model would have none. Load "
            "model.state_dict() into a model that is not prepared, or use ParameterServer(min_table_rows=...) with "
            "sparse=False to keep the whole embedding in each rank."
        )

    def _save_to_state_dict(self, destination: dict[str, object], prefix: str, keep_vars: bool) -> None:
        whole = torch.from_numpy(self._client.read_table(self._table, self.num_embeddings))
        destination[f"{prefix}weight"] = whole.to(self.weight.dtype)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, object],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = f"{prefix}weight"
        value = state_dict.get(key)
        if value is None:
            missing_keys.append(key)
        elif value.shape != self.weight.shape:
            error_msgs.append(
                f"size mismatch for {key}: the checkpoint has {tuple(value.shape)}, and the model "
                f"{tuple(self.weight.shape)}."
            )
        else:
            self._client.load([(self._table, to_array(value))])


class _Lookup(torch.autograd.Function):
    """The lookup of a batch in fetched rows. The gradient goes to the weight, which stands for all rows."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: torch.Tensor,
        rows: torch.Tensor,
        places: torch.Tensor,
        ids: torch.Tensor,
        padding: int | None,
        is_by_frequency: bool,
    ) -> torch.Tensor:
        ctx.save_for_backward(places, ids)
        ctx.shape, ctx.padding, ctx.is_by_frequency = weight.shape, padding, is_by_frequency
        return torch.nn.functional.embedding(places, rows)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> object:
        places, ids = ctx.saved_tensors
        (grad,) = grads
        flat = places.reshape(-1)
        rows = grad.new_zeros((len(ids), ctx.shape[1]))
        rows.index_add_(0, flat, grad.reshape(-1, ctx.shape[1]))
        if ctx.is_by_frequency:
            rows /= torch.bincount(flat, minlength=len(ids)).to(rows.dtype)[:, None]
        if ctx.padding is not None:
            rows[ctx.padding] = 0
        sparse = torch.sparse_coo_tensor(
            ids[None].to(grad.device), rows, ctx.shape, check_invariants=False, is_coalesced=True
        )
        return sparse, None, None, None, None, None


def take_gradient(name: str, gradient: torch.Tensor) -> ps.IndexedSlices:
    """Return a served embedding's gradient."""
    if not gradient.is_sparse:
        raise ValueError(
            f"The gradient of `{name}` is dense, because its weight was not only used to look rows up, but the rows "
            "are on servers. Compute with the results of the embedding, or use ParameterServer(min_table_rows=...) "
            "with sparse=False to keep the whole embedding in each rank."
        )
    gradient = gradient.coalesce()
    return ps.IndexedSlices(to_array(gradient.values()), gradient.indices()[0].cpu().numpy())


def to_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor as a numpy array, halves as float32."""
    tensor = tensor.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    array: npt.NDArray[Any] = tensor.cpu().numpy()
    return array
