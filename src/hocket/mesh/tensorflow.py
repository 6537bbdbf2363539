"""Setup of TensorFlow's own DTensor: its meshes, in one process and over several, and conversion of layouts.

TensorFlow computes with its own meshes and layouts, ``tf.experimental.dtensor``. This module meets its requirements in
time. Virtual CPU devices must be made once, before TensorFlow is used. Environment variables join several processes;
they are derived from TF_CONFIG, which `hocket.train.tensorflow.TensorflowTrainer` sets.

TensorFlow's processes talk to each other over gRPC, on ports that it opens on all interfaces.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hocket import extras
from hocket.mesh import layouts, meshes

with extras.explain("hocket.mesh.tensorflow", "TensorFlow", "Run pip install 'hocket[tensorflow]'."):
    from tensorflow.experimental import dtensor

_JOBS: Final = "DTENSOR_JOBS"
"""The environment variable with the addresses of all processes. Without it, DTensor uses this process only."""


def create_mesh(
    mesh_dims: Mapping[str, int] | Sequence[tuple[str, int]], mesh_name: str = "", *, device_type: str = "CPU"
) -> Any:
    """Make a TensorFlow mesh.

    In a process with TF_CONFIG, such as a rank of a TensorflowTrainer, the mesh spans all workers, each with an equal
    part of the devices. All workers call this function with the same arguments. Elsewhere the mesh has devices of this
    process only. The first mesh sets the number of virtual devices in a process; later meshes use the first of them.

    Args:
        mesh_dims: Names and sizes of the axes, major first.
        mesh_name: A name that distinguishes meshes of the same shape.
        device_type: ``"CPU"``, or ``"GPU"``.

    Returns:
        A ``tf.experimental.dtensor.Mesh``.

    Raises:
        TypeError: A name is no string, or a size no integer.
        ValueError: A size is wrong, the workers do not divide the mesh, or there are too few devices; or this process
            is an evaluator.
        RuntimeError: TensorFlow was used before, and cannot join other processes any more.

    Example:
        >>> from tensorflow.experimental import dtensor
        >>> from hocket.mesh import tensorflow
        >>> grid = tensorflow.create_mesh({"data": 1})
        >>> grid.dim_names, grid.size
        (['data'], 1)
    """
    described = meshes.Mesh(mesh_dims, name=mesh_name)
    joining = {} if _JOBS in os.environ else parse_workers(os.environ.get("TF_CONFIG", ""))
    processes = joining[_JOBS].count(",") + 1 if joining else dtensor.num_clients()
    if described.size % processes:
        raise ValueError(
            f"A mesh of {described.describe()} has {described.size} places, which {processes} processes cannot share "
            f"equally. Use a multiple of {processes}, or another num_workers."
        )
    count = described.size // processes
    _initialize(device_type, count, joining)
    found = dtensor.num_local_devices(device_type)
    if found < count:
        raise ValueError(
            f"A mesh of {described.describe()} needs {count} devices of the type {device_type!r} in each process, but "
            f"there are {found}. TensorFlow makes virtual CPU devices only once: make the largest mesh first, before "
            "anything else uses TensorFlow."
        )
    devices = [f"{device_type.upper()}:{number}" for number in range(count)]
    create = dtensor.create_mesh if processes == 1 else dtensor.create_distributed_mesh
    return create(list(described.dims), mesh_name, devices, device_type)


def _initialize(device_type: str, count: int, joining: Mapping[str, str]) -> None:
    """Start TensorFlow with `count` virtual devices, unless it has been started before."""
    os.environ.update(joining)  # DTensor reads them at each use
    try:
        dtensor.initialize_accelerator_system(
            device_type, num_logical_cpu_devices=count if device_type.upper() == "CPU" else None
        )
    except ValueError as refusal:
        if joining:
            for name in joining:
                del os.environ[name]
            raise RuntimeError(
                "TensorFlow was used in this process before it could join the others that TF_CONFIG names. Call "
                "create_mesh before anything else uses TensorFlow, and without a tf.distribute strategy."
            ) from refusal


def parse_workers(tf_config: str) -> dict[str, str]:
    """Return the environment variables that name TF_CONFIG's workers for DTensor; empty for fewer than two workers.

    Args:
        tf_config: The value of TF_CONFIG; empty if the variable is not set.
    """
    told = json.loads(tf_config or "{}")
    cluster, task = told.get("cluster", {}), told.get("task", {})
    if "ps" in cluster:
        raise ValueError(
            "TF_CONFIG names parameter servers, whose workers do not run a program that could call create_mesh. Use a "
            "trainer without strategy='parameter_server'."
        )
    kinds = [kind for kind in ("chief", "worker") if kind in cluster]
    members = [(kind, index, address) for kind in kinds for index, address in enumerate(cluster[kind])]
    if len(members) < 2:
        return {}
    if task["type"] not in kinds:
        raise ValueError(
            f"This process is {task['type']!r} in TF_CONFIG, but a mesh spans only {' and '.join(kinds)}. Call "
            "create_mesh in those processes."
        )
    own = next(number for number, one in enumerate(members) if one[:2] == (task["type"], task["index"]))
    return {
        _JOBS: ",".join(address for *_, address in members),
        "DTENSOR_CLIENT_ID": str(own),
        "DTENSOR_JOB_NAME": "worker",
    }


# --- layouts ----------------------------------------------------------------------------------------------------------


def to_tensorflow(layout: layouts.Layout, mesh: Any) -> Any:
    """Return TensorFlow's layout for one of ours.

    Args:
        layout: The layout.
        mesh: A mesh of TensorFlow's with the axes of the layout's mesh.

    Returns:
        A ``tf.experimental.dtensor.Layout``.

    Example:
        >>> from hocket.mesh import Layout, Mesh, tensorflow
        >>> grid = tensorflow.create_mesh({"data": 1})
        >>> tensorflow.to_tensorflow(Layout(["data"], Mesh({"data": 1})), grid).sharding_specs
        ['data']
    """
    dims = tuple(zip(mesh.dim_names, mesh.shape(), strict=True))
    if dims != layout.mesh.dims:
        raise ValueError(
            f"The layout is on {layout.mesh!r}, but TensorFlow's mesh has the axes {dict(dims)}. Pass a mesh from "
            f"create_mesh({dict(layout.mesh.dims)})."
        )
    if layout.partial:
        raise ValueError(
            f"The layout has partial sums along {list(layout.partial)}, which TensorFlow's layouts cannot describe. "
            "Write layout.with_partial(())."
        )
    if any(len(axes) > 1 for axes in layout.axes):
        raise ValueError(
            f"In TensorFlow only one mesh axis can cut a dim, but received {layout.sharding_specs}. Make a mesh with "
            "one axis in place of several."
        )
    return dtensor.Layout(layout.sharding_specs, mesh)


def from_tensorflow(layout: Any) -> layouts.Layout:
    """Return our layout for one of TensorFlow's. Its mesh only describes.

    Args:
        layout: A ``tf.experimental.dtensor.Layout``.

    Example:
        >>> from tensorflow.experimental import dtensor
        >>> from hocket.mesh import tensorflow
        >>> theirs = dtensor.Layout.batch_sharded(tensorflow.create_mesh({"data": 1}), "data", rank=2)
        >>> tensorflow.from_tensorflow(theirs)
        Layout(['data', 'unsharded'], Mesh({'data': 1}))
    """
    mesh = layout.mesh
    described = meshes.Mesh(list(zip(mesh.dim_names, mesh.shape(), strict=True)), name=mesh.name)
    return layouts.Layout(layout.sharding_specs, described)
