"""Operations for users: make meshes, spread values over them, and inspect layouts.

Names and meanings are those of TensorFlow's ``tf.experimental.dtensor``.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from hocket._base import texts
from hocket.mesh import layouts, meshes, tensors
from hocket.mesh.backends import contract

_default: Final = contextvars.ContextVar[meshes.Mesh | None]("hocket_default_mesh", default=None)


# --- meshes -----------------------------------------------------------------------------------------------------------


def create_mesh(
    mesh_dims: Mapping[str, int] | Sequence[tuple[str, int]] | None = None,
    mesh_name: str = "",
    devices: Sequence[str] | None = None,
    device_type: str = "CPU",
    *,
    framework: str | None = None,
) -> meshes.Mesh:
    """Make a mesh of this process's devices.

    Args:
        mesh_dims: Names and sizes of the axes, major first. The size of a single axis may be -1, for all devices.
            Default: one axis, ``x``, of all devices.
        mesh_name: A name that distinguishes meshes of the same shape.
        devices: The names of the devices. Default: as many devices of the type as the mesh has places.
        device_type: The type of the devices, if `devices` is not given. CPU devices are virtual: if the program has not
            used JAX yet, it gets as many as the mesh has places.
        framework: The framework that computes: ``"jax"``, or ``"torch"``, whose devices are the ranks of a process
            group. Default: an imported framework, else an installed one, JAX first.

    Raises:
        ValueError: There are too few devices, or a size is wrong.
        MissingExtraError: The framework is not installed. It is also an ImportError.

    Example:
        >>> from hocket import mesh
        >>> mesh.create_mesh({"data": 1})
        Mesh({'data': 1})
    """
    backend = contract.get_backend(framework if framework is not None else contract.choose_framework())
    return _build_mesh(mesh_dims, mesh_name, backend, backend.list_devices, device_type, devices)


def create_distributed_mesh(
    mesh_dims: Mapping[str, int] | Sequence[tuple[str, int]] | None = None,
    mesh_name: str = "",
    device_type: str = "CPU",
    *,
    framework: str | None = None,
) -> meshes.Mesh:
    """Make a mesh of the devices of several processes. All processes call this function, and every computation on it.

    ``JaxTrainer(..., jax_config=JaxConfig(distributed=True))`` joins JAX's processes; elsewhere call
    ``jax.distributed.initialize`` first. With PyTorch it makes the mesh of all ranks, like `create_mesh`. The devices
    of one process are neighbours along the last axis.

    Args:
        mesh_dims: Names and sizes of the axes, major first. The size of a single axis may be -1, for all devices.
            Default: one axis, ``x``, of all devices.
        mesh_name: A name that distinguishes meshes of the same shape.
        device_type: The type of the devices. A process that has not used JAX yet gets its share as virtual CPU devices.
        framework: ``"jax"`` or ``"torch"``. Default: an imported framework, else an installed one, JAX first.

    Raises:
        RuntimeError: The processes are not joined.
        ValueError: There are too few devices, they cannot be taken equally from all processes, or a size is wrong.

    Example:
        >>> from hocket import mesh
        >>> mesh.create_distributed_mesh({"data": 1}, framework="jax")  # one process has all of it
        Mesh({'data': 1})
    """
    backend = contract.get_backend(framework if framework is not None else contract.choose_framework())
    return _build_mesh(mesh_dims, mesh_name, backend, backend.list_all_devices, device_type)


def _build_mesh(
    mesh_dims: Mapping[str, int] | Sequence[tuple[str, int]] | None,
    mesh_name: str,
    backend: contract.Backend,
    find: Callable[[str, int | None], list[str]],
    device_type: str,
    devices: Sequence[str] | None = None,
) -> meshes.Mesh:
    pairs = _list_pairs(mesh_dims)
    wants_all = len(pairs) == 1 and pairs[0][1] == -1
    count = None if wants_all else math.prod([size for _, size in pairs])
    found = list(devices) if devices is not None else find(device_type, count)
    if wants_all:
        pairs = [(pairs[0][0], len(found))]
    made = meshes.Mesh(pairs)  # checks names and sizes
    if devices is None:
        if made.size > len(found):
            there = "there is 1" if len(found) == 1 else f"there are {len(found)}"
            raise ValueError(
                f"A mesh of {made.describe()} needs {made.size} devices, but {there} of the type "
                f"{device_type!r}. {backend.more_devices}"
            )
        found = found[: made.size]
    mesh = meshes.Mesh(pairs, name=mesh_name, devices=found, framework=backend.name)
    backend.check_mesh(mesh)
    return mesh


def _list_pairs(mesh_dims: object) -> list[tuple[str, int]]:
    """Return the names and sizes of axes."""
    if mesh_dims is None:
        return [("x", -1)]
    pairs = list(mesh_dims.items()) if isinstance(mesh_dims, Mapping) else mesh_dims
    if isinstance(pairs, str) or not isinstance(pairs, Sequence):
        raise TypeError(
            f"mesh_dims must be a dict of names and sizes, but received {mesh_dims!r}. Write {{'data': 2}}."
        )
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2 or not hasattr(pair[1], "__index__"):
            raise TypeError(
                f"An axis of a mesh is a name and a whole number, but received {pair!r}. Write {{'data': 2}}."
            )
    return [(name, size) for name, size in pairs]


@contextlib.contextmanager
def default_mesh(mesh: meshes.Mesh) -> Iterator[meshes.Mesh]:
    """Make a mesh the default of this module's functions for the duration of a block."""
    _check_mesh(mesh)
    token = _default.set(mesh)
    try:
        yield mesh
    finally:
        _default.reset(token)


