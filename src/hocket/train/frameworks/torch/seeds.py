"""Makes a training function compute the same each time."""

from __future__ import annotations

import os
import random

import numpy as np
import torch


def enable_reproducibility(seed: int = 0) -> None:
    """Seed Python, numpy and torch in the calling process, and have torch use deterministic algorithms only.

    Operations that have no such algorithm raise. Training may become slower.

    Args:
        seed: 0 or more.

    Raises:
        ValueError: The seed is negative, or above what numpy takes.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(
            f"seed must lie between 0 and 2**32 - 1, but received {seed!r}. Pass a small number such as 0."
        )
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (what a user's library draws from is the global generator)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is not deterministic without it
