"""The hosts of a process group's ranks: shared memory inside each host, gloo between them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import torch
import torch.distributed as dist

from hocket.collective import rendezvous, turns
from hocket.collective.arithmetic import Arithmetic, ReduceOp
from hocket.collective.torch import tensors


@final
class TorchStore:
    """An adapter of a torch store to the protocol of `hocket.collective.rendezvous`."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def write(self, key: str, text: str) -> None:
        """See `rendezvous.Store`."""
        self._store.set(key, text or " ")

    def read(self, key: str) -> str:
        """See `rendezvous.Store`."""
        ours = turns.get_optional_turns()
        if ours is not None:  # torch would keep the turn during its wait
            ours.wait(lambda: bool(self._store.check([key])), f"waits for {key!r}", needs_rank=True)
        text: str = self._store.get(key).decode()
        return text


@final
class Hosts:
    """The hosts of a process group's ranks. Its operations are for ranks on several hosts.

    Args:
        store: The store where the ranks meet.
        rank: This rank.
        size: The number of ranks.
        timeout: The time that an operation may wait for a rank.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: dt.timedelta) -> None:
        self._rank = rank
        self._size = size
        # A later group may get the same store, as after `destroy_process_group`, so each rank counts its groups.
        self._store: Any = dist.distributed_c10d.PrefixStore(f"meeting-{store.add(f'meetings/{rank}', 1)}", store)
        self._timeout = timeout
        words = TorchStore(self._store)
        self._hosts = rendezvous.list_hosts(words, rank, size)
        self._host_of = {other: number for number, host in enumerate(self._hosts) for other in host}
        mine = self._hosts[self._host_of[rank]]
        #: The group of this host's ranks.
        self.local: Final[Any] = (
            rendezvous.join(words, rank, mine, timeout_s=timeout.total_seconds()) if len(mine) > 1 else _Alone()
        )
        self.is_apart: Final = len(self._hosts) > 1
        #: The group of the hosts' first ranks, in those ranks; None in the others.
        self._leaders = (
            self._build_gloo("leaders", self._host_of[rank], len(self._hosts))
            if self.is_apart and mine[0] == rank
            else None
        )
        self._world: object = None

    def _build_gloo(self, name: str, rank: int, size: int) -> Any:
        return dist.ProcessGroupGloo(dist.PrefixStore(name, self._store), rank, size, self._timeout)  # type: ignore[attr-defined]

    @property
    def world(self) -> Any:
        """All ranks over gloo, for operations outside shared memory."""
        if self._world is None:
            self._world = self._build_gloo("world", self._rank, self._size)
        return self._world

    def all_reduce(self, flat: object, op: ReduceOp, calc: Arithmetic) -> None:
        """Put the sum of all ranks' arrays, or their combination by `op`, into each array."""
        inner = ReduceOp.SUM if op is ReduceOp.MEAN else op
        self.local.reduce(flat, 0, inner, calc)
        if self._leaders is not None:
            whole = tensors.as_tensor(flat)
            self._leaders.allreduce([whole], tensors.build_options(dist.AllreduceOptions(), inner)).wait()
            if op is ReduceOp.MEAN:
                whole.div_(self._size)
        self.local.broadcast(tensors.as_bytes(tensors.as_tensor(flat)), 0)

    def reduce(self, tensor: torch.Tensor, op: ReduceOp, root: int) -> None:
        """Put the sum of all ranks' tensors, or their combination by `op`, into the root's tensor."""
        options = tensors.build_options(dist.ReduceOptions(), ReduceOp.SUM if op is ReduceOp.MEAN else op)
        options.rootRank = root
        self.world.reduce([tensor], options).wait()
        if op is ReduceOp.MEAN and self._rank == root:
            tensor.div_(self._size)

    def broadcast(self, whole: torch.Tensor, data: Any, root: int, dtype: str) -> None:
        """Put the root's tensor into the tensor of each rank; `data` are the bytes of this rank's tensor."""
        home = self._host_of[root]
        is_home = self._host_of[self._rank] == home
        if is_home:
            self.local.broadcast(data, self._hosts[home].index(root), dtype)
        if self._leaders is not None:
            options = dist.BroadcastOptions()
            options.rootRank = home
            self._leaders.broadcast([whole], options).wait()
        if not is_home:
            self.local.broadcast(data, 0, dtype)


class _Alone:
    """The group of a rank that is alone on its host."""

    def all_reduce(self, *_: object) -> None: ...

    def reduce(self, *_: object) -> None: ...

    def broadcast(self, *_: object) -> None: ...

    def barrier(self) -> None: ...

    def all_gather(self, targets: Sequence[Any], array: Any, *_: object) -> None:
        np.copyto(targets[0], array)

    def gather(self, targets: Sequence[Any], array: Any, *_: object) -> None:
        np.copyto(targets[0], array)

    def scatter(self, target: Any, sources: Sequence[Any], *_: object) -> None:
        np.copyto(target, sources[0])

    def all_to_all(self, targets: Sequence[Any], sources: Sequence[Any], *_: object) -> None:
        np.copyto(targets[0], sources[0])

    def reduce_scatter(self, target: object, sources: Sequence[object], op: ReduceOp, calc: Arithmetic) -> None:
        calc.copy(target, sources[0])

    def close(self) -> None: ...
