"""Joins JAX's processes: one program may then span the devices of all ranks.

``jax.distributed`` has a coordination service, through which processes find each other's devices. If the service is
gone, each process ends itself at once (SIGABRT, from a thread of XLA's), and Python cannot say why. JAX runs the
service in process 0. Then the death of rank 0 would end all ranks, and the first to die would be hard to find. So the
driver, which outlives the ranks, runs it here. When a rank dies, the others notice it in their computation: gloo
raises, within milliseconds. The service acts on a silent process after `SILENT_SECONDS`, long after the driver has.

On one machine the service listens on a Unix socket in a folder that only this user may enter, because the service
authenticates no peer. (An abstract socket's name would be readable by all in ``/proc/net/unix``.) gloo listens on
loopback, where other users reach it. Between machines both listen on the network, and rank 0 runs the service, since a
driver may be elsewhere.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from typing import Final

import jax

from hocket._base.internals import jax as jax_internals
from hocket.core import api
from hocket.stores import working_folders
from hocket.train.run import joining, worker_group

SILENT_SECONDS: Final = 600
"""Seconds that a process may be silent before JAX's service ends the others. A process that compiles for minutes holds
Python's lock, but the thread that sends its signs of life does not need that. A guess."""

_LONGEST_PARENT: Final = 80  # a socket's path has 107 bytes at most

PROCESSES: Final = "HOCKET_JAX_PROCESSES"
"""The environment variable with the number of ranks, joined or not: `hocket.mesh` reads it."""


# --- in the driver ----------------------------------------------------------------------------------------------------


def join(group: worker_group.WorkerGroup, timeout_s: float) -> None:
    """Join the ranks of a group."""
    size, seconds = len(group), max(1, int(timeout_s))
    address = _serve_here(group, size, seconds)
    if address is not None:
        calls = [(address, rank, size, SILENT_SECONDS, seconds, joining.LOOPBACK) for rank in range(size)]
        group.execute(jax_internals.connect, calls)
        return
    address = group.call(0, _choose_address, joining.find_addresses(group)[0])
    group.execute(_initialize, [(address, rank, size, seconds) for rank in range(size)])


def _serve_here(group: worker_group.WorkerGroup, size: int, timeout_s: int) -> str | None:
    """Run JAX's coordination service in this process until the group ends; return its address. Return None if a rank is
    on another machine or does not see the service's folder, or if this JAX opens the service in another way."""
    if not _is_here(group):
        return None
    is_short = len(tempfile.gettempdir()) < _LONGEST_PARENT
    parent = None if is_short else "/tmp"  # noqa: S108 (the folder has a random name, and is this user's)
    folder = working_folders.WorkingFolder("hocket-jax-", parent)
    group.resources.callback(folder.remove)
    path = f"{folder.path}/service"
    service = jax_internals.open_service(f"unix:{path}", size, SILENT_SECONDS, timeout_s)
    if service is None:
        return None
    group.resources.callback(service.shutdown)
    return f"unix:{path}" if all(group.execute(os.path.exists, [(path,)] * size)) else None


def leave(group: worker_group.WorkerGroup) -> None:
    """Part the ranks of a group."""
    group.execute(_leave, [()] * len(group))


def _is_here(group: worker_group.WorkerGroup) -> bool:
    """Return whether all ranks are on the driver's machine, and that runs Linux."""
    here = api.get_runtime_context().get_node_id()
    return sys.platform == "linux" and all(place.node_id == here for place in group.places)


# --- in a rank --------------------------------------------------------------------------------------------------------


GPU_MEMORY: Final = 0.9
"""The part of a GPU's memory that JAX's processes together may take if they share the GPU. A guess: contexts and
libraries need the rest."""


def count_gpus(group: worker_group.WorkerGroup) -> float:
    """Return the GPUs of each rank, which may be a fraction of one."""
    return float(group.scaling.bundle.get("GPU", 0)) if group.scaling.use_gpu else 0.0


def set_up(num_threads: int, num_gpus: float, world_size: int) -> None:
    """Set JAX up in a rank, before it has a backend."""
    tell_size(world_size)
    if 0 < num_gpus < 1:  # else each of the ranks that share a GPU would take three quarters of its memory
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{num_gpus * GPU_MEMORY:.3f}")
    os.environ.setdefault("PJRT_NPROC", str(num_threads))
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if not num_gpus:
        jax.config.update("jax_platforms", "cpu")


def _choose_address(host: str) -> str:
    """Return rank 0's address with a free port. If another process takes the port first, `fit` fails and names it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _initialize(address: str, rank: int, size: int, timeout_s: int) -> None:
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which the rank handles itself
    jax.distributed.initialize(
        coordinator_address=address,
        num_processes=size,
        process_id=rank,
        coordinator_bind_address=address if rank == 0 else None,
        initialization_timeout=timeout_s,
    )


def _leave() -> None:
    jax.distributed.shutdown()


def tell_size(size: int) -> None:
    """Store the number of ranks in a rank's environment, for code that joins the processes later."""
    os.environ[PROCESSES] = str(size)
