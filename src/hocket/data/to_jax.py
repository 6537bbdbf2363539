"""Batches as JAX has them. jax enters here, when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hocket import extras
from hocket.data import blocks, columns


def load() -> Any:
    """Return jax.

    Raises:
        MissingExtraError: It is not installed.
    """
    remedy = "Run pip install 'hocket[jax]', or use iter_batches()."
    return extras.load("jax", "iter_jax_batches()", "JAX", remedy)


def build_converter(dtypes: object) -> Callable[[blocks.Block], dict[str, object]]:
    """Return what makes arrays of a block that is the caller's alone. They lie where JAX puts them by default."""
    numpy = load().numpy

    def convert(block: blocks.Block) -> dict[str, object]:
        if isinstance(dtypes, Mapping):
            blocks.check_columns(list(dtypes), list(block.columns))
        found = {}
        for name, array in block.to_batch("numpy", is_owned=True).items():
            columns.check_numbers(name, array, "a JAX array", "iter_batches() in its place")
            dtype = dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
            found[name] = numpy.asarray(array, dtype=dtype)
        return found

    return convert
