"""The contract between training and a framework: a few operations on the framework's own objects.

A framework has two halves. The driver's half is a `hocket.train.backend.BackendConfig`: it lists the modules to load
before the ranks fork, and it joins and parts the ranks. The ranks' half is a `Framework`: the module ``framework`` of
each folder here has an instance called ``FRAMEWORK``. The code that all frameworks share uses this class: strategies'
state in a rank, weights in files that numpy reads, means over all ranks' rows, seeds, Horovod's functions.

Functions that users call are not part of the contract, because a training function looks like its framework.
``prepare_model`` of PyTorch changes a module, ``prepare_params`` of JAX returns a tree, and Keras has its own loop.
Batches of a `hocket.data.Dataset` belong to `hocket.data`.

`hocket.testing.framework_contract` tests implementations.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypeVar, final

import numpy as np

from hocket.collective.world import World
from hocket.train import strategies
from hocket.train.frameworks import rank_states, weights
from hocket.train.rank import worker_session, world
from hocket.train.run import backend, joining

if TYPE_CHECKING:
    from hocket import ps  # importing it takes as long as all of hocket.train, and few runs need it

S = TypeVar("S", bound=rank_states.RankState)

Change: TypeAlias = Callable[[Sequence[strategies.Array]], None]
"""A function that changes host arrays in place."""


def open_late(module: str, name: str) -> Callable[[Any, strategies.Ranks], Any]:
    """Return a function that imports a module, and opens a strategy in a rank with the module's class of that name."""

    def open_strategy(settings: Any, ranks: strategies.Ranks) -> Any:
        return getattr(importlib.import_module(module), name)(settings, ranks)

    return open_strategy


