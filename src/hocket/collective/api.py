"""Collectives in actors and tasks, under the names of ``ray.util.collective``.

Ranks are processes of one machine. Tensors are numpy arrays, or objects whose memory numpy can share (torch tensors on
the CPU); they are changed in place. For several machines, and for dtypes that numpy lacks, use torch.distributed with
the backend ``"hocket"`` (`hocket.collective.torch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hocket.collective import errors, futex, host_group, rendezvous
from hocket.collective.arithmetic import ReduceOp
from hocket.core import actor, api

DEFAULT: Final = "default"
"""The default name of a group."""

JOIN_SECONDS = 60.0
"""Seconds that `init_collective_group` waits for the other ranks. A guess."""

TIMEOUT_SECONDS = 1800.0
"""Seconds that an operation waits for a rank. torch's default."""

_BACKENDS = ("hocket", "gloo")


_groups: dict[str, tuple[host_group.HostGroup, rendezvous.ActorStore]] = {}
"""The groups of this process by name. Each keeps its store, because the store's actor ends with the last store."""


def init_collective_group(
    world_size: int, rank: int, backend: str = "hocket", group_name: str = DEFAULT, gloo_timeout: int = 30000
) -> None:
    """Join a group, and wait until all ranks have joined. Each process of the group calls this function.

    Args:
        world_size: The number of ranks.
        rank: This process's number, from 0.
        backend: ``"hocket"``. ``"gloo"``, Ray's name for tensors on the CPU, means the same here. Case does not matter.
        group_name: The group's name in this session.
        gloo_timeout: For compatibility with Ray; ignored.

    Raises:
        ValueError: A number is out of range, another process has the rank, or the backend is unknown.
        RuntimeError: This process is in a group of that name already.
        CollectiveTimeoutError: Not all ranks have joined in time.
        CollectiveError: The ranks are on several machines.

    Example:
        >>> import hocket, numpy as np
        >>> from hocket import collective
        >>> @hocket.remote(num_cpus=0.5)
        ... def add(rank):
        ...     collective.init_collective_group(2, rank)
        ...     values = np.full(3, rank + 1.0)
        ...     collective.allreduce(values)
        ...     collective.destroy_collective_group()
        ...     return values.tolist()
        >>> with hocket.init(num_cpus=2):
        ...     print(hocket.get([add.remote(rank) for rank in range(2)]))
        [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
    """
    if not is_backend_available(backend):
        raise ValueError(
            f"backend must be one of {list(_BACKENDS)}, but received {backend!r}. For GPUs use torch.distributed with "
            "'nccl'."
        )
    if group_name in _groups:
        raise RuntimeError(
            f"This process is in the group {group_name!r} already. Call destroy_collective_group({group_name!r}) "
            "first, or choose another name."
        )
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"rank must be one of 0 to world_size - 1, but received rank={rank} of world_size={world_size}."
        )
    if not futex.is_available():
        raise errors.CollectiveError(
            "Shared-memory collectives need Linux. Use torch.distributed with the backend 'gloo' on this system."
        )
    store = rendezvous.ActorStore(
        f"hocket-collective/{group_name}",
        world_size,
        timeout_s=JOIN_SECONDS,
        remedy="All ranks must call init_collective_group with the same group_name and world_size.",
    )
    found = store.get_size()
    if found != world_size:
        raise ValueError(
            f"world_size={world_size}, but another rank made the group {group_name!r} with world_size={found}. All "
            "ranks must give the same world_size."
        )
    hosts = rendezvous.list_hosts(store, rank, world_size)
    if len(hosts) > 1:
        raise errors.CollectiveError(
            f"The ranks of {group_name!r} are on {len(hosts)} machines: {hosts}. Across machines use "
            "torch.distributed with the backend 'hocket', as TorchTrainer sets it up."
        )
    group = rendezvous.join(store, rank, range(world_size), timeout_s=TIMEOUT_SECONDS)
    _groups[group_name] = group, store


