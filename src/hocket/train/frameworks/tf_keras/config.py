"""Makes the ranks a TensorFlow cluster, through TF_CONFIG."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from hocket import keywords
from hocket.collective import turns
from hocket.train.frameworks import tf_config
from hocket.train.run import backend, worker_group

PRELOADED: Final = "hocket.train.frameworks.tf_keras.preload"
"""The module that imports TensorFlow with both versions of Keras, once on a machine."""


@final
@keywords.explained()
@dataclass(frozen=True, kw_only=True)
class TensorflowConfig(backend.BackendConfig):
    """The role of each rank in the cluster, and which Keras ``tf.keras`` is.

    Raises:
        TypeError: `chief` or `legacy_keras` is no bool.
        ValueError: `num_evaluators` is negative.

    Example:
        >>> from hocket.train.tensorflow import TensorflowConfig
        >>> TensorflowConfig(chief=True, num_evaluators=1).list_task_types(4)
        ['chief', 'worker', 'worker', 'evaluator']
    """

    chief: bool = False
    """Whether rank 0 is named ``chief`` and not ``worker``. Without a chief, MultiWorkerMirroredStrategy takes worker 0
    for it."""
    num_evaluators: int = 0
    """The number of evaluators, which are the last ranks. They are outside the cluster, for programs that read
    TF_CONFIG and evaluate checkpoints there. They report as often as the others."""
    legacy_keras: bool = True
    """Whether ``tf.keras`` is tf-keras, that is Keras 2, as in Ray Train. MultiWorkerMirroredStrategy needs it. Sets
    TF_USE_LEGACY_KERAS in the ranks. ``import keras`` is Keras 3 either way."""

    def __post_init__(self) -> None:
        for name in ("chief", "legacy_keras"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(
                    f"{name} must be True or False, but received {getattr(self, name)!r}. Write {name}=True."
                )
        number: Any = self.num_evaluators
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(
                f"num_evaluators must be 0 or more, but received {self.num_evaluators!r}. Leave it out for none."
            )

    def list_modules(self, function: Callable[..., object]) -> Sequence[str]:
        """Return the module that imports TensorFlow."""
        return (*super().list_modules(function), PRELOADED)

    def list_task_types(self, num_workers: int) -> list[str]:
        """Return each rank's task type, by rank.

        Raises:
            ValueError: All of them would be evaluators.
        """
        count = num_workers - self.num_evaluators
        if count < 1:
            raise ValueError(
                f"num_evaluators={self.num_evaluators} of num_workers={num_workers} leave no rank to train. Use "
                f"ScalingConfig(num_workers={self.num_evaluators + 1}) or more."
            )
        first = "chief" if self.chief else "worker"
        return [first] + ["worker"] * (count - 1) + ["evaluator"] * self.num_evaluators

    def list_blind_ranks(self, num_workers: int) -> Sequence[int]:
        """Return the ranks in the cluster: TensorFlow's collectives have no time-out."""
        return range(num_workers - self.num_evaluators)

    @contextlib.contextmanager
    def share_process(self) -> Iterator[Sequence[turns.Local]]:
        """Refuse ranks in one process, which has only one TF_CONFIG.

        Raises:
            ValueError: Always.
        """
        yield _refuse_to_share()

    def check_work(self, work: object) -> None:
        """Refuse objects of Keras 3 if ``tf.keras`` is Keras 2."""
        if self.legacy_keras:
            tf_config.refuse_keras_3(work)

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Set TF_CONFIG in each rank."""
        tf_config.arrange(group, self.list_task_types(len(group)), legacy_keras=self.legacy_keras)

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Do nothing: TensorFlow's servers and connections end with their process."""


def _refuse_to_share() -> Sequence[turns.Local]:
    raise ValueError(
        "TensorFlow's ranks are processes, each with its TF_CONFIG, but the ranks of the in-process engine share one "
        "process. Use ScalingConfig(num_workers=1), or open the session with hocket.init(engine='local')."
    )
