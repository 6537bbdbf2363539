"""Makes a model train in all ranks as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import parallel

from hocket.train import worker_session
from hocket.train.torch import devices

STRATEGIES = ("ddp", None)
"""What `prepare_model` can do."""


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Move a model to the rank's device, and average its gradients over all ranks.

    Args:
        model: The model; the same in all ranks. DistributedDataParallel starts all of them from rank 0's weights.
        move_to_device: Whether to move it, or where to.
        parallel_strategy: ``"ddp"`` wraps it in DistributedDataParallel if there is more than one rank; None does not.
        parallel_strategy_kwargs: For DistributedDataParallel.

    Returns:
        The model, or its wrapper; the model itself is then ``.module``.

    Raises:
        ValueError: The strategy is unknown.
        RuntimeError: It is called outside a training function.
    """
    info = worker_session.get_session("torch.prepare_model").info
    if parallel_strategy not in STRATEGIES:
        raise ValueError(
            f"parallel_strategy must be one of {list(STRATEGIES)}, but received {parallel_strategy!r}. Leave it out for 'ddp', or "
            "pass None and wrap the model yourself."
        )
    device = devices.get_device() if isinstance(move_to_device, bool) else torch.device(move_to_device)
    if move_to_device is not False:
        model = model.to(device)
    if parallel_strategy is None or info.world_size == 1:
        return model
    options = dict(parallel_strategy_kwargs or {})
    if device.type == "cuda" and move_to_device is not False:
        options = {"device_ids": [device], "output_device": device, **options}
    return parallel.DistributedDataParallel(model, **options)
