"""Makes a training function compute the same result each time."""

from __future__ import annotations

from hocket.train.frameworks.keras import framework


def enable_reproducibility(seed: int = 0) -> None:
    """Seed Python, numpy, Keras and its backend in the calling process, and restrict the backend to deterministic
    algorithms.

    Call it first. With the same seed in all ranks their models begin equal. The ranks then draw the same dropout masks
    too, each for its own rows.

    ``keras.utils.set_random_seed`` seeds them too, but imports TensorFlow, if installed, on each backend: that takes
    seconds.

    Args:
        seed: 0 or more.

    Raises:
        ValueError: The seed is negative, or larger than numpy accepts.

    Example:
        >>> import keras
        >>> from hocket.train.keras import enable_reproducibility
        >>> def draw():
        ...     enable_reproducibility(3)
        ...     return keras.layers.Dense(2).kernel_initializer((2, 2))
        >>> float(keras.ops.sum(keras.ops.abs(draw() - draw())))
        0.0
    """
    framework.FRAMEWORK.enable_reproducibility(seed)
