"""How far a program may run ahead of virtual devices.

JAX queues what devices compute and returns at once. On virtual devices of the processor each program takes a
thread of one pool for each device, and waits in it at each sum until all devices have come. A loop that never reads a
result queues hundreds; then the devices of different programs hold each other's threads, and XLA ends the process
after 40 seconds ("Termination timeout"; measured on 2 processors with 8 devices, plain JAX too). So there one program
is queued at a time. That costs the time that Python takes between two, which overlaps with nothing then: a program
that reads its loss at each step loses nothing.
"""

from __future__ import annotations

from typing import TypeVar

import jax

from hocket.mesh import meshes

T = TypeVar("T")


def finish(values: T, mesh: meshes.Mesh) -> T:
    """Wait for values if their devices share a processor's threads, and return them."""
    if mesh.size > 1 and all(name.startswith("CPU:") for name in mesh.devices):
        jax.block_until_ready(values)
    return values
