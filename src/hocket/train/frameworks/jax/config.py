"""Sets JAX up in the ranks and joins them: over shared memory (`hocket.train.rank.world`) and, if requested, as
processes of JAX (`processes`).

*Before the processes fork.* ``import jax`` starts no thread, so it is loaded once for all ranks of a machine. JAX
starts threads with its backend, at a rank's first computation; the settings here must be made before that.

*Threads.* A rank computes with as many threads as it holds CPUs. XLA reads the number from ``PJRT_NPROC``.

*Order.* By default JAX on CPUs runs programs in the background, and independent programs in any order. Ranks that
average in two such programs could do so in different orders. So a rank runs its programs one after another, when they
are called. That costs no throughput if the cores are busy anyway.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, final

from hocket import keywords
from hocket.train import strategies
from hocket.train.frameworks.jax import processes
from hocket.train.frameworks.jax import strategies as jax_strategies
from hocket.train.run import backend, joining, worker_group

_OURS: Final = "hocket.train.jax"


@final
@keywords.explained()
@dataclass(frozen=True, kw_only=True)
class JaxConfig(backend.BackendConfig):
    """The settings for joining the ranks.

    Raises:
        ValueError: `timeout_s` is not positive.

    Example:
        >>> from hocket.train.jax import JaxConfig
        >>> JaxConfig(timeout_s=60)
        JaxConfig(timeout_s=60, distributed=False)
    """

    timeout_s: float = joining.TIMEOUT_SECONDS
    """Seconds that an average may wait for a rank."""
    distributed: bool = False
    """Whether to join JAX's processes too, as ``jax.distributed.initialize`` does. ``jax.devices()`` then has the
    devices of all ranks, and one program may span them, with ``jax.jit`` and shardings. On CPUs gloo then listens, on
    loopback if all ranks are on one machine. `average_gradients` does not need this;
    `hocket.mesh.create_distributed_mesh` does. `JaxTrainer` sets it for `Sharded`."""

    def __post_init__(self) -> None:
        joining.check_timeout(self.timeout_s)

    def list_modules(self, function: Callable[..., object]) -> Sequence[str]:
        """Return the modules of jax, of optax if it is installed, and of `Sharded` if that is the strategy."""
        needed = [*super().list_modules(function), _OURS, *(["optax"] if importlib.util.find_spec("optax") else [])]
        if isinstance(getattr(function, "strategy", None), strategies.Sharded):
            needed.append(jax_strategies.MODULES[strategies.Sharded])
        return needed

    def list_blind_ranks(self, num_workers: int) -> Sequence[int]:
        """Return all ranks if JAX's processes are joined: gloo does not notice that a process has ended."""
        return range(num_workers) if self.distributed else ()

    def share_process(self) -> NoReturn:
        """Refuse ranks in one process: JAX calls back from its own threads, which cannot take a rank's turn.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "JaxTrainer needs ranks that are processes: JAX averages from threads of its own, but the ranks of the "
            "in-process engine take turns in theirs. Use ScalingConfig(num_workers=1), or open the session with "
            "hocket.init(engine='local')."
        )

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Join the ranks, and set JAX up in each."""
        num_threads = max(1, int(group.scaling.bundle.get("CPU", 1)))
        group.execute(processes.set_up, [(num_threads, processes.count_gpus(group), len(group))] * len(group))
        joining.arrange(group, self.timeout_s)
        if self.distributed and len(group) > 1:
            processes.join(group, self.timeout_s)

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Part the ranks."""
        if self.distributed and len(group) > 1:
            processes.leave(group)
        joining.leave(group)
