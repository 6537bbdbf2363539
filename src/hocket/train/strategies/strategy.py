"""The interface of strategies: their work on a step's gradients, and after a step.

A strategy that is written once, on host arrays, works in every framework.

A `Strategy` is a description. It is made in the driver, holds no state of a run, and travels to the ranks. There its
`open` makes a `StrategyRuntime` for each model. The runtime works for one rank from the start of the training function
to the end. The training function calls neither: a framework's ``prepare_model``, ``prepare_optimizer`` and steps do.

Everything else belongs to the framework: the forward pass, the gradients, the optimizer's computation. By default each
method does nothing, so a strategy only defines the methods that it needs.
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
    from hocket import ps  # few runs need it, and its import takes as long as all of hocket.train

Array: TypeAlias = npt.NDArray[Any]

Slices: TypeAlias = tuple[Array, Array]
"""The indices of some rows of a variable, and their gradients. An index may occur several times."""


class Collectives(Protocol):
    """The ranks' collectives on numpy arrays, as in `hocket.collective.world.World`.

    All ranks call the same methods in the same order, from one thread at a time.
    """

    @property
    def rank(self) -> int:
        """The calling rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def all_reduce(self, array: Array, op: ReduceOp = ...) -> None:
        """Replace each rank's array by the sum of all, or by their reduction with `op`."""

    def broadcast(self, array: Array, root: int = ...) -> None:
        """Replace each rank's array by the root's."""

    def all_gather_object(self, value: object) -> list[Any]:
        """Return the values of all ranks, by rank."""

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""


class Alike(enum.Flag):
    """The kinds of tensors that are equal in all ranks between steps. `hocket.train.rank.equality` compares them."""

    NOTHING = 0
    PARAMETERS = enum.auto()
    BUFFERS = enum.auto()
    """A model's other state, such as the means of a batch normalization."""
    OPTIMIZERS = enum.auto()
    """The state of optimizers, with their learning rates."""
    ALL = PARAMETERS | BUFFERS | OPTIMIZERS


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a training, as seen from one of them."""

    rank: int
    """The calling rank."""
    world_size: int
    """The number of ranks."""
    joined: Collectives | None = None
    """The ranks' collectives on numpy arrays; None if there is one rank."""

    @property
    def world(self) -> Collectives:
        """The ranks' collectives; with one rank, collectives that have nothing to do."""
        return World(0, [[0]]) if self.joined is None else self.joined


class Strategy:
    """A description of how updates travel between ranks: immutable, picklable, without a run's state or a framework.

    A strategy of your own derives from this class, and its `open` returns a runtime for a rank. It then works in every
    framework. If a strategy needs a part in the driver during a run, it has a host; see
    `hocket.train.strategies.hosting`.
    """

    hosted_by: ClassVar[str] = ""
    """The module that registers the strategy's host, if it has one. It is imported when a run needs it."""

    @property
    def title(self) -> str:
        """The strategy's name in messages: the name of its class."""
        return type(self).__name__

    def locate_batch(self, rank: int, world_size: int) -> tuple[int, int]:
        """Return the index of a rank's part of each step's rows, and the number of parts. Default: one part a rank.

        Loaders call this method. Ranks with the same part get the same rows.

        Raises:
            ValueError: The strategy is for another number of ranks.
        """
        return rank, world_size

    def open(self, ranks: Ranks) -> StrategyRuntime | NativeStrategy:
        """Return a runtime for one model in one rank. Called before its training function computes; no collectives yet.

        Returns:
            A runtime on host arrays, or on the objects of the one framework that the strategy is for.

        Raises:
            TypeError: The strategy or the framework lacks a requested feature.
            ValueError: A setting has no meaning in the framework.
        """
        raise TypeError(
            f"The strategy {self!r} has no open(), so it cannot run. Write an open() that returns a StrategyRuntime, "
            "or use AllReduce(), LocalSGD(8) or ParameterServer()."
        )


