"""Batches as JAX has them. The first call imports jax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hocket import extras
from hocket.data import blocks, columns


def load() -> Any:
    """Return jax.

    Raises:
        MissingExtraError: It is not installed.
    """
    remedy = "Run pip install 'hocket[jax]', or use iter_batches()."
    return extras.load("jax", "iter_jax_batches()", "JAX", remedy)


def build_converter(
    dtypes: object,
    collate_fn: Callable[[dict[str, Any]], Any] | None = None,
    paddings: object = None,
    batch_size: int | None = None,
) -> Callable[[blocks.Block], Any]:
    """Return what makes arrays of a block that is the caller's alone. They lie where JAX puts them by default.

    Args:
        dtypes: What the arrays are made.
        collate_fn: Makes other arrays of the batch first.
        paddings: With what shorter batches are filled up: a number, or one for each column; None: they are not.
        batch_size: How long they are then.
    """
    numpy = load().numpy
    if paddings is not None and batch_size is None:
        raise ValueError("paddings fill batches up to batch_size, which is None. Write batch_size=256.")

    def convert_one(name: str, array: Any) -> object:
        columns.check_numbers(name, array, "a JAX array", "iter_batches() in its place")
        padding = paddings.get(name) if isinstance(paddings, Mapping) else paddings
        if padding is not None and len(array) < batch_size:  # type: ignore[operator]  # `build_converter` checks it
            with np.errstate(invalid="ignore"):
                filling = np.asarray(padding).astype(array.dtype)
            if array.dtype.kind in "biu" and filling != padding:
                raise ValueError(
                    f"paddings has {padding!r} for {name!r}, whose numbers are {array.dtype}, which has no such one. "
                    "Write paddings=0, or make floats of it with map_batches()."
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