class Framework(abc.ABC, Generic[S]):
    """A framework as a rank uses it. A process has one instance, called ``FRAMEWORK`` in its module.

    ``S`` is the state that a rank keeps while its training function runs: the strategy at work, and the prepared
    objects.
    """

    name: ClassVar[str]
    """The module that users import, without its package: ``"torch"`` for ``hocket.train.torch``."""
    limits: ClassVar[Mapping[str, str]] = {}
    """The abilities that the framework lacks, each with a sentence that says why. An ability is a dtype's name, or
    ``"strategies"`` (the framework averages by itself), ``"taken steps"``, ``"collectives"``, ``"crossing"``,
    ``"conversion"``."""

    def __init__(self) -> None:
        self._states: Final = rank_states.RankStates(self.name, self.open)

    @final
    def __reduce__(self) -> str:
        """Pickle the framework by name, since a process has one instance."""
        return "FRAMEWORK"

    # --- a rank's life ------------------------------------------------------------------------------------------------

    @property
    def overrides(self) -> Mapping[type[strategies.Strategy], Any]:
        """The framework's own implementations of strategies, by class. Others work on host arrays. Default: none."""
        return {}

    def build_config(self) -> backend.BackendConfig:
        """Return the settings with which the driver joins ranks. Default: those for collectives on host arrays."""
        return joining.WorldConfig()

    @abc.abstractmethod
    def open(self, session: worker_session.WorkerSession, strategy: strategies.Strategy, caller: str) -> S:
        """Open a strategy in the calling rank, without collectives.

        Args:
            session: The rank's session.
            strategy: How updates travel.
            caller: The calling function's name, for messages.

        Raises:
            TypeError: The strategy is for another framework.
            ValueError: The framework cannot run the strategy.
        """

    def leave(self) -> None:
        """Clean up in a rank whose training function has returned. Default: do nothing."""

    @final
    def get_state(self, caller: str) -> S:
        """Return the calling rank's state. If no trainer has opened a strategy, open `AllReduce` first.

        Args:
            caller: The function's name, for the message.

        Raises:
            RuntimeError: The caller is outside a training function.
        """
        return self._states.get(caller)

    @final
    def get_optional_state(self) -> S | None:
        """Return the calling rank's state; None if it has none yet."""
        return self._states.get_optional()

    @final
    @contextlib.contextmanager
    def use_strategy(self, strategy: strategies.Strategy) -> Iterator[None]:
        """Use a strategy in the calling rank while its training function runs."""
        with self._states.use(strategy):
            yield
        self.leave()

    def get_collectives(self, caller: str) -> strategies.Collectives:
        """Return the ranks' collectives on numpy arrays; outside a training function, those of a single rank.

        Steps that the calling rank has begun are complete when the method returns. Default: the collectives that the
        default of `build_config` sets up.
        """
        alone = worker_session.get_optional_session() is None
        return World(0, [[0]]) if alone else world.get_world(f"{self.name}.{caller}")

    # --- arrays, to the host and back ---------------------------------------------------------------------------------

    @abc.abstractmethod
    def to_host(self, values: object, caller: str) -> strategies.Array:
        """Return an array of the framework as a numpy array. Half-precision types that numpy lacks become float32.

        The result may share memory with `values`: only read it.

        Args:
            values: An array or a tensor of the framework.
            caller: The calling function's name, for the message.

        Raises:
            TypeError: `values` is no array, or has no numbers yet, in the middle of a compiled step.
        """

    @abc.abstractmethod
    def from_host(self, array: strategies.Array) -> Any:
        """Return a numpy array as an array of the framework, with the same dtype, on the rank's device."""

    @abc.abstractmethod
    def cross(self, arrays: Sequence[Any], change: Change) -> list[Any]:
        """Change a step's arrays on the host, and return the changed arrays.

        `change` is called once per step, on whatever device the step computes. This works in the middle of a step,
        compiled or not. An error of `change` ends the step.

        Args:
            arrays: Float arrays of the framework. Each comes back with its shape and dtype.
            change: Receives the arrays in the same order, as flat host arrays that it may write.
        """

    # --- a model ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def list_weights(self, model: Any) -> list[tuple[str, strategies.Array]]:
        """Return copies of all arrays of a model, trained or not, with their names, in a fixed order."""

    @abc.abstractmethod
    def set_weights(self, model: Any, arrays: Sequence[strategies.Array]) -> Any:
        """Set all arrays of a model, in the order of `list_weights`.

        Returns:
            The model: the same object if the framework changes models in place, otherwise a new one.
        """

    @abc.abstractmethod
    def convert_optimizer(self, optimizer: Any, parameter: Any) -> ps.Optimizer:
        """Return the servers' equivalent of an optimizer for a parameter, with a learning rate of 1.

        Args:
            optimizer: An optimizer of the framework.
            parameter: The parameter that it steps.

        Raises:
            ValueError: Servers have no equivalent; the message names the optimizers that they have.
        """

    def save_weights(self, model: object, folder: str | os.PathLike[str]) -> None:
        """Write a model's arrays to a file in a folder, which must exist. ``numpy.load`` alone can read the file.

        Default: write the arrays of `list_weights` with `hocket.train.frameworks.weights`.
        """
        weights.save(folder, self.list_weights(model))

    def load_weights(self, model: object, folder: str | os.PathLike[str]) -> Any:
        """Return a model with the arrays that `save_weights` wrote. Arrays are matched by their order.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The arrays belong to another model. The model stays as it was.
        """
        saved = weights.load(folder)
        mine = self.list_weights(model)
        weights.check(f"The {type(model).__name__}", [(name, array.shape) for name, array in mine], saved)
        return self.set_weights(model, list(saved.values()))

    # --- chance -------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def seed(self, seed: int) -> Any:
        """Seed the framework, and restrict it to deterministic algorithms.

        Returns the object that users need to draw numbers, if the framework has one (JAX's key).
        """

    @final
    def enable_reproducibility(self, seed: int) -> Any:
        """Seed Python, numpy and the framework; return the result of `seed`.

        Raises:
            ValueError: The seed is negative, or larger than numpy accepts.
        """
        if not 0 <= seed < 2**32:
            raise ValueError(
                f"seed must lie between 0 and 2**32 - 1, but received {seed!r}. Pass a small number such as 0."
            )
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (what a user's library draws from is the global generator)
        return self.seed(seed)
