"""Operations for users: making meshes, spreading values over them, and asking how they are spread.

Names and meaning are those of TensorFlow's ``tf.experimental.dtensor``.
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
        mesh_dims: Names and sizes of the axes, major first. The size of one that stands alone may be -1, for all
            devices. Default: one axis, ``x``, of all devices.
        mesh_name: To tell two meshes of the same shape apart.
        devices: What the devices are called. Default: as many of the type as the mesh has places.
        device_type: Which devices, if none are named. On a processor they are virtual: in a program in which nothing
            has used JAX yet there are then as many as the mesh has places.
        framework: Which one computes: ``"jax"``, or ``"torch"``, whose devices are the ranks of a process group.
            Default: one that is imported; else one that is installed, JAX first.

    Raises:
        ValueError: There are fewer devices, or a size is wrong.
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
    """Make a mesh of the devices of several processes; all of them call it, and all that computes on it.

    ``JaxTrainer(..., jax_config=JaxConfig(distributed=True))`` joins JAX's processes; elsewhere call
    ``jax.distributed.initialize`` first. With PyTorch it is the mesh of all ranks, as `create_mesh` makes it. The
    devices of a process are neighbours along the last axis.

    Args:
        mesh_dims: Names and sizes of the axes, major first. The size of one that stands alone may be -1, for all
            devices. Default: one axis, ``x``, of all devices.
        mesh_name: To tell two meshes of the same shape apart.
        device_type: Which devices. On a processor they are virtual: if nothing has used JAX yet each process then has
            as many as fall to it.
        framework: ``"jax"`` or ``"torch"``. Default: one that is imported.

    Raises:
        RuntimeError: The processes are not joined.
        ValueError: There are fewer devices, they cannot be taken equally of all processes, or a size is wrong.

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
    made = meshes.Mesh(pairs)  # which checks names and sizes
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
    """Return names and sizes of axes."""
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
    """Use a mesh for the duration of a block, where a function is given none."""
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
    """Return when all devices of a mesh have come to here."""
    find_backend(mesh).wait_for_all(mesh)


def local_device_ids(mesh: meshes.Mesh) -> list[int]:
    """Return the numbers of the mesh's devices that are this process's, in order: what `pack` takes parts for.

    Example:
        >>> from hocket import mesh
        >>> mesh.local_device_ids(mesh.create_mesh({"data": 1}))
        [0]
    """
    _check_mesh(mesh)
    return find_backend(mesh).list_local(mesh)


def local_device_locations(mesh: meshes.Mesh) -> list[dict[str, int]]:
    """Return where on the mesh this process's devices are, in the order of their numbers.

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
        layout: How.

    Returns:
        The value as a DTensor. Of a DTensor on the same mesh that is `relayout`.

    Raises:
        TypeError: `tensor` is no array.
        ValueError: The layout does not fit its shape.

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
    """Spread a DTensor in another way, on its mesh, by the cheapest steps (`plan_relayout`).

    Args:
        tensor: A DTensor.
        layout: How; or one spec for each dim, of which `MATCH` keeps a dim as it is.

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
    """Spread a DTensor as another one is."""
    return relayout(tensor, fetch_layout(layout_tensor))


def pack(parts: Sequence[object], layout: layouts.Layout) -> tensors.DTensor:
    """Make one DTensor of what the devices have. `unpack` is its inverse.

    Args:
        parts: One array for each device of this process, in the order of their numbers. Replicas must be the same;
            that is not looked at.
        layout: How they make up the whole.

    Raises:
        ValueError: There are more or fewer parts than devices, or they differ in shape or type.
    """
    mesh = _check_layout(layout).mesh
    backend = find_backend(mesh)
    arrays = [_check_array("pack", part, backend) for part in parts]
    count = len(backend.list_local(mesh))
    if len(arrays) != count:
        raise ValueError(
            f"pack() takes a part for each of the {count} devices of this process, but received {len(arrays)}."
        )
    found = {(tuple(np.shape(array)), str(getattr(array, "dtype", type(array).__name__))) for array in arrays}
    if len(found) > 1:
        raise ValueError(f"The parts of one value have one shape and type, but pack() received {sorted(found)}.")
    layout.global_shape_from_local_shape(np.shape(arrays[0]))
    _check_sums(arrays[0], layout)
    return backend.pack(arrays, layout)


def unpack(tensor: object) -> list[Any]:
    """Return what the devices of this process have of a DTensor, in the order of their numbers."""
    value = _check_dtensor("unpack", tensor)
    return find_backend(value.layout.mesh).unpack(value)


def call_with_layout(fn: Callable[..., object], layout: layouts.Layout | None, *args: object, **kwargs: object) -> Any:
    """Call a function that makes an array, so that no device has more of it than the layout says.

    Args:
        fn: Such as ``jax.numpy.ones``; what it computes is the same for every layout.
        layout: How the result is spread. None calls the function as it is.
        *args: Its arguments.
        **kwargs: The same.

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
    """Return how a DTensor is spread.

    Raises:
        TypeError: It is no DTensor.
    """
    return _check_dtensor("fetch_layout", tensor).layout


def check_layout(tensor: object, layout: layouts.Layout) -> None:
    """Raise if a DTensor is spread in another way.

    Raises:
        ValueError: It is.
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
            f"{mesh!r} only describes: it has no devices that compute. Make one with create_mesh({dict(mesh.dims)!r})."
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
            f"The layout has terms of a sum along {list(layout.partial)}, but a value of type bool has no sum. Convert "
            "it to int8, or leave `partial` out."
        )


def _check_array(caller: str, value: object, backend: contract.Backend) -> Any:
    if backend.is_value(value):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biufcV":
        raise TypeError(f"{caller}() takes an array of numbers, but received {value!r}.")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))  # as files may have it
