"""How a run is scaled, named, kept and retried: records that are checked when they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.engine import node
from hocket.train import callbacks as callbacks_module

DEFAULT_STORAGE = "~/hocket_results"
"""Where runs are kept unless `RunConfig.storage_path` says otherwise."""


@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """How many ranks there are, and what each of them holds.

    Raises:
        ValueError: A value breaks a rule.
        TypeError: A value has the wrong type.
    """

    num_workers: int = 1
    """Ranks, each a process. 0 runs the training function in this process, without workers, for debugging."""
    use_gpu: bool = False
    """Whether each rank holds a GPU: one, unless `resources_per_worker` says otherwise."""
    resources_per_worker: Mapping[str, float] | None = None
    """What each rank holds, by resource name. Default: one CPU, and one GPU if `use_gpu`."""
    placement_strategy: str = "PACK"
    """How the ranks' bundles are placed: as in `hocket.util.placement_group`."""

    def __post_init__(self) -> None:
        if isinstance(self.num_workers, bool) or not isinstance(self.num_workers, int):
            raise TypeError(f"num_workers must be an int, but received {self.num_workers!r}. Write num_workers=2.")
        if self.num_workers < 0:
            raise ValueError(
                f"num_workers must be 0 or more, but received {self.num_workers}. Give the number of worker processes, or 0 to "
                "run the training function in this process."
            )
        if self.placement_strategy not in node.STRATEGIES:
            raise ValueError(
                f"placement_strategy must be one of {list(node.STRATEGIES)}, but received {self.placement_strategy!r}. "
                "Leave it out for 'PACK'."
            )
        given: Mapping[str, Any] = self.resources_per_worker or {}
        for name, amount in given.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
                raise ValueError(
                    f"resources_per_worker[{name!r}] must be a number that is 0 or more, but received {amount!r}. Leave the key out "
                    "for none."
                )
        gpus = given.get("GPU")
        if self.use_gpu and gpus == 0:
            raise ValueError(
                "use_gpu=True needs GPUs, but resources_per_worker['GPU'] is 0. Leave that key out, or set use_gpu=False."
            )
        if not self.use_gpu and gpus:
            raise ValueError(
                f"resources_per_worker['GPU'] is {gpus}, but use_gpu is False. Set use_gpu=True, or leave that key out."
            )

    @property
    def bundle(self) -> dict[str, float]:
        """What one rank holds, with the defaults filled in."""
        bundle = {name: float(amount) for name, amount in (self.resources_per_worker or {}).items()}
        if self.use_gpu:
            bundle.setdefault("GPU", 1.0)
        if self.resources_per_worker is None or "CPU" not in bundle:
            bundle["CPU"] = 1.0
        return {name: amount for name, amount in bundle.items() if amount > 0}

    @property
    def total_resources(self) -> dict[str, float]:
        """What all ranks hold together."""
        return {name: amount * self.num_workers for name, amount in self.bundle.items()}


@dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """What happens when a rank fails.

    Raises:
        ValueError: `max_failures` is less than -1.
    """

    max_failures: int = 0
    """How often the group is started again from the last committed checkpoint. 0: never; -1: without end."""

    def __post_init__(self) -> None:
        if self.max_failures < -1:
            raise ValueError(
                f"max_failures must be -1 (without end), 0 or more, but received {self.max_failures}. Leave it out for 0."
            )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints of a run are kept.

    Raises:
        ValueError: A value breaks a rule.
    """

    num_to_keep: int | None = None
    """How many are kept: the best by score, or the latest. The latest is always kept as well. None keeps all."""
    checkpoint_score_attribute: str | None = None
    """The key of rank 0's metrics that is the score; ``"a/b"`` looks into nested dicts. None: the latest are the best."""
    checkpoint_score_order: str = "max"
    """Whether the best score is the ``"max"`` or the ``"min"``."""

    def __post_init__(self) -> None:
        if self.num_to_keep is not None and self.num_to_keep < 1:
            raise ValueError(
                f"num_to_keep must be 1 or more, or None to keep all, but received {self.num_to_keep}. To save none, report "
                "without a checkpoint."
            )
        if self.checkpoint_score_order not in ("max", "min"):
            raise ValueError(
                f"checkpoint_score_order must be 'max' or 'min', but received {self.checkpoint_score_order!r}. Leave it out "
                "for 'max'."
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What a run is called, where it is kept, and how it is watched.

    A run with the name and storage path of an earlier one continues it: `get_checkpoint` returns its latest checkpoint.

    Raises:
        ValueError: The name is not one folder's name.
        TypeError: A callback is not a `UserCallback`.
    """

    name: str | None = None
    """The folder of the run in `storage_path`. Default: one with date, time and a random part."""
    storage_path: str | Path | None = None
    """The folder that holds the runs. Default: ``~/hocket_results``."""
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    """What happens when a rank fails."""
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Which checkpoints are kept."""
    callbacks: Sequence[callbacks_module.UserCallback] = ()
    """Called in the process that called `fit`, in this order."""

    def __post_init__(self) -> None:
        if self.name is not None and (not self.name or "/" in self.name or self.name in (".", "..")):
            raise ValueError(
                f"name must be the name of one folder, but received {self.name!r}. Put the folders above it into storage_path."
            )
        for callback in self.callbacks:
            if not isinstance(callback, callbacks_module.UserCallback):
                raise TypeError(
                    f"callbacks must be instances of hocket.train.UserCallback, but received {callback!r}. Inherit from it, and "
                    "pass an instance."
                )


def refuse_filesystem(filesystem: object) -> None:
    """Raise if a file system object was given: runs are kept in folders.

    Raises:
        ValueError: One was given.
    """
    if filesystem is not None:
        raise ValueError(
            f"storage_filesystem must be None, but received {filesystem!r}: runs are kept in ordinary folders. Mount what is not one, and pass "
            "the folder as storage_path."
        )
