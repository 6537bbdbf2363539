"""Joins JAX's processes under Keras, so that one program may span the devices of all ranks.

Apart from `config`, because it needs JAX, which Keras may not have here.
"""

from __future__ import annotations

import os

import jax

from hocket.train.frameworks.jax import processes
from hocket.train.run import worker_group


def join(group: worker_group.WorkerGroup, timeout_s: float) -> None:
    """Join the ranks of a group, before JAX has a backend in them."""
    num_threads = max(1, int(group.scaling.bundle.get("CPU", 1)))
    group.execute(_set_up, [(num_threads, group.scaling.use_gpu, len(group))] * len(group))
    if len(group) > 1:
        processes.join(group, timeout_s)


def leave(group: worker_group.WorkerGroup) -> None:
    """Part them."""
    if len(group) > 1:
        processes.leave(group)


def _set_up(num_threads: int, use_gpu: bool, world_size: int) -> None:
    """Called in each rank: what JaxTrainer's ranks have too, one program after the other and so on."""
    processes.tell_size(world_size)
    os.environ.setdefault("PJRT_NPROC", str(num_threads))
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if not use_gpu:
        jax.config.update("jax_platforms", "cpu")
