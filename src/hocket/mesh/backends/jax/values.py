"""Values on meshes of JAX: global arrays.

A global array whose axes XLA manages cannot hold terms of a sum (`Layout.partial`). So the array of such a value has an
additional leading dim, cut by the axis, for each partial axis: each device has its own term. Operations sum first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec

from hocket.mesh import layouts, meshes, tensors
from hocket.mesh.backends.jax import devices


@final
class JaxTensor(tensors.DTensor):
    """A DTensor of JAX. A pytree with one leaf, so functions that JAX transforms take and return it.

    Args:
        array: The global array, with an additional leading dim for each axis of `partial`.
        mesh: The mesh; the array lies on its devices.
        partial: The axes along which devices have terms of a sum.
        layout: The layout, if it is known. Default: XLA's choice.
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
        """The layout of the value.

        Raises:
            RuntimeError: The value is being traced by ``jax.jit`` or ``jax.grad``, where XLA chooses the layout.
        """
        if self._layout is None:
            self._layout = self._find_layout()
        return self._layout

    def _find_layout(self) -> layouts.Layout:
        is_known = not isinstance(self._array, jax.core.Tracer)
        if not is_known:
            raise RuntimeError(
                "The layout of a value is not known while JAX traces a function, because XLA chooses it later. Read "
                "the layout outside the function, or set it with relayout(value, layout)."
            )
        if not isinstance(
            self._array.sharding, NamedSharding
        ):  # the result of a function without any argument on the mesh
            self._array = place(self._array, NamedSharding(devices.get_mesh(self._mesh), PartitionSpec()))
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
        """The global array; for terms of a sum, their sum."""
        return self._array.sum(tuple(range(len(self._partial)))) if self._partial else self._array

    @property
    def raw(self) -> Any:
        """The stored array, with the dims of `partial`."""
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

    def _compute(self, function: Callable[..., object], *args: object) -> object:
        if any(isinstance(arg, (str, bytes, dict)) for arg in args):
            return NotImplemented
        return wrap(function(*map(open_value, args)), self._mesh)


def gather(array: Any) -> npt.NDArray[Any]:
    """Return a global array as a numpy array. If it is spread over processes, all of them call this function."""
    if not array.is_fully_addressable:
        if not array.is_fully_replicated:
            array = jax.jit(_keep, out_shardings=NamedSharding(array.sharding.mesh, PartitionSpec()))(array)
        array = array.addressable_data(0)
    return np.asarray(array)


def _keep(array: object) -> object:
    return array


def open_value(value: object) -> object:
    """Return JAX's form of a value: a DTensor's array, an index with its items converted, or the value itself."""
    if type(value) is tuple:  # an index
        return tuple(map(open_value, value))
    return value.native if isinstance(value, tensors.DTensor) else value


def get_raw(value: tensors.DTensor) -> object:
    """Return a value's stored array, with the dims of `partial`."""
    assert isinstance(value, JaxTensor)
    return value.raw


def wrap(value: Any, mesh: meshes.Mesh) -> Any:
    """Return an array on a mesh as a DTensor; return other values unchanged."""
    if not isinstance(value, jax.Array):
        return value
    if not isinstance(value, jax.core.Tracer) and not isinstance(value.sharding, NamedSharding):
        value = place(value, NamedSharding(devices.get_mesh(mesh), PartitionSpec()))
    return JaxTensor(value, mesh)


def place(value: Any, sharding: NamedSharding) -> jax.Array:
    """Return an array that every process has whole as a global array. Each device of the process gets its part."""
    is_whole = not isinstance(value, jax.Array) or value.is_fully_addressable
    if sharding.is_fully_addressable or not is_whole:
        return jax.device_put(value, sharding)
    # device_put would make all processes compare their arrays first, over the network.
    array = np.asarray(value)
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


def adopt(array: jax.Array) -> JaxTensor:
    """Return a global array of JAX, on any mesh, as a DTensor."""
    sharding = array.sharding
    assert isinstance(sharding, NamedSharding)
    names = [devices.name_device(device) for device in sharding.mesh.devices.flat]
    mesh = meshes.Mesh(list(sharding.mesh.shape.items()), devices=names, framework="jax")
    return JaxTensor(array, mesh)


def adopt_global(value: Any) -> object:
    """Return a global array of JAX as a DTensor; return other values unchanged."""
    is_array = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    return adopt(value) if is_array and isinstance(value.sharding, NamedSharding) else value


jax.tree_util.register_pytree_node(
    JaxTensor,
    lambda value: ((value.raw,), (value.mesh, value.partial)),
    lambda kept, leaves: JaxTensor(leaves[0], *kept),
)
