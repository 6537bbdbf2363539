"""The settings of a run: scale, name, storage and retries. Each record checks its values when it is made."""

from __future__ import annotations

import logging
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket import keywords
from hocket._base import texts
from hocket.engine import node
from hocket.stores import names, places
from hocket.train import refusals, spellings
from hocket.train import user_callback as callbacks_module

MAX_WORKERS = 100_000
"""The most ranks of a group."""

DEFAULT_STORAGE = "~/hocket_results"
"""The default of `RunConfig.storage_path`."""


@keywords.explained(aliases=spellings.SCALING)
@dataclass(frozen=True)
class ScalingConfig:
    """The number of ranks and the resources of each.

    ``num_workers=0`` runs the training function in this process, without workers, for debugging; ``(1, 4)`` is an
    elastic group.

    Raises:
        ValueError: A value breaks a rule.
        TypeError: A value has the wrong type.
        NotImplementedError: Labels or TPUs are requested.
        DeprecationWarning: `trainer_resources` is given.
    """

    trainer_resources: None = None
    """For programs written for Ray, where this is the first positional argument; must be None."""
    num_workers: int | tuple[int, int] = 1
    """The number of ranks, each a process. 0 runs the training function in this process, without workers, for
    debugging. ``(least, most)`` is elastic: as many ranks as the session has resources for. That number is set at the
    start, after each failure, and every `elastic_resize_monitor_interval_s` seconds."""
    use_gpu: bool = False
    """Whether each rank holds a GPU: one, unless `resources_per_worker` sets another number."""
    resources_per_worker: Mapping[str, float] | None = None
    """The resources of each rank, by name. Default: one CPU, and one GPU if `use_gpu`."""
    placement_strategy: str = "PACK"
    """How the ranks' bundles are placed, as in `hocket.util.placement_group`."""
    accelerator_type: str | None = None
    """The type of accelerator that the node of each rank must have, such as ``"A100"``."""
    label_selector: None = None
    """For programs written for Ray; must be None."""
    use_tpu: bool = False
    """For programs written for Ray; must be False."""
    topology: None = None
    """For programs written for Ray; must be None."""
    elastic_resize_monitor_interval_s: float = 60.0
    """Seconds between checks whether an elastic group can grow. If so, the group restarts, larger, after its next
    commit. If no commit comes within the same time again, the group restarts from the last commit."""

    def __post_init__(self) -> None:
        refusals.check_fields(self)
        self._check_num_workers()
        _check_seconds(self, "elastic_resize_monitor_interval_s")
        use_gpu: object = self.use_gpu
        if not isinstance(use_gpu, bool):
            raise TypeError(
                f"use_gpu must be True or False, but received {texts.safe_repr(use_gpu)}. Write use_gpu=True."
            )
        accelerator: object = self.accelerator_type
        if accelerator is not None and (not isinstance(accelerator, str) or not accelerator):
            raise ValueError(
                f"accelerator_type must be the name of an accelerator, but received {self.accelerator_type!r}. Write "
                "'A100', or leave it out for any."
            )
        if self.placement_strategy not in node.STRATEGIES:
            raise ValueError(
                f"placement_strategy must be one of {list(node.STRATEGIES)}, but received {self.placement_strategy!r}. "
                "Leave it out for 'PACK'."
            )
        given: object = self.resources_per_worker or {}
        if not isinstance(given, Mapping):
            raise TypeError(
                f"resources_per_worker must be a dict, but received {texts.safe_repr(given)}. Write "
                "resources_per_worker={'CPU': 2}."
            )
        if given.get("TPU"):
            refusals.refuse("ScalingConfig", "use_tpu")
        for name, amount in given.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
                raise ValueError(
                    f"resources_per_worker[{name!r}] must be a number that is 0 or more, but received "
                    f"{texts.safe_repr(amount)}. Leave the key out for none."
                )
        gpus = given.get("GPU")
        if self.use_gpu and gpus == 0:
            raise ValueError(
                "use_gpu=True needs GPUs, but resources_per_worker['GPU'] is 0. Leave that key out, or set "
                "use_gpu=False."
            )
        if not self.use_gpu and gpus:
            raise ValueError(
                f"resources_per_worker['GPU'] is {gpus}, but use_gpu is False. Set use_gpu=True, or leave that key out."
            )

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of one rank, with the defaults filled in."""
        bundle = {name: float(amount) for name, amount in (self.resources_per_worker or {}).items()}
        if self.use_gpu:
            bundle.setdefault("GPU", 1.0)
        if self.resources_per_worker is None or "CPU" not in bundle:
            bundle["CPU"] = 1.0
        if self.accelerator_type is not None:
            bundle[f"accelerator_type:{self.accelerator_type}"] = 0.001  # the least amount there is, as in Ray
        return {name: amount for name, amount in bundle.items() if amount > 0}

    @property
    def total_resources(self) -> dict[str, float]:
        """The resources of all ranks together, for the greatest number of ranks."""
        return self.multiply(self.max_workers)

    def multiply(self, num_workers: int) -> dict[str, float]:
        """Return the resources of this number of ranks together."""
        return {name: amount * num_workers for name, amount in self.bundle.items()}

    @property
    def elasticity_enabled(self) -> bool:
        """Whether the number of ranks may change."""
        return isinstance(self.num_workers, tuple)

    @property
    def min_workers(self) -> int:
        """The least number of ranks."""
        return self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def max_workers(self) -> int:
        """The greatest number of ranks."""
        return self.num_workers[1] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def num_tpus_per_worker(self) -> float:
        """The number of TPUs that a rank holds: none."""
        return 0.0

    def _check_num_workers(self) -> None:
        given: Any = self.num_workers
        parts = given if isinstance(given, tuple) and len(given) == 2 else (given,)
        if not all(isinstance(part, int) and not isinstance(part, bool) for part in parts):
            raise TypeError(
                "num_workers must be an int, or a pair of ints for an elastic group, but received "
                f"{texts.safe_repr(given)}. Write num_workers=2, or num_workers=(1, 4)."
            )
        if parts[0] < 0:
            raise ValueError(
                f"num_workers must be 0 or more, but received {given}. Give the number of worker processes, or 0 to "
                "run the training function in this process."
            )
        if parts[-1] > MAX_WORKERS:
            raise ValueError(
                f"num_workers must be {MAX_WORKERS:,} at most, but received {given}. Give the number of worker "
                "processes."
            )
        if len(parts) == 2 and not 1 <= parts[0] <= parts[1]:
            raise ValueError(
                f"num_workers=(least, most) must have 1 <= least <= most, but received {given}. Write num_workers=(1, "
                "4), or 0 to run the training function in this process."
            )


@keywords.explained(aliases=spellings.FAILURE)
@dataclass(frozen=True)
class FailureConfig:
    """The reaction to a rank's failure.

    Raises:
        ValueError: A value breaks a rule.
        TypeError: A value has the wrong type.
        DeprecationWarning: `fail_fast` is given.
        NotImplementedError: `relax_collectives_on_preemption` is True.
    """

    max_failures: int = 0
    """How often the group restarts from the last committed checkpoint after ranks failed. 0: never; -1: without end."""
    fail_fast: None = None
    """For programs written for Ray; must be None."""
    controller_failure_limit: int = 0
    """How often a failed start of the group is tried again. -1: without end, which is Ray's default. 0: the first
    failure is raised."""
    max_preemption_failures: int = -1
    """How often the group is started again after ranks got SIGTERM. -1: without end. Not counted in `max_failures`."""
    relax_collectives_on_preemption: bool = False
    """For programs written for Ray; must be False."""
    preemption_grace_s: float = 0.0
    """Seconds that ranks may run after the deadline of their notice."""

    def __post_init__(self) -> None:
        refusals.check_fields(self)
        for name in ("max_failures", "controller_failure_limit", "max_preemption_failures"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, but received {value!r}. Write {name}=3.")
            if value < -1:
                raise ValueError(
                    f"{name} must be -1 (no limit), or 0 or more, but received {value}. Leave it out for "
                    f"{getattr(type(self), name)}."
                )
        _check_seconds(self, "preemption_grace_s")


@keywords.explained()
@dataclass(frozen=True)
class DivergenceConfig:
    """The reaction to ranks that should have equal models, but do not.

    Each rank sends a digest of its parameters, buffers and optimizer state: at each report, at the end of each epoch
    that Hocket sees, and at the end of the training function. It sends none where its strategy lets the ranks differ.

    Raises:
        ValueError: The action is unknown, or `every_n_steps` is below 0.
        TypeError: `every_n_steps` is not an int.

    Example:
        >>> from hocket import train
        >>> train.RunConfig(divergence_config=train.DivergenceConfig(action="warn")).divergence_config
        DivergenceConfig(action='warn', every_n_steps=0)
    """

    action: str = "error"
    """``"error"`` ends the run with a `RanksDivergedError`, ``"warn"`` logs the first difference, ``"ignore"`` compares
    nothing."""
    every_n_steps: int = 0
    """Compare after each such number of optimizer steps, too. 0: only at reports and ends. A comparison costs about as
    much as reading the compared tensors once."""

    def __post_init__(self) -> None:
        if self.action not in ("error", "warn", "ignore"):
            raise ValueError(
                f"action must be 'error', 'warn' or 'ignore', but received {texts.safe_repr(self.action)}. Leave it "
                "out for 'error'."
            )
        steps: object = self.every_n_steps
        if isinstance(steps, bool) or not isinstance(steps, int):
            raise TypeError(
                f"every_n_steps must be an int, but received {texts.safe_repr(steps)}. Write every_n_steps=100."
            )
        if steps < 0:
            raise ValueError(f"every_n_steps must be 0 or more, but received {steps}. Leave it out for 0.")


@keywords.explained(aliases={"level": "log_level"})
@dataclass(frozen=True)
class LoggingConfig:
    """The log of a run, by the logger ``hocket.train`` of the process that called `fit`.

    Raises:
        ValueError: The level is not a level of ``logging``.

    Example:
        >>> from hocket import train
        >>> train.LoggingConfig(log_level="warning").log_level
        'WARNING'
    """

    log_level: str = "INFO"
    """The least level that is logged."""

    def __post_init__(self) -> None:
        given: Any = self.log_level
        if not isinstance(given, str) or given.upper() not in logging.getLevelNamesMapping():
            raise ValueError(
                f"log_level must be one of {sorted(logging.getLevelNamesMapping())}, but received {given!r}. Leave it "
                "out for 'INFO'."
            )
        object.__setattr__(self, "log_level", given.upper())


@keywords.explained(aliases=spellings.CHECKPOINT)
@dataclass(frozen=True)
class CheckpointConfig:
    """The rule for which checkpoints of a run are kept.

    Raises:
        ValueError: A value breaks a rule.
        TypeError: A value has the wrong type.
        DeprecationWarning: A value is given that Ray Train no longer supports either.
    """

    num_to_keep: int | None = None
    """How many checkpoints to keep: the best by score, and always the latest. None keeps all."""
    checkpoint_score_attribute: str | None = None
    """The key of rank 0's metrics that is the score; ``"a/b"`` looks into nested dicts. None: the latest checkpoints
    are the best."""
    checkpoint_score_order: str = "max"
    """Whether the best score is the ``"max"`` or the ``"min"``."""
    checkpoint_frequency: None = None
    """For programs written for Ray; must be None."""
    checkpoint_at_end: None = None
    """For programs written for Ray; must be None."""

    def __post_init__(self) -> None:
        refusals.check_fields(self)
        kept: object = self.num_to_keep
        if kept is not None and (isinstance(kept, bool) or not isinstance(kept, int)):
            raise TypeError(
                f"num_to_keep must be an int, or None to keep all, but received {texts.safe_repr(kept)}. Write "
                "num_to_keep=2."
            )
        if self.num_to_keep is not None and self.num_to_keep < 1:
            raise ValueError(
                f"num_to_keep must be 1 or more, or None to keep all, but received {self.num_to_keep}. To save none, "
                "report without a checkpoint."
            )
        attribute: object = self.checkpoint_score_attribute
        if attribute is not None and (not isinstance(attribute, str) or not attribute):
            raise TypeError(
                f"checkpoint_score_attribute must be a metric's name, but received {attribute!r}. Write "
                "checkpoint_score_attribute='loss', checkpoint_score_order='min'."
            )
        check_score_order(self.checkpoint_score_order)


@keywords.explained(
    aliases=spellings.RUN,
    nested={
        "failure_config": FailureConfig,
        "checkpoint_config": CheckpointConfig,
        "logging_config": LoggingConfig,
        "divergence_config": DivergenceConfig,
    },
)
@dataclass(frozen=True)
class RunConfig:
    """A run's name, storage, callbacks and reactions to failures.

    A run with the name and storage path of an earlier one continues it: `get_checkpoint` returns its latest checkpoint.

    Raises:
        ValueError: The name is not the name of one folder, or the storage path has an unknown scheme.
        TypeError: A callback is not a `UserCallback`, or another value has the wrong type.
        MissingExtraError: The storage path is in a store that needs a library which is not installed.
        DeprecationWarning: A value is given that Ray Train no longer supports either.
    """

    name: str | None = None
    """The name of the run's folder in `storage_path`. Default: a name with date, time and a random part."""
    storage_path: str | Path | None = None
    """The folder that holds the runs, or an address such as ``s3://bucket/runs``. Default: ``~/hocket_results``."""
    storage_filesystem: Any = None
    """The file system of `storage_path`, of pyarrow or fsspec. Default: this machine, unless the path is an address."""
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    """The reaction to a rank's failure."""
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Which checkpoints are kept."""
    callbacks: Sequence[callbacks_module.UserCallback] = ()
    """The callbacks to call in the process that called `fit`, in this order."""
    worker_runtime_env: Mapping[str, Any] = field(default_factory=dict)
    """The environment of the ranks' processes, as in ``hocket.remote(runtime_env=...)``:
    ``{"env_vars": {"OMP_NUM_THREADS": "1"}}``."""
    logging_config: LoggingConfig = field(default_factory=LoggingConfig)
    """The level of the run's log."""
    sync_config: None = None
    """For programs written for Ray; must be None."""
    verbose: None = None
    """For programs written for Ray; must be None."""
    stop: None = None
    """For programs written for Ray; must be None."""
    progress_reporter: None = None
    """For programs written for Ray; must be None."""
    log_to_file: None = None
    """For programs written for Ray; must be None."""
    divergence_config: DivergenceConfig = field(default_factory=DivergenceConfig)
    """The reaction to ranks that should have equal models, but do not."""

    def __repr__(self) -> str:
        return places.show_record(self)

    def __post_init__(self) -> None:
        refusals.check_fields(self)
        check_storage(self.storage_path, self.storage_filesystem)
        self._fill_in()
        name: object = self.name
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a string, but received {texts.safe_repr(name)}. Write name='first'.")
        fault = None if name is None else names.find_folder_fault(name)
        if fault is not None:
            raise ValueError(
                f"name must be the name of one folder, but received {texts.safe_repr(name)}: {fault}. Put the folders "
                "above it into storage_path."
            )
        given: object = self.callbacks
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise TypeError(
                f"callbacks must be a list of hocket.train.UserCallback, but received {texts.safe_repr(given)}. Write "
                "callbacks=[MyCallback()]."
            )
        for callback in self.callbacks:
            if not isinstance(callback, callbacks_module.UserCallback):
                raise TypeError(
                    "callbacks must be instances of hocket.train.UserCallback, but received "
                    f"{texts.safe_repr(callback)}. Inherit from it, and pass an instance."
                )

    def locate(self) -> Path | places.Place:
        """Return the folder that holds the runs, here or in a store."""
        return locate(self.storage_path, self.storage_filesystem)

    def _fill_in(self) -> None:
        """Replace None, which programs written for Ray pass, by the default, and check the types."""
        defaults = {
            "failure_config": FailureConfig(),
            "checkpoint_config": CheckpointConfig(),
            "logging_config": LoggingConfig(),
            "divergence_config": DivergenceConfig(),
            "callbacks": (),
            "worker_runtime_env": {},
        }
        for name, default in defaults.items():
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, default)
            elif name.endswith("_config") and not isinstance(value, type(default)):
                kind = type(default).__name__
                raise TypeError(
                    f"{name} must be a {kind}, but received {value!r}. Write {name}=hocket.train.{kind}(...)."
                )
        if not isinstance(self.worker_runtime_env, Mapping):
            raise TypeError(
                f"worker_runtime_env must be a dict, but received {self.worker_runtime_env!r}. Write {{'env_vars': "
                "{'NAME': 'value'}}."
            )


