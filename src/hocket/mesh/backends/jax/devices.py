"""JAX's devices, its meshes, and its form of layouts."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from hocket.mesh import layouts, meshes
from hocket.mesh.backends.jax import processes


@functools.lru_cache(maxsize=64)
def get_mesh(mesh: meshes.Mesh) -> jax.sharding.Mesh:
    """Return JAX's mesh of the same devices.

    Raises:
        ValueError: A device does not exist.
    """
    by_name = {name_device(device): device for kind in _list_kinds() for device in jax.devices(kind)}
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


def name_device(device: Any) -> str:
    """Return our name of a JAX device."""
    return f"{device.platform.upper()}:{device.id}"


def find_sharding(layout: layouts.Layout) -> NamedSharding:
    """Return JAX's sharding for a layout. Each axis with terms of a sum has a dim of its own, ahead of the others."""
    return NamedSharding(get_mesh(layout.mesh), find_spec(layout))


def find_spec(layout: layouts.Layout) -> PartitionSpec:
    """Return the partition spec of a layout: the axes that cut each dim, in JAX's form."""
    return PartitionSpec(*layout.partial, *(axes or None for axes in layout.axes))


def want_cpus(count: int) -> None:
    """Ask JAX for `count` virtual devices; has no effect if the program has used JAX already."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # too late: the mesh is checked against the existing devices
        return


def want_named(names: Sequence[str]) -> None:
    """Ask JAX for the virtual devices of these names, in a process that is not joined to others: in joined processes,
    device numbers span all processes. Has no effect if the program has used JAX already."""
    numbers = [name.removeprefix("CPU:") for name in names if name.startswith("CPU:")]
    if numbers and all(number.isdigit() for number in numbers) and not processes.is_joined():
        want_cpus(max(map(int, numbers)) + 1)
