"""Arrays that share the memory of torch tensors, and torch's arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist

from hocket.collective import arithmetic
from hocket.collective.arithmetic import Arithmetic, ReduceOp

_OPS: Final = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.MEAN,
    dist.ReduceOp.PRODUCT: ReduceOp.PRODUCT,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
    dist.ReduceOp.BAND: ReduceOp.BAND,
    dist.ReduceOp.BOR: ReduceOp.BOR,
    dist.ReduceOp.BXOR: ReduceOp.BXOR,
}

_NUMPY_DTYPES: Final = frozenset(
    {
        *(torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
        *(torch.uint16, torch.uint32, torch.uint64),  # torch itself adds none of these
    }
)
"""The dtypes that numpy adds as fast as torch, with less overhead in each call."""

TORCH: Final = Arithmetic(
    name="torch",
    view=lambda buffer, dtype, count, offset: torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset),
    copy=lambda target, source: target.copy_(source),
    combine={
        ReduceOp.SUM: torch.add,
        ReduceOp.MEAN: torch.add,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    },
    divide=torch.div,
    is_inexact=lambda dtype: dtype.is_floating_point or dtype.is_complex,
)
"""The arithmetic of dtypes that numpy lacks or handles slowly: bfloat16, float16, complex numbers, bools."""


class Targets:
    """Tensors as writable arrays of bytes. Tensors that are not contiguous are filled at the end of the block."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        self._wholes = [lay_out(tensor) for tensor in self._tensors]

    def __enter__(self) -> list[object]:
        return [as_bytes(whole) for whole in self._wholes]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for tensor, whole in zip(self._tensors, self._wholes, strict=True):
                if whole.data_ptr() != tensor.data_ptr():
                    tensor.copy_(whole)


def find_op(opts: Any) -> ReduceOp:
    if opts is None:
        return ReduceOp.SUM
    asked = opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp
    found = _OPS.get(asked)
    if found is None:
        raise ValueError(
            f"The backend 'hocket' supports the operations {', '.join(str(op).rpartition('.')[2] for op in _OPS)}, but "
            f"received {getattr(asked, 'name', asked)}. Use one of these, or divide or multiply the result yourself."
        )
    return found


def split_mean(op: ReduceOp, tensor: torch.Tensor) -> tuple[ReduceOp, bool]:
    """Return the operation, and whether the result must be divided afterwards: the mean of integers is their sum,
    divided and rounded towards 0, as in NCCL."""
    if op is ReduceOp.MEAN and tensor.dtype is not torch.bool and not TORCH.is_inexact(tensor.dtype):
        return ReduceOp.SUM, True
    return op, False


def divide_whole(tensor: torch.Tensor, size: int) -> None:
    """Divide integers, rounding towards 0."""
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch cannot divide these
        tensor.copy_(torch.from_numpy(tensor.numpy() // size))
    else:
        tensor.div_(size, rounding_mode="trunc")


def build_options(options: Any, op: ReduceOp) -> Any:
    options.reduceOp = next(theirs for theirs, ours in _OPS.items() if ours is op)
    return options


def lay_flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a one-dimensional, contiguous tensor with the numbers of a tensor: itself or a view, if possible."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        _refuse(tensor)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.is_complex() or tensor.is_neg():
        tensor = _straighten(tensor)
    return tensor


def as_array(flat: torch.Tensor) -> tuple[Any, Arithmetic]:
    """Return an array that shares the memory of a tensor from `lay_flat`, and the arithmetic of such arrays."""
    return (flat.numpy(), arithmetic.NUMPY) if flat.dtype in _NUMPY_DTYPES else (flat, TORCH)


def as_tensor(flat: object) -> torch.Tensor:
    return flat if isinstance(flat, torch.Tensor) else torch.from_numpy(flat)


def put_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Copy the numbers into the tensor, unless they share its memory."""
    if flat is not tensor and flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def lay_out(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor with the numbers of a tensor: itself, if its memory holds them unchanged."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        _refuse(tensor)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def as_bytes(tensor: torch.Tensor) -> object:
    """Return the bytes of a contiguous tensor as an array that shares its memory."""
    return _straighten(tensor).view(torch.uint8).numpy()


def _straighten(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers as a one-dimensional tensor, without a copy if they are contiguous. (torch calls a tensor of
    one number contiguous whatever its strides are.)"""
    return tensor.resolve_conj().resolve_neg().contiguous().as_strided((tensor.numel(),), (1,))


def _refuse(tensor: torch.Tensor) -> NoReturn:
    raise ValueError(
        f"The backend 'hocket' takes dense tensors on the CPU, but received one on {tensor.device} with layout "
        f"{tensor.layout}. Move it with .cpu(), and make it dense with .to_dense(); or use an NCCL group for GPUs. "
        "Only all_reduce takes sparse tensors (COO)."
    )
