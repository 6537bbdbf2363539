"""The contract of a framework with training: a few verbs on the framework's own objects.

A framework has two halves. What the driver does for it (which modules are loaded before the ranks fork, how the ranks
are joined and parted) is a `hocket.train.backend.BackendConfig`. What a rank does is here: each folder beside this
module has a ``framework`` with a `Framework`, called ``FRAMEWORK``. What is the same for all is written on it once:
strategies' life in a rank, weights in files that numpy reads, means over all ranks' rows, seeds, Horovod's verbs.

Not here is what a user calls: ``prepare_model`` of PyTorch changes a module, ``prepare_params`` of JAX returns a tree,
and Keras has a loop of its own; a training function looks like its framework. Batches of a `hocket.data.Dataset` are
`hocket.data`'s.

`hocket.testing.framework_contract` is the judge of an implementation.
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
    from hocket import ps  # it takes as long to import as all of hocket.train, which few runs need

S = TypeVar("S", bound=rank_states.RankState)

Change: TypeAlias = Callable[[Sequence[strategies.Array]], None]
"""Changes arrays in place, on the host."""


def open_late(module: str) -> Callable[[Any, strategies.Ranks], Any]:
    """Return what begins a strategy in a rank in a framework's own way: the ``Exchange`` of a module that is imported
    then."""
    return lambda settings, ranks: importlib.import_module(module).Exchange(settings, ranks)


class Framework(abc.ABC, Generic[S]):
    """A framework, as a rank uses it. One instance a process, called ``FRAMEWORK`` in its module.

    ``S`` is what it keeps in a rank from the start of a training function to the end: a strategy at work, and what was
    prepared with it.
    """

    name: ClassVar[str]
    """What users import: ``"torch"`` of ``hocket.train.torch``."""
    limits: ClassVar[Mapping[str, str]] = {}
    """What the framework cannot do here: an ability, and the sentence that says why. An ability is a dtype's name, or
    ``"strategies"`` (it averages by itself), ``"taken steps"``, ``"collectives"``, ``"crossing"``, ``"conversion"``."""

    def __init__(self) -> None:
        self._states: Final = rank_states.RankStates(self.name, self.open)

    @final
    def __reduce__(self) -> str:
        """It travels by name, since a process has one."""
        return "FRAMEWORK"

    # --- a rank's life ------------------------------------------------------------------------------------------------

    @property
    def overrides(self) -> Mapping[type[strategies.Strategy], Any]:
        """For which strategies it has a way of its own. Any other strategy works on host arrays. Default: none."""
        return {}

    def build_config(self) -> backend.BackendConfig:
        """Return the settings with which the driver joins ranks. Default: collectives on host arrays, no modules."""
        return joining.WorldConfig()

    @abc.abstractmethod
    def open(self, session: worker_session.WorkerSession, strategy: strategies.Strategy, caller: str) -> S:
        """Begin a strategy in the calling rank. No collectives yet.

        Args:
            session: The rank's.
            strategy: How updates travel.
            caller: Who asks, for messages.

        Raises:
            TypeError: The strategy is for another framework.
            ValueError: The framework cannot do it.
        """

    def leave(self) -> None:
        """Called in a rank whose training function has returned. Default: nothing."""

    @final
    def get_state(self, caller: str) -> S:
        """Return what the calling rank has opened; `AllReduce` if no trainer has opened anything.

        Args:
            caller: The function's name, for the message.

        Raises:
            RuntimeError: It is called outside a training function.
        """
        return self._states.get(caller)

    @final
    def get_optional_state(self) -> S | None:
        """Return what the calling rank has opened; None if it has not yet."""
        return self._states.get_optional()

    @final
    @contextlib.contextmanager
    def use_strategy(self, strategy: strategies.Strategy) -> Iterator[None]:
        """Have the calling rank use a strategy, for the duration of its training function."""
        with self._states.use(strategy):
            yield
        self.leave()

    def get_collectives(self, caller: str) -> strategies.Collectives:
        """Return the ranks' collectives on numpy arrays; outside a training function those of one rank alone.

        Steps that the calling rank has begun are over when it returns. Default: those of `build_config`'s default.
        """
        alone = worker_session.get_optional_session() is None
        return World(0, [[0]]) if alone else world.get_world(f"{self.name}.{caller}")

    # --- arrays, to the host and back ---------------------------------------------------------------------------------

    @abc.abstractmethod
    def to_host(self, values: object, caller: str) -> strategies.Array:
        """Return an array of the framework as one of numpy; halves that numpy does not have as float32.

        It may share memory with what was given: to be read only.

        Args:
            values: An array or a tensor of the framework.
            caller: Who asks, for the message.

        Raises:
            TypeError: It is none, or it has no numbers yet, in the middle of a compiled step.
        """

    @abc.abstractmethod
    def from_host(self, array: strategies.Array) -> Any:
        """Return a numpy array as one of the framework, of the same dtype, in the rank's device's memory."""

    @abc.abstractmethod
    def cross(self, arrays: Sequence[Any], change: Change) -> list[Any]:
        """Return what the host makes of a step's arrays: `change` is called once a step, wherever that computes.

        It works in the middle of a step, compiled or not. An error of `change` ends the step.

        Args:
            arrays: Of floats, of the framework; each comes back with its shape and dtype.
            change: Gets them as host arrays that it may write, flat, in the same order.
        """

    # --- a model ------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def list_weights(self, model: Any) -> list[tuple[str, strategies.Array]]:
        """Return copies of all arrays of a model with their names, in a fixed order: what is trained, and what is
        not."""

    @abc.abstractmethod
    def set_weights(self, model: Any, arrays: Sequence[strategies.Array]) -> Any:
        """Set all arrays of a model, in the order of `list_weights`.

        Returns:
            The model: the same object where the framework changes models in place, otherwise another one.
        """

    @abc.abstractmethod
    def convert_optimizer(self, optimizer: Any, parameter: Any) -> ps.Optimizer:
        """Return what does on a server as an optimizer does with a parameter, with a learning rate of 1.

        Args:
            optimizer: Of the framework.
            parameter: What it steps.

        Raises:
            ValueError: Servers cannot do it; the message names the optimizers that they can.
        """

    def save_weights(self, model: object, folder: str | os.PathLike[str]) -> None:
        """Write a model's arrays to a file of a folder, which must exist. ``numpy.load`` reads it alone.

        Default: `list_weights`, as `hocket.train.frameworks.weights` writes them.
        """
        weights.save(folder, self.list_weights(model))

    def load_weights(self, model: object, folder: str | os.PathLike[str]) -> Any:
        """Return a model with the arrays that `save_weights` has written; they are found by their order.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The arrays are another model's. The model is as it was.
        """
        saved = weights.load(folder)
        mine = self.list_weights(model)
        weights.check(f"The {type(model).__name__}", [(name, array.shape) for name, array in mine], saved)
        return self.set_weights(model, list(saved.values()))

    # --- chance -------------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def seed(self, seed: int) -> Any:
        """Seed the framework, and have it compute with deterministic algorithms only.

        Returns what a user needs of it.
        """

    @final
    def enable_reproducibility(self, seed: int) -> Any:
        """Seed Python, numpy and the framework; return what `seed` does.

        Raises:
            ValueError: The seed is negative, or above what numpy takes.
        """
        if not 0 <= seed < 2**32:
            raise ValueError(
                f"seed must lie between 0 and 2**32 - 1, but received {seed!r}. Pass a small number such as 0."
            )
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (what a user's library draws from is the global generator)
        return self.seed(seed)
