"""Makes a training function compute the same each time."""

from __future__ import annotations

from hocket.train.frameworks.torch import framework


def enable_reproducibility(seed: int = 0) -> None:
    """Seed Python, numpy and torch in the calling process, and have torch use deterministic algorithms only.

    Operations that have no such algorithm raise. Training may become slower.

    Args:
        seed: 0 or more.

    Raises:
        ValueError: The seed is negative, or above what numpy takes.
    """
    framework.FRAMEWORK.enable_reproducibility(seed)
