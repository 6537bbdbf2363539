"""Meshes and layouts on JAX: a value is one global array, and XLA finds what an operation's result is spread like.

A relayout is ours: `shard_map` with the steps of the plan, so no more bytes move than the algebra says. Inside of a
function that JAX traces the layout is not known; there it is a constraint, and XLA finds the way.

Over several processes a mesh has the devices of all of them (`jax_processes`), and all call the same in the same order.
A process keeps what its devices have; XLA's collectives between processes are gloo's, or NCCL's.

Terms of a sum (`Layout.partial`) have no place in a global array whose axes XLA manages. So the array of such a value
has a dim more for each of these axes, ahead of the others and cut by it: each device has its own term. Operations take
the sum first.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec

from hocket.mesh import layouts, meshes, relayouts, tensors
from hocket.mesh.backends import contract, host_copies, jax_products, jax_queues
from hocket.mesh.backends import jax_processes as processes
from hocket.mesh.relayouts import Kind


@final
class JaxTensor(tensors.DTensor):
    """A DTensor of JAX. A pytree with one leaf, so functions that JAX transforms take and return it.

    Args:
        array: The global array, with a dim more for each axis of `partial`.
        mesh: The mesh; the array lies on its devices.
        partial: The axes along which devices have terms of a sum.
        layout: How it is spread, if that is known. Default: what XLA has chosen.
    """

    __slots__ = ("_array", "_layout", "_mesh", "_partial")

    def __init__(
        self, array: Any, mesh: meshes.Mesh, partial: tuple[str, ...] = (), layout: layouts.Layout | None = None
    ) -> None:
        self._array = array
        self._mesh = mesh
        self._partial = partial
        self._layout = layout

    @property
    def layout(self) -> layouts.Layout:
        """How it is spread.

        Raises:
            RuntimeError: It is being traced by ``jax.jit`` or ``jax.grad``: XLA decides there.
        """
        if self._layout is None:
            self._layout = self._find_layout()
        return self._layout

    def _find_layout(self) -> layouts.Layout:
        is_known = not isinstance(self._array, jax.core.Tracer)
        if not is_known:
            raise RuntimeError(
                "The layout of a value is not known while JAX traces a function: XLA decides it. Ask outside of the "
                "function, or say it with relayout(value, layout)."
            )
        spec = tuple(self._array.sharding.spec)
        entries = [*spec, *[None] * (self._array.ndim - len(spec))][len(self._partial) :]
        specs = [layouts.UNSHARDED if one is None else one for one in entries]
        return layouts.Layout(specs, self._mesh, partial=self._partial)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape[len(self._partial) :])

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = np.dtype(self._array.dtype)
        return found

    @property
    def native(self) -> Any:
        """The global array; of terms of a sum, their sum."""
        return self._array.sum(tuple(range(len(self._partial)))) if self._partial else self._array

    @property
    def raw(self) -> Any:
        """The array as it is, with the dims of `partial`."""
        return self._array

    @property
    def partial(self) -> tuple[str, ...]:
        """The axes along which devices have terms of a sum."""
        return self._partial

    @property
    def mesh(self) -> meshes.Mesh:
        """The mesh."""
        return self._mesh

    def gather(self) -> npt.NDArray[Any]:
        return gather(self.native)

    # --- as an array --------------------------------------------------------------------------------------------------

    def __jax_array__(self) -> Any:
        return self.native

    def _compute(self, function: Callable[..., Any], *args: Any) -> Any:
        if any(isinstance(arg, (str, bytes, dict)) for arg in args):
            return NotImplemented
        return wrap(function(*map(_open, args)), self._mesh)


def gather(array: Any) -> npt.NDArray[Any]:
    """Return a global array as numpy's; if it is spread over processes, all of them call it."""
    if not array.is_fully_addressable:
        if not array.is_fully_replicated:
            array = jax.jit(_keep, out_shardings=NamedSharding(array.sharding.mesh, PartitionSpec()))(array)
        array = array.addressable_data(0)
    return np.asarray(array)


def _keep(array: Any) -> Any:
    return array


def _open(value: object) -> Any:
    if type(value) is tuple:  # an index
        return tuple(map(_open, value))
    return value.native if isinstance(value, tensors.DTensor) else value


def _get_raw(value: tensors.DTensor) -> Any:
    assert isinstance(value, JaxTensor)
    return value.raw


def _is_value(value: object) -> bool:
    return isinstance(value, tensors.DTensor)


def wrap(value: Any, mesh: meshes.Mesh) -> Any:
    """Return an array on a mesh as a DTensor; what is none as it is."""
    if not isinstance(value, jax.Array):
        return value
    if not isinstance(value, jax.core.Tracer) and not isinstance(value.sharding, NamedSharding):
        value = place(value, NamedSharding(get_mesh(mesh), PartitionSpec()))
    return JaxTensor(value, mesh)


