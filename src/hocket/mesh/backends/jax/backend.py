"""JAX's implementation of the backend contract."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.extend import core

from hocket.mesh import layouts, meshes, shown, tensors
from hocket.mesh import relayouts as algebra
from hocket.mesh.backends import contract
from hocket.mesh.backends.jax import devices, processes, relayouts, values

_ALIGNMENT: Final = 64
"""The alignment of XLA's arrays on CPUs, in bytes."""

T = TypeVar("T")


@final
class JaxBackend(contract.Backend):
    """The backend for JAX."""

    name = "jax"
    more_devices = (
        "JAX makes its devices when it is first used: make the mesh before that, or set "
        "XLA_FLAGS=--xla_force_host_platform_device_count before the program starts, or make the mesh smaller."
    )

    def __init__(self) -> None:
        self._variables: set[type[object]] = set()

    def list_devices(self, device_type: str, count: int | None) -> list[str]:
        kind = device_type.lower()
        if kind == "cpu" and count is not None:
            devices.want_cpus(count)
        try:
            return [devices.name_device(device) for device in jax.local_devices(backend=kind)]
        except RuntimeError as error:
            raise ValueError(f"JAX has no devices of the type {device_type!r}: {error}") from error

    def list_all_devices(self, device_type: str, count: int | None) -> list[str]:
        size = processes.count()
        each = None if count is None else count // size
        if count is not None and count % size:
            raise ValueError(
                f"A mesh of {count} devices cannot be shared equally by {size} processes. Use a multiple of {size}."
            )
        self.list_devices(device_type, each)  # makes as many devices, if JAX is still unused
        by_process: dict[int, list[str]] = {}
        for device in jax.devices(device_type.lower()):
            by_process.setdefault(device.process_index, []).append(devices.name_device(device))
        return [name for _, names in sorted(by_process.items()) for name in names[:each]]

    def check_mesh(self, mesh: meshes.Mesh) -> None:
        devices.want_named(mesh.devices)
        processes.connect(devices.get_mesh(mesh))

    def list_local(self, mesh: meshes.Mesh) -> list[int]:
        own = jax.process_index()
        return [
            number for number, device in enumerate(devices.get_mesh(mesh).devices.flat) if device.process_index == own
        ]

    def flatten(self, tree: Any) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], Any]]:
        found, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_dtensor)
        named = [
            (jax.tree_util.keystr(path, simple=True, separator="/"), values.adopt_global(leaf)) for path, leaf in found
        ]
        return named, functools.partial(jax.tree_util.tree_unflatten, structure)

    def prepare_to_load(self, tree: Any, names: Sequence[str]) -> None:
        pass  # JAX has no optimizer objects

    def is_value(self, value: object) -> bool:
        return isinstance(value, (values.JaxTensor, jax.Array))

    def distribute(self, value: Any, layout: layouts.Layout) -> values.JaxTensor:
        array = value.native if isinstance(value, values.JaxTensor) else value  # numpy arrays are cut before copying
        if isinstance(array, jax.core.Tracer):
            return self._constrain(array, layout)
        layout.local_shape_from_global_shape(array.shape)
        whole = layout.with_partial(())
        _check_width(array)
        owned = _copy_if_host(array)
        placed = values.JaxTensor(values.place(owned, devices.find_sharding(whole)), layout.mesh, layout=whole)
        return self.relayout(placed, layout) if layout.partial else placed

    def pack(self, parts: Sequence[Any], layout: layouts.Layout) -> values.JaxTensor:
        for part in parts:
            _check_width(part)
        sharding = devices.find_sharding(layout)
        own = [device for device in sharding.mesh.devices.flat if device.process_index == jax.process_index()]
        ones = (1,) * len(layout.partial)
        placed = [
            jax.device_put(_copy_if_host(part), device).reshape((*ones, *np.shape(part)))
            for part, device in zip(parts, own, strict=True)
        ]
        sizes = [layout.mesh.dim_size(name) for name in layout.partial]
        shape = (*sizes, *layout.global_shape_from_local_shape(np.shape(parts[0])))
        array = jax.make_array_from_single_device_arrays(shape, sharding, placed)
        return values.JaxTensor(array, layout.mesh, layout.partial, layout)

    def unpack(self, value: tensors.DTensor) -> list[Any]:
        assert isinstance(value, values.JaxTensor)
        by_device = {shard.device: shard.data for shard in value.raw.addressable_shards}
        local = value.layout.local_shape_from_global_shape(value.shape)  # JAX does not cut empty arrays
        ordered = devices.get_mesh(value.mesh).devices.flat
        return [by_device[device].reshape(local) for device in ordered if device in by_device]

    def relayout(self, value: tensors.DTensor, layout: layouts.Layout) -> values.JaxTensor:
        assert isinstance(value, values.JaxTensor)
        if isinstance(value.raw, jax.core.Tracer):
            return self._constrain(value.native, layout)
        if not value.size:  # XLA's collectives refuse empty arrays
            empty = np.zeros(layout.local_shape_from_global_shape(value.shape), value.dtype)
            return self.pack([empty] * len(self.list_local(layout.mesh)), layout)
        run = relayouts.compile_plan(value.layout, layout, value.shape, value.dtype.itemsize)
        plan = algebra.plan_relayout(value.layout, layout, value.shape, value.dtype.itemsize)
        shown.OWN.note_moved(plan.steps)
        moved = _finish(run(value.raw), layout.mesh)
        return values.JaxTensor(moved, layout.mesh, layout.partial, layout)

    def _constrain(self, array: Any, layout: layouts.Layout) -> values.JaxTensor:
        if layout.partial:
            raise ValueError(
                "A value that JAX traces cannot be a sum with `partial` terms. Leave `partial` out of the layout, or "
                "call relayout outside the function."
            )
        layout.local_shape_from_global_shape(array.shape)
        return values.JaxTensor(jax.lax.with_sharding_constraint(array, devices.find_sharding(layout)), layout.mesh)

    def call(
        self, function: Callable[..., Any], layout: layouts.Layout, args: Sequence[Any], kwargs: Any
    ) -> values.JaxTensor:
        made = jax.eval_shape(lambda: function(*args, **kwargs))
        layout.local_shape_from_global_shape(made.shape)
        whole = layout.with_partial(())
        array = jax.jit(lambda: jnp.asarray(function(*args, **kwargs)), out_shardings=devices.find_sharding(whole))()
        placed = values.JaxTensor(array, layout.mesh, layout=whole)
        return self.relayout(placed, layout) if layout.partial else placed

    def to_numpy(self, value: Any) -> npt.NDArray[Any]:
        return np.asarray(value)

    def gather_objects(self, value: object) -> list[Any]:
        return processes.gather_objects(value)

    def get_process(self) -> int:
        return int(jax.process_index())

    def is_traced(self, value: tensors.DTensor) -> bool:
        return isinstance(value, values.JaxTensor) and isinstance(value.raw, jax.core.Tracer)

    def differentiate(
        self, function: Callable[[Sequence[tensors.DTensor]], Any], given: Sequence[tensors.DTensor]
    ) -> tuple[Any, list[tensors.DTensor]]:
        def compute(given: Sequence[tensors.DTensor]) -> tuple[object, object]:
            found = function(given)
            return values.open_value(found), found

        (_, found), slopes = jax.value_and_grad(compute, has_aux=True)(list(given))
        return found, list(slopes)

    def compile(
        self, function: contract.StepOfValues, outcome: Sequence[layouts.Layout], *, donate: bool
    ) -> contract.StepOfValues:
        def constrain(
            given: list[tensors.DTensor], args: object, kwargs: object
        ) -> tuple[object, list[tensors.DTensor]]:
            result, made = function(given, args, kwargs)
            return result, [
                self._constrain(values.open_value(one), layout) for one, layout in zip(made, outcome, strict=True)
            ]

        compiled = jax.jit(exchange_sides(constrain), donate_argnums=(0,) if donate else ())

        def run(given: list[tensors.DTensor], args: object, kwargs: object) -> tuple[object, list[tensors.DTensor]]:
            result, made = _finish(compiled(given, args, kwargs), outcome[0].mesh)
            return result, [
                values.JaxTensor(values.get_raw(one), layout.mesh, layout=layout)
                for one, layout in zip(made, outcome, strict=True)
            ]

        return run

    def register_variable(self, kind: type[Any]) -> None:
        if kind not in self._variables:
            self._variables.add(kind)
            # In a function that JAX transforms, a variable becomes its value, which cannot be assigned to.
            jax.tree_util.register_pytree_node(kind, lambda one: ((one.value,), None), lambda _, values: values[0])

    def wait_for_all(self, mesh: meshes.Mesh) -> None:
        ones = self.call(jnp.ones, layouts.Layout([mesh.dim_names], mesh), [(mesh.size,)], {})
        count = int(ones.sum().gather())
        assert count == mesh.size


