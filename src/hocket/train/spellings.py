"""Other libraries' names for settings of this package. Error messages suggest the right name for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_RANKS: Final = (
    *("workers", "n_workers", "num_ranks", "ranks", "num_processes", "nproc_per_node", "nprocs", "np", "world_size"),
    "num_nodes",
)

SCALING: Final[Mapping[str, str]] = {
    **dict.fromkeys(_RANKS, "num_workers"),
    **dict.fromkeys(("gpu", "gpus", "use_gpus", "cuda"), "use_gpu=True"),
    **dict.fromkeys(
        ("num_gpus", "gpus_per_worker", "num_gpus_per_worker"),
        "use_gpu=True, resources_per_worker={'GPU': {value}}",
    ),
    **dict.fromkeys(
        ("num_cpus", "cpus", "cpus_per_worker", "num_cpus_per_worker"), "resources_per_worker={'CPU': {value}}"
    ),
    "resources": "resources_per_worker",
    "min_workers": "num_workers=({value}, MOST)",
    "max_workers": "num_workers=(LEAST, {value})",
}
"""Replacements for unknown keywords of `ScalingConfig`."""

FAILURE: Final[Mapping[str, str]] = dict.fromkeys(
    ("max_restarts", "max_retries", "restarts", "retries"), "max_failures"
)
"""Replacements for unknown keywords of `FailureConfig`."""

CHECKPOINT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("keep", "max_to_keep", "save_total_limit", "num_checkpoints"), "num_to_keep"),
    **dict.fromkeys(("metric", "score_attribute", "monitor"), "checkpoint_score_attribute"),
    **dict.fromkeys(("mode", "score_order"), "checkpoint_score_order"),
}
"""Replacements for unknown keywords of `CheckpointConfig`."""

RUN: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("storage", "path", "folder", "dir", "local_dir", "output_dir", "logdir", "log_dir", "root_dir"), "storage_path"
    ),
    **dict.fromkeys(("run_name", "experiment_name"), "name"),
    **dict.fromkeys(("max_restarts", "max_retries", "restarts"), "failure_config=FailureConfig(max_failures={value})"),
    "runtime_env": "worker_runtime_env",
    "env_vars": "worker_runtime_env={'env_vars': {value}}",
    "callback": "callbacks=[{value}]",
}
"""Replacements for unknown keywords of `RunConfig`."""

TRAINER: Final[Mapping[str, str]] = {
    **dict.fromkeys(("config", "loop_config", "train_config", "train_loop_args", "args"), "train_loop_config"),
    **dict.fromkeys(
        ("train_loop", "train_fn", "train_func", "function", "func", "fn", "loop"), "train_loop_per_worker"
    ),
    **dict.fromkeys(_RANKS, "scaling_config=ScalingConfig(num_workers={value})"),
    **dict.fromkeys(("gpus", "num_gpus"), "scaling_config=ScalingConfig(use_gpu=True, num_workers={value})"),
    **dict.fromkeys(
        ("max_restarts", "max_retries"),
        "run_config=RunConfig(failure_config=FailureConfig(max_failures={value}))",
    ),
    **dict.fromkeys(("storage", "local_dir", "output_dir"), "run_config=RunConfig(storage_path={value})"),
    "scaling": "scaling_config",
}
"""Replacements for unknown keywords of all trainers."""