def create_collective_group(
    actors: Sequence[actor.ActorHandle],
    world_size: int,
    ranks: Sequence[int],
    backend: str = "hocket",
    group_name: str = DEFAULT,
    gloo_timeout: int = 30000,
) -> None:
    """Make a group of actors, from outside of them; wait until all have joined.

    Args:
        actors: The actors' handles, one for each rank.
        world_size: The number of ranks.
        ranks: The rank of each actor.
        backend: See `init_collective_group`.
        group_name: The group's name in this session.
        gloo_timeout: For compatibility with Ray; ignored.

    Raises:
        ValueError: There is not one rank for each actor, or the ranks are not 0 to world_size - 1.

    Example:
        >>> import hocket, numpy as np
        >>> from hocket import collective
        >>> @hocket.remote(num_cpus=0.5)
        ... class Member:
        ...     def sum(self, value):
        ...         values = np.array([value])
        ...         collective.allreduce(values, "pair")
        ...         return values.tolist()
        >>> with hocket.init(num_cpus=2):
        ...     members = [Member.remote(), Member.remote()]
        ...     collective.create_collective_group(members, 2, [0, 1], group_name="pair")
        ...     print(hocket.get([member.sum.remote(value) for member, value in zip(members, [2, 3])]))
        [[5], [5]]
    """
    if len(actors) != world_size or sorted(ranks) != list(range(world_size)):
        raise ValueError(
            f"There must be one actor and one rank for each of 0 to {world_size - 1}, but received {len(actors)} "
            f"actors and ranks {list(ranks)}."
        )
    api.get(
        [
            handle.__ray_call__.remote(_join_from_outside, world_size, rank, backend, group_name)
            for handle, rank in zip(actors, ranks, strict=True)
        ]
    )


def _join_from_outside(_: object, world_size: int, rank: int, backend: str, group_name: str) -> None:
    init_collective_group(world_size, rank, backend, group_name)


def is_backend_available(backend: str) -> bool:
    """Tell whether groups with a backend can be made.

    Example:
        >>> from hocket import collective
        >>> collective.is_backend_available("GLOO"), collective.is_backend_available("nccl")
        (True, False)
    """
    return str(backend).lower().removeprefix("torch_") in _BACKENDS


def is_group_initialized(group_name: str = DEFAULT) -> bool:
    """Tell whether this process is in a group of that name.

    Example:
        >>> from hocket import collective
        >>> collective.is_group_initialized("nobody's")
        False
    """
    return group_name in _groups


def destroy_collective_group(group_name: str = DEFAULT) -> None:
    """Leave a group. The other ranks must leave it, too: a rank that waits for this one gets an error.

    Raises:
        RuntimeError: This process is not in the group.
    """
    group = _find(group_name)
    del _groups[group_name]
    group.close()


def get_rank(group_name: str = DEFAULT) -> int:
    """Return this process's rank; -1 if it is not in the group.

    Example:
        >>> from hocket import collective
        >>> collective.get_rank("nobody's")
        -1
    """
    return _groups[group_name][0].rank if group_name in _groups else -1


def get_collective_group_size(group_name: str = DEFAULT) -> int:
    """Return the number of ranks in a group; -1 if this process is not in the group.

    Example:
        >>> from hocket import collective
        >>> collective.get_collective_group_size("nobody's")
        -1
    """
    return _groups[group_name][0].size if group_name in _groups else -1


def allreduce(tensor: object, group_name: str = DEFAULT, op: ReduceOp = ReduceOp.SUM) -> None:
    """Put the sum of all ranks' tensors, or their combination by `op`, into each tensor.

    Sums are made in the order of the ranks, so they have the same bits in all ranks and in each run.

    Args:
        tensor: A tensor of equal shape and dtype in all ranks.
        group_name: The group.
        op: A `ReduceOp`. ``MEAN`` needs floats.

    Raises:
        RuntimeError: This process is not in the group.
        ValueError: The tensor cannot be changed in place.
        CollectiveError: A rank died, called another operation, or did not come.
    """
    group = _find(group_name)
    if group.size > 1:
        group.all_reduce(_as_array(tensor), ReduceOp(op))


def reduce(tensor: object, dst_rank: int = 0, group_name: str = DEFAULT, op: ReduceOp = ReduceOp.SUM) -> None:
    """Put the sum of all ranks' tensors, or their combination by `op`, into one rank's tensor only.

    Raises the errors of `allreduce`.
    """
    group = _find(group_name)
    _check_rank("dst_rank", dst_rank, group)
    if group.size > 1:
        group.reduce(_as_array(tensor), dst_rank, ReduceOp(op))


def broadcast(tensor: object, src_rank: int = 0, group_name: str = DEFAULT) -> None:
    """Put one rank's tensor into the tensor of each rank.

    Raises the errors of `allreduce`.
    """
    group = _find(group_name)
    _check_rank("src_rank", src_rank, group)
    if group.size > 1:
        array = _as_array(tensor)
        group.broadcast(array.view(np.uint8), src_rank, str(array.dtype))