def _is_dtensor(value: object) -> bool:
    return isinstance(value, tensors.DTensor)


BACKEND: Final = JaxBackend()


def _copy_if_host(value: object) -> object:
    """Return a copy of a numpy array, in C order and aligned for JAX; return other values unchanged.

    JAX does not copy a numpy array to a CPU device if its memory begins at a multiple of 64 bytes. The value then
    changes when the program refills its buffer, as data loaders do (measured with jax 0.10, ``may_alias=False`` too).
    An array's alignment is chance. So arrays are copied here, once, to aligned memory that JAX takes over without a
    second copy. Replicas then share the memory.
    """
    if not isinstance(value, np.ndarray) or value.dtype == object:
        return value
    memory = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    made = memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    np.copyto(made, value)
    return made


def _check_width(value: object) -> None:
    """Raise if JAX would change an array's numbers: without ``jax_enable_x64`` each has 32 bits."""
    if (
        not isinstance(value, np.ndarray)
        or value.dtype.kind not in "iuf"
        or value.dtype.itemsize <= 4
        or not value.size
    ):
        return
    kind = jax.dtypes.canonicalize_dtype(value.dtype)
    if kind == value.dtype:
        return
    most = np.finfo(kind) if value.dtype.kind == "f" else np.iinfo(kind)
    finite = value[np.isfinite(value)] if value.dtype.kind == "f" else value
    if finite.size and not (float(most.min) <= float(finite.min()) and float(finite.max()) <= float(most.max)):
        raise ValueError(
            f"The array has numbers from {finite.min()} to {finite.max()}, but JAX would convert it to {kind}, which "
            "cannot hold them. Call jax.config.update('jax_enable_x64', True) first, or convert it."
        )


