"""The process group of the backend ``"hocket"``."""

from __future__ import annotations

import datetime as dt
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
import torch
import torch.distributed as dist

from hocket._base import internals
from hocket._base.internals import torch as torch_internals
from hocket.collective import arithmetic, host_group, point_to_point
from hocket.collective.arithmetic import ReduceOp
from hocket.collective.torch import hosts, tensors, traffic

NAME: Final = "hocket"
"""The backend's name."""

_MAX_SPARSE_DIMS: Final = 32
"""Number of dimensions that a sparse tensor may have."""


def register() -> None:
    """Register the backend with torch.distributed. May be called repeatedly."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, ProcessGroup, devices=["cpu"])


@final
class ProcessGroup(dist.ProcessGroup):
    """A process group of torch over shared memory.

    Made by ``dist.init_process_group("hocket")`` and ``dist.new_group``.

    Args:
        store: The store where the ranks meet.
        rank: This rank.
        size: The number of ranks.
        timeout: The time that an operation may wait for a rank.
    """

    def __init__(self, store: object, rank: int, size: int, timeout: dt.timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the constructor for Python subclasses
        self._rank = rank
        self._size = size
        self._name = self._description = ""
        self._hosts = hosts.Hosts(store, rank, size, timeout)
        self._local: Any = self._hosts.local
        self._is_apart = self._hosts.is_apart

    # --- torch's queries ----------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return NAME

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices for tensors; torch.distributed.checkpoint moves tensors to the first before a broadcast."""
        return [torch.device("cpu")]

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description

    def shutdown(self) -> None:
        """Leave the group."""
        self._local.close()

    def abort(self) -> None:
        """Leave the group. A rank that waits for this one gets an error."""
        self._local.close()

    def supports_splitting(self) -> bool:
        return False

    # --- reductions ---------------------------------------------------------------------------------------------------

    def allreduce(self, given: list[torch.Tensor], opts: object = None) -> dist.Work:
        op = tensors.find_op(opts)
        for tensor in given:
            if tensor.layout is torch.sparse_coo:
                _reduce_sparse(self, tensor, op)
                continue
            traffic.count("all-reduce", tensor, 2 * (self._size - 1), self._size)
            inner, is_mean = tensors.split_mean(op, tensor)
            self._all_reduce(tensor, inner)
            if is_mean:
                tensors.divide_whole(tensor, self._size)
        return _Done(given)

    def allreduce_coalesced(self, given: list[torch.Tensor], opts: object = None) -> dist.Work:
        return self.allreduce(given, opts)

    def _all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        flat = tensors.lay_flat(tensor)
        array, calc = tensors.as_array(flat)
        (self._hosts if self._is_apart else self._local).all_reduce(array, op, calc)
        tensors.put_back(tensor, flat)

    def reduce(self, given: list[torch.Tensor], opts: Any) -> dist.Work:
        op = tensors.find_op(opts)
        for tensor in given:
            inner, is_whole_mean = tensors.split_mean(op, tensor)
            if self._is_apart:
                self._hosts.reduce(tensor, inner, opts.rootRank)
            else:
                flat = tensors.lay_flat(tensor)
                array, calc = tensors.as_array(flat)
                self._local.reduce(array, opts.rootRank, inner, calc)
                if self._rank == opts.rootRank:
                    tensors.put_back(tensor, flat)
            if is_whole_mean and self._rank == opts.rootRank:
                tensors.divide_whole(tensor, self._size)
        return _Done(given)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: object = None
    ) -> dist.Work:
        for output, parts in zip(outputs, inputs, strict=True):
            self._reduce_scatter(output, parts, opts)
        return _Done(outputs)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: object = None
    ) -> dist.Work:
        for output, whole in zip(outputs, inputs, strict=True):
            self._reduce_scatter(output, whole.contiguous().view(-1).chunk(self._size), opts)
        return _Done(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, whole: torch.Tensor, opts: object = None) -> dist.Work:
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]  # their names before torch 2.13
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]  # the same

    def _reduce_scatter(self, output: torch.Tensor, parts: Sequence[torch.Tensor], opts: object) -> None:
        if any(part.numel() != output.numel() for part in parts):
            raise ValueError(
                f"reduce_scatter needs parts of the output's size, {output.numel()}, but received "
                f"{[part.numel() for part in parts]}. Pad them."
            )
        traffic.count("reduce-scatter", output, self._size - 1)
        op, is_whole_mean = tensors.split_mean(tensors.find_op(opts), output)
        if self._is_apart:
            # gloo takes no mean in all versions; adding up everything costs more and always works
            whole = torch.cat([part.reshape(-1) for part in parts])
            self._all_reduce(whole, op)
            output.copy_(whole.chunk(self._size)[self._rank].view(output.shape))
        else:
            flat = tensors.lay_flat(output)
            array, calc = tensors.as_array(flat)
            sources = [tensors.as_array(tensors.lay_flat(part))[0] for part in parts]
            self._local.reduce_scatter(array, sources, op, calc)
            tensors.put_back(output, flat)
        if is_whole_mean:
            tensors.divide_whole(output, self._size)

    # --- moving -------------------------------------------------------------------------------------------------------

    def broadcast(self, given: list[torch.Tensor], opts: Any) -> dist.Work:
        root = opts.rootRank
        for tensor in given:
            whole = tensors.lay_out(tensor)
            data, dtype = tensors.as_bytes(whole), str(tensor.dtype)
            if self._is_apart:
                self._hosts.broadcast(whole, data, root, dtype)
            else:
                self._local.broadcast(data, root, dtype)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.copy_(whole)
        return _Done(given)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: object = None
    ) -> dist.Work:
        for tensor in inputs:
            traffic.count("all-gather", tensor, self._size - 1)
        if self._is_apart:
            return self._hosts.world.allgather(outputs, inputs)  # type: ignore[no-any-return]
        for targets, tensor in zip(outputs, inputs, strict=True):
            with tensors.Targets(targets) as arrays:
                self._local.all_gather(arrays, tensors.as_bytes(tensors.lay_out(tensor)), str(tensor.dtype))
        return _Done([tensor for targets in outputs for tensor in targets])

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: object = None
    ) -> dist.Work:
        for output, tensor in zip(outputs, inputs, strict=True):
            if output.is_contiguous():
                self.allgather([list(output.detach().view(-1).chunk(self._size))], [tensor.reshape(-1)])
            else:
                whole = output.contiguous()
                self.allgather([list(whole.view(-1).chunk(self._size))], [tensor.reshape(-1)])
                output.copy_(whole)
        return _Done(outputs)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: object = None) -> dist.Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    _allgather_base = all_gather_single  # type: ignore[assignment]  # their names before torch 2.13
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]  # the same

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: object = None
    ) -> dist.Work:
        for number, tensor in enumerate(inputs):
            self.allgather([[targets[number] for targets in outputs]], [tensor])
        return _Done([tensor for targets in outputs for tensor in targets])

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> dist.Work:
        if self._is_apart:
            return self._hosts.world.gather(outputs, inputs, opts)  # type: ignore[no-any-return]
        with tensors.Targets(outputs[0] if outputs else ()) as arrays:
            self._local.gather(
                arrays, tensors.as_bytes(tensors.lay_out(inputs[0])), opts.rootRank, str(inputs[0].dtype)
            )
        return _Done(inputs)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> dist.Work:
        if self._is_apart:
            return self._hosts.world.scatter(outputs, inputs, opts)  # type: ignore[no-any-return]
        sources = [tensors.as_bytes(tensors.lay_out(tensor)) for tensor in inputs[0]] if inputs else []
        with tensors.Targets(outputs[:1]) as (target,):
            self._local.scatter(target, sources, opts.rootRank, str(outputs[0].dtype))
        return _Done(outputs)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: object = None) -> dist.Work:
        for output in outputs[: self._rank] + outputs[self._rank + 1 :]:
            traffic.count("all-to-all", output, 1)
        sizes = {tensor.numel() * tensor.element_size() for tensor in (*outputs, *inputs)}
        if self._is_apart or len(sizes) > 1:
            self._exchange_messages(outputs, inputs)
        else:
            sources = [tensors.as_bytes(tensors.lay_out(tensor)) for tensor in inputs]
            with tensors.Targets(outputs) as arrays:
                self._local.all_to_all(arrays, sources, str(outputs[0].dtype))
        return _Done(outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: object = None,
    ) -> dist.Work:
        for which, given, sizes in (("output", output, output_sizes), ("input", tensor, input_sizes)):
            if not sizes and len(given) % self._size:
                raise ValueError(
                    f"all_to_all_single() has no {which}_split_sizes, so {self._size} ranks must share the rows of the "
                    f"{which} evenly, but there are {len(given)} rows. Pass {which}_split_sizes, or pad the tensor."
                )
        whole = tensors.lay_out(output)
        self.alltoall(
            list(torch.split(whole, output_sizes) if output_sizes else whole.chunk(self._size)),
            list(torch.split(tensor, input_sizes) if input_sizes else tensor.chunk(self._size)),
        )
        if whole.data_ptr() != output.data_ptr():
            output.copy_(whole)
        return _Done([output])

    alltoall_base = all_to_all_single  # type: ignore[assignment]  # the same

    def _exchange_messages(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        outputs[self._rank].copy_(inputs[self._rank])
        others = [other for other in range(self._size) if other != self._rank]
        works = [self.send([inputs[other]], other, -2) for other in others if inputs[other].numel()]
        works += [self.recv([outputs[other]], other, -2) for other in others if outputs[other].numel()]
        for work in works:
            work.wait()

    def barrier(self, opts: object = None) -> dist.Work:
        if self._is_apart:
            self._hosts.all_reduce(np.zeros(1, np.uint8), ReduceOp.SUM, arithmetic.NUMPY)
        else:
            self._local.barrier()
        return _Done([])

    # --- messages -----------------------------------------------------------------------------------------------------

    def send(self, given: list[torch.Tensor], target: int, tag: int = 0) -> dist.Work:
        if self._is_apart:
            return self._hosts.world.send(given, target, max(tag, 0))  # type: ignore[no-any-return]
        data = tensors.as_bytes(tensors.lay_out(given[0]))
        return _Message(self._local, self._local.messages.send(data, target, tag), target)

    def recv(self, given: list[torch.Tensor], source: int, tag: int = 0) -> dist.Work:
        if self._is_apart:
            return self._hosts.world.recv(given, source, max(tag, 0))  # type: ignore[no-any-return]
        tensor = given[0].detach()
        whole = tensors.lay_out(tensor)
        transfer = self._local.messages.receive(tensors.as_bytes(whole), source, tag)
        is_there = whole.data_ptr() == tensor.data_ptr()
        return _Message(self._local, transfer, source, None if is_there else tensor)

    def recv_anysource(self, given: list[torch.Tensor], tag: int = 0) -> dist.Work:
        """Receive from any rank; wait until one has sent."""
        if self._is_apart:
            return self._hosts.world.recv_anysource(given, max(tag, 0))  # type: ignore[no-any-return]
        return self.recv(given, self._local.find_sender(tag), tag)


@final
class _Done(dist.Work):
    """A handle of an operation that is over, as most are when their call returns."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        traffic.note_sizes(tensors)

    def wait(self, timeout: dt.timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True: a failed operation raises in the call itself."""
        return True

    def synchronize(self) -> None:
        """Do nothing: there is no stream."""

    def result(self) -> list[torch.Tensor]:
        """Return the operation's tensors."""
        return list(self._tensors)

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a completed future with the tensors."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(list(self._tensors))
        return future


@final
class _Message(dist.Work):
    """A handle of a message that may be under way."""

    def __init__(
        self,
        group: host_group.HostGroup,
        transfer: point_to_point.Transfer,
        other: int,
        target: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self._group = group
        self._transfer = transfer
        self._other = other
        #: The tensor to fill at the end, if it is not contiguous and a buffer receives the message.
        self._target = target
        self._received = torch.from_numpy(transfer.array)
        traffic.note_sizes([self._received])

    def wait(self, timeout: dt.timedelta | None = None) -> bool:
        """Wait until the message has been sent or received."""
        self._group.finish(self._transfer, self._other)
        target, self._target = self._target, None
        if target is not None:
            target.copy_(self._received.view(target.dtype).view(target.shape))
        return True

    def is_completed(self) -> bool:
        """Return whether the message is over."""
        self._group.messages.progress()
        return self._transfer.is_done

    def is_success(self) -> bool:
        """Return whether the message is over, and has not failed."""
        return self._transfer.is_done and self._transfer.error is None

    def _source_rank(self) -> int:
        return self._other

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Wait; return a completed future with the tensor."""
        self.wait()
        return _Done([self._received]).get_future()


def _reduce_sparse(group: Any, tensor: torch.Tensor, op: ReduceOp) -> None:
    """Put the sum or the mean of all ranks' sparse tensors, of one shape, into each.

    This costs two messages: each rank's number of entries, and the entries, padded to the largest number. Each rank
    adds them up in the order of the ranks."""
    if op not in (ReduceOp.SUM, ReduceOp.MEAN):
        raise ValueError(
            f"Sparse tensors support only op=SUM and op=MEAN, but received op={op.name}. Make them dense with "
            ".to_dense() first."
        )
    own = tensor.detach().coalesce()
    facts = torch.zeros(_MAX_SPARSE_DIMS + 2, dtype=torch.int64)
    facts[: 2 + own.dim()] = torch.tensor([torch_internals.count_values(own), own.sparse_dim(), *own.shape])
    of_ranks = _gather(group, facts)
    if any(not torch.equal(one[1:], facts[1:]) for one in of_ranks):
        shapes = [tuple(one[2:][one[2:] > 0].tolist()) for one in of_ranks]
        raise ValueError(
            "All ranks must reduce tensors of the same shape and with the same number of sparse dimensions, but they "
            f"have {shapes}."
        )
    counts = [int(one[0]) for one in of_ranks]
    most = max(counts)
    if most:
        indices = _gather(group, _fill_up(own.indices().t(), most))
        values = _gather(group, _fill_up(own.values(), most))
        own = torch.sparse_coo_tensor(
            torch.cat([part[:count] for part, count in zip(indices, counts, strict=True)]).t(),
            torch.cat([part[:count] for part, count in zip(values, counts, strict=True)]),
            own.shape,
            check_invariants=False,
        ).coalesce()
        if op is ReduceOp.MEAN:
            own = own / group.size()
    with torch.no_grad():
        tensor.copy_(own)


def _fill_up(rows: torch.Tensor, count: int) -> torch.Tensor:
    whole = rows.new_zeros((count, *rows.shape[1:]))
    whole[: len(rows)] = rows
    return whole


def _gather(group: Any, tensor: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    group.allgather([parts], [tensor]).wait()
    return parts


# torch's compiler also compiles the callees of a compiled function, including those called from C++. The forward and
# backward pass of DistributedDataParallel in a compiled step call the process group, which the compiler cannot trace:
# it fails with an internal error. ``torch.compiler.disable`` exempts a method, but importing the compiler takes more
# than a second. So the methods are marked once the compiler is loaded, by the first operation outside compiled code
# after that. DistributedDataParallel imports it and broadcasts during its construction, so for training this is early
# enough. Open hole: a program that compiles its own ``dist.*`` calls, and has made none before outside compiled code.
def _spare_compiler(kind: type, *names: str) -> None:
    """Exempt a class's methods from the compiler, from the first call that finds the compiler loaded."""
    methods = {name: getattr(kind, name) for name in names}

    def mark() -> None:
        for name, method in methods.items():
            setattr(kind, name, torch.compiler.disable(method))  # type: ignore[no-untyped-call]

    for name, method in methods.items():
        setattr(kind, name, _watch(method, mark))


def _watch(method: Callable[..., object], mark: Callable[[], None]) -> Callable[..., object]:
    @functools.wraps(method)
    def call(self: object, *args: object, **kwargs: object) -> Any:
        if internals.TORCH_COMPILER in sys.modules:
            mark()
        return method(self, *args, **kwargs)

    return call


_spare_compiler(
    ProcessGroup,
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "gather", "scatter", "barrier", "send", "recv"),
    *("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "allgather", "allgather_coalesced", "all_gather_single", "_allgather_base"),
    *("all_gather_single_coalesced", "allgather_into_tensor_coalesced", "alltoall", "all_to_all_single"),
    *("alltoall_base", "recv_anysource"),
)