def get_default_mesh() -> meshes.Mesh | None:
    """Return the mesh of the innermost `default_mesh` block; None outside of one."""
    return _default.get()


def barrier(mesh: meshes.Mesh) -> None:
    """Wait until all devices of a mesh have reached this call."""
    find_backend(mesh).wait_for_all(mesh)


def local_device_ids(mesh: meshes.Mesh) -> list[int]:
    """Return the numbers of this process's devices on the mesh, in order. `pack` takes a part for each.

    Example:
        >>> from hocket import mesh
        >>> mesh.local_device_ids(mesh.create_mesh({"data": 1}))
        [0]
    """
    _check_mesh(mesh)
    return find_backend(mesh).list_local(mesh)


def local_device_locations(mesh: meshes.Mesh) -> list[dict[str, int]]:
    """Return the places of this process's devices on the mesh, in the order of their numbers.

    Example:
        >>> from hocket import mesh
        >>> mesh.local_device_locations(mesh.create_mesh({"data": 1}))
        [{'data': 0}]
    """
    return [mesh.locate(number) for number in local_device_ids(mesh)]


# --- values -----------------------------------------------------------------------------------------------------------


def copy_to_mesh(tensor: object, layout: layouts.Layout) -> tensors.DTensor:
    """Spread a value over a mesh.

    Args:
        tensor: An array, a number, or a DTensor, which may be on another mesh.
        layout: The layout of the result.

    Returns:
        The value as a DTensor. For a DTensor on the same mesh, the result of `relayout`.

    Raises:
        TypeError: `tensor` is no array.
        ValueError: The layout does not fit the shape.

    Example:
        >>> import numpy as np
        >>> from hocket import mesh
        >>> one = mesh.create_mesh({"data": 1})
        >>> mesh.copy_to_mesh(np.ones((4, 2)), mesh.Layout.batch_sharded(one, "data", 2)).layout.sharding_specs
        ['data', 'unsharded']
    """
    backend = find_backend(_check_layout(layout).mesh)
    if isinstance(tensor, tensors.DTensor):
        tensor = tensor.read_value()
        if tensor.layout.mesh == layout.mesh:
            return backend.relayout(tensor, layout)
        tensor = tensor.gather()
    array = _check_array("copy_to_mesh", tensor, backend)
    _check_sums(array, layout)
    return backend.distribute(array, layout)


def relayout(tensor: object, layout: layouts.Layout | Sequence[layouts.Spec]) -> tensors.DTensor:
    """Change the layout of a DTensor, on its mesh, by the cheapest steps (`plan_relayout`).

    Args:
        tensor: A DTensor.
        layout: The new layout; or one spec for each dim, where `MATCH` keeps the dim's axes.

    Raises:
        TypeError: `tensor` is no DTensor.
        ValueError: The layout is of another mesh, or does not fit.
    """
    value = _check_dtensor("relayout", tensor)
    if not isinstance(layout, layouts.Layout):
        layout = layouts.fill_matches(layout, value.layout)
    _check_sums(value, layout)
    return find_backend(layout.mesh).relayout(value, layout)


def relayout_like(tensor: object, layout_tensor: object) -> tensors.DTensor:
    """Give a DTensor the layout of another one."""
    return relayout(tensor, fetch_layout(layout_tensor))


