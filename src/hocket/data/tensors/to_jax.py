"""Batches as JAX arrays. The first call imports jax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hocket import extras
from hocket.data import blocks, columns


def load() -> Any:
    """Return jax.

    Raises:
        MissingExtraError: jax is not installed.
    """
    remedy = "Run pip install 'hocket[jax]', or use iter_batches()."
    return extras.load("jax", "iter_jax_batches()", "JAX", remedy)


def build_converter(
    dtypes: object,
    collate_fn: Callable[[dict[str, Any]], Any] | None = None,
    paddings: object = None,
    batch_size: int | None = None,
) -> Callable[[blocks.Block], Any]:
    """Return a function that makes arrays from a block that only the caller holds, on JAX's default device.

    Args:
        dtypes: The types of the arrays.
        collate_fn: Makes other arrays from the batch first.
        paddings: The number that fills up shorter batches, or a number for each column; None: no padding.
        batch_size: The length of a padded batch.
    """
    numpy = load().numpy
    if paddings is not None and batch_size is None:
        raise ValueError("paddings fill batches up to batch_size, which is None. Write batch_size=256.")

    def convert_one(name: str, array: Any) -> object:
        columns.check_numbers(name, array, "a JAX array", "use iter_batches()")
        padding = paddings.get(name) if isinstance(paddings, Mapping) else paddings
        if padding is not None and len(array) < batch_size:  # type: ignore[operator]  # `build_converter` checks it
            with np.errstate(invalid="ignore"):
                filling = np.asarray(padding).astype(array.dtype)
            if array.dtype.kind in "biu" and filling != padding:
                raise ValueError(
                    f"paddings has {padding!r} for {name!r}, but this column holds {array.dtype}, which has no such "
                    "number. Write paddings=0, or convert the column to floats with map_batches()."
                )
            rest = np.full((batch_size - len(array), *array.shape[1:]), filling)  # type: ignore[operator]
            array = np.concatenate([array, rest])
        return numpy.asarray(array, dtype=dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes)

    def convert(block: blocks.Block) -> Any:
        batch = block.to_batch("numpy", is_owned=True)
        found = batch if collate_fn is None else collate_fn(batch)
        if not isinstance(found, Mapping):
            return convert_one("data", found)
        for given in (dtypes, paddings):
            blocks.check_columns(list(given) if isinstance(given, Mapping) else [], list(found))
        return {name: convert_one(name, array) for name, array in found.items()}

    return convert
