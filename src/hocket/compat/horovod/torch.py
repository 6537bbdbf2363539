"""Horovod's functions for PyTorch: ``import hocket.train.horovod.torch as hvd``.

They call torch.distributed. A `TorchTrainer` makes the process group; under ``hocket run`` and torchrun, `init` makes
it. In a single process they do nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from hocket import extras

with extras.explain("hocket.train.horovod.torch", "PyTorch", "Run pip install 'hocket[torch]'."):
    import torch
    import torch.distributed as dist

from hocket.collective import torch as collective_torch
from hocket.compat.horovod import place, verbs
from hocket.train.frameworks.torch import config, framework
from hocket.train.frameworks.torch.strategies import averaging, closures

is_initialized = place.is_initialized
rank = place.rank
size = place.size
local_rank = place.local_rank
local_size = place.local_size
cross_rank = place.cross_rank
cross_size = place.cross_size
is_homogeneous = place.is_homogeneous

Average: Final = place.Op.AVERAGE
Sum: Final = place.Op.SUM
Min: Final = place.Op.MIN
Max: Final = place.Op.MAX
Product: Final = place.Op.PRODUCT
Adasum: Final = place.Op.ADASUM

nccl_built = mpi_built = gloo_built = cuda_built = rocm_built = ddl_built = ccl_built = place.is_built
mpi_enabled = gloo_enabled = mpi_threads_supported = place.is_built

_OPS: Final = {
    Average: dist.ReduceOp.SUM,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}

_made_group = False

_verbs: Final = verbs.Verbs(framework.FRAMEWORK, "hocket.train.torch.TorchTrainer")

broadcast_object = _verbs.broadcast_object
allgather_object = _verbs.allgather_object
barrier = _verbs.barrier
join = _verbs.join


class Compression:
    """The choices for how gradients travel."""

    none: Final = None
    """No compression."""
    fp16: Final = torch.float16
    """Compression to float16, in half the bytes."""


def init(comm: object = None, process_sets: object = None) -> None:
    """Initialize. In a `TorchTrainer`'s training function the ranks are joined already.

    Args:
        comm: Must be left out.
        process_sets: Must be left out.

    Raises:
        ValueError: An argument is given that has no meaning here.
        RuntimeError: The trainer did not join its ranks for torch.

    Example:
        >>> import hocket.train.horovod.torch as hvd
        >>> hvd.init()
        >>> hvd.rank(), hvd.size()
        (0, 1)
        >>> hvd.shutdown()
    """
    global _made_group  # noqa: PLW0603 (torch has one default group in a process)
    place.refuse("init", comm=(comm, None), process_sets=(process_sets, None))
    found = place.enter()
    if found.size == 1 or dist.is_initialized():
        return
    if found.in_trainer:
        place.leave()
        raise RuntimeError(
            "hvd.init() found ranks that are not joined for PyTorch. Run the training function with "
            "hocket.train.torch.TorchTrainer."
        )
    collective_torch.register()
    dist.init_process_group(config.choose_backend(torch.cuda.is_available()))
    _made_group = True


def shutdown() -> None:
    """Undo `init`. A process group that a trainer has made stays."""
    global _made_group  # noqa: PLW0603 (see above)
    place.leave()
    if _made_group and dist.is_initialized():
        dist.destroy_process_group()
    _made_group = False


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: torch.dtype | None = Compression.none,
    op: place.Op | None = None,
) -> torch.Tensor:
    """Return the mean of all ranks' tensors, or another reduction by `op`.

    Gradients flow back through this function, `allgather` and `broadcast`: each rank gets the mean of the ranks'
    gradients, or for `Sum` their sum.

    Args:
        tensor: A tensor with the same shape and dtype in all ranks. It is not changed.
        average: Older programs' form of `op`.
        name: Ignored, because calls are matched by their order.
        compression: ``hvd.Compression.fp16`` sends floats in half the bytes.
        op: The reduction. Default: `Average`.

    Raises:
        ValueError: `init` was not called, `op` is not an operation, or a mean of whole numbers is requested.
        RuntimeError: In the backward pass, `op` is neither `Average` nor `Sum`.

    Example:
        >>> import torch
        >>> import hocket.train.horovod.torch as hvd
        >>> hvd.init()
        >>> hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum)
        tensor([1., 2.])
        >>> hvd.shutdown()
    """
    chosen = place.choose_op(op, average)
    if compression is not None and tensor.is_floating_point():
        return _apply(_AllReduce, tensor.to(compression), chosen).to(tensor.dtype)
    return _apply(_AllReduce, tensor, chosen)


def allreduce_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: place.Op | None = None
) -> torch.Tensor:
    """Reduce a tensor in place like `allreduce`, without gradients, and return it."""
    return _reduce(tensor, place.choose_op(op, average))


def _reduce(tensor: torch.Tensor, chosen: place.Op) -> torch.Tensor:
    if chosen is Average and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(
            f"hvd.Average needs floats, but received a tensor of {tensor.dtype}. Pass op=hvd.Sum, or tensor.float()."
        )
    if place.get_place().size > 1:
        with torch.no_grad():
            dist.all_reduce(tensor, _OPS[chosen])
            if chosen is Average:
                tensor /= size()
    return tensor


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Return all ranks' tensors, concatenated along the first dimension, which may differ in length between ranks."""
    if place.get_place().size > 1 and not tensor.dim():
        raise ValueError(
            "allgather() puts tensors one after another along their first dimension, but received a scalar. Write "
            "tensor[None]."
        )
    return _apply(_AllGather, tensor)