def exchange_sides(function: Callable[..., T]) -> Callable[..., T]:
    """Return the same function without the transpositions that a product can spare. For ``jax.jit``.

    JAX's gradient of ``x @ weights`` by the weights is ``(slope.T @ x).T``. On one device XLA swaps the two sides,
    which removes the transposition. On several devices a sum stands between product and transposition, so the
    transposition stays, and each device reads its sum against the order of memory. Therefore a compiled step is
    rewritten before XLA partitions it: ``(a @ b).T`` becomes ``b.T @ a.T``, one `dot_general` with its sides exchanged.
    The result is the same, except for the order of a sum. For the reference network's step on 8 virtual devices this
    saves 3 to 5% of CPU time (measured).
    """

    def call(*args: object) -> T:
        traced, made = jax.make_jaxpr(function, return_shape=True)(*args)
        program = traced.replace(jaxpr=_rewrite(traced.jaxpr))
        results = core.jaxpr_as_fun(program)(*jax.tree_util.tree_leaves(args))
        found: T = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(made), results)
        return found

    return call


def _rewrite(program: Any) -> object:
    """Return a program with each removable transposition replaced with a product."""
    products = {step.outvars[0]: step for step in program.eqns if step.primitive is jax.lax.dot_general_p}

    def replace(step: Any) -> object:
        source = _find_product(step, products)
        return step if source is None else _exchange(source).replace(outvars=step.outvars)

    return program.replace(eqns=list(map(replace, program.eqns)))


def _find_product(step: Any, products: dict[Any, Any]) -> object:
    """Return the product that a step transposes, if exchanging the product's sides has the same effect."""
    if step.primitive is not jax.lax.transpose_p or isinstance(step.invars[0], core.Literal):
        return None
    source = products.get(step.invars[0])
    if source is None:
        return None
    (contracted, _), (batch, _) = source.params["dimension_numbers"]
    wanted = source.params.get("out_sharding")
    if batch or (wanted is not None and any(entry is not None for entry in wanted.spec)):
        return None
    first = source.invars[0].aval.ndim - len(contracted)  # number of the result's dims that come from the left side
    order = (*range(first, len(step.params["permutation"])), *range(first))
    return source if tuple(step.params["permutation"]) == order else None


def _exchange(source: Any) -> Any:
    """Return a product with its sides exchanged."""
    (left, right), none = source.params["dimension_numbers"]
    precision = source.params["precision"]
    precision = precision[::-1] if isinstance(precision, tuple) else precision
    params = {**source.params, "dimension_numbers": ((right, left), none), "precision": precision}
    return source.replace(invars=source.invars[::-1], params=params)


def _finish(values: T, mesh: meshes.Mesh) -> T:
    """Wait for values if their devices share a processor's threads, and return them.

    JAX queues computations and returns at once. On virtual CPU devices, each program takes a thread of one pool for
    each device, and blocks it at each sum until all devices arrive. A loop that never reads a result queues hundreds of
    programs. Then devices of different programs hold each other's threads, and XLA ends the process after 40 seconds
    ("Termination timeout"; measured on 2 processors with 8 devices, plain JAX too). So one program at a time is queued
    there. The cost is that Python's time between two programs no longer overlaps with computation; a program that reads
    its loss at each step loses nothing.
    """
    if mesh.size > 1 and all(name.startswith("CPU:") for name in mesh.devices):
        jax.block_until_ready(values)
    return values
