"""The contract of a strategy: with a step's gradients, and after a step.

Written once, on host arrays, it works in every framework.

A `Strategy` is a description. It is made in the driver, says nothing of a run, and travels to the ranks. There its
`open` makes a `StrategyRuntime` for each model, which does the work for one rank from the start of its training
function to the end. The training function calls neither: a framework's ``prepare_model``, ``prepare_optimizer`` and
steps do.

The surface is no larger because everything else is the framework's: the forward pass, the gradients, what an optimizer
computes. Each method's default does nothing, so a strategy is as long as what it changes.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from hocket._base import texts
from hocket.collective.arithmetic import ReduceOp
from hocket.collective.world import World

if TYPE_CHECKING:
    from hocket import ps  # it takes as long to import as all of hocket.train, which few runs need

Array: TypeAlias = npt.NDArray[Any]

Slices: TypeAlias = tuple[Array, Array]
"""Which rows of a variable, and their gradients. A row may be there several times."""


class Collectives(Protocol):
    """The ranks' collectives on numpy arrays, as `hocket.collective.world.World` has them.

    All ranks call the same in the same order, from one thread at a time.
    """

    @property
    def rank(self) -> int:
        """The calling rank."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def all_reduce(self, array: Array, op: ReduceOp = ...) -> None:
        """Put the sum of all ranks' arrays, or what `op` makes of them, into each."""

    def broadcast(self, array: Array, root: int = ...) -> None:
        """Put the root's array into that of each rank."""

    def all_gather_object(self, value: object) -> list[Any]:
        """Return what each rank gave, by rank."""

    def barrier(self) -> None:
        """Wait until all ranks have called it."""


class Alike(enum.Flag):
    """The kinds of tensors that all ranks have the same of between two steps, which `hocket.train.rank.equality`
    compares."""

    NOTHING = 0
    PARAMETERS = enum.auto()
    BUFFERS = enum.auto()
    """What else a model keeps, such as the means of a batch normalization."""
    OPTIMIZERS = enum.auto()
    """What optimizers keep, and their learning rates."""
    ALL = PARAMETERS | BUFFERS | OPTIMIZERS


@dataclass(frozen=True, slots=True)
class Ranks:
    """The participants."""

    rank: int
    """The calling rank."""
    world_size: int
    """How many there are."""
    joined: Collectives | None = None
    """Their collectives on numpy arrays; None if there is one rank."""

    @property
    def world(self) -> Collectives:
        """Their collectives; with one rank, some that have nothing to do."""
        return World(0, [[0]]) if self.joined is None else self.joined


class Strategy:
    """How updates travel between ranks.

    A description: immutable, picklable, without a run's state and without a framework.

    One of your own derives from it and says in `open` what it does in a rank; it then works in every framework. A
    strategy that needs something in the driver, for as long as a run takes, has a host: see
    `hocket.train.strategies.hosting`.
    """

    hosted_by: ClassVar[str] = ""
    """The module that registers the strategy's host, if it has one. It is imported when a run needs it."""

    @property
    def title(self) -> str:
        """The name by which messages call the strategy: that of its class."""
        return type(self).__name__

    def locate_batch(self, rank: int, world_size: int) -> tuple[int, int]:
        """Return which part of each step's rows a rank computes with, and of how many parts. Default: each has its own.

        Loaders ask it. Ranks of one part get the same rows.

        Raises:
            ValueError: The strategy is for another number of ranks.
        """
        return rank, world_size

    def open(self, ranks: Ranks) -> StrategyRuntime | NativeStrategy:
        """Begin in one rank, for one model. Called before its training function computes; no collectives yet.

        Returns:
            What is at work: on host arrays, or on the objects of the one framework that the strategy is for.

        Raises:
            TypeError: The strategy, or the framework, lacks a requested ability.
            ValueError: A setting has no meaning there.
        """
        raise TypeError(
            f"The strategy {self!r} has no open(), so it says nothing of what to do. Write one that returns a "
            "StrategyRuntime, or use AllReduce(), LocalSGD(8) or ParameterServer()."
        )


