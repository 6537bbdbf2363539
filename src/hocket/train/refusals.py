"""Arguments and calls of programs for Ray that this package does not support, with a replacement for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

_TIMES = (
    "{name} is not supported, as in Ray Train: the training function decides when it saves. Pass a checkpoint "
    "to report()."
)
_TPU = "TPUs are not supported: leave out use_tpu, topology and resources_per_worker['TPU'], and use CPUs or GPUs."
_CONFIG = "RunConfig({name}=...) is not supported, as in Ray Train."
_CONTEXT = "TrainContext.{name}() is not supported, as in Ray Train."

TABLE: Final[Mapping[str, Mapping[str, str]]] = {
    "ScalingConfig": {
        "trainer_resources": (
            "{name} is not supported, as in Ray Train: the process that called fit() drives the ranks, and holds no "
            "resources. Leave it out, and name the others, as in ScalingConfig(num_workers=2)."
        ),
        "label_selector": (
            "{name} is not supported, but received {value}. Give the nodes a resource of their own, and ask "
            "for it in resources_per_worker."
        ),
        "use_tpu": _TPU,
        "topology": _TPU,
    },
    "FailureConfig": {
        "fail_fast": "{name} is not supported, as in Ray Train. Write max_failures=0, which is the default.",
        "relax_collectives_on_preemption": (
            "{name} is not supported: report() and barrier() always take all ranks. Leave it out."
        ),
    },
    "CheckpointConfig": {"checkpoint_frequency": _TIMES, "checkpoint_at_end": _TIMES},
    "RunConfig": {
        "sync_config": _CONFIG + " report() puts checkpoints into storage_path; see its checkpoint_upload_mode.",
        "verbose": _CONFIG + " Leave it out; LoggingConfig(log_level=...) says how much is logged.",
        "stop": _CONFIG + " Return from the training function when the training is done.",
        "progress_reporter": _CONFIG + " Write a UserCallback with after_report, and pass it in callbacks.",
        "log_to_file": _CONFIG + " Leave it out; the driver prints the ranks' output, and can redirect it into a file.",
    },
    "Result": {
        "config": (
            "Result.config does not exist for a training run. The run was configured with what you passed as "
            "train_loop_config; to have it in the result, report it as a metric."
        ),
    },
    "DataParallelTrainer": {
        "metadata": "{name} is not supported, as in Ray Train. Put it into train_loop_config, or store it with "
        "Checkpoint.set_metadata.",
        "resume_from_checkpoint": (
            "{name} is not supported, as in Ray Train. Pass the checkpoint's path in train_loop_config and "
            "load it in the training function; to go on with an earlier run, give its RunConfig(name=..., "
            "storage_path=...)."
        ),
        "restore": (
            "{value}.restore() is not supported, as in Ray Train. Make the trainer again with "
            "RunConfig(name=..., storage_path=...) of the run, and call fit(): get_checkpoint() then returns its "
            "latest checkpoint."
        ),
        "can_restore": (
            "{value}.can_restore() is not supported, as in Ray Train. Leave it out: fit() goes on with the run "
            "of that name if there is one, and begins it if there is none."
        ),
    },
    "TrainContext": {
        "get_metadata": _CONTEXT + " Put it into train_loop_config.",
        "get_trial_name": _CONTEXT + " Use get_experiment_name().",
        "get_trial_id": _CONTEXT + " Use get_experiment_name().",
        "get_trial_resources": _CONTEXT + " Put ScalingConfig.resources_per_worker into train_loop_config.",
        "get_trial_dir": _CONTEXT + " Use get_storage().path.",
    },
    "Trainer": {
        "dataset": "{name} is not supported by this trainer. Pass datasets={'train': dataset} to TorchTrainer or "
        "DataParallelTrainer, and call get_dataset_shard('train') in the training function; or load the data there.",
    },
}
"""The text of each error, by class and then by argument, attribute or method."""

_KINDS: Final[Mapping[str, type[Exception]]] = {
    **dict.fromkeys(
        ("label_selector", "use_tpu", "topology", "relax_collectives_on_preemption", "dataset"), NotImplementedError
    ),
}
"""The type of each error that is not a DeprecationWarning. Ray raises that for settings that it no longer supports."""


def refuse(owner: str, name: str, value: str = "") -> NoReturn:
    """Raise the error of the table.

    Args:
        owner: The class.
        name: The argument, attribute or method.
        value: The value to show in the text.
    """
    text = TABLE[owner][name]
    raise _KINDS.get(name, DeprecationWarning)(text.replace("{name}", name).replace("{value}", value))


def check(owner: str, **given: object) -> None:
    """Raise if any of the given arguments is not None."""
    for name, value in given.items():
        if value is not None:
            refuse(owner, name, repr(value))


def check_fields(record: object) -> None:
    """Raise if a record has a refused field that differs from its default."""
    owner = type(record).__name__
    for name in TABLE[owner]:
        value = getattr(record, name)
        if value or (value is not None and getattr(type(record), name) is None):
            refuse(owner, name, repr(value))


def build_method(owner: str, name: str) -> Callable[[object], NoReturn]:
    """Return a method that raises the error of the table."""

    def method(self: object) -> NoReturn:
        refuse(owner, name)

    method.__name__, method.__qualname__ = name, f"{owner}.{name}"
    method.__doc__ = f"Not here, as in Ray.\n\nRaises:\n    {_KINDS.get(name, DeprecationWarning).__name__}: Always."
    return method
