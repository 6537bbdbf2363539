"""Batches as PyTorch tensors. The first call imports torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from hocket import extras
from hocket.data import blocks, columns


def load() -> Any:
    """Return torch.

    Raises:
        MissingExtraError: torch is not installed.
    """
    remedy = "Run pip install 'hocket[torch]', or use iter_batches()."
    return extras.load("torch", "iter_torch_batches()", "PyTorch", remedy)


def find_device(device: object, *, use_gpu: bool) -> object:
    """Return a torch device.

    Args:
        device: The device that the user named; ``"auto"`` is the rank's.
        use_gpu: Whether the rank has a GPU.
    """
    torch = load()
    if device != "auto":
        return torch.device(device)
    if not use_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"use_gpu=True, but torch {torch.__version__} sees no CUDA device in this rank. Install a torch built for "
            "CUDA, or pass device='cpu'."
        )
    return torch.device("cuda", 0)


def build_converter(
    dtypes: object,
    device: object,
    collate_fn: Callable[[dict[str, npt.NDArray[Any]]], object] | None,
    *,
    pin_memory: bool,
) -> Callable[[blocks.Block], object]:
    """Return a function that makes tensors from a block that only the caller holds."""
    torch = load()
    for name, dtype in (dtypes if isinstance(dtypes, Mapping) else {"": dtypes}).items():
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(
                "dtypes must be a torch dtype, or a dict of them by column, but received "
                f"{dtype!r}{f' for {name!r}' if name else ''}. Write dtypes=torch.float32."
            )
    if collate_fn is None:
        return functools.partial(_build_tensors, dtypes=dtypes, device=device, pin_memory=pin_memory)
    if dtypes is not None:
        raise ValueError(
            "iter_torch_batches() received both dtypes and collate_fn, but collate_fn makes the tensors. Convert them "
            "in collate_fn, and leave dtypes out."
        )
    return lambda block: move(collate_fn(block.to_batch("numpy", is_owned=True)), device)


def _build_tensors(block: blocks.Block, dtypes: object, device: object, *, pin_memory: bool) -> dict[str, object]:
    if isinstance(dtypes, Mapping):
        blocks.check_columns(list(dtypes), list(block.columns))
    found = {}
    for name, array in block.to_batch("numpy", is_owned=True).items():
        tensor = _build_tensor(name, array, dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes)
        found[name] = (tensor.pin_memory() if pin_memory else tensor).to(device, non_blocking=pin_memory)
    return found


def _build_tensor(name: str, array: npt.NDArray[Any], dtype: object) -> Any:
    torch = load()
    columns.check_numbers(name, array, "a tensor", "pass collate_fn")
    if not array.flags.writeable:
        array = array.copy()  # Arrow owns its memory
    if array.dtype.byteorder not in "=|":
        array = array.astype(array.dtype.newbyteorder("="))
    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.to(dtype)


def move(batch: object, device: object) -> Any:
    """Move all tensors in the result of a `collate_fn` to a device, and return the result."""
    torch = load()
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move(value, device) for value in batch)
    return batch
