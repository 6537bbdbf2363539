"""Random keys of ranks, and training with the same result each time."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hocket.train.frameworks.jax import framework, trees
from hocket.train.rank import worker_session


def fold_in_rank(key: object) -> Any:
    """Return a random key of the calling rank's own, derived from a key that all ranks have: for dropout, noise,
    augmentation. With `Sharded`, where all ranks compute one program, the result is the same in all of them.

    Args:
        key: The result of ``jax.random.key(0)`` or ``jax.random.PRNGKey(0)``; equal in all ranks.

    Returns:
        A key of the same kind.

    Raises:
        TypeError: `key` is no random key.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile, jax
        >>> from hocket import train
        >>> from hocket.train.jax import JaxTrainer, fold_in_rank
        >>> def train_loop():
        ...     mine = fold_in_rank(jax.random.key(0))
        ...     return bool(mine == jax.random.fold_in(jax.random.key(0), 0))
        >>> JaxTrainer(
        ...     train_loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().return_value
        True
    """
    rank = _get_rank("fold_in_rank")
    _check_key("fold_in_rank", key)
    return jax.random.fold_in(key, rank)


def split_key(key: object) -> tuple[Any, Any]:
    """Return two new random keys: one that all ranks have, and one of the calling rank's own.

    Use the first for values that must be equal, such as the parameters' first values and the next step's key. Use the
    second for dropout and the like. Works inside `jax.jit` too, as `fold_in_rank` does.

    Args:
        key: A key that is equal in all ranks. Like any key that was split, it should not be used again.

    Raises:
        TypeError: `key` is no random key.
        RuntimeError: The caller is outside a training function.

    Example:
        >>> import tempfile, jax
        >>> from hocket import train
        >>> from hocket.train.jax import JaxTrainer, split_key
        >>> def train_loop():
        ...     shared, mine = split_key(jax.random.key(0))
        ...     return bool(shared == mine)
        >>> JaxTrainer(
        ...     train_loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ... ).fit().return_value
        False
    """
    rank = _get_rank("split_key")
    _check_key("split_key", key)
    shared, other = jax.random.split(key)
    return shared, jax.random.fold_in(other, rank)


def enable_reproducibility(seed: int = 0) -> Any:
    """Seed Python and numpy in the calling process, make XLA use deterministic algorithms on GPUs, and return a random
    key for JAX.

    Call it before the first computation, because XLA reads its settings then. JAX's programs have no other seed than
    keys.

    Args:
        seed: 0 or more.

    Returns:
        ``jax.random.key(seed)``.

    Raises:
        ValueError: The seed is negative, or larger than numpy accepts.

    Example:
        >>> import jax
        >>> from hocket.train.jax import enable_reproducibility
        >>> bool(enable_reproducibility(7) == jax.random.key(7))
        True
    """
    return framework.FRAMEWORK.enable_reproducibility(seed)


def _get_rank(caller: str) -> int:
    rank = framework.FRAMEWORK.get_state(caller).random_rank
    return worker_session.get_session(f"jax.{caller}").info.rank if rank is None else rank


def _check_key(caller: str, key: object) -> None:
    if isinstance(key, jax.Array):
        if trees.is_key(key):
            if key.ndim == 0:
                return
        elif key.dtype == np.uint32 and key.ndim == 1:
            return
    shown = f"an array of shape {key.shape} and {key.dtype}" if isinstance(key, jax.Array | np.ndarray) else repr(key)
    raise TypeError(
        f"{caller}() takes one random key, equal in all ranks, but received {shown}. Write {caller}(jax.random.key(0))."
    )
