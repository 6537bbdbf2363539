"""Trainables as programs for trials: functions, `Trainable`s, trainers, and registered names."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from hocket import train
from hocket.tune import errors, parameters, resources, trainable
from hocket.tune.worker import programs, trainer_program

_OURS: Final = "hocket.tune.worker.trial_actor"

_registered: dict[str, object] = {}


def register_trainable(name: str, trainable: object, warn: bool = True) -> None:
    """Register a function or a `Trainable` under a name, which `Tuner` and `run` accept in its place.

    Args:
        name: The name. A name registered before now means the new trainable.
        trainable: A function of the configuration, or a `Trainable`.
        warn: Has no effect.

    Raises:
        TypeError: The trainable is neither, or the name is no text.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"register_trainable() takes a name, but received {name!r}. Write register_trainable('mine', f)."
        )
    check(trainable)
    _registered[name] = trainable


@dataclass(frozen=True)
class Described:
    """A trainable's program and properties, as a search needs them."""

    program: programs.Program
    name: str
    request: Callable[[dict[str, Any]], Mapping[str, float]]
    """Returns the resources of a trial with a given configuration."""
    is_function: bool
    trainable: object

    @property
    def is_trainer(self) -> bool:
        """Whether the trainable is a trainer. The trainer's ranks then hold the trial's resources."""
        return isinstance(self.trainable, train.DataParallelTrainer)

    @property
    def can_save(self) -> bool:
        """Whether the trainable is a `Trainable` with ``save_checkpoint``."""
        kind = self.trainable
        if not inspect.isclass(kind) or not issubclass(kind, trainable.Trainable):
            return False
        return kind.save_checkpoint is not trainable.Trainable.save_checkpoint


def describe(given: Any, *, reuses: bool) -> Described:
    """Return the program and properties of a trainable.

    Args:
        given: A function, a `Trainable`, a trainer, or the name of one.
        reuses: Whether an instance of a `Trainable` runs one trial after another.
    """
    if isinstance(given, str):
        return replace(describe(find(given), reuses=reuses), name=given)
    check(given)
    if isinstance(given, train.DataParallelTrainer):
        program = trainer_program.TrainerProgram(given)
        return Described(program, type(given).__name__, program.request, is_function=True, trainable=given)
    request = resources.find_request(given)
    if inspect.isclass(given) and issubclass(given, trainable.Trainable):
        return Described(
            programs.ClassProgram(given, reuses=reuses), given.__name__, request, is_function=False, trainable=given
        )
    name = getattr(given, "__name__", None) or type(getattr(given, "func", given)).__name__
    name = "lambda" if name == "<lambda>" else name
    if isinstance(given, functools.partial):
        name = getattr(given.func, "__name__", name)
    return Described(programs.FunctionProgram(given), name, request, is_function=True, trainable=given)


def find(given: object) -> object:
    """Return the trainable registered under a name; return anything else unchanged."""
    if isinstance(given, str) and given not in _registered:
        raise errors.ExperimentError(
            f"No trainable is registered as {given!r}; the registered names are {sorted(_registered)}. Call "
            "tune.register_trainable(name, function) first, or pass the function itself."
        )
    return _registered[given] if isinstance(given, str) else given


def list_modules(described: Described) -> list[str]:
    """Return the modules that trials import and that may be imported before their processes fork."""
    given = described.trainable
    if isinstance(given, train.DataParallelTrainer):
        return [_OURS]
    return [_OURS, "torch"] if "torch" in sys.modules else [_OURS]


def prepare(described: Described) -> None:
    """Do the work that needs an open session."""
    parameters.prepare(described.trainable)


def check(given: Any) -> None:
    """Raise if `given` is no trainable."""
    if inspect.isclass(given):
        if issubclass(given, trainable.Trainable):
            return
        raise errors.ExperimentError(
            f"A trainable class must inherit from hocket.tune.Trainable, but {given.__name__} does not. Inherit from "
            "it, or pass a function of the configuration."
        )
    if isinstance(given, train.DataParallelTrainer):
        return
    if not callable(given):
        raise errors.ExperimentError(
            f"A search needs a function of the configuration, a Trainable or a trainer, but received {given!r}. Pass "
            "the function itself, without calling it."
        )
    if inspect.iscoroutinefunction(given):
        raise errors.ExperimentError(
            f"A trial's function must run when it is called, but `{given.__name__}` only makes a coroutine. Write a "
            "function that runs it, as with asyncio.run(...)."
        )
    programs.takes_config(given)