def _check_seconds(config: object, name: str) -> None:
    """Refuse a setting that is not a number of seconds, or is negative."""
    value: Any = getattr(config, name)
    default = getattr(type(config), name)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{name} must be a number of seconds, but received {texts.safe_repr(value)}. Leave it out for {default:g}."
        )
    if not float(value) >= 0:
        raise ValueError(f"{name} must be 0 or more seconds, but received {value!r}. Leave it out for {default:g}.")


def check_storage(path: object, filesystem: object) -> None:
    """Refuse a path and a file system that do not name a place."""
    if path is None and filesystem is not None:
        raise ValueError(
            f"storage_filesystem={filesystem!r:.80} needs storage_path, the folder in that file system for the runs. "
            "Write storage_path='bucket/runs'."
        )
    if path is None:
        return
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"storage_path must be a folder's path or an address, but received {texts.name_kind(path)}. Write "
            "'s3://bucket/runs', or leave it out."
        )
    text = os.fspath(path)
    if not text or "\0" in text:
        raise ValueError(
            f"storage_path must be a folder's path or an address, but received {text!r}. Write 's3://bucket/runs', or "
            "leave it out."
        )
    locate(path, filesystem)


def locate(path: str | os.PathLike[str] | None, filesystem: object) -> Path | places.Place:
    """Return the folder that holds the runs, here or in a store. A relative path stays relative."""
    found = places.locate(path or DEFAULT_STORAGE, filesystem, "RunConfig(storage_path=...)")
    return found if isinstance(found, places.Place) else Path(found).expanduser()


def check_score_order(order: object) -> None:
    """Refuse an order other than ``"max"`` and ``"min"``."""
    if order not in ("max", "min"):
        raise ValueError(
            f"checkpoint_score_order must be 'max' or 'min', but received {order!r}. Leave it out for 'max'."
        )
