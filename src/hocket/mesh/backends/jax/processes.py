"""Several processes of JAX that compute as one: the parts of meshes beyond devices.

On CPUs, XLA's collectives between processes use gloo. It connects the processes of a group at the group's first
collective, within 30 seconds, and prints a line about it on the standard output. Therefore a new mesh connects all
groups that it can need, after all processes have arrived, and gloo's lines are filtered out.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import os
import pickle
import sys
from collections.abc import Iterator
from typing import Final

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from hocket._base.internals import jax as jax_internals

_PROCESSES: Final = "HOCKET_JAX_PROCESSES"
"""The environment variable in which a launcher gives the number of processes, joined or not."""

_WAIT_SECONDS: Final = 1800
"""Seconds that processes wait for each other when they make a mesh; same as `JaxConfig.timeout_s`."""

_NOISE: Final = b"Expected number of connected peer ranks is"

_met: Final = itertools.count()


def is_joined() -> bool:
    """Tell whether this process is joined to others, without starting JAX's backend."""
    return jax_internals.get_state().client is not None


def count() -> int:
    """Return the number of joined processes, without starting JAX's backend.

    Raises:
        RuntimeError: There are several processes, but they are not joined.
    """
    joined = int(jax_internals.get_state().num_processes) if is_joined() else 1
    there = int(os.environ.get(_PROCESSES, "1"))
    if joined < there:
        raise RuntimeError(
            f"There are {there} ranks, but their JAX processes are not connected, so a mesh would have only this "
            "rank's devices. Write JaxTrainer(..., jax_config=JaxConfig(distributed=True))."
        )
    return joined


def connect(mesh: jax.sharding.Mesh) -> None:
    """Connect all groups of processes that collectives along a mesh's axes need. All its processes call it."""
    devices = list(mesh.devices.flat)
    if len({device.process_index for device in devices}) == 1:
        return
    jax_internals.get_state().client.wait_at_barrier(f"hocket-mesh-{next(_met)}", timeout_in_ms=_WAIT_SECONDS * 1000)
    with _without_noise():
        for number in range(1, len(mesh.axis_names) + 1):
            for axes in itertools.permutations(mesh.axis_names, number):  # XLA has a group for each order
                _gather_along(mesh, axes)


def _gather_along(mesh: jax.sharding.Mesh, axes: tuple[str, ...]) -> None:
    spec = PartitionSpec(mesh.axis_names)
    ones = jax.make_array_from_callback(
        (mesh.size,), NamedSharding(mesh, spec), lambda index: np.ones(mesh.size, np.float32)[index]
    )
    gathered = jax.shard_map(
        lambda local: jax.lax.all_gather(local, axes), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    jax.block_until_ready(jax.jit(gathered)(ones))


def gather_objects(value: object) -> list[object]:
    """Return the objects of all processes, in the same order everywhere. All processes call this function."""
    if jax.process_count() == 1:
        return [value]
    utils = importlib.import_module("jax.experimental.multihost_utils")
    blob = np.frombuffer(pickle.dumps(value), np.uint8)
    with _without_noise():
        sizes = np.asarray(utils.process_allgather(np.array([len(blob)], np.int32))).reshape(-1)
        width = 1 << int(sizes.max() - 1).bit_length()  # few shapes, because each is compiled
        blobs = np.asarray(utils.process_allgather(np.pad(blob, (0, width - len(blob)))))
    return [pickle.loads(one[:size].tobytes()) for one, size in zip(blobs, sizes, strict=True)]


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Drop gloo's lines from the output of a block, including output by C; print the rest at the end of the block."""
    sys.stdout.flush()
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    kept = os.dup(1)
    with contextlib.ExitStack() as stack, os.fdopen(os.memfd_create("hocket-stdout"), "r+b") as beside:
        stack.callback(os.close, kept)
        os.dup2(beside.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            libc.fflush(None)
            os.dup2(kept, 1)
            beside.seek(0)
            for line in beside:
                if _NOISE not in line:
                    os.write(1, line)
