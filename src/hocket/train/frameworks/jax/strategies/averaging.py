"""Means over the ranks, and the steps from parameters to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hocket.train.frameworks.jax import host_calls, trees


def compute_means(
    tree: object,
    world_size: int,
    caller: str,
    travel_as: Callable[[Any], object] | None = None,
    *,
    floats_only: bool = True,
    watched: Mapping[str, object] | None = None,
) -> Any:
    """Return the mean over all ranks of each array of a tree.

    `travel_as` maps an array's dtype to the dtype in which it travels; by default, one wide enough to add up in.
    `floats_only` says whether arrays of other types are an error or stay as they are. `watched`: see `host_calls`.
    """
    leaves, values, structure = trees.list_leaves(tree, caller)
    chosen = []
    for number, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        if trees.is_inexact(value):
            chosen.append(number)
        elif floats_only and value.dtype != jax.dtypes.float0:
            raise TypeError(
                f"{caller}() takes arrays of floats, but {leaf.name or 'the tree itself'!r} is {leaf}. Differentiate "
                "with respect to floats only, and keep integers such as counters out of the tree."
            )
    if world_size > 1:
        means = host_calls.all_reduce(
            [values[number] for number in chosen],
            [leaves[number] for number in chosen],
            caller,
            travel_as=travel_as,
            watched=watched,
        )
        for number, mean in zip(chosen, means, strict=True):
            values[number] = mean
    return jax.tree_util.tree_unflatten(structure, values)


def pick_losses(extra: Mapping[str, object], world_size: int) -> dict[str, object]:
    """Return an optimizer's arguments that depend on the rank's own rows, such as the loss for ``polyak_sgd``. Ranks
    take equal steps only with their means.
    """
    if world_size > 1 and extra.get("value_fn") is not None:
        raise ValueError(
            "optimizer.update() received value_fn, which has this rank's rows only, so the line search would differ "
            "between the ranks. Leave the line search out: optax.lbfgs(learning_rate, linesearch=None)."
        )
    return {name: jax.tree.map(jnp.asarray, extra[name]) for name in ("value", "grad") if extra.get(name) is not None}


def find_step(param: object, goal: Any, step: Any) -> object:
    """Return the step from a parameter to a goal, in the step's dtype, corrected once for the rounding of the sum."""
    first = goal - param
    return (first + (goal - (param + first))).astype(step.dtype)
