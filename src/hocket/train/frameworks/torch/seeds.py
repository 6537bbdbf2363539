"""Makes a training function compute the same result each time."""

from __future__ import annotations

from hocket.train.frameworks.torch import framework


def enable_reproducibility(seed: int = 0) -> None:
    """Seed Python, numpy and torch in the calling process, and restrict torch to deterministic algorithms.

    Operations without such an algorithm raise an error. Training may become slower.

    Args:
        seed: 0 or more.

    Raises:
        ValueError: The seed is negative, or larger than numpy accepts.
    """
    framework.FRAMEWORK.enable_reproducibility(seed)
