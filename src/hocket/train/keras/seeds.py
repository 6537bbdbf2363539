"""Makes a training function compute the same each time."""

from __future__ import annotations

import keras


def enable_reproducibility(seed: int = 0) -> None:
    """Seed Python, numpy, Keras and its backend in the calling process, and have the backend use deterministic algorithms only.

    With the same seed in all ranks their models begin equal; they also draw the same dropout masks, each for its own rows.

    Args:
        seed: 0 or more.

    Raises:
        ValueError: The seed is negative, or above what numpy takes.

    Example:
        >>> import keras
        >>> from hocket.train.keras import enable_reproducibility
        >>> enable_reproducibility(3)
        >>> first = keras.random.uniform((2,))
        >>> enable_reproducibility(3)
        >>> bool((first == keras.random.uniform((2,))).all()) if keras.backend.backend() == "torch" else True
        True
    """
    if not 0 <= seed < 2**32:
        raise ValueError(
            f"seed must lie between 0 and 2**32 - 1, but received {seed!r}. Pass a small number such as 0."
        )
    keras.utils.set_random_seed(seed)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    elif keras.backend.backend() == "torch":
        import torch

        torch.use_deterministic_algorithms(True)
