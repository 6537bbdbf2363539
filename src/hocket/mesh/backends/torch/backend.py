"""PyTorch's implementation of the backend contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import tensor as torch_tensor

from hocket.mesh import layouts, meshes, tensors
from hocket.mesh import relayouts as algebra
from hocket.mesh.backends import contract
from hocket.mesh.backends.torch import functions, modules, optimizers, relayouts, values


@final
class TorchBackend(contract.Backend):
    """The backend for PyTorch."""

    name = "torch"
    more_devices = "Each rank of the process group is a device: start more ranks, or make the mesh smaller."

    def list_devices(self, device_type: str, count: int | None) -> list[str]:
        if device_type.lower() != "cpu":
            raise ValueError(f"device_type must be 'CPU' with PyTorch so far, but received {device_type!r}.")
        relayouts.get_world()
        return [relayouts.PLACES.format(rank) for rank in range(dist.get_world_size())]

    def check_mesh(self, mesh: meshes.Mesh) -> None:
        size = dist.get_world_size()
        if mesh.size != size:
            raise ValueError(
                f"A mesh on PyTorch must use all {size} ranks, but the mesh {mesh.describe()} has {mesh.size} places. "
                "Give it one place for each rank."
            )
        told = self.gather_objects((mesh.dims, mesh.name))
        other = next((rank for rank, one in enumerate(told) if one != told[0]), None)
        if other is not None:
            raise ValueError(
                f"All ranks must make the same mesh, but rank 0 makes {told[0][0]} and rank {other} makes "
                f"{told[other][0]}. Give create_mesh() the same arguments in each of them."
            )
        relayouts.get_device_mesh(mesh)

    def list_local(self, mesh: meshes.Mesh) -> list[int]:
        return [relayouts.get_number(mesh)]

    def flatten(self, tree: Any) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], Any]]:
        named: list[tuple[str, Any]] = []
        build = _take_apart(tree, "", named)
        return named, lambda others: build(iter(others))

    def prepare_to_load(self, tree: Any, names: Sequence[str]) -> None:
        _prepare(tree, "", names)

    def list_buffers(self, tree: Any) -> frozenset[str]:
        return frozenset(modules.list_buffers(tree) if isinstance(tree, torch.nn.Module) else ())

    def list_frozen(self, tree: Any) -> frozenset[str]:
        return frozenset(modules.list_frozen(tree) if isinstance(tree, torch.nn.Module) else ())

    def is_value(self, value: object) -> bool:
        return isinstance(value, (values.TorchTensor, torch.Tensor))

    def distribute(self, value: Any, layout: layouts.Layout) -> values.TorchTensor:
        tensor = values.to_torch(value)
        layout.local_shape_from_global_shape(tensor.shape)
        whole = layouts.Layout.replicated(layout.mesh, tensor.ndim)
        given = tensor.contiguous()
        local = relayouts.run_plan(given, whole, layout)
        return self._from_local(local.clone() if local is given else local, layout)  # never the caller's memory

    def _from_local(self, local: torch.Tensor, layout: layouts.Layout) -> values.TorchTensor:
        return values.TorchTensor(relayouts.build_dtensor(local, layout), layout)

    def pack(self, parts: Sequence[Any], layout: layouts.Layout) -> values.TorchTensor:
        given = values.to_torch(parts[0])
        return self._from_local(given.clone(memory_format=torch.contiguous_format), layout)

    def unpack(self, value: tensors.DTensor) -> list[Any]:
        assert isinstance(value, values.TorchTensor)
        return [value.local]

    def relayout(self, value: tensors.DTensor, layout: layouts.Layout) -> values.TorchTensor:
        assert isinstance(value, values.TorchTensor)
        algebra.plan_relayout(value.layout, layout, value.shape, value.dtype.itemsize)  # refuses another mesh
        relayouts.list_placements(layout)  # refuses an order that torch lacks, before any data moves
        return self._from_local(relayouts.move(value.native, layout), layout)

    def call(
        self, function: Callable[..., Any], layout: layouts.Layout, args: Sequence[Any], kwargs: Any
    ) -> values.TorchTensor:
        return self.distribute(function(*args, **kwargs), layout)

    def to_numpy(self, value: Any) -> npt.NDArray[Any]:
        return values.to_numpy(value.detach()) if isinstance(value, torch.Tensor) else np.asarray(value)

    def gather_objects(self, value: object) -> list[Any]:
        if not dist.is_initialized():
            return [value]
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, value)
        return found

    def get_process(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    def is_traced(self, value: tensors.DTensor) -> bool:
        return False

    def differentiate(
        self, function: Callable[[Sequence[tensors.DTensor]], Any], given: Sequence[tensors.DTensor]
    ) -> tuple[Any, list[tensors.DTensor]]:
        leaves = [value.native.detach().requires_grad_() for value in given]
        taken = [values.TorchTensor(leaf, value.layout) for leaf, value in zip(leaves, given, strict=True)]
        with functions.Functions():
            found = function(taken)
            native = found.native if isinstance(found, tensors.DTensor) else found
        slopes = torch.autograd.grad(native, leaves)
        wrapped = [values.wrap(slope, value.layout.mesh) for slope, value in zip(slopes, given, strict=True)]
        value = values.wrap(native.detach(), given[0].layout.mesh)
        if isinstance(value, values.TorchTensor):  # so that every rank can read the scalar
            value = self.relayout(value, value.layout.with_partial(()))
        return value, wrapped

    def compile(
        self, function: contract.StepOfValues, outcome: Sequence[layouts.Layout], *, donate: bool
    ) -> contract.StepOfValues:
        return function  # torch computes eagerly

    def register_variable(self, kind: type[Any]) -> None:
        pass

    def wait_for_all(self, mesh: meshes.Mesh) -> None:
        dist.barrier()


def _take_apart(tree: object, path: str, named: list[tuple[str, object]]) -> Callable[[Any], object]:
    """Append the values in dicts, lists, tuples, modules and optimizers; return a function that rebuilds the tree."""
    prefix = f"{path}/" if path else ""
    if isinstance(tree, torch.nn.Module):
        found = modules.list_values(tree)
        named += [(f"{prefix}{name}", value) for name, value in found]
        return lambda others: modules.fill(tree, [next(others) for _ in found])
    if isinstance(tree, torch.optim.Optimizer):
        kept = optimizers.list_values(tree)
        named += [(f"{prefix}{name}", value) for name, value in kept]
        return lambda others: optimizers.fill(tree, [next(others) for _ in kept])
    if isinstance(tree, Mapping):
        builders = {key: _take_apart(value, f"{prefix}{key}", named) for key, value in tree.items()}
        return lambda others: {key: build(others) for key, build in builders.items()}
    if isinstance(tree, (list, tuple)):
        several = [_take_apart(value, f"{prefix}{number}", named) for number, value in enumerate(tree)]
        kind = type(tree)
        return lambda others: kind([build(others) for build in several])
    named.append((path, values.adopt(tree) if isinstance(tree, torch_tensor.DTensor) else tree))
    return next


def _prepare(tree: object, path: str, names: Sequence[str]) -> None:
    """Let optimizers that have taken no step create the state that the names list."""
    prefix = f"{path}/" if path else ""
    if isinstance(tree, torch.optim.Optimizer):
        optimizers.prepare(tree, [name.removeprefix(prefix) for name in names if name.startswith(prefix)])
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            _prepare(value, f"{prefix}{key}", names)
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            _prepare(value, f"{prefix}{number}", names)


BACKEND: Final = TorchBackend()
