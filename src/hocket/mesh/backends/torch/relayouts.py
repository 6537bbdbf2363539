"""Relayouts on PyTorch, and the conversion of layouts and meshes to torch's placements and meshes.

A relayout runs the steps of a plan on the rank's part. All ranks make meshes and relayouts in the same order.

If several axes cut one dim, torch supports only the mesh's order of these axes. A value with another order is refused;
a plan may pass through one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import tensor as torch_tensor

from hocket.collective import errors
from hocket.mesh import layouts, meshes, relayouts, shown
from hocket.mesh.relayouts import Kind

PLACES: Final = "rank:{}"
"""The name of a rank's device."""

_all_gather: Final[Callable[..., object]] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Final[Callable[..., object]] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""torch 2.13 has renamed these functions, and warns about the old names."""

_SUM: Final = torch_tensor.Partial("sum")
"""The one partial placement that a layout can express. torch's others (norms, masked lookups) are subclasses whose
``is_partial("sum")`` is true, but their parts do not add up."""


# --- layouts and placements -------------------------------------------------------------------------------------------


def read_placements(placements: Sequence[Any], rank: int, mesh: meshes.Mesh) -> layouts.Layout:
    """Return the layout of a tensor of `rank` dims with these placements of torch, which must come from `settle`."""
    axes: list[list[str]] = [[] for _ in range(rank)]
    partial: list[str] = []
    for name, placement in zip(mesh.dim_names, placements, strict=True):
        if placement == _SUM:
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
                f"The axes {','.join(axes)!r} cut dim {dim} in another order than the mesh's, {','.join(order)!r}, "
                "which PyTorch does not support. Name the axes in the mesh's order."
            )
    kinds: dict[type[layouts.Placement], Callable[[Any], object]] = {
        layouts.Shard: lambda one: torch_tensor.Shard(one.dim),
        layouts.Replicate: lambda _: torch_tensor.Replicate(),
        layouts.Partial: lambda _: torch_tensor.Partial(),
    }
    return [kinds[type(one)](one) for one in layout.placements]


def settle(native: torch_tensor.DTensor) -> torch_tensor.DTensor:
    """Return a DTensor whose placements a layout can express; along the other axes it becomes a replica. torch's
    operations leave means and maxima of parts, and parts of unequal length."""
    mesh, length = native.device_mesh, [1] * native.ndim
    placements = list(native.placements)
    for axis, placement in enumerate(placements):
        if isinstance(placement, torch_tensor.Shard):
            length[placement.dim] *= mesh.size(axis)
            if native.shape[placement.dim] % length[placement.dim] == 0:
                continue
        elif placement.is_replicate() or placement == _SUM:
            continue
        placements[axis] = torch_tensor.Replicate()
    if placements == list(native.placements):
        return native
    settled = native.redistribute(placements=placements)
    hook: Callable[[Callable[[Any], object]], object] = settled.register_hook
    if settled.requires_grad:  # terms of a sum cannot be redistributed to torch's placement for parts of a norm
        hook(lambda slope: slope.redistribute(placements=_add_up(slope.placements)))
    return settled


def _add_up(placements: Sequence[Any]) -> list[Any]:
    return [torch_tensor.Replicate() if one.is_partial() else one for one in placements]


# --- the mesh ---------------------------------------------------------------------------------------------------------

_device_meshes: dict[meshes.Mesh, tuple[weakref.ref[Any], device_mesh.DeviceMesh]] = {}
"""torch's mesh for each of ours, and the default process group in which it was made."""
_meshes: dict[device_mesh.DeviceMesh, meshes.Mesh] = {}
"""Our mesh for each of torch's."""


def get_device_mesh(mesh: meshes.Mesh) -> device_mesh.DeviceMesh:
    """Return torch's mesh of the same ranks. At the first call all ranks make it together.

    Raises:
        RuntimeError: There is no process group.
    """
    group = get_world()
    known = _device_meshes.get(mesh)
    if known is None or known[0]() is not group:
        ranks = [int(name.removeprefix(PLACES.format(""))) for name in mesh.devices]
        made = device_mesh.DeviceMesh("cpu", torch.tensor(ranks).reshape(mesh.shape()), mesh_dim_names=mesh.dim_names)
        known = _device_meshes[mesh] = (weakref.ref(group), made)
        _meshes[made] = mesh
    return known[1]


