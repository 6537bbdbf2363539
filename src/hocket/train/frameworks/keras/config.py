"""Chooses the Keras backend of the ranks, and joins the ranks.

A process fixes Keras's backend at import, from KERAS_BACKEND. So the ranks get the variable before the training
function, whose code may import Keras. All ranks of a session share one backend
(`hocket.train.frameworks.keras_preloads`).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import keras

from hocket import extras, keywords
from hocket.collective import turns
from hocket.train import strategies
from hocket.train.frameworks import tf_config
from hocket.train.frameworks.keras import sharding
from hocket.train.run import backend, joining, worker_group

BACKENDS: Final = ("tensorflow", "torch", "jax")
"""The backends with which Keras can train."""


@final
@keywords.explained()
@dataclass(frozen=True, kw_only=True)
class KerasConfig(backend.BackendConfig):
    """The backend of the ranks' Keras, and how long ranks wait for each other.

    Raises:
        ValueError: The backend is unknown, or `timeout_s` is not positive.

    Example:
        >>> from hocket.train.keras import KerasConfig
        >>> KerasConfig(backend="jax").choose_backend()
        'jax'
    """

    backend: str | None = None
    """``"tensorflow"``, ``"torch"`` or ``"jax"``; the same for all trainers of a session. Default: the driver's."""
    timeout_s: float = joining.TIMEOUT_SECONDS
    """Seconds that a rank waits for another rank."""
    distributed: bool = False
    """Whether to join JAX's processes too, if JAX is the backend: one program may then span the devices of all ranks.
    `KerasTrainer` sets it for `Sharded`."""

    def __post_init__(self) -> None:
        if self.backend is not None and self.backend not in BACKENDS:
            raise ValueError(
                f"backend must be one of {list(BACKENDS)}, but received {self.backend!r}. Leave it out for the "
                f"driver's backend, {keras.backend.backend()!r}."
            )
        joining.check_timeout(self.timeout_s)
        if self.distributed and self.choose_backend() != "jax":
            raise ValueError(
                f"distributed=True joins JAX's processes, but the backend is {self.choose_backend()!r}. Write "
                "KerasConfig(backend='jax', distributed=True), or leave distributed out."
            )

    def choose_backend(self) -> str:
        """Return the backend of the ranks."""
        return self.backend or str(keras.backend.backend())

    def list_modules(self, function: Callable[..., object]) -> Sequence[str]:
        """Return the modules that import Keras with the backend, and those of `Sharded` if that is the strategy."""
        needed = [*super().list_modules(function), f"hocket.train.frameworks.keras_preloads.{self.choose_backend()}"]
        if isinstance(getattr(function, "strategy", None), strategies.Sharded):
            needed += [sharding.JOINED, sharding.SPREAD_MODELS]
        return needed

    def list_blind_ranks(self, num_workers: int) -> Sequence[int]:
        """Return all ranks if JAX's processes are joined: gloo does not notice that a process has ended."""
        return range(num_workers) if self.distributed else ()

    @contextlib.contextmanager
    def share_process(self) -> Iterator[Sequence[turns.Local]]:
        """Let ranks take turns in one process if gradients leave a step in the rank's own thread, as in PyTorch.

        Raises:
            ValueError: The backend computes in threads of its own.
        """
        if self.choose_backend() != "torch":
            raise ValueError(
                f"Keras on {self.choose_backend()!r} needs ranks that are processes: its steps run in threads of their "
                "own, but the ranks of the in-process engine take turns in theirs. Use KERAS_BACKEND=torch, "
                "ScalingConfig(num_workers=1), or hocket.init(engine='local')."
            )
        yield ()

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Set KERAS_BACKEND in each rank, and join the ranks."""
        num_threads = max(1, int(group.scaling.bundle.get("CPU", 1)))
        group.execute(
            tf_config.choose_keras_backend, [(self.choose_backend(), num_threads, group.scaling.use_gpu)] * len(group)
        )
        joining.arrange(group, self.timeout_s)
        if self.distributed:
            extras.load("jax", "Keras on JAX", "JAX", "Run pip install 'hocket[jax]'.")
            importlib.import_module(sharding.JOINED).join(group, self.timeout_s)

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Part the ranks."""
        if self.distributed:
            importlib.import_module(sharding.JOINED).leave(group)
        joining.leave(group)
