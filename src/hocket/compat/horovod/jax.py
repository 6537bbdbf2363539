"""Horovod's functions for JAX: ``import hocket.train.horovod.jax as hvd``, in a `JaxTrainer`'s training function.

Horovod itself has none for JAX. JAX's arrays are immutable, so functions that work in place in Horovod return their
result here. `allreduce` also works inside ``jax.jit``.
"""

from __future__ import annotations

from typing import Any, Final

from hocket import extras

with extras.explain("hocket.train.horovod.jax", "JAX", "Run pip install 'hocket[jax]'."):
    import jax
    import jax.numpy as jnp

from hocket.compat.horovod import place, verbs
from hocket.train.frameworks.jax import framework, host_calls, models, optimizers, trees

is_initialized = place.is_initialized
rank = place.rank
size = place.size
local_rank = place.local_rank
local_size = place.local_size
cross_rank = place.cross_rank
cross_size = place.cross_size
is_homogeneous = place.is_homogeneous

Average: Final = place.Op.AVERAGE
Sum: Final = place.Op.SUM
Min: Final = place.Op.MIN
Max: Final = place.Op.MAX
Product: Final = place.Op.PRODUCT
Adasum: Final = place.Op.ADASUM

nccl_built = mpi_built = gloo_built = cuda_built = rocm_built = ddl_built = ccl_built = place.is_built
mpi_enabled = gloo_enabled = mpi_threads_supported = place.is_built

_verbs: Final = verbs.Verbs(framework.FRAMEWORK, "hocket.train.jax.JaxTrainer")

init = _verbs.init
shutdown = verbs.shutdown
broadcast_object = _verbs.broadcast_object
allgather_object = _verbs.allgather_object
barrier = _verbs.barrier
join = _verbs.join


def allreduce(tensor: object, average: bool | None = None, name: str | None = None, op: place.Op | None = None) -> Any:
    """Return the mean of all ranks' arrays, or another reduction by `op`.

    Args:
        tensor: An array or a pytree of arrays, with the same shapes and dtypes in all ranks.
        average: Older programs' form of `op`.
        name: Ignored, because calls are matched by their order.
        op: The reduction. Default: `Average`.

    Raises:
        TypeError: A leaf is not an array.
        ValueError: `init` was not called, `op` is not an operation, or a mean of whole numbers is requested.

    Example:
        >>> import jax.numpy as jnp
        >>> import hocket.train.horovod.jax as hvd
        >>> hvd.init()
        >>> hvd.allreduce(jnp.array([1.0, 2.0]), op=hvd.Sum).tolist()
        [1.0, 2.0]
        >>> hvd.shutdown()
    """
    chosen = place.choose_op(op, average)
    leaves, values, structure = trees.list_leaves(tensor, "allreduce")
    whole = next((leaf for leaf, value in zip(leaves, values, strict=True) if not trees.is_inexact(value)), None)
    if chosen is Average and whole is not None:
        raise ValueError(
            f"hvd.Average needs floats, but {whole.name or 'the array'!r} is {whole}. Pass op=hvd.Sum, or "
            "array.astype(float)."
        )
    if size() > 1:
        values = host_calls.all_reduce(values, leaves, "allreduce", verbs.OPS[chosen])
    return jax.tree_util.tree_unflatten(structure, values)


def allgather(tensor: object, name: str | None = None) -> Any:
    """Return all ranks' arrays, concatenated along the first dimension, which may have a different length in each rank.

    Not inside ``jax.jit``."""
    array = jnp.asarray(tensor)
    if not array.ndim:
        raise ValueError(
            "allgather() puts arrays one after another along their first dimension, but received a scalar. Write "
            "array[None]."
        )
    return jnp.concatenate([jnp.asarray(part) for part in allgather_object(jax.device_get(array))])


def broadcast(tensor: object, root_rank: int, name: str | None = None) -> Any:
    """Return the root's array or pytree of arrays in all ranks. Not inside ``jax.jit``."""
    return broadcast_parameters(tensor, root_rank)


def broadcast_parameters(params: object, root_rank: int = 0) -> Any:
    """Return the root's parameters in all ranks. Not inside ``jax.jit``.

    Args:
        params: A pytree of arrays.
        root_rank: The rank with the parameters to return.

    Example:
        >>> import jax.numpy as jnp
        >>> import hocket.train.horovod.jax as hvd
        >>> hvd.init()
        >>> hvd.broadcast_parameters({"w": jnp.zeros(2)})["w"].tolist()
        [0.0, 0.0]
        >>> hvd.shutdown()
    """
    verbs.check_root(root_rank)
    return params if size() == 1 else models.broadcast(params, root_rank, "broadcast_parameters")


def broadcast_optimizer_state(state: object, root_rank: int = 0) -> Any:
    """Return the root's optimizer state in all ranks. Not inside ``jax.jit``."""
    return broadcast_parameters(state, root_rank)


def DistributedOptimizer(optimizer: object, op: place.Op = Average, **options: object) -> Any:
    """Return an optax optimizer that first averages the gradients of all ranks.

    Args:
        optimizer: A gradient transformation of optax.
        op: Must be `Average`.
        options: Other arguments of Horovod. Arguments that would need an effect here are refused.
    """
    place.refuse("DistributedOptimizer", op=(op, Average))
    place.refuse_options(options)
    return optimizers.prepare_optimizer(optimizer) if place.get_place().in_trainer else optimizer