def _gather(tensor: torch.Tensor) -> list[torch.Tensor]:
    found = [torch.empty_like(tensor) for _ in range(size())]
    dist.all_gather(found, tensor.contiguous())
    return found


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Return the root's tensor in all ranks."""
    return _apply(_Broadcast, tensor, root_rank)


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, op: place.Op) -> torch.Tensor:
        ctx.op = op
        return _reduce(tensor.detach().clone(), op)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> object:
        if ctx.op not in (Average, Sum):
            raise RuntimeError(
                f"allreduce() with {ctx.op} has no gradient. Use hvd.Average or hvd.Sum in a loss, or pass "
                "tensor.detach()."
            )
        return _reduce(gradients[0].clone(memory_format=torch.contiguous_format), ctx.op), None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.own = slice(0, None)
        if size() == 1:
            return tensor.detach().clone()
        lengths = [int(length) for length in _gather(torch.tensor([len(tensor)]))]
        start = sum(lengths[: rank()])
        ctx.own = slice(start, start + len(tensor))
        padded = tensor.new_zeros((max(lengths), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor.detach()
        return torch.cat([part[:length] for part, length in zip(_gather(padded), lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> object:
        return _reduce(gradients[0].clone(memory_format=torch.contiguous_format), Average)[ctx.own]


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int) -> torch.Tensor:
        ctx.root_rank = root_rank
        return broadcast_(tensor.detach().clone(), root_rank)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> object:
        mean = _reduce(gradients[0].clone(memory_format=torch.contiguous_format), Average)
        return (mean if rank() == ctx.root_rank else torch.zeros_like(mean)), None


def _apply(function: type[torch.autograd.Function], *args: object) -> torch.Tensor:
    result: torch.Tensor = function.apply(*args)  # type: ignore[no-untyped-call]  # torch does not say
    return result


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Overwrite each rank's tensor with the root's, and return it."""
    verbs.check_root(root_rank)
    if size() > 1:
        with torch.no_grad():
            dist.broadcast(tensor, root_rank)
    return tensor


def broadcast_parameters(params: Mapping[str, object] | Iterable[tuple[str, torch.Tensor]], root_rank: int = 0) -> None:
    """Overwrite all ranks' parameters with the root's.

    Args:
        params: ``model.state_dict()`` or ``model.named_parameters()``.
        root_rank: The rank with the parameters to keep.

    Example:
        >>> import torch
        >>> import hocket.train.horovod.torch as hvd
        >>> hvd.init()
        >>> hvd.broadcast_parameters(torch.nn.Linear(2, 1).state_dict(), root_rank=0)
        >>> hvd.shutdown()
    """
    verbs.check_root(root_rank)
    pairs: list[Any] = list(params.items()) if isinstance(params, Mapping) else list(params)
    if any(not (isinstance(pair, tuple) and len(pair) == 2) for pair in pairs):
        raise ValueError(
            f"broadcast_parameters() takes names and tensors, but received {pairs[0]!r}. Pass model.state_dict() or "
            "model.named_parameters()."
        )
    if size() == 1:
        return
    for _, tensor in pairs:
        if isinstance(tensor, torch.Tensor):
            dist.broadcast(tensor.detach(), root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Overwrite all ranks' optimizer state with the root's: learning rates, momenta.

    Args:
        optimizer: An optimizer of the same parameters in all ranks.
        root_rank: The rank with the state to keep.
    """
    verbs.check_root(root_rank)
    if size() > 1:
        state = broadcast_object(optimizer.state_dict(), root_rank)
        if rank() != root_rank:
            optimizer.load_state_dict(state)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: torch.dtype | None = Compression.none,
    backward_passes_per_step: int = 1,
    op: place.Op = Average,
    **options: object,
) -> Any:
    """Make an optimizer's ``step`` first average the gradients of all ranks; return the same optimizer.

    As in Horovod, ``synchronize()`` averages at once, for example to clip gradients. The next ``step`` then belongs in
    ``with optimizer.skip_synchronize():``. All gradients travel together after the backward pass; for communication
    during the pass use `hocket.train.torch.prepare_model`. If ``step`` gets a closure, the gradients of each call of
    the closure are averaged.

    Args:
        optimizer: The optimizer of this rank's model.
        named_parameters: Used only to check for duplicate names, which are an error, as in Horovod.
        compression: ``hvd.Compression.fp16`` sends half the bytes.
        backward_passes_per_step: The number of backward passes before each step. Has no effect, because gradients add
            up in the tensors.
        op: `Average` or `Sum`.
        options: Other arguments of Horovod. Arguments that would need an effect here are refused;
            ``gradient_predivide_factor`` and ``groups`` are ignored.

    Example:
        >>> import torch
        >>> import hocket.train.horovod.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> hvd.shutdown()
    """
    place.get_place()
    place.refuse_options(options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"DistributedOptimizer() takes an optimizer of torch, but received {optimizer!r}. Write "
            "hvd.DistributedOptimizer(torch.optim.SGD(...))."
        )
    if hasattr(optimizer, "skip_synchronize"):
        raise ValueError("DistributedOptimizer() received an optimizer that is distributed already. Call it once.")
    if backward_passes_per_step < 1:
        raise ValueError(
            f"backward_passes_per_step must be 1 or more, but received {backward_passes_per_step!r}. Leave it out for "
            "1."
        )
    if op not in (Average, Sum):
        raise ValueError(
            f"A DistributedOptimizer's op must be hvd.Average or hvd.Sum, but received {op!r}. Leave it out for "
            "hvd.Average."
        )
    names = [name for name, _ in named_parameters or ()]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"named_parameters has {double!r} twice. Pass model.named_parameters().")
    made: Any = optimizer
    is_skipping = False

    def synchronize() -> None:
        _average_gradients(optimizer, compression, op)

    @contextlib.contextmanager
    def skip_synchronize() -> Iterator[None]:
        nonlocal is_skipping
        is_skipping = True
        try:
            yield
        finally:
            is_skipping = False

    def before_step(_: object, args: tuple[object, ...], kwargs: dict[str, object]) -> closures.Arguments | None:
        if is_skipping:
            return None
        found = closures.follow_closure(args, kwargs, synchronize)
        if found is None:
            synchronize()
            return None
        return closures.share_loss(optimizer, found, size()) or found

    made.synchronize, made.skip_synchronize = synchronize, skip_synchronize
    optimizer.register_step_pre_hook(before_step)
    return optimizer


@torch.no_grad()
def _average_gradients(optimizer: torch.optim.Optimizer, compression: torch.dtype | None, op: place.Op) -> None:
    """Average the gradients of all ranks, sparse ones as dense tensors.

    If only some ranks used a parameter, its gradient is zero in the others. An unused parameter gets no gradient."""
    count = size()
    if count == 1:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    used = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
    given = [_to_dense(p) for p in parameters]
    if compression is not None:
        given = [gradient.to(compression) for gradient in given]
    *means, used_by = averaging.compute_means([*given, used], count)
    for parameter, mean, share in zip(parameters, means, used_by.tolist(), strict=True):
        if share:
            found = mean if op is Average else mean * count
            found = found.to(parameter.dtype)
            own = parameter.grad
            parameter.grad = found if own is None or not own.is_sparse else found.to_sparse(own.sparse_dim())


def _to_dense(parameter: torch.Tensor) -> torch.Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
