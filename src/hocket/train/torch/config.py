"""Joins the ranks into a torch process group: over shared memory (`hocket.collective.torch`), NCCL, gloo, or what the user names.

How the ranks find each other is the matter of `rendezvous`. What gloo itself opens, a socket a rank, is bound to the loopback interface if all
ranks are on one machine, else to the interface that has the node's address, unless the user's GLOO_SOCKET_IFNAME says otherwise.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
import torch.distributed as dist

from hocket.collective import torch as collective_torch
from hocket.train import backend, places, worker_group
from hocket.train.torch import devices, mentions, rendezvous

_OURS: Final = "hocket.train.torch"

_COMPILER: Final = "torch._dynamo"


@final
@dataclass(frozen=True, kw_only=True)
class TorchConfig(backend.BackendConfig):
    """How the ranks' process group is set up.

    Raises:
        ValueError: `timeout_s` is not positive.
    """

    backend: str | None = None
    """A backend of torch.distributed. Default: ``"nccl"`` if `ScalingConfig.use_gpu`, else ``"hocket"``, which reduces in memory that the
    ranks of a machine share, and between machines over gloo."""
    timeout_s: float = 1800
    """Seconds that a collective may take. Ray's default."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ValueError(
                f"timeout_s must be more than 0 seconds, but received {self.timeout_s!r}. Leave it out for 1800."
            )

    def list_modules(self, function: Callable[..., Any]) -> Sequence[str]:
        """Return torch, and its compiler if the function names an optimizer: the first step of one loads it."""
        return (_OURS, _COMPILER) if mentions.finds(function, "torch.optim") else (_OURS,)

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Join the ranks, and set torch up in each."""
        name = self.backend or ("nccl" if group.scaling.use_gpu else collective_torch.NAME)
        num_threads = max(1, int(group.scaling.bundle.get("CPU", 1)))
        meeting = rendezvous.arrange(group, self.timeout_s)
        is_apart = len({place.node_id for place in group.places}) > 1
        addresses = rendezvous.get_addresses(group) if is_apart else [rendezvous.LOOPBACK] * len(group)
        group.execute(
            _join,
            [
                (meeting, name, self.timeout_s, rank, len(group), place, address, num_threads, group.scaling.use_gpu)
                for rank, (place, address) in enumerate(zip(group.places, addresses, strict=True))
            ],
        )

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Take the process group apart."""
        group.execute(_leave, [()] * len(group))


def _join(
    meeting: rendezvous.Meeting,
    name: str,
    timeout_s: float,
    rank: int,
    world_size: int,
    place: places.Place,
    address: str,
    num_threads: int,
    use_gpu: bool,
) -> None:
    """Called in each rank. Sets the environment variables that torchrun sets, but for the address of its store."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(place.local_rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(place.local_world_size),
        GROUP_RANK=str(place.node_rank),
    )
    interface = rendezvous.choose_interface(address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if address != rendezvous.LOOPBACK:  # inside a machine NCCL needs no network
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    collective_torch.register()
    torch.set_num_threads(num_threads)
    if use_gpu:
        torch.cuda.set_device(devices.pick_cuda_device())
    dist.init_process_group(
        name,
        store=rendezvous.open_store(meeting, world_size, timeout_s),
        rank=rank,
        world_size=world_size,
        timeout=dt.timedelta(seconds=timeout_s),
    )


def _leave() -> None:
    if dist.is_initialized():  # the training function may have done it
        dist.destroy_process_group()
