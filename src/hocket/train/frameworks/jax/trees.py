"""Pytrees as lists of arrays with names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hocket._base import texts

NAMED = 3
"""The most names that a message lists. More are seldom read."""


class Leaf(NamedTuple):
    """The name, shape and dtype of an array, without its numbers. Ranks can pickle and compare it."""

    name: str
    """The path in the tree, such as ``params/dense/kernel``."""
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def list_leaves(tree: object, caller: str) -> tuple[list[Leaf], list[Any], Any]:
    """Return a description of each leaf of a tree, the leaves as arrays, and the tree's structure.

    Args:
        tree: A tree of arrays and numbers.
        caller: The function that received the tree, for the message.
    """
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves, values = [], []
    for path, value in found:
        name = name_path(path)
        if not (isinstance(value, jax.Array | np.ndarray | np.generic | float | int | complex)):
            raise TypeError(
                f"{caller}() takes a pytree of arrays, but {name or 'the tree itself'!r} is {texts.name_kind(value)}: "
                f"{value!r}. Keep values that are not arrays out of the tree: with flax.nnx.split, for example, or in "
                "the configuration."
            )
        array: Any = value if hasattr(value, "dtype") else jnp.asarray(value)
        leaves.append(Leaf(name, tuple(array.shape), str(array.dtype)))
        values.append(array)
    names = [leaf.name for leaf in leaves]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"{caller}() received a pytree in which two arrays are called {double!r}. Use keys without '/' in dicts."
        )
    return leaves, values, structure


def name_path(path: Sequence[object]) -> str:
    """Return a leaf's name from its path in the tree."""
    return "/".join(_name_key(key) for key in path)


def _name_key(key: object) -> str:
    for field in ("key", "name", "idx"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)


def describe_difference(mine: Sequence[Leaf], other: Sequence[Leaf], whose: str, others: str) -> str:
    """Describe how two lists of leaves differ; return an empty text if they do not.

    Args:
        mine: The first list.
        other: The second list.
        whose: The owner of the first list, such as "rank 0".
        others: The owner of the second list.
    """
    here, there = ({leaf.name: leaf for leaf in leaves} for leaves in (mine, other))
    found = [f"{others} has no {name!r}" for name in here if name not in there]
    found += [f"{others} has {name!r}, which {whose} does not have" for name in there if name not in here]
    found += [
        f"{name!r} is {there[name]} in {others} and {here[name]} in {whose}"
        for name in here
        if name in there and there[name] != here[name]
    ]
    if not found and [leaf.name for leaf in mine] != [leaf.name for leaf in other]:
        found = ["their arrays are in a different order"]
    more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return "; ".join(found[:NAMED]) + more


def is_key(value: object) -> bool:
    """Return whether a value is an array of JAX's random keys."""
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def is_global(value: object) -> bool:
    """Return whether a value is an array that is on devices of other processes, too."""
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not value.is_fully_addressable


def is_spread(value: object) -> bool:
    """Return whether a value is an array of which this process has only a part."""
    return is_global(value) and not getattr(value, "is_fully_replicated", False)


def build_spread_error(caller: str, name: str) -> TypeError:
    """Return the error for an array that is spread over the ranks, where a whole array is needed."""
    return TypeError(
        f"{caller} needs whole arrays, but {name or 'the array'!r} is spread over the ranks. Call "
        "hocket.train.jax.gather(tree) in all ranks first, or hocket.mesh.save(tree, folder) in all ranks, which "
        "writes parts."
    )


def is_inexact(value: Any) -> bool:
    """Return whether an array holds floats, which have a mean."""
    return not is_key(value) and bool(jnp.issubdtype(value.dtype, jnp.inexact))