class HostModel(abc.ABC):
    """A model's trainable parameters, as a strategy sees them: host arrays, in a fixed order.

    Each framework has one.
    """

    @property
    @abc.abstractmethod
    def shapes(self) -> list[tuple[int, ...]]:
        """The parameters' shapes."""

    @abc.abstractmethod
    def read(self) -> list[Array]:
        """Return copies of the parameters; of halves as float32."""

    @abc.abstractmethod
    def write(self, arrays: Sequence[Array]) -> None:
        """Set the parameters, from arrays of their shapes."""

    @abc.abstractmethod
    def list_rules(self) -> list[tuple[str, ps.Optimizer]]:
        """Return each parameter's name, and the server's optimizer for it, with a learning rate of 1.

        Raises:
            ValueError: Servers cannot do it.
        """

    @property
    @abc.abstractmethod
    def steps_taken(self) -> int:
        """How many steps the optimizer has taken, those before a checkpoint included."""

    @property
    def names(self) -> list[str]:
        """The parameters' names, where a model may train others in its next loop.

        Default: nothing, as they stay the same.
        """
        return []

    @property
    def own_average(self) -> str:
        """The part of the optimizer that averages the parameters over time and puts that into the model in the end, in
        words.

        Default: nothing, empty.
        """
        return ""

    def read_flat(self) -> Array:
        """Return all parameters in one array of float32, or of float64 if one of them is."""
        return flatten(self.read())

    def write_flat(self, flat: Array) -> None:
        """Set the parameters from what `read_flat` returned, or what was made of it."""
        self.write(unflatten(flat, self.shapes))


class StrategyRuntime:
    """A strategy at work in one rank, for one model.

    `average`, `gather` and `take_step` are called once for each step of the optimizer, in whatever thread the framework
    computes, in the middle of a step, so they must not touch the model. The other methods are called in the thread that
    trains, between steps. All are called in all ranks in the same order, so each may use collectives, but `close`.
    """

    averages_gradients: bool = True
    """Whether gradients go through `average` at all."""
    averages_rows: bool = False
    """Whether `average` makes of each step's gradients the mean over all ranks' rows."""
    takes_steps: bool = False
    """Whether `take_step` is called in place of `average`, and the framework's optimizer computes nothing."""
    has_begun: bool = False
    """Whether the ranks' parameters may be other than rank 0's when a training loop begins."""

    @property
    def alike(self) -> Alike:
        """The kinds of tensors that all ranks have the same of now: a difference is a fault. Default: none."""
        return Alike.NOTHING

    @property
    def steps_alone(self) -> bool:
        """Whether the next step is taken with this rank's own gradients. One that must not count is undone then.
        Default: if the strategy neither averages gradients nor takes steps."""
        return not (self.averages_gradients or self.takes_steps)

    def open_next(self) -> StrategyRuntime:
        """Return what is at work for one more model, which trains beside those before it or after them.

        Default: the same, which keeps nothing of a model.

        Raises:
            ValueError: There can be no more.
        """
        return self

    def average(self, flat: Array, rows: float) -> None:
        """Turn this rank's gradients into those of all, in place. Default: they stay the rank's own.

        Args:
            flat: All of them, and a last element that has no meaning and may be used. Another step may use the same
                memory: what is kept for later is a copy.
            rows: Of how many rows they are the mean; 0 if they shall not count.
        """

    def gather(self, slices: Sequence[Slices], rows: float) -> Sequence[Slices]:
        """Return the gradients of all ranks where those of some rows are not made whole.

        Called before `average`. Default: they stay the rank's own.

        Args:
            slices: For each such parameter, which of its rows, and their gradients.
            rows: As in `average`.
        """
        return slices

    def choose(self, numbers: Sequence[int]) -> None:
        """Say which of the parameters have gradients, if it takes steps.

        Called before the first step, and again when they are others.
        """

    def see_weights(self, squares: Array) -> None:
        """Look at the parameters that a step has used, if it takes steps. Called before `take_step`. Default: nothing.

        Args:
            squares: For each parameter that was chosen, the sum of the squares of its elements; NaN if it is not known
                to four digits.
        """

    def take_step(self, flat: Array, rate: float, *, counts: bool) -> None:
        """Turn this rank's gradients into what the parameters become, in place, if it takes steps.

        Args:
            flat: All of them, and a last element that has no meaning and may be used.
            rate: The optimizer's learning rate.
            counts: Whether the gradients shall count; if not, the parameters become what they are for all ranks now.
        """
        raise NotImplementedError(f"{type(self).__name__} takes steps, so it needs take_step().")

    def begin(self, model: HostModel) -> None:
        """Called when a training loop begins and the ranks' parameters are equal."""

    def begin_epoch(self, model: HostModel) -> None:
        """Called when an epoch begins, where the framework knows of epochs."""

    def after_steps(self, model: HostModel, count: int) -> None:
        """Called when steps are taken."""

    def synchronize(self, model: HostModel) -> None:
        """Make the ranks' parameters equal, where they may differ now."""

    def close(self) -> None:
        """Give back what is held.

        Called when the training function has returned or raised; the other ranks may be gone.
        """