def place(value: Any, sharding: NamedSharding) -> jax.Array:
    """Return what every process has whole as a global array. In a process each device gets its part."""
    is_whole = not isinstance(value, jax.Array) or value.is_fully_addressable
    if sharding.is_fully_addressable or not is_whole:
        return jax.device_put(value, sharding)
    # JAX's own would have all processes compare what they have first, over the network.
    array = np.asarray(value)
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


def adopt(array: jax.Array) -> JaxTensor:
    """Return a global array of JAX's, on whatever mesh, as a value."""
    sharding = array.sharding
    assert isinstance(sharding, NamedSharding)
    devices = [_name_device(device) for device in sharding.mesh.devices.flat]
    mesh = meshes.Mesh(list(sharding.mesh.shape.items()), devices=devices, framework="jax")
    return JaxTensor(array, mesh)


def _adopt_global(value: Any) -> Any:
    is_array = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    return adopt(value) if is_array and isinstance(value.sharding, NamedSharding) else value


jax.tree_util.register_pytree_node(
    JaxTensor,
    lambda value: ((value.raw,), (value.mesh, value.partial)),
    lambda kept, leaves: JaxTensor(leaves[0], *kept),
)

# --- the mesh ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def get_mesh(mesh: meshes.Mesh) -> jax.sharding.Mesh:
    """Return JAX's mesh of these devices.

    Raises:
        ValueError: A device does not exist.
    """
    by_name = {_name_device(device): device for kind in _list_kinds() for device in jax.devices(kind)}
    missing = next((name for name in mesh.devices if name not in by_name), None)
    if missing is not None:
        raise ValueError(
            f"The mesh {mesh.describe()} has the device {missing!r}, but JAX has {sorted(by_name)}. Make the mesh "
            "before anything else uses JAX, or set XLA_FLAGS=--xla_force_host_platform_device_count=8."
        )
    devices = np.array([by_name[name] for name in mesh.devices], dtype=object).reshape(mesh.shape())
    return jax.sharding.Mesh(devices, mesh.dim_names)


def _list_kinds() -> set[str]:
    return {"cpu", jax.default_backend()}


def _name_device(device: Any) -> str:
    return f"{device.platform.upper()}:{device.id}"


def find_sharding(layout: layouts.Layout) -> NamedSharding:
    """Return JAX's word for a layout; terms of a sum have a dim of their own, ahead of the others."""
    return NamedSharding(get_mesh(layout.mesh), _find_spec(layout))


def _find_spec(layout: layouts.Layout) -> PartitionSpec:
    return PartitionSpec(*layout.partial, *(axes or None for axes in layout.axes))


# --- relayout ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _compile_plan(
    source: layouts.Layout, target: layouts.Layout, shape: tuple[int, ...], itemsize: int
) -> Callable[[Any], Any]:
    plan = relayouts.plan_relayout(source, target, shape, itemsize)
    mesh = get_mesh(source.mesh)

    def run(local: Any) -> Any:
        local = local.reshape(local.shape[len(source.partial) :])
        layout = source
        for step in plan.steps:
            local = _STEPS[step.kind](local, step, layout)
            layout = step.target
        return local.reshape((1,) * len(target.partial) + local.shape)

    mapped = jax.shard_map(run, mesh=mesh, in_specs=_find_spec(source), out_specs=_find_spec(target), check_vma=False)
    compiled: Callable[[Any], Any] = jax.jit(mapped)
    return compiled


def _split(local: Any, step: relayouts.Step, layout: layouts.Layout) -> Any:
    size = local.shape[step.dim] // layout.mesh.dim_size(step.axis)
    return jax.lax.dynamic_slice_in_dim(local, jax.lax.axis_index(step.axis) * size, size, step.dim)


def _spread(local: Any, step: relayouts.Step, layout: layouts.Layout) -> Any:
    return jnp.where(jax.lax.axis_index(step.axis) == 0, local, jnp.zeros_like(local))


def _gather(local: Any, step: relayouts.Step, layout: layouts.Layout) -> Any:
    return jax.lax.all_gather(local, step.axis, axis=step.dim, tiled=True)


def _exchange(local: Any, step: relayouts.Step, layout: layouts.Layout) -> Any:
    return jax.lax.all_to_all(local, step.axis, split_axis=step.dim, concat_axis=step.from_dim, tiled=True)


def _sum(local: Any, step: relayouts.Step, layout: layouts.Layout) -> Any:
    return jax.lax.psum(local, step.axis)


