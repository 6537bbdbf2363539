"""Joins JAX's processes under Keras: one program may then span the devices of all ranks.

This module is apart from `config` because it needs JAX, which Keras may not have here.
"""

from __future__ import annotations

from hocket.train.frameworks.jax import processes
from hocket.train.run import worker_group


def join(group: worker_group.WorkerGroup, timeout_s: float) -> None:
    """Join the ranks of a group, before JAX has a backend in them."""
    num_threads = max(1, int(group.scaling.bundle.get("CPU", 1)))
    group.execute(processes.set_up, [(num_threads, processes.count_gpus(group), len(group))] * len(group))
    if len(group) > 1:
        processes.join(group, timeout_s)


def leave(group: worker_group.WorkerGroup) -> None:
    """Part the ranks."""
    if len(group) > 1:
        processes.leave(group)
