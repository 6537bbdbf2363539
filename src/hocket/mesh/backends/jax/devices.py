"""JAX's devices, its meshes of them, and its word for a layout."""

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
    """Return JAX's mesh of these devices.

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
    """Return what we call a device of JAX."""
    return f"{device.platform.upper()}:{device.id}"


def find_sharding(layout: layouts.Layout) -> NamedSharding:
    """Return JAX's word for a layout; terms of a sum have a dim of their own, ahead of the others."""
    return NamedSharding(get_mesh(layout.mesh), find_spec(layout))


def find_spec(layout: layouts.Layout) -> PartitionSpec:
    """Return which axes cut each dim, in JAX's word."""
    return PartitionSpec(*layout.partial, *(axes or None for axes in layout.axes))


def want_cpus(count: int) -> None:
    """Have so many virtual devices, if nothing has used JAX yet; else there are as many as there are."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # it is too late, and the mesh is checked against what there is
        return


def want_named(names: Sequence[str]) -> None:
    """Have the virtual devices of these names, if nothing has used JAX yet, in a process that is not joined to others:
    numbers are across all processes there."""
    numbers = [name.removeprefix("CPU:") for name in names if name.startswith("CPU:")]
    if numbers and all(number.isdigit() for number in numbers) and not processes.is_joined():
        want_cpus(max(map(int, numbers)) + 1)