def _sum_parts(local: Any, step: relayouts.Step, layout: layouts.Layout) -> Any:
    return jax.lax.psum_scatter(local, step.axis, scatter_dimension=step.dim, tiled=True)


def _permute(local: Any, step: relayouts.Step, layout: layouts.Layout) -> Any:
    """Send each part to the device that has it in the new order of axes."""
    old, new = layout.axes[step.dim], step.target.axes[step.dim]
    mesh = layout.mesh
    names = tuple(sorted(old, key=mesh.dim_names.index))  # JAX numbers devices in this order, whatever it is given
    places = mesh.unravel_index()
    holders = {_number(place, old, mesh): _number(place, names, mesh) for place in places}
    pairs = {(holders[_number(place, new, mesh)], _number(place, names, mesh)) for place in places}
    return jax.lax.ppermute(local, names, sorted(pairs))


def _number(place: dict[str, int], axes: Sequence[str], mesh: meshes.Mesh) -> int:
    number = 0
    for name in axes:
        number = number * mesh.dim_size(name) + place[name]
    return number


_STEPS: Final = {
    Kind.SPLIT: _split,
    Kind.SPREAD: _spread,
    Kind.ALL_GATHER: _gather,
    Kind.ALL_TO_ALL: _exchange,
    Kind.ALL_REDUCE: _sum,
    Kind.REDUCE_SCATTER: _sum_parts,
    Kind.PERMUTE: _permute,
}


# --- what is asked ----------------------------------------------------------------------------------------------------


