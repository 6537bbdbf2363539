"""The user's settings for validating checkpoints beside the training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hocket import keywords
from hocket._base import texts
from hocket.core import remote_function
from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.tracking import plain


class ValidationFn(Protocol):
    """A function that validates a checkpoint, in a process of its own beside the ranks."""

    def __call__(self, checkpoint: checkpoint_module.Checkpoint, **kwargs: object) -> dict[str, Any]:
        """Return metrics to add to the metrics of the checkpoint's report."""


@keywords.explained()
@dataclass(frozen=True)
class ValidationTaskConfig:
    """The settings for the validation of one checkpoint.

    Raises:
        TypeError: `fn_kwargs` is not a dict from names to values that JSON can hold.
        ValueError: `timeout_s` is not positive.

    Example:
        >>> from hocket import train
        >>> train.ValidationTaskConfig(fn_kwargs={"split": "test"}, timeout_s=60).fn_kwargs
        {'split': 'test'}
    """

    fn_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the function. They are kept with the checkpoint, so JSON must be able to hold them."""
    timeout_s: float | None = None
    """Seconds that the validation may take. None: no limit."""

    def __post_init__(self) -> None:
        given: object = self.fn_kwargs
        if given is None:  # programs written for Ray pass None for no arguments
            object.__setattr__(self, "fn_kwargs", {})
        elif not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
            raise TypeError(
                f"fn_kwargs must be a dict from names to values, but received {given!r}. Write {{'split': 'test'}}."
            )
        try:
            json.dumps(self.fn_kwargs)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"fn_kwargs must hold values that JSON can represent, but received {given!r}: {error}. Pass plain "
                "values, and have the function load larger ones."
            ) from error
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(
                f"timeout_s must be more than 0 seconds, or None for no limit, but received {self.timeout_s!r}. Leave "
                "it out for None."
            )


@keywords.explained()
@dataclass(frozen=True)
class ValidationConfig:
    """The settings for validating checkpoints. A report requests a validation: ``report(..., validation=True)``.

    One validation runs at a time, as a task beside the ranks. By default the task holds no CPU, and so never waits
    for CPUs that the ranks hold.

    Raises:
        TypeError: `fn` cannot be called, or `task_config` or an option has the wrong type.
        ValueError: An option is unknown or breaks its rule.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from hocket import train
        >>> def loop():
        ...     with tempfile.TemporaryDirectory() as folder:
        ...         Path(folder, "weight").write_text("3")
        ...         train.report({"loss": 0.5}, train.Checkpoint(folder), validation=True)
        >>> def validate(checkpoint):
        ...     return {"score": int(Path(checkpoint.path, "weight").read_text()) ** 2}
        >>> trainer = train.DataParallelTrainer(
        ...     loop,
        ...     scaling_config=train.ScalingConfig(num_workers=0),
        ...     run_config=train.RunConfig(storage_path=tempfile.mkdtemp()),
        ...     validation_config=train.ValidationConfig(validate),
        ... )
        >>> trainer.fit().best_checkpoints[-1][1]
        {'loss': 0.5, 'score': 9}
    """

    fn: ValidationFn | Callable[..., dict[str, Any]]
    """The function that validates a checkpoint."""
    task_config: ValidationTaskConfig = field(default_factory=ValidationTaskConfig)
    """The defaults for reports that give no settings of their own."""
    ray_remote_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task, as for `hocket.remote`, such as ``{"num_cpus": 1}``. The name is Ray's."""

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(
                f"fn must be a function that takes a checkpoint, but received {self.fn!r}. Pass the function itself."
            )
        for name, default in (("task_config", ValidationTaskConfig()), ("ray_remote_kwargs", {})):
            if getattr(self, name) is None:  # programs written for Ray pass None for the default
                object.__setattr__(self, name, default)
        if not isinstance(self.task_config, ValidationTaskConfig):
            raise TypeError(
                f"task_config must be a ValidationTaskConfig, but received {self.task_config!r}. Write "
                "ValidationTaskConfig(fn_kwargs=..., timeout_s=...)."
            )
        options: object = self.ray_remote_kwargs
        if not isinstance(options, Mapping):
            raise TypeError(
                f"ray_remote_kwargs must be a dict, but received {texts.safe_repr(options)}. Write {{'num_cpus': 1}}."
            )
        self.build_task()

    def build_task(self) -> remote_function.RemoteFunction[..., Any]:
        """Return the task that runs the function."""
        return remote_function.RemoteFunction(_validate, {"num_cpus": 0, **self.ray_remote_kwargs})

    @property
    def resources(self) -> dict[str, float]:
        """The resources of the task."""
        given = self.ray_remote_kwargs
        amounts = {"CPU": given.get("num_cpus"), "GPU": given.get("num_gpus"), **(given.get("resources") or {})}
        return {name: float(amount) for name, amount in amounts.items() if amount}

    def run(self, checkpoint: checkpoint_module.Checkpoint, task: ValidationTaskConfig) -> dict[str, Any]:
        """Call the function in this process.

        Raises:
            TypeError: The function did not return a dict.
        """
        return _validate(self.fn, checkpoint, task.fn_kwargs)

    def merge(self, asked: bool | ValidationTaskConfig) -> ValidationTaskConfig:
        """Return the settings for a checkpoint, from its report's request and the defaults."""
        if isinstance(asked, bool):
            return self.task_config
        return ValidationTaskConfig({**self.task_config.fn_kwargs, **asked.fn_kwargs}, asked.timeout_s)


def _validate(
    fn: Callable[..., dict[str, object]], checkpoint: checkpoint_module.Checkpoint, fn_kwargs: dict[str, object]
) -> dict[str, object]:
    metrics: Any = fn(checkpoint, **fn_kwargs)
    if not isinstance(metrics, dict):
        raise TypeError(
            f"A validation function must return a dict of metrics, but `{getattr(fn, '__name__', fn)}` returned "
            f"{texts.safe_repr(metrics)}. Return {{'accuracy': accuracy}}."
        )
    return plain.convert(metrics)
