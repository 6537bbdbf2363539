"""Undocumented names of JAX: for the state of joined processes, the coordination service, and the CPU's collectives."""

from __future__ import annotations

import functools
from typing import Any

import jax.extend.backend as jax_backends
from jax._src import distributed, xla_bridge
from jax._src import lib as jax_lib


def get_state() -> Any:
    """Return JAX's record of joined processes. Before JAX has a backend, no documented function shows it."""
    return distributed.global_state


def open_service(address: str, size: int, silent_s: int, timeout_s: int) -> Any:
    """Open JAX's coordination service in this process.

    Args:
        address: The address at which the service listens.
        size: How many processes will join.
        silent_s: How many seconds a process may be silent.
        timeout_s: How many seconds the last processes may take to leave.

    Returns:
        The service, which has ``shutdown()``; None if this version of JAX opens it in another way.
    """
    try:
        return _get_library().get_distributed_runtime_service(
            address, size, heartbeat_timeout=silent_s, shutdown_timeout=timeout_s
        )
    except (AttributeError, TypeError):
        return None


def connect(address: str, rank: int, size: int, silent_s: int, timeout_s: int, interface: str) -> None:
    """Join this process as ``jax.distributed.initialize`` does, but open no service and set no handler of SIGTERM.

    Args:
        address: The address at which the service listens.
        rank: The number of this process.
        size: How many processes join.
        silent_s: How many seconds a process may be silent.
        timeout_s: How many seconds joining and leaving may take.
        interface: The address at which this process's collectives listen.
    """
    library, state = _get_library(), distributed.global_state
    client = library.get_distributed_runtime_client(
        address,
        rank,
        init_timeout=timeout_s,
        shutdown_timeout=timeout_s,
        heartbeat_timeout=silent_s,
        shutdown_on_destruction=False,
        use_compression=False,
    )
    client.connect()
    state.client, state.process_id, state.num_processes, state.coordinator_address = client, rank, size, address
    collectives = library.make_gloo_tcp_collectives(distributed_client=client, hostname=interface)
    jax_backends.register_backend_factory(
        "cpu", functools.partial(xla_bridge.make_cpu_client, collectives), priority=0, fail_quietly=False
    )


def _get_library() -> Any:
    return getattr(jax_lib, "_jax", None) or jax_lib.xla_extension  # the name before jax 0.6