@final
class JaxBackend(contract.Backend):
    """JAX."""

    name = "jax"

    def __init__(self) -> None:
        self._variables: set[type[Any]] = set()

    def list_devices(self, device_type: str, count: int | None) -> list[str]:
        kind = device_type.lower()
        if kind == "cpu" and count is not None:
            _want_cpus(count)
        try:
            return [_name_device(device) for device in jax.local_devices(backend=kind)]
        except RuntimeError as error:
            raise ValueError(f"JAX has no devices of the type {device_type!r}: {error}") from error

    def list_all_devices(self, device_type: str, count: int | None) -> list[str]:
        size = processes.count()
        each = None if count is None else count // size
        if count is not None and count % size:
            raise ValueError(
                f"A mesh of {count} devices cannot be made of {size} processes, each with as many. Use a multiple of "
                f"{size}."
            )
        self.list_devices(device_type, each)  # so that there are as many, if nothing has used JAX
        by_process: dict[int, list[str]] = {}
        for device in jax.devices(device_type.lower()):
            by_process.setdefault(device.process_index, []).append(_name_device(device))
        return [name for _, names in sorted(by_process.items()) for name in names[:each]]

    def check_mesh(self, mesh: meshes.Mesh) -> None:
        processes.connect(get_mesh(mesh))

    def list_local(self, mesh: meshes.Mesh) -> list[int]:
        own = jax.process_index()
        return [number for number, device in enumerate(get_mesh(mesh).devices.flat) if device.process_index == own]

    def flatten(self, tree: Any) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], Any]]:
        found, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_value)
        named = [(jax.tree_util.keystr(path, simple=True, separator="/"), _adopt_global(leaf)) for path, leaf in found]
        return named, functools.partial(jax.tree_util.tree_unflatten, structure)

    def is_value(self, value: object) -> bool:
        return isinstance(value, (JaxTensor, jax.Array))

    def distribute(self, value: Any, layout: layouts.Layout) -> JaxTensor:
        array = value.native if isinstance(value, JaxTensor) else value  # numpy's is cut before it is copied
        if isinstance(array, jax.core.Tracer):
            return self._constrain(array, layout)
        layout.local_shape_from_global_shape(array.shape)
        whole = layout.with_partial(())
        owned = host_copies.copy_if_host(array)
        placed = JaxTensor(place(owned, find_sharding(whole)), layout.mesh, layout=whole)
        return self.relayout(placed, layout) if layout.partial else placed

    def pack(self, parts: Sequence[Any], layout: layouts.Layout) -> JaxTensor:
        sharding = find_sharding(layout)
        devices = [device for device in sharding.mesh.devices.flat if device.process_index == jax.process_index()]
        ones = (1,) * len(layout.partial)
        placed = [
            jax.device_put(host_copies.copy_if_host(part), device).reshape((*ones, *np.shape(part)))
            for part, device in zip(parts, devices, strict=True)
        ]
        sizes = [layout.mesh.dim_size(name) for name in layout.partial]
        shape = (*sizes, *layout.global_shape_from_local_shape(np.shape(parts[0])))
        array = jax.make_array_from_single_device_arrays(shape, sharding, placed)
        return JaxTensor(array, layout.mesh, layout.partial, layout)

    def unpack(self, value: tensors.DTensor) -> list[Any]:
        assert isinstance(value, JaxTensor)
        by_device = {shard.device: shard.data for shard in value.raw.addressable_shards}
        local = value.layout.local_shape_from_global_shape(value.shape)  # JAX does not cut what has no elements
        devices = get_mesh(value.mesh).devices.flat
        return [by_device[device].reshape(local) for device in devices if device in by_device]

    def relayout(self, value: tensors.DTensor, layout: layouts.Layout) -> JaxTensor:
        assert isinstance(value, JaxTensor)
        if isinstance(value.raw, jax.core.Tracer):
            return self._constrain(value.native, layout)
        if not value.size:  # XLA's collectives refuse it
            empty = np.zeros(layout.local_shape_from_global_shape(value.shape), value.dtype)
            return self.pack([empty] * len(self.list_local(layout.mesh)), layout)
        run = _compile_plan(value.layout, layout, value.shape, value.dtype.itemsize)
        moved = jax_queues.finish(run(value.raw), layout.mesh)
        return JaxTensor(moved, layout.mesh, layout.partial, layout)

    def _constrain(self, array: Any, layout: layouts.Layout) -> JaxTensor:
        if layout.partial:
            raise ValueError(
                "Inside of a function that JAX traces a value has no terms of a sum. Leave `partial` out of the "
                "layout, or call relayout outside of the function."
            )
        layout.local_shape_from_global_shape(array.shape)
        return JaxTensor(jax.lax.with_sharding_constraint(array, find_sharding(layout)), layout.mesh)

    def call(self, function: Callable[..., Any], layout: layouts.Layout, args: Sequence[Any], kwargs: Any) -> JaxTensor:
        made = jax.eval_shape(lambda: function(*args, **kwargs))
        layout.local_shape_from_global_shape(made.shape)
        whole = layout.with_partial(())
        array = jax.jit(lambda: jnp.asarray(function(*args, **kwargs)), out_shardings=find_sharding(whole))()
        placed = JaxTensor(array, layout.mesh, layout=whole)
        return self.relayout(placed, layout) if layout.partial else placed

    def to_numpy(self, value: Any) -> npt.NDArray[Any]:
        return np.asarray(value)

    def gather_objects(self, value: object) -> list[Any]:
        return processes.gather_objects(value)

    def get_process(self) -> int:
        return int(jax.process_index())

    def is_traced(self, value: tensors.DTensor) -> bool:
        return isinstance(value, JaxTensor) and isinstance(value.raw, jax.core.Tracer)

    def differentiate(
        self, function: Callable[[Sequence[tensors.DTensor]], Any], values: Sequence[tensors.DTensor]
    ) -> tuple[Any, list[tensors.DTensor]]:
        def compute(values: Sequence[tensors.DTensor]) -> tuple[Any, Any]:
            found = function(values)
            return _open(found), found

        (_, found), slopes = jax.value_and_grad(compute, has_aux=True)(list(values))
        return found, list(slopes)

    def compile(
        self, function: contract.StepOfValues, outcome: Sequence[layouts.Layout], *, donate: bool
    ) -> contract.StepOfValues:
        def constrain(values: list[tensors.DTensor], args: Any, kwargs: Any) -> tuple[Any, list[tensors.DTensor]]:
            result, made = function(values, args, kwargs)
            return result, [self._constrain(_open(one), layout) for one, layout in zip(made, outcome, strict=True)]

        compiled = jax.jit(jax_products.exchange_sides(constrain), donate_argnums=(0,) if donate else ())

        def run(values: list[tensors.DTensor], args: Any, kwargs: Any) -> tuple[Any, list[tensors.DTensor]]:
            result, made = jax_queues.finish(compiled(values, args, kwargs), outcome[0].mesh)
            return result, [
                JaxTensor(_get_raw(one), layout.mesh, layout=layout) for one, layout in zip(made, outcome, strict=True)
            ]

        return run

    def register_variable(self, kind: type[Any]) -> None:
        if kind not in self._variables:
            self._variables.add(kind)
            # Inside of a function that JAX transforms a variable is its value, which nothing can be assigned to.
            jax.tree_util.register_pytree_node(kind, lambda one: ((one.value,), None), lambda _, values: values[0])

    def wait_for_all(self, mesh: meshes.Mesh) -> None:
        ones = self.call(jnp.ones, layouts.Layout([mesh.dim_names], mesh), [(mesh.size,)], {})
        count = int(ones.sum().gather())
        assert count == mesh.size


def _want_cpus(count: int) -> None:
    """Have so many virtual devices, if nothing has used JAX yet; else there are as many as there are."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # it is too late, and the mesh is checked against what there is
        return


BACKEND: Final = JaxBackend()
