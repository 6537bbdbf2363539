"""The devices of a rank's tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from hocket.train.rank import worker_session


def get_device() -> torch.device:
    """Return the device of the calling rank: its GPU if it has one, else the CPU.

    Raises:
        RuntimeError: The caller is outside a training function, or torch does not see the GPU that the rank has.
    """
    if not worker_session.get_session("torch.get_device").info.use_gpu:
        return torch.device("cpu")
    return pick_cuda_device()


def get_devices() -> list[torch.device]:
    """Return the devices of the calling rank: all GPUs that it holds, else the CPU.

    Raises:
        RuntimeError: The caller is outside a training function, or torch does not see the GPU that the rank has.
    """
    if not worker_session.get_session("torch.get_devices").info.use_gpu:
        return [torch.device("cpu")]
    pick_cuda_device()  # raises if there is none
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def list_ddp_options(parameters: Iterable[torch.nn.Parameter], device: torch.device) -> dict[str, Any]:
    """Return the arguments of DistributedDataParallel for a model on a rank's device: it then also moves the inputs."""
    is_there = device.type == "cuda" and all(parameter.device == device for parameter in parameters)
    return {"device_ids": [device], "output_device": device} if is_there else {}


def pick_cuda_device() -> torch.device:
    """Return this process's first GPU. Each rank sees only the GPUs that it holds."""
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"use_gpu=True, but torch {torch.__version__} sees no CUDA device in this rank. Install a torch built for "
            "CUDA, or set ScalingConfig(use_gpu=False)."
        )
    return torch.device("cuda", 0)
