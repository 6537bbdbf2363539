"""Makes parameters equal in all ranks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hocket.train import strategies
from hocket.train.frameworks.jax import devices, framework, host_calls, trees
from hocket.train.frameworks.jax import strategies as jax_strategies
from hocket.train.rank import world


def prepare_params(params: object) -> Any:
    """Return rank 0's parameters in all ranks, on each rank's device; with `Sharded`, each rank's part of them.

    Use it for all values that must start equal: parameters, the optimizer's state, running statistics. Call it once,
    outside `jax.jit`. Values from the same seed or checkpoint are equal already; the call does them no harm. With
    `Sharded` the rules apply to the first tree. In later trees, such as the optimizer's state, values are spread like
    the parameters to which they belong.

    Args:
        params: A pytree of arrays, with the same structure, shapes and dtypes in all ranks. The values of ranks other
            than 0 are ignored.

    Raises:
        TypeError: A leaf is no array, or the call is inside `jax.jit`.
        CollectiveMismatchError: The ranks passed different trees.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile, jax.numpy as jnp
        >>> from hocket import train
        >>> from hocket.train.jax import JaxTrainer, prepare_params
        >>> def train_loop():
        ...     params = prepare_params({"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)})
        ...     return {name: array.shape for name, array in params.items()}
        >>> JaxTrainer(
        ...     train_loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().return_value
        {'bias': (2,), 'kernel': (3, 2)}
    """
    exchange = framework.FRAMEWORK.get_state("prepare_params")
    params = jax.tree.map(lambda leaf: leaf.native if _is_of_a_mesh(leaf) else leaf, params, is_leaf=_is_of_a_mesh)
    leaves, values, structure = trees.list_leaves(broadcast(params, 0, "prepare_params"), "prepare_params")
    return jax.tree_util.tree_unflatten(structure, exchange.place_params(leaves, values))


def _is_of_a_mesh(node: object) -> bool:
    """Return whether a node is a value of `hocket.mesh`, without importing that module."""
    return hasattr(node, "native") and hasattr(node, "layout")


def gather(tree: object) -> Any:
    """Return a tree with whole arrays of numpy in place of arrays that are spread over the ranks.

    For checkpoints that numpy reads: ``save_pytree(path, gather(params))``. With `Sharded` all ranks must call it. With
    the other strategies nothing is spread, and it returns `tree`. To write parts, use `hocket.mesh.save`.

    Args:
        tree: A pytree of arrays.

    Raises:
        TypeError: The call is inside `jax.jit`.

    Example:
        >>> import jax.numpy as jnp
        >>> from hocket.train.jax import gather
        >>> gather({"bias": jnp.zeros(2)})["bias"].tolist()
        [0.0, 0.0]
    """
    values, structure = jax.tree_util.tree_flatten(tree)
    if any(isinstance(value, jax.core.Tracer) for value in values):
        raise TypeError(
            "gather() was called inside jax.jit or another transformation of JAX, where there are no numbers yet. "
            "Call it on what the jitted function returns."
        )
    if any(map(trees.is_spread, values)):
        found = importlib.import_module(jax_strategies.MODULES[strategies.Sharded]).gather
        values = [found(value) for value in values]
    return jax.tree_util.tree_unflatten(structure, values)


def broadcast(params: object, root: int, caller: str) -> Any:
    """Return one rank's arrays in all ranks. See `prepare_params`.

    Args:
        params: A pytree of arrays.
        root: The rank that has the arrays.
        caller: The calling function's name, for messages.
    """
    device = devices.get_device()
    leaves, values, structure = trees.list_leaves(params, caller)
    if any(isinstance(value, jax.core.Tracer) for value in values):
        raise TypeError(
            f"{caller}() was called inside jax.jit or another transformation of JAX, but it must be called once, "
            "before the first step. Call it where the parameters are made."
        )
    spread = {number: value for number, value in enumerate(values) if trees.is_spread(value)}
    found = [_unwrap(np.zeros(0) if number in spread else value) for number, value in enumerate(values)]
    ranks = world.get_world(f"jax.{caller}")
    if ranks.size > 1:
        host_calls.wait_for_steps()
        host_calls.agree(ranks, hash((caller, *leaves)), leaves, caller)
        arrays = [np.array(value) for value, _ in found]
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            members = [number for number, array in enumerate(arrays) if array.dtype == dtype and array.size]
            if members:
                flat = np.concatenate([arrays[number].reshape(-1) for number in members])
                ranks.broadcast(flat, root)
                parts = np.split(flat, np.cumsum([arrays[number].size for number in members])[:-1])
                for number, part in zip(members, parts, strict=True):
                    arrays[number] = part.reshape(arrays[number].shape)
        found = [(array, wrap) for array, (_, wrap) in zip(arrays, found, strict=True)]
    made = [wrap(jax.device_put(array, device)) for array, wrap in found]
    return jax.tree_util.tree_unflatten(structure, [spread.get(number, value) for number, value in enumerate(made)])


def synchronize(params: object, state: object) -> tuple[Any, Any]:
    """Return parameters that are equal in all ranks, and the optimizer's state that goes with them.

    All ranks must call it at the same step.

    With `LocalSGD` the ranks meet here, and the next `sync_every` steps begin. With `AllReduce` there is nothing to do.
    Call it before a checkpoint or an evaluation, inside `jax.jit` or outside.

    Args:
        params: The parameters.
        state: The state that the prepared optimizer's ``update`` returned with them.

    Raises:
        ValueError: With `LocalSGD`, the state is not of a prepared optimizer.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile, jax.numpy as jnp, optax
        >>> from hocket import train
        >>> from hocket.train.jax import JaxTrainer, LocalSGD, prepare_optimizer, synchronize
        >>> def train_loop():
        ...     params, optimizer = jnp.ones(2), prepare_optimizer(optax.sgd(0.1))
        ...     state = optimizer.init(params)
        ...     for _ in range(3):
        ...         updates, state = optimizer.update(params, state, params)  # the gradient of half the square
        ...         params = optax.apply_updates(params, updates)
        ...     params, state = synchronize(params, state)
        ...     return [round(float(value), 3) for value in params]
        >>> JaxTrainer(
        ...     train_loop,
        ...     strategy=LocalSGD(8),
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().return_value
        [0.729, 0.729]
    """
    return framework.FRAMEWORK.get_state("synchronize").synchronize(params, state)


def _unwrap(value: object) -> tuple[object, Callable[[object], object]]:
    """Return an array that numpy knows, and a function that restores the array's original type."""
    if trees.is_key(value):
        kind = jax.random.key_impl(value)
        return jax.random.key_data(value), lambda data: jax.random.wrap_key_data(data, impl=kind)
    return value, lambda array: array