class HostModel(abc.ABC):
    """A model's trainable parameters as a strategy sees them: host arrays, in a fixed order.

    Each framework has a subclass.
    """

    @property
    @abc.abstractmethod
    def shapes(self) -> list[tuple[int, ...]]:
        """The parameters' shapes."""

    @abc.abstractmethod
    def read(self) -> list[Array]:
        """Return copies of the parameters, those of half precision as float32."""

    @abc.abstractmethod
    def write(self, arrays: Sequence[Array]) -> None:
        """Set the parameters from arrays of their shapes."""

    @abc.abstractmethod
    def list_rules(self) -> list[tuple[str, ps.Optimizer]]:
        """Return each parameter's name, and a server's optimizer for it with a learning rate of 1.

        Raises:
            ValueError: Servers do not have such an optimizer.
        """

    @property
    @abc.abstractmethod
    def steps_taken(self) -> int:
        """The number of steps of the optimizer, including those before a checkpoint."""

    @property
    def names(self) -> list[str]:
        """The parameters' names, if a model may train other parameters in its next loop.

        Default: empty, for models that always train the same parameters.
        """
        return []

    @property
    def own_average(self) -> str:
        """The name, for messages, of an optimizer's feature that writes an average over time into the model at the end.

        Default: empty, for no such feature.
        """
        return ""

    def read_flat(self) -> Array:
        """Return all parameters in one array of float32, or of float64 if one parameter is float64."""
        return flatten(self.read())

    def write_flat(self, flat: Array) -> None:
        """Set the parameters from an array like that of `read_flat`."""
        self.write(unflatten(flat, self.shapes))


class StrategyRuntime:
    """The work of a strategy in one rank, for one model.

    The framework calls `average`, `gather` and `take_step` once for each step of the optimizer, in the thread that
    computes, in the middle of a step. So they must not touch the model. It calls the other methods between steps, in
    the thread that trains. All calls come in the same order in all ranks, so every method except `close` may use
    collectives.
    """

    averages_gradients: bool = True
    """Whether gradients go through `average` at all."""
    averages_rows: bool = False
    """Whether `average` turns each step's gradients into the mean over all ranks' rows."""
    takes_steps: bool = False
    """Whether `take_step` is called in place of `average`, and the framework's optimizer computes nothing."""
    has_begun: bool = False
    """Whether the ranks' parameters may differ from rank 0's when a training loop begins."""

    @property
    def alike(self) -> Alike:
        """The kinds of tensors that must be equal in all ranks now. Default: none."""
        return Alike.NOTHING

    @property
    def steps_alone(self) -> bool:
        """Whether the next step uses only this rank's gradients. Then a step that must not count is undone.

        Default: true if the strategy neither averages gradients nor takes steps."""
        return not (self.averages_gradients or self.takes_steps)

    def open_next(self) -> StrategyRuntime:
        """Return the runtime for one more model, which trains beside the earlier models or after them.

        Default: this runtime, which then must keep no state of a model.

        Raises:
            ValueError: The strategy allows no further model.
        """
        return self

    def average(self, flat: Array, rows: float) -> None:
        """Replace this rank's gradients by those of all ranks, in place. Default: they stay the rank's own.

        Args:
            flat: All gradients, and a last element for free use. Copy values that are needed later, because another
                step may use the same memory.
            rows: The number of rows that the gradients are the mean of; 0 if they must not count.
        """

    def gather(self, slices: Sequence[Slices], rows: float) -> Sequence[Slices]:
        """Return the gradients of all ranks for parameters with gradients of single rows.

        Called before `average`. Default: the gradients stay the rank's own.

        Args:
            slices: For each such parameter, the indices of some rows and their gradients.
            rows: As in `average`.
        """
        return slices

    def choose(self, numbers: Sequence[int]) -> None:
        """Note which parameters have gradients. For strategies that take steps.

        Called before the first step, and again after a change.
        """

    def see_weights(self, squares: Array) -> None:
        """Check the parameters that a step has used, before `take_step`. For strategies that take steps.

        Args:
            squares: The sum of squares of each chosen parameter's elements; NaN if it is not known to four digits.
        """

    def take_step(self, flat: Array, rate: float, *, counts: bool) -> None:
        """Replace this rank's gradients by the new parameters, in place. For strategies that take steps.

        Args:
            flat: All gradients, and a last element for free use.
            rate: The optimizer's learning rate.
            counts: Whether the gradients count. If not, the new parameters are those of all ranks now.
        """
        raise NotImplementedError(f"{type(self).__name__} takes steps, so it needs take_step().")

    def begin(self, model: HostModel) -> None:
        """Called when a training loop begins and the ranks' parameters are equal."""

    def begin_epoch(self, model: HostModel) -> None:
        """Called when an epoch begins, if the framework has epochs."""

    def after_steps(self, model: HostModel, count: int) -> None:
        """Called after one or more steps."""

    def synchronize(self, model: HostModel) -> None:
        """Make the ranks' parameters equal, if they may differ now."""

    def close(self) -> None:
        """Release all resources.

        Called when the training function has returned or raised an error. The other ranks may be gone.
        """