def allgather(tensor_list: Sequence[object], tensor: object, group_name: str = DEFAULT) -> None:
    """Put each rank's tensor into the list item with the rank's number, in all ranks.

    Args:
        tensor_list: As many tensors as there are ranks, of the shape and dtype of `tensor`.
        tensor: This rank's tensor.
        group_name: The group.

    Raises the errors of `allreduce`.
    """
    group = _find(group_name)
    array = _as_array(tensor, is_changed=False)
    arrays = _as_arrays("tensor_list", tensor_list, array, group)
    if group.size == 1:
        np.copyto(arrays[0], array)
        return
    group.all_gather([target.view(np.uint8) for target in arrays], array.view(np.uint8), str(array.dtype))


def reducescatter(
    tensor: object, tensor_list: Sequence[object], group_name: str = DEFAULT, op: ReduceOp = ReduceOp.SUM
) -> None:
    """Put the sum of the list items with this rank's number, over all ranks, into this rank's tensor.

    Args:
        tensor: Receives the result.
        tensor_list: As many tensors as there are ranks, of the shape and dtype of `tensor`.
        group_name: The group.
        op: A `ReduceOp`.

    Raises the errors of `allreduce`.
    """
    group = _find(group_name)
    array = _as_array(tensor)
    arrays = _as_arrays("tensor_list", tensor_list, array, group, is_changed=False)
    if group.size == 1:
        np.copyto(array, arrays[0])
        return
    group.reduce_scatter(array, arrays, ReduceOp(op))


def send(tensor: object, dst_rank: int, group_name: str = DEFAULT) -> None:
    """Send a tensor to one rank, which must call `recv`. Returns when the message is on its way.

    Raises the errors of `allreduce`.
    """
    group = _find(group_name)
    _check_rank("dst_rank", dst_rank, group)
    array = _as_array(tensor, is_changed=False)
    group.finish(group.messages.send(array.view(np.uint8), dst_rank, 0), dst_rank)


def recv(tensor: object, src_rank: int, group_name: str = DEFAULT) -> None:
    """Receive a tensor from one rank, into a tensor of the same size.

    Raises the errors of `allreduce`.
    """
    group = _find(group_name)
    _check_rank("src_rank", src_rank, group)
    group.finish(group.messages.receive(_as_array(tensor).view(np.uint8), src_rank, 0), src_rank)


def barrier(group_name: str = DEFAULT) -> None:
    """Wait until all ranks have called this function.

    Raises the errors of `allreduce`.
    """
    group = _find(group_name)
    if group.size > 1:
        group.barrier()


def _find(group_name: str) -> host_group.HostGroup:
    member = _groups.get(group_name)
    if member is None:
        raise RuntimeError(
            f"This process is not in a group {group_name!r}; it is in {sorted(_groups)}. Call "
            f"init_collective_group(world_size, rank, group_name={group_name!r}) in each rank first."
        )
    return member[0]


def _check_rank(name: str, rank: int, group: host_group.HostGroup) -> None:
    if not 0 <= rank < group.size:
        raise ValueError(f"{name} must be one of 0 to {group.size - 1}, but received {rank!r}.")


def _as_arrays(
    name: str, tensors: Sequence[object], one: Any, group: host_group.HostGroup, *, is_changed: bool = True
) -> list[Any]:
    if len(tensors) != group.size:
        raise ValueError(f"{name} must have one tensor for each of {group.size} ranks, but received {len(tensors)}.")
    arrays = [_as_array(tensor, is_changed=is_changed) for tensor in tensors]
    if any(array.dtype != one.dtype or array.size != one.size for array in arrays):
        raise ValueError(
            f"All tensors must have the size and dtype of `tensor`, {one.size} x {one.dtype}, but {name} has "
            f"{[f'{array.size} x {array.dtype}' for array in arrays]}."
        )
    return arrays


def _as_array(tensor: object, *, is_changed: bool = True) -> Any:
    """Return a flat array that shares a tensor's memory. For a tensor that is only read, it may be numpy's copy."""
    array = np.asarray(tensor)
    if is_changed and type(tensor) is not np.ndarray and array.size:
        again = np.asarray(tensor)
        if not np.may_share_memory(array, again):
            raise ValueError(
                "A tensor that an operation changes must share its memory with numpy, but received "
                f"{type(tensor).__name__}, which numpy copies: the result would be lost. Write tensor = "
                "numpy.array(tensor) before."
            )
    if not array.flags.c_contiguous or not array.flags.writeable or array.dtype.hasobject:
        raise ValueError(
            f"A tensor must be contiguous, writable memory of numbers, but received {type(tensor).__name__} of shape "
            f"{array.shape}, {array.dtype}{', read-only' if not array.flags.writeable else ''}. Pass a copy: "
            "numpy.array(tensor)."
        )
    return array.reshape(-1)