def find_mesh(native: device_mesh.DeviceMesh) -> meshes.Mesh:
    """Return our mesh for one of torch's."""
    known = _meshes.get(native)
    if known is None:
        names = native.mesh_dim_names or [f"dim_{number}" for number in range(native.ndim)]
        places = [PLACES.format(rank) for rank in native.mesh.flatten().tolist()]
        dims = list(zip(names, native.mesh.shape, strict=True))
        known = _meshes[native] = meshes.Mesh(dims, devices=places, framework="torch")
        _device_meshes.setdefault(known, (weakref.ref(get_world()), native))
    return known


def get_world() -> Any:
    group = dist.group.WORLD
    if group is None:
        raise RuntimeError(
            "A mesh on PyTorch needs a process group. Make the mesh in a training function of TorchTrainer, or after "
            "torch.distributed.init_process_group(); or write create_mesh(..., framework='jax')."
        )
    return group


def get_number(mesh: meshes.Mesh) -> int:
    """Return the number of this rank's device."""
    return mesh.devices.index(PLACES.format(dist.get_rank()))


# --- relayout ---------------------------------------------------------------------------------------------------------


def run_plan(local: torch.Tensor, source: layouts.Layout, target: layouts.Layout) -> torch.Tensor:
    """Return this rank's part of a value after a relayout, from its part before.

    Raises:
        RankDiedError: A rank that the relayout needs has died, and the group's backend has noticed.
    """
    return run_plans([local], [(source, target)])[0]


def run_plans(
    given: Sequence[torch.Tensor], pairs: Sequence[tuple[layouts.Layout, layouts.Layout]]
) -> list[torch.Tensor]:
    """Run relayouts of several values. Values that take the same steps share messages.

    Args:
        given: This rank's part of each value.
        pairs: The old and the new layout of each value.

    Raises:
        RankDiedError: See `run_plan`.
    """
    given = [local.resolve_conj().resolve_neg() for local in given]  # torch may have deferred the conjugate or sign
    plans = [
        relayouts.plan_relayout(source, target, source.global_shape_from_local_shape(local.shape), local.element_size())
        for local, (source, target) in zip(given, pairs, strict=True)
    ]
    for plan in plans:
        shown.OWN.note_moved(plan.steps)
    alike: dict[object, list[int]] = {}
    for number, (local, plan) in enumerate(zip(given, plans, strict=True)):
        key = (local.dtype, pairs[number][0].mesh, tuple([(step.kind, step.axis) for step in plan.steps]))
        alike.setdefault(key, []).append(number)
    found = list(given)
    for numbers in alike.values():
        moved = [found[number] for number in numbers]
        now = [pairs[number][0] for number in numbers]
        for steps in zip(*[plans[number].steps for number in numbers], strict=True):
            moved = _take_step(moved, steps, now)
            now = [step.target for step in steps]
        for number, local in zip(numbers, moved, strict=True):
            found[number] = local
    return found


def _take_step(
    given: Sequence[torch.Tensor], steps: Sequence[relayouts.Step], now: Sequence[layouts.Layout]
) -> list[torch.Tensor]:
    """Run steps of one kind along one axis."""
    together = _TOGETHER.get(steps[0].kind) if len(given) > 1 else None
    try:
        if together is not None:
            return together(given, steps, now[0])
        return [_STEPS[step.kind](local, step, layout) for local, step, layout in zip(given, steps, now, strict=True)]
    except errors.RankDiedError as error:
        raise errors.RankDiedError(f"{error}{_describe_ranks(steps[0], now[0])}") from error


def _describe_ranks(step: relayouts.Step, layout: layouts.Layout) -> str:
    """Return a sentence that maps the ranks of an axis's group, which numbers its own, to the ranks of all."""
    if step.kind is Kind.PERMUTE:
        return ""
    ranks = dist.get_process_group_ranks(_get_group(step, layout))
    told = ", ".join(f"{number} is {rank}" for number, rank in enumerate(ranks))
    return f" These ranks are numbered along the mesh axis {step.axis!r}; among all ranks, {told}."


def _get_group(step: relayouts.Step, layout: layouts.Layout) -> Any:
    return get_device_mesh(layout.mesh).get_group(step.axis)


def _get_place(step: relayouts.Step, layout: layouts.Layout) -> int:
    return layout.mesh.locate(get_number(layout.mesh))[step.axis]


