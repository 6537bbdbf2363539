"""The device of a rank's arrays."""

from __future__ import annotations

from typing import Any

import jax

from hocket.train.rank import worker_session


def get_device() -> Any:
    """Return the device of the calling rank, a ``jax.Device``: its GPU if it has one, else the CPU.

    Raises:
        RuntimeError: The caller is outside a training function, or JAX does not see the GPU that the rank has.
    """
    info = worker_session.get_session("jax.get_device").info
    device = jax.local_devices()[0]
    if info.use_gpu and device.platform not in ("gpu", "cuda", "rocm"):
        raise RuntimeError(
            f"use_gpu=True, but jax {jax.__version__} sees no GPU in this rank, only {jax.local_devices()}. Install "
            "jax[cuda12], or set ScalingConfig(use_gpu=False)."
        )
    return device