class NativeStrategy:
    """A strategy at work in one rank, on the objects of one framework.

    Each framework has one that drives any `StrategyRuntime`; where it can do better than host arrays, it declares an
    override for a strategy (``OVERRIDES`` in its ``strategies``). All calls come from the thread that trains, and in
    all ranks in the same order.
    """

    needs_optimizer: bool = False
    """Whether nothing travels unless the model's optimizer was prepared."""
    shares_gradients: bool = True
    """Whether all ranks step with the same gradients, so that what is decided from them (to leave out a step) is the
    same everywhere."""

    @property
    def alike(self) -> Alike:
        """The kinds of tensors that all ranks have the same of now, or the same part of. Default: none."""
        return Alike.NOTHING

    def close(self) -> None:
        """Give back what is held.

        Called when the training function has returned or raised; the other ranks may be gone, so no collectives.
        """


def build_opened_error(strategy: Strategy, opened: object) -> TypeError:
    """Return the error of a strategy whose `Strategy.open` returned what a framework cannot drive."""
    return TypeError(
        f"{type(strategy).__name__}.open() must return a StrategyRuntime, or what the framework has of its own (in "
        f"PyTorch an Exchange), but returned {opened!r}. Use AllReduce(), LocalSGD(8) or ParameterServer(), or derive "
        "one from hocket.train.strategies.Strategy."
    )


# --- what frameworks call ---------------------------------------------------------------------------------------------
# The methods above may be a user's. One that returns its result, where it should have changed what it was given, would
# train as if there were no strategy.


def average(runtime: StrategyRuntime, flat: Array, rows: float) -> None:
    """Call `StrategyRuntime.average`.

    Raises:
        TypeError: It returned something.
    """
    call: Callable[[Array, float], object] = runtime.average
    _check_nothing(runtime, "average", call(flat, rows))


def take_step(runtime: StrategyRuntime, flat: Array, rate: float, *, counts: bool) -> None:
    """Call `StrategyRuntime.take_step`.

    Raises:
        TypeError: It returned something.
    """
    call: Callable[..., object] = runtime.take_step
    _check_nothing(runtime, "take_step", call(flat, rate, counts=counts))


def open_next(runtime: StrategyRuntime) -> StrategyRuntime:
    """Call `StrategyRuntime.open_next`.

    Raises:
        TypeError: It returned no runtime.
    """
    found: object = runtime.open_next()
    if not isinstance(found, StrategyRuntime):
        raise TypeError(
            f"{type(runtime).__name__}.open_next() must return a StrategyRuntime, but returned "
            f"{texts.safe_repr(found)}. Return self, or one for the next model."
        )
    return found


def _check_nothing(runtime: StrategyRuntime, method: str, returned: object) -> None:
    if returned is not None:
        raise TypeError(
            f"{type(runtime).__name__}.{method}() must change the array that it is given and return nothing, but "
            f"returned {texts.safe_repr(returned, 100)}. Write flat[:] = ... and return None."
        )


def flatten(arrays: Sequence[Array]) -> Array:
    """Return arrays one behind the other, as float32, or as float64 if one of them is."""
    dtype = np.float64 if any(array.dtype == np.float64 for array in arrays) else np.float32
    return np.concatenate([array.reshape(-1).astype(dtype) for array in arrays]) if arrays else np.zeros(0, dtype)


def flatten_gradients(gradients: Sequence[Array]) -> Array:
    """Return gradients as `StrategyRuntime.average` takes them: flattened, and one element more."""
    flat = flatten(gradients)
    return np.append(flat, flat.dtype.type(0))  # a Python 0 would make it float64


def unflatten(flat: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return the parts of a flat array, in their shapes, as views.

    Raises:
        ValueError: It has more elements than they have, or fewer.
    """
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    if flat.shape != (sum(sizes),):
        raise ValueError(
            f"The parameters have {sum(sizes)} elements, but received an array of shape {flat.shape}. Write what "
            "read_flat() returned, or an array of its shape."
        )
    return (
        [part.reshape(shape) for part, shape in zip(np.split(flat, np.cumsum(sizes)[:-1]), shapes, strict=True)]
        if shapes
        else []
    )


def check_shapes(arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> None:
    """See that arrays have the parameters' shapes. Frameworks would broadcast them, and train something else.

    Raises:
        ValueError: One has another, or there are more or fewer.
    """
    if len(arrays) != len(shapes):
        raise ValueError(
            f"The model has {len(shapes)} parameters, but write() received {len(arrays)} arrays. Give one for each, "
            "as read() returns them."
        )
    for number, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        if np.shape(array) != shape:
            raise ValueError(
                f"Parameter {number} of the model has the shape {shape}, but write() received an array of shape "
                f"{np.shape(array)}. Give arrays of the shapes that read() returns."
            )