def _split(local: torch.Tensor, step: relayouts.Step, layout: layouts.Layout) -> torch.Tensor:
    part = local.chunk(layout.mesh.dim_size(step.axis), step.dim)[_get_place(step, layout)]
    return part.clone(memory_format=torch.contiguous_format)  # a view would keep the memory of the whole


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
    """Send this rank's part to its rank under the new order of axes, and receive this rank's new part."""
    mesh = layout.mesh
    here, places = mesh.locate(get_number(mesh)), mesh.unravel_index()
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


# --- several values at once: their data lie one after the other in a message ------------------------------------------


def _gather_all(
    given: Sequence[torch.Tensor], steps: Sequence[relayouts.Step], layout: layouts.Layout
) -> list[torch.Tensor]:
    sent = torch.cat([local.reshape(-1) for local in given])
    size = layout.mesh.dim_size(steps[0].axis)
    received = sent.new_empty(size * len(sent))
    _all_gather(received, sent, group=_get_group(steps[0], layout))
    ranks = [_take_apart(part, given) for part in received.chunk(size)]
    return [torch.cat(parts, step.dim) for step, *parts in zip(steps, *ranks, strict=True)]


def _sum_all(
    given: Sequence[torch.Tensor], steps: Sequence[relayouts.Step], layout: layouts.Layout
) -> list[torch.Tensor]:
    flat = torch.cat([local.reshape(-1) for local in given])
    dist.all_reduce(flat, group=_get_group(steps[0], layout))
    return _take_apart(flat, given)


def _sum_parts_of_all(
    given: Sequence[torch.Tensor], steps: Sequence[relayouts.Step], layout: layouts.Layout
) -> list[torch.Tensor]:
    size = layout.mesh.dim_size(steps[0].axis)
    cut = [local.chunk(size, step.dim) for local, step in zip(given, steps, strict=True)]
    sent = torch.cat([parts[rank].reshape(-1) for rank in range(size) for parts in cut])
    received = sent.new_empty(len(sent) // size)
    _reduce_scatter(received, sent, group=_get_group(steps[0], layout))
    return _take_apart(received, [parts[0] for parts in cut])


def _take_apart(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of one flat tensor, with the shapes of other tensors."""
    parts: tuple[torch.Tensor, ...] = torch.split(flat, [one.numel() for one in like])
    return [part.view(one.shape) for part, one in zip(parts, like, strict=True)]


_TOGETHER: Final[
    Mapping[Kind, Callable[[Sequence[torch.Tensor], Sequence[relayouts.Step], layouts.Layout], list[torch.Tensor]]]
] = {
    Kind.ALL_GATHER: _gather_all,
    Kind.ALL_REDUCE: _sum_all,
    Kind.REDUCE_SCATTER: _sum_parts_of_all,
}
"""The kinds of steps that several values take in one message."""


class _Relayout(torch.autograd.Function):
    """A relayout of this rank's part; its gradient is the relayout back."""

    @staticmethod
    def forward(
        ctx: Any, local: torch.Tensor, source: layouts.Layout, target: layouts.Layout, slopes: layouts.Layout
    ) -> torch.Tensor:
        ctx.pair = slopes, source.with_partial(())  # a term has the slope of the whole sum: a replica along those axes
        moved = run_plan(local, source, target)
        return moved.view_as(moved) if moved is local else moved

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return run_plan(slopes[0].contiguous(), *ctx.pair), None, None, None


def move(native: torch_tensor.DTensor, target: layouts.Layout, slope_terms: Sequence[str] = ()) -> torch.Tensor:
    """Return this rank's part of a DTensor after a relayout. Its gradient returns by a plan, too.

    Args:
        native: torch's DTensor, on the mesh of the layout.
        target: The new layout.
        slope_terms: The axes along which the ranks' gradients will be terms of a sum.
    """
    native = settle(native)
    source = read_placements(native.placements, native.ndim, target.mesh)
    local = native.to_local(grad_placements=list_placements(source.with_partial(())))
    if not torch.is_grad_enabled():
        return run_plan(local, source, target)
    apply: Callable[..., torch.Tensor] = _Relayout.apply
    return apply(local, source, target, target.with_partial(slope_terms))


def build_dtensor(local: torch.Tensor, layout: layouts.Layout) -> torch_tensor.DTensor:
    """Return torch's DTensor from this rank's part."""
    placements = list_placements(layout)
    return torch_tensor.DTensor.from_local(local, get_device_mesh(layout.mesh), placements, run_check=False)
