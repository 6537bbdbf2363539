"""Joins JAX's processes: one program may then span the devices of all ranks.

``jax.distributed`` has a coordination service, which the processes ask for each other's devices. If it is gone, each of
them ends itself at once (SIGABRT, from a thread of XLA's), and nothing can be said about that in Python. JAX has
process 0 run it; so a death of rank 0 would be the death of all, and who died first would be hard to tell. Here the
driver runs it, which outlives the ranks. A rank that dies is noticed where the others compute with it: gloo raises,
within milliseconds. What the service itself would do about a silent process it does after `SILENT_SECONDS`, when the
driver has long dealt with it.

On one machine the service listens on a socket of Unix in a folder that only this user may enter; it asks nobody who he
is, and an abstract socket's name is in ``/proc/net/unix`` for all to read. gloo listens on loopback, where other users
reach it. Between machines both listen on the network, and rank 0 runs the service, since a driver may be elsewhere.
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
"""How long a process may be silent before JAX's service ends the others: one that compiles for minutes holds Python's
lock, but not that of the thread that tells of its life. A guess."""

_LONGEST_PARENT: Final = 80  # the path of a socket ends at 107 bytes

PROCESSES: Final = "HOCKET_JAX_PROCESSES"
"""The environment variable that says how many ranks there are, joined or not: `hocket.mesh` reads it."""


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
    """Run JAX's coordination service in this process until the group ends; return its address. None if a rank is on
    another machine, or does not see the service's folder."""
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
    """Part them."""
    group.execute(_leave, [()] * len(group))


def _is_here(group: worker_group.WorkerGroup) -> bool:
    """Tell whether all ranks are on the driver's machine."""
    here = api.get_runtime_context().get_node_id()
    return sys.platform == "linux" and all(place.node_id == here for place in group.places)


# --- in a rank --------------------------------------------------------------------------------------------------------


def set_up(num_threads: int, use_gpu: bool, world_size: int) -> None:
    """Called in each rank, before JAX has a backend: have it be as ranks need it."""
    tell_size(world_size)
    os.environ.setdefault("PJRT_NPROC", str(num_threads))
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if not use_gpu:
        jax.config.update("jax_platforms", "cpu")


def _choose_address(host: str) -> str:
    """Called in rank 0: find a port. Another process may take it before JAX does; then `fit` fails, and names it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _initialize(address: str, rank: int, size: int, timeout_s: int) -> None:
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which the rank follows itself
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
    """Called in each rank: say how many there are, for those that want to have them joined."""
    os.environ[PROCESSES] = str(size)
