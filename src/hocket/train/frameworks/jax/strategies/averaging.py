"""Means over the ranks, and steps that lead to them."""

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

    `travel_as` says in which dtype one of a dtype travels (default: wide enough to add up in), and `floats_only`
    whether other arrays are an error or stay as they are. `watched` are trees that the net compares, by kind.
    """
    leaves, values, structure = trees.list_leaves(tree, caller)
    chosen = []
    for number, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        if trees.is_inexact(value):
            chosen.append(number)
        elif floats_only and value.dtype != jax.dtypes.float0:
            raise TypeError(
                f"{caller}() takes arrays of floats, but {leaf.name or 'the tree itself'!r} is {leaf}. Differentiate "
                "with respect to floats only, and keep what is counted out of the tree."
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
    """Return what an optimizer is given beside gradients and is of the rank's own rows, as ``polyak_sgd`` is its loss;
    ranks step alike with the means only.
    """
    if world_size > 1 and extra.get("value_fn") is not None:
        raise ValueError(
            "optimizer.update() received value_fn, which has this rank's rows only, so each rank's line search would "
            "go another way. Leave the line search out: optax.lbfgs(learning_rate, linesearch=None)."
        )
    return {name: jax.tree.map(jnp.asarray, extra[name]) for name in ("value", "grad") if extra.get(name) is not None}


def find_step(param: object, goal: Any, step: Any) -> object:
    """Return what to add to a parameter so that it becomes the goal, as an array of the step's dtype."""
    first = goal - param
    return (first + (goal - (param + first))).astype(step.dtype)
