"""Meshes and layouts on PyTorch: each rank of the default process group is a device, a value is torch's ``DTensor``.

Operations are torch's: it finds what a result is spread like, and its collectives go over the group's backend. A
relayout is ours: the steps of the plan on what the rank has, so no more bytes move than the algebra says; its gradient
is the relayout back.

All ranks call the same in the same order: making a mesh, relayouts, `gather`, and operations.

torch knows one order of several axes that cut one dim, the mesh's. A layout with another order is refused where a value
would have it; a plan may pass through one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import tensor as torch_tensor

from hocket.mesh import layouts, meshes, relayouts, tensors
from hocket.mesh.backends import contract
from hocket.mesh.relayouts import Kind

_PLACES: Final = "rank:{}"

_all_gather: Final[Callable[..., Any]] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Final[Callable[..., Any]] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""torch 2.13 has given them other names, and warns of the old ones."""


@final
class TorchTensor(tensors.DTensor):
    """A DTensor of PyTorch.

    Args:
        native: torch's own.
        layout: How it is spread.
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
        """What this rank has, without a history for gradients."""
        found: torch.Tensor = self._native.to_local().detach()
        return found

    def gather(self) -> npt.NDArray[Any]:
        whole = layouts.Layout.replicated(self._layout.mesh, len(self.shape))
        return to_numpy(run_plan(self.local, self._layout, whole))

    def _compute(self, function: Callable[..., Any], *args: Any) -> Any:
        if any(isinstance(arg, (str, bytes, dict)) for arg in args):
            return NotImplemented
        mesh = self._layout.mesh
        return wrap(function(*[_open(arg, mesh) for arg in args]), mesh)


def _open(value: object, mesh: meshes.Mesh) -> Any:
    if isinstance(value, tensors.DTensor):
        return value.native
    if isinstance(value, np.ndarray) and value.ndim:
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch_tensor.DTensor):
        everywhere = [torch_tensor.Replicate()] * mesh.rank
        return torch_tensor.DTensor.from_local(value, get_device_mesh(mesh), everywhere, run_check=False)
    return value


def wrap(value: Any, mesh: meshes.Mesh) -> Any:
    """Return torch's ``DTensor`` on a mesh as ours; each of several; anything else as it is."""
    if isinstance(value, tuple):
        made = [wrap(one, mesh) for one in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if not isinstance(value, torch_tensor.DTensor):
        return value
    return TorchTensor(value, read_placements(value.placements, value.ndim, mesh))


def adopt(native: torch_tensor.DTensor) -> TorchTensor:
    """Return torch's ``DTensor``, on whatever mesh, as ours."""
    device_mesh = native.device_mesh
    names = device_mesh.mesh_dim_names or [f"dim_{number}" for number in range(device_mesh.ndim)]
    places = [_PLACES.format(rank) for rank in device_mesh.mesh.flatten().tolist()]
    dims = list(zip(names, device_mesh.mesh.shape, strict=True))
    mesh = meshes.Mesh(dims, devices=places, framework="torch")
    _device_meshes.setdefault(mesh, (weakref.ref(_get_world()), device_mesh))
    found: TorchTensor = wrap(native.detach(), mesh)
    return found


def _find_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return tensors.find_dtype(str(dtype).removeprefix("torch."))


def to_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor as numpy's, bfloat16 too."""
    if tensor.dtype is torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(_find_dtype(tensor.dtype))
    return tensor.contiguous().numpy()


def to_torch(value: Any) -> torch.Tensor:
    """Return an array as torch's tensor, bfloat16 too."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    array = np.ascontiguousarray(value) if np.ndim(value) else np.array(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


# --- layouts and placements -------------------------------------------------------------------------------------------


def read_placements(placements: Sequence[Any], rank: int, mesh: meshes.Mesh) -> layouts.Layout:
    """Return the layout of a tensor of so many dims with these placements of torch."""
    axes: list[list[str]] = [[] for _ in range(rank)]
    partial: list[str] = []
    for name, placement in zip(mesh.dim_names, placements, strict=True):
        if placement.is_partial():
            partial.append(name)
        elif placement.is_shard():
            axes[placement.dim].append(name)
    return layouts.Layout(axes, mesh, partial=partial)


def list_placements(layout: layouts.Layout) -> list[Any]:
    """Return torch's placements for a layout.

    Raises:
        ValueError: Several axes cut one dim in another order than the mesh's.
    """
    order = layout.mesh.dim_names
    for dim, axes in enumerate(layout.axes):
        if list(axes) != sorted(axes, key=order.index):
            raise ValueError(
                f"The axes {','.join(axes)!r} cut dim {dim} in another order than that of the mesh, "
                f"{','.join(order)!r}, which PyTorch does not know. Name them in the mesh's order."
            )
    kinds: dict[type[layouts.Placement], Callable[[Any], Any]] = {
        layouts.Shard: lambda one: torch_tensor.Shard(one.dim),
        layouts.Replicate: lambda _: torch_tensor.Replicate(),
        layouts.Partial: lambda _: torch_tensor.Partial(),
    }
    return [kinds[type(one)](one) for one in layout.placements]


# --- the mesh ---------------------------------------------------------------------------------------------------------

_device_meshes: dict[meshes.Mesh, tuple[weakref.ref[Any], device_mesh.DeviceMesh]] = {}
"""torch's mesh for each of ours, and the default process group that it was made in."""


def get_device_mesh(mesh: meshes.Mesh) -> device_mesh.DeviceMesh:
    """Return torch's mesh of these ranks; the first time all ranks make it together.

    Raises:
        RuntimeError: There is no process group.
    """
    group = _get_world()
    known = _device_meshes.get(mesh)
    if known is None or known[0]() is not group:
        ranks = [int(name.removeprefix(_PLACES.format(""))) for name in mesh.devices]
        made = device_mesh.DeviceMesh("cpu", torch.tensor(ranks).reshape(mesh.shape()), mesh_dim_names=mesh.dim_names)
        known = _device_meshes[mesh] = (weakref.ref(group), made)
    return known[1]


def _get_world() -> Any:
    group = dist.group.WORLD
    if group is None:
        raise RuntimeError(
            "A mesh on PyTorch needs a process group. Make it in a training function of TorchTrainer, or after "
            "torch.distributed.init_process_group(); or write create_mesh(..., framework='jax')."
        )
    return group


def _get_number(mesh: meshes.Mesh) -> int:
    """Return the number of this rank's device."""
    return mesh.devices.index(_PLACES.format(dist.get_rank()))


# --- relayout ---------------------------------------------------------------------------------------------------------


def run_plan(local: torch.Tensor, source: layouts.Layout, target: layouts.Layout) -> torch.Tensor:
    """Return what this rank has of a value after a relayout, given what it has before."""
    shape = source.global_shape_from_local_shape(local.shape)
    layout = source
    for step in relayouts.plan_relayout(source, target, shape, local.element_size()).steps:
        local = _STEPS[step.kind](local, step, layout)
        layout = step.target
    return local


def _get_group(step: relayouts.Step, layout: layouts.Layout) -> Any:
    return get_device_mesh(layout.mesh).get_group(step.axis)


def _get_place(step: relayouts.Step, layout: layouts.Layout) -> int:
    return layout.mesh.locate(_get_number(layout.mesh))[step.axis]


def _split(local: torch.Tensor, step: relayouts.Step, layout: layouts.Layout) -> torch.Tensor:
    return local.chunk(layout.mesh.dim_size(step.axis), step.dim)[_get_place(step, layout)].contiguous()


def _spread(local: torch.Tensor, step: relayouts.Step, layout: layouts.Layout) -> torch.Tensor:
    return local if _get_place(step, layout) == 0 else torch.zeros_like(local)


def _gather(local: torch.Tensor, step: relayouts.Step, layout: layouts.Layout) -> torch.Tensor:
    size = layout.mesh.dim_size(step.axis)
    found = local.new_empty((size * local.shape[0] if local.ndim else size, *local.shape[1:]))
    _all_gather(found, local.contiguous(), group=_get_group(step, layout))
    return found if step.dim == 0 else torch.cat(found.chunk(size, 0), step.dim)


def _exchange(local: torch.Tensor, step: relayouts.Step, layout: layouts.Layout) -> torch.Tensor:
    parts = [part.contiguous() for part in local.chunk(layout.mesh.dim_size(step.axis), step.dim)]
    found = [torch.empty_like(part) for part in parts]
    dist.all_to_all(found, parts, group=_get_group(step, layout))
    return torch.cat(found, step.from_dim)


def _sum(local: torch.Tensor, step: relayouts.Step, layout: layouts.Layout) -> torch.Tensor:
    found = local.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(found, group=_get_group(step, layout))
    return found


def _sum_parts(local: torch.Tensor, step: relayouts.Step, layout: layouts.Layout) -> torch.Tensor:
    parts = local.chunk(layout.mesh.dim_size(step.axis), step.dim)
    found = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
    _reduce_scatter(
        found, torch.stack(parts).flatten(0, 1) if local.ndim else torch.stack(parts), group=_get_group(step, layout)
    )
    return found


def _permute(local: torch.Tensor, step: relayouts.Step, layout: layouts.Layout) -> torch.Tensor:
    """Send this rank's part to the one that has it in the new order of axes, and take the one that it has there."""
    mesh = layout.mesh
    here, places = mesh.locate(_get_number(mesh)), mesh.unravel_index()
    moved = set(layout.axes[step.dim])
    line = [place for place in places if all(place[name] == here[name] for name in mesh.dim_names if name not in moved)]
    goes = next(place for place in line if step.target.get_part(step.dim, place) == layout.get_part(step.dim, here))
    comes = next(place for place in line if layout.get_part(step.dim, place) == step.target.get_part(step.dim, here))
    if goes == here:
        return local
    ranks = get_device_mesh(mesh).mesh
    found = torch.empty_like(local, memory_format=torch.contiguous_format)
    sent = dist.isend(local.contiguous(), int(ranks[tuple(goes[name] for name in mesh.dim_names)]))
    dist.recv(found, int(ranks[tuple(comes[name] for name in mesh.dim_names)]))
    if sent is not None:
        sent.wait()
    return found


_STEPS: Final[Mapping[Kind, Callable[[torch.Tensor, relayouts.Step, layouts.Layout], torch.Tensor]]] = {
    Kind.SPLIT: _split,
    Kind.SPREAD: _spread,
    Kind.ALL_GATHER: _gather,
    Kind.ALL_TO_ALL: _exchange,
    Kind.ALL_REDUCE: _sum,
    Kind.REDUCE_SCATTER: _sum_parts,
    Kind.PERMUTE: _permute,
}


class _Relayout(torch.autograd.Function):
    """A relayout of what a rank has; its gradient is the relayout back."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, source: layouts.Layout, target: layouts.Layout) -> torch.Tensor:
        ctx.pair = source, target
        moved = run_plan(local, source, target)
        return moved.view_as(moved) if moved is local else moved

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        # A term of a sum has the whole sum's slope: of both it is a replica.
        source, target = (layout.with_partial(()) for layout in ctx.pair)
        return run_plan(slopes[0], target, source), None, None


# --- what is asked ----------------------------------------------------------------------------------------------------


@final
class TorchBackend(contract.Backend):
    """PyTorch."""

    name = "torch"

    def list_devices(self, device_type: str, count: int | None) -> list[str]:
        if device_type.lower() != "cpu":
            raise ValueError(f"device_type must be 'CPU' with PyTorch so far, but received {device_type!r}.")
        _get_world()
        return [_PLACES.format(rank) for rank in range(dist.get_world_size())]

    def check_mesh(self, mesh: meshes.Mesh) -> None:
        size = dist.get_world_size()
        if mesh.size != size:
            raise ValueError(
                f"A mesh on PyTorch has all {size} ranks, but one of {mesh.describe()} has {mesh.size} places. Give it "
                f"as many as there are ranks."
            )
        get_device_mesh(mesh)

    def list_local(self, mesh: meshes.Mesh) -> list[int]:
        return [_get_number(mesh)]

    def flatten(self, tree: Any) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], Any]]:
        named: list[tuple[str, Any]] = []
        build = _take_apart(tree, "", named)
        return named, lambda values: build(iter(values))

    def is_value(self, value: object) -> bool:
        return isinstance(value, (TorchTensor, torch.Tensor))

    def distribute(self, value: Any, layout: layouts.Layout) -> TorchTensor:
        tensor = to_torch(value)
        layout.local_shape_from_global_shape(tensor.shape)
        whole = layouts.Layout.replicated(layout.mesh, tensor.ndim)
        return self._from_local(run_plan(tensor.contiguous(), whole, layout), layout)

    def _from_local(self, local: torch.Tensor, layout: layouts.Layout) -> TorchTensor:
        native = torch_tensor.DTensor.from_local(
            local, get_device_mesh(layout.mesh), list_placements(layout), run_check=False
        )
        return TorchTensor(native, layout)

    def pack(self, parts: Sequence[Any], layout: layouts.Layout) -> TorchTensor:
        return self._from_local(to_torch(parts[0]), layout)

    def unpack(self, value: tensors.DTensor) -> list[Any]:
        assert isinstance(value, TorchTensor)
        return [value.local]

    def relayout(self, value: tensors.DTensor, layout: layouts.Layout) -> TorchTensor:
        assert isinstance(value, TorchTensor)
        list_placements(layout)
        local = value.native.to_local(grad_placements=list_placements(value.layout.with_partial(())))
        move: Callable[..., torch.Tensor] = _Relayout.apply
        return self._from_local(move(local, value.layout, layout), layout)

    def call(
        self, function: Callable[..., Any], layout: layouts.Layout, args: Sequence[Any], kwargs: Any
    ) -> TorchTensor:
        return self.distribute(function(*args, **kwargs), layout)

    def to_numpy(self, value: Any) -> npt.NDArray[Any]:
        return to_numpy(value.detach()) if isinstance(value, torch.Tensor) else np.asarray(value)

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
        self, function: Callable[[Sequence[tensors.DTensor]], Any], values: Sequence[tensors.DTensor]
    ) -> tuple[Any, list[tensors.DTensor]]:
        leaves = [value.native.detach().requires_grad_() for value in values]
        found = function([TorchTensor(leaf, value.layout) for leaf, value in zip(leaves, values, strict=True)])
        native = found.native if isinstance(found, tensors.DTensor) else found
        slopes = torch.autograd.grad(native, leaves)
        wrapped = [wrap(slope, value.layout.mesh) for slope, value in zip(slopes, values, strict=True)]
        value = wrap(native.detach(), values[0].layout.mesh)
        if isinstance(value, TorchTensor):  # so that every rank can read the scalar
            value = self.relayout(value, value.layout.with_partial(()))
        return value, wrapped

    def compile(
        self, function: contract.StepOfValues, outcome: Sequence[layouts.Layout], *, donate: bool
    ) -> contract.StepOfValues:
        return function  # torch computes as it goes

    def register_variable(self, kind: type[Any]) -> None:
        pass

    def wait_for_all(self, mesh: meshes.Mesh) -> None:
        dist.barrier()


def _take_apart(tree: Any, path: str, named: list[tuple[str, Any]]) -> Callable[[Any], Any]:
    """Append the values of dicts, lists and tuples; return what builds the same of an iterator of others."""
    if isinstance(tree, torch.nn.Module):
        tree = tree.state_dict()
    prefix = f"{path}/" if path else ""
    if isinstance(tree, Mapping):
        builders = {key: _take_apart(value, f"{prefix}{key}", named) for key, value in tree.items()}
        return lambda values: {key: build(values) for key, build in builders.items()}
    if isinstance(tree, (list, tuple)):
        several = [_take_apart(value, f"{prefix}{number}", named) for number, value in enumerate(tree)]
        kind = type(tree)
        return lambda values: kind([build(values) for build in several])
    named.append((path, adopt(tree) if isinstance(tree, torch_tensor.DTensor) else tree))
    return next


BACKEND: Final = TorchBackend()