def pack(parts: Sequence[object], layout: layouts.Layout) -> tensors.DTensor:
    """Make one DTensor from the parts of the devices. `unpack` is its inverse.

    Args:
        parts: One array for each device of this process, in the order of their numbers. Equality of replicas is not
            checked.
        layout: The layout of the whole value.

    Raises:
        ValueError: The number of parts differs from the number of devices, or parts differ in shape or type.
    """
    mesh = _check_layout(layout).mesh
    backend = find_backend(mesh)
    arrays = [_check_array("pack", part, backend) for part in parts]
    count = len(backend.list_local(mesh))
    if len(arrays) != count:
        raise ValueError(
            f"pack() takes one part for each of the {count} devices of this process, but received {len(arrays)} parts."
        )
    found = {(tuple(np.shape(array)), str(getattr(array, "dtype", type(array).__name__))) for array in arrays}
    if len(found) > 1:
        raise ValueError(
            f"The parts of one value must have the same shape and type, but pack() received {sorted(found)}."
        )
    layout.global_shape_from_local_shape(np.shape(arrays[0]))
    _check_sums(arrays[0], layout)
    return backend.pack(arrays, layout)


def unpack(tensor: object) -> list[Any]:
    """Return the parts of a DTensor on this process's devices, in the order of their numbers."""
    value = _check_dtensor("unpack", tensor)
    return find_backend(value.layout.mesh).unpack(value)


def call_with_layout(fn: Callable[..., object], layout: layouts.Layout | None, *args: object, **kwargs: object) -> Any:
    """Call a function that makes an array, so that no device holds more than its part under the layout.

    Args:
        fn: A function such as ``jax.numpy.ones``; its result must not depend on the layout.
        layout: The layout of the result. None calls the function without a layout.
        *args: The function's positional arguments.
        **kwargs: The function's keyword arguments.

    Example:
        >>> import jax.numpy as jnp
        >>> from hocket import mesh
        >>> layout = mesh.Layout.replicated(mesh.create_mesh({"data": 1}), 1)
        >>> mesh.call_with_layout(jnp.arange, layout, 3).numpy().tolist()
        [0, 1, 2]
    """
    if layout is None:
        return fn(*args, **kwargs)
    return find_backend(_check_layout(layout).mesh).call(fn, layout, args, kwargs)


def fetch_layout(tensor: object) -> layouts.Layout:
    """Return the layout of a DTensor.

    Raises:
        TypeError: `tensor` is no DTensor.
    """
    return _check_dtensor("fetch_layout", tensor).layout


def check_layout(tensor: object, layout: layouts.Layout) -> None:
    """Raise an error if a DTensor has another layout.

    Raises:
        ValueError: The layout differs.
    """
    found = fetch_layout(tensor)
    if found != layout:
        raise ValueError(f"The value has the layout {found!r}, not {layout!r}. Use relayout(value, layout).")


def is_dtensor(tensor: object) -> bool:
    """Tell whether a value is a DTensor."""
    return isinstance(tensor, tensors.DTensor)


# --- checks -----------------------------------------------------------------------------------------------------------


def find_backend(mesh: meshes.Mesh) -> contract.Backend:
    if not mesh.framework:
        raise ValueError(
            f"{mesh!r} only describes a mesh, without devices that compute. Make one with "
            f"create_mesh({dict(mesh.dims)!r})."
        )
    return contract.get_backend(mesh.framework)


def _check_mesh(mesh: object) -> None:
    if not isinstance(mesh, meshes.Mesh):
        raise TypeError(f"mesh must be a Mesh, but received {mesh!r}. Make one with create_mesh({{'data': 2}}).")


def _check_layout(layout: object) -> layouts.Layout:
    if not isinstance(layout, layouts.Layout):
        raise TypeError(f"layout must be a Layout, but received {layout!r}. Write Layout([...], mesh).")
    return layout


def _check_dtensor(caller: str, value: object) -> tensors.DTensor:
    if not isinstance(value, tensors.DTensor):
        raise TypeError(
            f"{caller}() takes a DTensor, but received {texts.name_kind(value)}. Make one with "
            "copy_to_mesh(value, layout)."
        )
    return value.read_value()


def _check_sums(value: object, layout: layouts.Layout) -> None:
    if layout.partial and str(getattr(value, "dtype", type(value).__name__)).rpartition(".")[2] == "bool":
        raise TypeError(
            f"The layout has partial sums along {list(layout.partial)}, but a value of type bool has no sum. Convert "
            "it to int8, or leave `partial` out."
        )


def _check_array(caller: str, value: object, backend: contract.Backend) -> Any:
    if backend.is_value(value):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biufcV":
        raise TypeError(f"{caller}() takes an array of numbers, but received {value!r}.")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))  # as in some files
