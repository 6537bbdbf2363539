"""Values on meshes of PyTorch: torch's ``DTensor`` with its layout, and conversion from and to numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import tensor as torch_tensor

from hocket.mesh import layouts, meshes, tensors
from hocket.mesh.backends.torch import functions, relayouts


@final
class TorchTensor(tensors.DTensor):
    """A DTensor of PyTorch.

    Args:
        native: torch's own DTensor.
        layout: The layout of the value.
    """

    __slots__ = ("_layout", "_native")

    def __init__(self, native: torch_tensor.DTensor, layout: layouts.Layout) -> None:
        self._native = native
        self._layout = layout

    @property
    def layout(self) -> layouts.Layout:
        return self._layout

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._native.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return _find_dtype(self._native.dtype)

    @property
    def native(self) -> torch_tensor.DTensor:
        """torch's ``DTensor``."""
        return self._native

    @property
    def local(self) -> torch.Tensor:
        """This rank's part, detached from the gradient's history."""
        found: torch.Tensor = self._native.to_local().detach()
        return found

    def gather(self) -> npt.NDArray[Any]:
        whole = layouts.Layout.replicated(self._layout.mesh, len(self.shape))
        local = self.local
        found = relayouts.run_plan(local, self._layout, whole)
        return to_numpy(found.clone() if found is local else found)  # the caller owns the result

    def _compute(self, function: Callable[..., object], *args: object) -> object:
        if any(isinstance(arg, (str, bytes, dict)) for arg in args):
            return NotImplemented
        mesh = self._layout.mesh
        with functions.Functions():
            return wrap(function(*[open_value(arg, mesh) for arg in args]), mesh)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], kinds: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Let torch's functions accept it, alone and in lists, beside tensors that all ranks have."""
        given = functions.flatten((args, kwargs or {}))
        mesh = next(one.layout.mesh for one in given if isinstance(one, tensors.DTensor))
        args, kwargs = functions.map_leaves((tuple(args), kwargs or {}), lambda one: open_value(one, mesh))
        with functions.Functions():
            return wrap(function(*args, **kwargs), mesh)


def open_value(value: object, mesh: meshes.Mesh) -> object:
    """Return torch's form of a value: a DTensor's own, or a replica of an array that all ranks have."""
    if isinstance(value, tensors.DTensor):
        return value.native
    if isinstance(value, np.ndarray) and value.ndim:
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch_tensor.DTensor):
        return relayouts.build_dtensor(value, layouts.Layout.replicated(mesh, value.ndim))
    return value


def wrap(value: Any, mesh: meshes.Mesh) -> Any:
    """Return torch's ``DTensor`` on a mesh as ours, also in tuples and lists; return other values unchanged."""
    if isinstance(value, (tuple, list)):
        made = [wrap(one, mesh) for one in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if not isinstance(value, torch_tensor.DTensor):
        return value
    value = relayouts.settle(value)
    return TorchTensor(value, relayouts.read_placements(value.placements, value.ndim, mesh))


def adopt(native: torch_tensor.DTensor) -> TorchTensor:
    """Return torch's ``DTensor``, on any mesh, as ours."""
    found: TorchTensor = wrap(native.detach(), relayouts.find_mesh(native.device_mesh))
    return found


def _find_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return tensors.find_dtype(str(dtype).removeprefix("torch."))


def to_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor as a numpy array, including bfloat16."""
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(_find_dtype(tensor.dtype))
    return tensor.contiguous().numpy()


def to_torch(value: Any) -> torch.Tensor:
    """Return an array as a torch tensor, including bfloat16."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.ascontiguousarray(value) if np.ndim(value) else np.array(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
