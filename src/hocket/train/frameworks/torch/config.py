"""Joins the ranks in a torch process group: over shared memory (`hocket.collective.torch`), NCCL, gloo, or a backend
that the user names.

`rendezvous` lets the ranks find each other. gloo itself opens a socket in each rank. It binds that to the loopback
interface if all ranks are on one machine, otherwise to the interface that has the node's address. The user's
GLOO_SOCKET_IFNAME takes precedence.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from hocket import keywords
from hocket._base import internals
from hocket._base.internals import torch as torch_internals
from hocket.collective import torch as collective_torch
from hocket.collective import turns
from hocket.train import strategies
from hocket.train.frameworks.torch import devices, rendezvous
from hocket.train.frameworks.torch import strategies as torch_strategies
from hocket.train.rank import rank_placement
from hocket.train.run import backend, joining, worker_group

_PRELOADED: Final = "hocket.train.frameworks.torch.preload"

_CALLED: Final = (
    "hocket.train.torch",
    *(f"hocket.train.frameworks.torch.{name}" for name in ("loaders", "models", "optimizers")),
)

_COMPILER: Final = internals.TORCH_COMPILER


@final
@keywords.explained()
@dataclass(frozen=True)
class TorchConfig(backend.BackendConfig):
    """The setup of the ranks' process group.

    Raises:
        ValueError: `timeout_s` is not positive, or the `init_method` is unknown.
    """

    backend: str | None = None
    """A backend of torch.distributed. Default: ``"hocket"``, which reduces in memory that the ranks of a machine share,
    and between machines over gloo; if `ScalingConfig.use_gpu`, ``"cpu:hocket,cuda:nccl"``, which leaves the tensors on
    GPUs to NCCL, or to gloo if ranks share a GPU, since NCCL refuses that."""
    init_method: str = "env"
    """For programs written for Ray, where ``"env"`` and ``"tcp"`` say how the ranks find each other. Hocket ignores
    it."""
    timeout_s: float = 1800
    """Seconds that a collective may take. Ray's default."""

    def __post_init__(self) -> None:
        if self.init_method not in ("env", "tcp"):
            raise ValueError(f"init_method must be 'env' or 'tcp', but received {self.init_method!r}. Leave it out.")
        if not self.timeout_s > 0:
            raise ValueError(
                f"timeout_s must be more than 0 seconds, but received {self.timeout_s!r}. Leave it out for 1800."
            )

    def list_modules(self, function: Callable[..., object]) -> Sequence[str]:
        """Return the modules that training functions call, those of the strategy, and torch's compiler, which an
        optimizer loads in its first step."""
        strategy = getattr(function, "strategy", None) or strategies.AllReduce()
        needed = [_PRELOADED, *super().list_modules(function), *_CALLED, *filter(None, [strategy.hosted_by])]
        needed += [module for kind, module in torch_strategies.MODULES.items() if type(strategy) is kind]
        return [*needed, _COMPILER]

    @contextlib.contextmanager
    def share_process(self) -> Iterator[Sequence[turns.Local]]:
        """Let ranks share the process, each with its own random numbers and process groups.

        Raises:
            ValueError: The backend waits without passing the turn to other ranks.
        """
        if self.backend not in (None, collective_torch.NAME):
            raise ValueError(
                f"TorchConfig(backend={self.backend!r}) needs ranks that are processes, but the ranks of the "
                "in-process engine take turns. Leave the backend out, or open the session with "
                "hocket.init(engine='local')."
            )
        torch_internals.isolate_threads(True)
        try:
            yield _LOCALS
        finally:
            torch_internals.isolate_threads(False)

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Join the ranks, and set torch up in each."""
        name = self.backend or choose_backend(group.scaling.use_gpu, group.places)
        num_threads = max(1, int(group.scaling.bundle.get("CPU", 1)))
        meeting = rendezvous.arrange(group, self.timeout_s)
        addresses = joining.find_addresses(group)
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


def choose_backend(use_gpu: bool, places: Iterable[rank_placement.RankPlacement] = ()) -> str:
    """Return the default backend of the ranks' process group. NCCL alone has no collectives for tensors on the host.

    Args:
        use_gpu: Whether ranks have GPUs.
        places: The places of the ranks, if they may share GPUs.
    """
    if not use_gpu:
        return collective_torch.NAME
    held = [(place.node_id, gpu) for place in places for gpu in place.introduction.gpu_ids]
    return f"cpu:{collective_torch.NAME},cuda:{'nccl' if len(set(held)) == len(held) else 'gloo'}"


def _join(
    meeting: rendezvous.Meeting,
    name: str,
    timeout_s: float,
    rank: int,
    world_size: int,
    place: rank_placement.RankPlacement,
    address: str,
    num_threads: int,
    use_gpu: bool,
) -> None:
    """Join a rank. Sets the environment variables that torchrun sets, except the address of its store."""
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
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)  # NCCL listens on the outer address otherwise
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
    if dist.is_initialized():  # the training function may have destroyed the group
        dist.destroy_process_group()


# --- ranks in one process ---------------------------------------------------------------------------------------------


def _take_groups() -> dict[str, object]:
    return {name: getattr(distributed_c10d, name) for name in torch_internals.GROUP_GLOBALS}


def _put_groups(kept: dict[str, object]) -> None:
    for name, value in kept.items():
        setattr(distributed_c10d, name, value)


def _build_groups() -> dict[str, object]:
    return {name: type(value)() if value is not None else None for name, value in _take_groups().items()}


_LOCALS: Final = (
    turns.Local(_take_groups, _put_groups, _build_groups),
    turns.Local(torch.get_rng_state, torch.set_rng_state),
    turns.Local(torch.get_num_threads, torch.set_num_threads),
)
