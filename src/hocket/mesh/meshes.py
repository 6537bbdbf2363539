"""Meshes: devices in a grid whose axes have names.

Names and order are those of TensorFlow's DTensor. Devices are numbered along the last axis first, like the elements of
a numpy array, and arguments and methods call a mesh axis a *dim*. This module needs no framework.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import SupportsIndex, final

RESERVED = ("unsharded", "match", "any")
"""Words with a meaning in layouts, for dims that no mesh axis shards. They cannot name an axis."""


@final
class Mesh:
    """Devices in a grid: each axis has a name and a size. Immutable, hashable, and can be pickled.

    Args:
        dims: Names and sizes of the axes, major first: ``[("data", 2), ("model", 4)]``, or a dict.
        name: A name that distinguishes meshes of the same shape. Default: none.
        devices: The names of the devices, one for each place. Default: ``"0"``, ``"1"``, ....
        framework: The framework of the devices, such as ``"jax"``. Default: none, and the mesh only describes.

    Raises:
        TypeError: A name is no string, or a size no integer.
        ValueError: There is no axis; a name comes twice, is empty or reserved; a size is below 1; or the number of
            devices differs from the number of places.

    Example:
        >>> from hocket.mesh import Mesh
        >>> mesh = Mesh({"data": 2, "model": 4})
        >>> mesh.size, mesh.dim_size("model"), mesh.coords(6)
        (8, 4, (1, 2))
    """

    __slots__ = ("_devices", "_dims", "_framework", "_name")

    def __init__(
        self,
        dims: Mapping[str, int] | Sequence[tuple[str, int]],
        *,
        name: str = "",
        devices: Sequence[str] | None = None,
        framework: str = "",
    ) -> None:
        pairs = list(dims.items()) if isinstance(dims, Mapping) else list(dims)
        self._dims = tuple([_check_dim(pair) for pair in pairs])
        self._name = name
        self._framework = framework
        names = self.dim_names
        if not names:
            raise ValueError("A mesh needs an axis, but received none. Write for example Mesh({'data': 2}).")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"Each axis of a mesh needs its own name, but {twice[0]!r} occurs twice in {list(names)}.")
        self._devices = tuple(map(str, range(self.size))) if devices is None else tuple(devices)
        if len(self._devices) != self.size:
            raise ValueError(
                f"A mesh of {self.describe()} has {self.size} places, but received {len(self._devices)} devices. "
                "Give one for each place."
            )
        shared = sorted({device for device in self._devices if self._devices.count(device) > 1})
        if shared:
            raise ValueError(f"Each place of a mesh needs its own device, but several places have {shared[0]!r}.")

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The names of the axes, major first."""
        return tuple([name for name, _ in self._dims])

    @property
    def name(self) -> str:
        """The mesh's name; empty if it has none."""
        return self._name

    @property
    def framework(self) -> str:
        """The framework of the devices; empty if the mesh only describes."""
        return self._framework

    @property
    def dims(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the axes, major first."""
        return self._dims

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices, by number."""
        return self._devices

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape())

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self._dims)

    @property
    def strides(self) -> tuple[int, ...]:
        """The difference between the numbers of two devices that are neighbours along each axis."""
        shape = self.shape()
        return tuple([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])

    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the axes. A method, as in TensorFlow."""
        return tuple([size for _, size in self._dims])

    def dim_size(self, dim_name: str) -> int:
        """Return the size of the axis of that name.

        Raises:
            ValueError: There is no such axis.
        """
        for name, size in self._dims:
            if name == dim_name:
                return size
        raise ValueError(f"The mesh has the axes {list(self.dim_names)}, but received {dim_name!r}. Name one of these.")

    def contains_dim(self, dim_name: str) -> bool:
        """Tell whether an axis has that name."""
        return dim_name in self.dim_names

    def __contains__(self, dim_name: object) -> bool:
        return dim_name in self.dim_names

    def coords(self, device: SupportsIndex) -> tuple[int, ...]:
        """Return the place of a device: its index along each axis.

        Raises:
            ValueError: There is no such device.
        """
        number = operator.index(device)
        if not 0 <= number < self.size:
            raise ValueError(f"The mesh has the devices 0 to {self.size - 1}, but received {number}.")
        return tuple([number // stride % size for stride, size in zip(self.strides, self.shape(), strict=True)])

    def locate(self, device: SupportsIndex) -> dict[str, int]:
        """Return the place of a device by the names of the axes."""
        return dict(zip(self.dim_names, self.coords(device), strict=True))

    def unravel_index(self) -> list[dict[str, int]]:
        """Return the place of each device, in the order of their numbers."""
        return [self.locate(device) for device in range(self.size)]

    def describe(self) -> str:
        """Return the axes and their sizes in a line, for messages: ``data=2, model=4``."""
        return ", ".join(f"{name}={size}" for name, size in self._dims)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mesh):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, self._key()

    def _key(self) -> tuple[object, ...]:
        return self._dims, self._name, self._devices, self._framework

    def __repr__(self) -> str:
        name = f", name={self._name!r}" if self._name else ""
        return f"Mesh({dict(self._dims)!r}{name})"


def _rebuild(dims: tuple[tuple[str, int], ...], name: str, devices: tuple[str, ...], framework: str) -> Mesh:
    return Mesh(dims, name=name, devices=devices, framework=framework)


def _check_dim(pair: object) -> tuple[str, int]:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise TypeError(f"An axis of a mesh is a name and a size, such as ('data', 2), but received {pair!r}.")
    name, given = pair
    if not isinstance(name, str):
        raise TypeError(f"The name of a mesh axis must be a str, but received {name!r}. Write for example 'data'.")
    if not name or name in RESERVED:
        raise ValueError(
            f"An axis of a mesh cannot be called {name!r}. Use a name that is not empty and not one of "
            f"{list(RESERVED)}, which have a meaning in layouts."
        )
    if isinstance(given, bool) or not isinstance(given, SupportsIndex):
        raise TypeError(f"The axis {name!r} needs a whole number for its size, but received {given!r}.")
    size = operator.index(given)
    if size < 1:
        raise ValueError(f"The axis {name!r} needs a size of at least 1, but received {size}.")
    return name, size
