"""Joins the ranks into a torch process group.

The ranks find each other through torch's `FileStore`, so nothing listens for that. The file has no name: it is a memfd of the
process that called `fit`, which the ranks open below ``/proc``. It is gone when that process is, however it ends. What gloo
itself opens, a socket a rank, is bound to the loopback interface unless the user's GLOO_SOCKET_IFNAME says otherwise.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from dataclasses import dataclass
from typing import final

import torch
import torch.distributed as dist

from hocket.train import backend, worker_group
from hocket.train.torch import devices


@final
@dataclass(frozen=True, kw_only=True)
class TorchConfig(backend.BackendConfig):
    """How the ranks' process group is set up.

    Raises:
        ValueError: `timeout_s` is not positive.
    """

    backend: str | None = None
    """A backend of torch.distributed. Default: ``"nccl"`` if `ScalingConfig.use_gpu`, else ``"gloo"``."""
    timeout_s: float = 1800
    """Seconds that a collective may take. Ray's default."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ValueError(
                f"timeout_s must be more than 0 seconds, but received {self.timeout_s!r}. Leave it out for 1800."
            )

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Join the ranks, and set torch up in each."""
        name = self.backend or ("nccl" if group.scaling.use_gpu else "gloo")
        num_threads = max(1, int(group.scaling.bundle.get("CPU", 1)))
        descriptor = os.memfd_create("hocket-rendezvous")
        group.resources.callback(os.close, descriptor)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"  # where other processes of the same user open it
        group.execute(
            _join,
            [
                (path, name, self.timeout_s, rank, len(group), num_threads, group.scaling.use_gpu)
                for rank in range(len(group))
            ],
        )

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Take the process group apart."""
        group.execute(_leave, [()] * len(group))


def _join(path: str, name: str, timeout_s: float, rank: int, world_size: int, num_threads: int, use_gpu: bool) -> None:
    """Called in each rank. Sets the environment variables that torchrun sets, but for the address of its store."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        GROUP_RANK="0",
    )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform.startswith("linux") else "lo0")
    torch.set_num_threads(num_threads)
    if use_gpu:
        torch.cuda.set_device(devices.pick_cuda_device())
    dist.init_process_group(
        name,
        store=dist.FileStore(path, world_size),  # type: ignore[attr-defined]  # exported at run time
        rank=rank,
        world_size=world_size,
        timeout=dt.timedelta(seconds=timeout_s),
    )


def _leave() -> None:
    if dist.is_initialized():  # the training function may have done it
        dist.destroy_process_group()