class NativeStrategy:
    """The work of a strategy in one rank, on the objects of one framework.

    Each framework has a subclass that drives any `StrategyRuntime`. If it can do better than host arrays, it declares
    an override for a strategy (``OVERRIDES`` in its ``strategies``). All calls come from the thread that trains, in all
    ranks in the same order.
    """

    needs_optimizer: bool = False
    """Whether nothing travels unless the model's optimizer was prepared."""
    shares_gradients: bool = True
    """Whether all ranks step with the same gradients, so that decisions from them, as to leave out a step, agree."""

    @property
    def alike(self) -> Alike:
        """The kinds of tensors that must be equal now in all ranks, or in all ranks with the same shard.

        Default: none."""
        return Alike.NOTHING

    def close(self) -> None:
        """Release all resources.

        Called when the training function has returned or raised an error. The other ranks may be gone, so no
        collectives.
        """


def build_opened_error(strategy: Strategy, opened: object) -> TypeError:
    """Return the error for a `Strategy.open` that returned an object which the framework cannot drive."""
    return TypeError(
        f"{type(strategy).__name__}.open() must return a StrategyRuntime, or the framework's own type (in PyTorch a "
        f"TorchStrategy), but returned {opened!r}. Use AllReduce(), LocalSGD(8) or ParameterServer(), or derive a "
        "strategy from hocket.train.strategies.Strategy."
    )


# --- calls by frameworks ----------------------------------------------------------------------------------------------
# The methods above may be a user's. A method that returns its result instead of changing its array would train as if
# there were no strategy, so these functions raise an error.


def average(runtime: StrategyRuntime, flat: Array, rows: float) -> None:
    """Call `StrategyRuntime.average`.

    Raises:
        TypeError: The method returned a value.
    """
    call: Callable[[Array, float], object] = runtime.average
    _check_nothing(runtime, "average", call(flat, rows))


def take_step(runtime: StrategyRuntime, flat: Array, rate: float, *, counts: bool) -> None:
    """Call `StrategyRuntime.take_step`.

    Raises:
        TypeError: The method returned a value.
    """
    call: Callable[..., object] = runtime.take_step
    _check_nothing(runtime, "take_step", call(flat, rate, counts=counts))


def open_next(runtime: StrategyRuntime) -> StrategyRuntime:
    """Call `StrategyRuntime.open_next`.

    Raises:
        TypeError: The method did not return a runtime.
    """
    found: object = runtime.open_next()
    if not isinstance(found, StrategyRuntime):
        raise TypeError(
            f"{type(runtime).__name__}.open_next() must return a StrategyRuntime, but returned "
            f"{texts.safe_repr(found)}. Return self, or a runtime for the next model."
        )
    return found


def _check_nothing(runtime: StrategyRuntime, method: str, returned: object) -> None:
    if returned is not None:
        raise TypeError(
            f"{type(runtime).__name__}.{method}() must change the array that it is given and return nothing, but "
            f"returned {texts.safe_repr(returned, 100)}. Write flat[:] = ... and return None."
        )


def flatten(arrays: Sequence[Array]) -> Array:
    """Return arrays concatenated into one, as float32, or as float64 if one array is float64."""
    dtype = np.float64 if any(array.dtype == np.float64 for array in arrays) else np.float32
    return np.concatenate([array.reshape(-1).astype(dtype) for array in arrays]) if arrays else np.zeros(0, dtype)


def flatten_gradients(gradients: Sequence[Array]) -> Array:
    """Return gradients as `StrategyRuntime.average` takes them: flattened, with one more element."""
    flat = flatten(gradients)
    return np.append(flat, flat.dtype.type(0))  # a Python 0 would make it float64


def unflatten(flat: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return the parts of a flat array, in their shapes, as views.

    Raises:
        ValueError: The array does not have as many elements as the shapes.
    """
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    if flat.shape != (sum(sizes),):
        raise ValueError(
            f"The parameters have {sum(sizes)} elements, but received an array of shape {flat.shape}. Pass the result "
            "of read_flat(), or an array of its shape."
        )
    return (
        [part.reshape(shape) for part, shape in zip(np.split(flat, np.cumsum(sizes)[:-1]), shapes, strict=True)]
        if shapes
        else []
    )


def check_shapes(arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> None:
    """Check that arrays have the parameters' shapes. Frameworks would broadcast other arrays, and train wrongly.

    Raises:
        ValueError: The shape of an array, or the number of arrays, is wrong.
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
