"""The worker: the process that runs closures."""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from hocket import exceptions
from hocket._base import texts
from hocket.collective import segment
from hocket.core import actor
from hocket.engine import stacks, values
from hocket.ps.access import closure_context
from hocket.ps.executor import closures, streams

VALUE, ERROR, OUT_OF_DATA, BAD_INPUT = range(4)
"""The kinds of an `Answer`."""

MAX_BEGUN = 16
"""Number of begun batches that a worker remembers. It has two at a time, and the coordinator asks about one before
it sends the next."""


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of all workers of a coordinator."""

    options: Mapping[str, Any]
    """The options of a worker's actor, such as its resources."""
    first_sequence: int
    """The number below each worker's first closure, chosen so that no number repeats with these servers."""
    is_watched: bool
    """Whether the coordinator may read the worker's stacks."""


@final
@dataclass(frozen=True, slots=True)
class Call:
    """A closure, in the form sent to a worker."""

    sequence: int
    """The number of the closure among the worker's closures."""
    function: int
    """The number of the function, which the worker knows."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, object]


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a closure."""

    kind: int
    value: Any
    """The result, see `read_value`; or the encoded error; or the number of the exhausted stream."""
    pushes: int = 0
    """Number of pushes that the closure made."""
    put_back: int = 0
    """Number of items that the closure drew from the exhausted stream, and that the worker keeps for later closures."""


@final
@dataclass(slots=True)
class Batch:
    """The outcomes of closures that were sent together."""

    answers: list[Answer]
    positions: dict[int, int] = field(default_factory=dict)
    """Number of items that the worker has drawn from each stream."""
    seconds: float = 0.0
    """The seconds that the closures took together."""


@final
@dataclass(frozen=True, slots=True)
class Encoded:
    """A result that was encoded to find out whether it can be sent."""

    data: bytes


@final
@dataclass(frozen=True, slots=True)
class Description:
    """A worker's identity."""

    pid: int
    host: str
    probe: stacks.StackProbe | None
    """The place to read the worker's stacks from; None if it has none."""


@final
class Worker:
    """An actor that runs closures, one after the other. A replacement has the index of the worker that it replaces."""

    def __init__(self, index: int, driver: int, is_watched: bool) -> None:
        self._context = closure_context.ClosureContext(index)
        self._functions: dict[int, Callable[..., object]] = {}
        self._streams: dict[int, streams.WorkerStream] = {}
        self._begun: deque[int] = deque(maxlen=MAX_BEGUN)
        """The number of the first closure of each batch that has begun, latest last."""
        self._probe: stacks.StackProbe | None = None
        if is_watched and os.getpid() != driver:
            self._probe = stacks.open_probe()

    def describe(self) -> Description:
        """Return the worker's identity."""
        return Description(os.getpid(), segment.identify_host(), self._probe)

    def learn(self, number: int, function: Callable[..., object]) -> None:
        """Keep a function under its number."""
        self._functions[number] = function

    def forget(self, functions: Sequence[int], inputs: Sequence[int]) -> None:
        """Drop functions, and datasets and values."""
        for number in functions:
            self._functions.pop(number, None)
        for number in inputs:
            self._streams.pop(number, None)
            self._context.values.pop(number, None)
            self._context.failures.pop(number, None)

    def open_input(self, number: int, source: Any, context: streams.InputContext, position: int) -> None:
        """Open a dataset, or make a value. An error is kept for the closures that use it.

        Args:
            number: The number of the dataset or value in closures.
            source: Makes the dataset or value.
            context: The worker's part of the dataset.
            position: The number of items that the worker's predecessor drew.
        """
        try:
            with closure_context.entered(self._context):
                if isinstance(source, streams.FromFunction | streams.FromSequence):
                    made: Any = streams.WorkerStream(number, source.open(context, position), position)
                    self._streams[number] = made
                else:
                    made = source()
            self._context.values[number] = made
        except exceptions.ActorExit:
            raise
        except BaseException as error:  # a user's function may raise anything
            self._context.failures[number] = error

    def has_begun(self, sequence: int) -> bool:
        """Tell whether a batch began; `sequence` is the number of its first closure. Only the last `MAX_BEGUN` batches
        are known. A batch whose arguments could not be read did not begin."""
        return sequence in self._begun

    def run(self, calls: Sequence[Call]) -> Batch:
        """Run closures. No error of one closure affects the others; only `hocket.exit_actor` ends the worker."""
        self._begun.append(calls[0].sequence)
        begun = time.perf_counter()
        with closure_context.entered(self._context):
            answers = [self._run(call) for call in calls]
        positions = {number: stream.position for number, stream in self._streams.items()}
        return Batch(answers, positions, time.perf_counter() - begun)

    def _run(self, call: Call) -> Answer:
        here = self._context
        here.begin(call.sequence)
        for stream in self._streams.values():
            stream.begin()
        function = self._functions[call.function]
        try:
            args = self._fill(call.args)
            kwargs = self._fill(dict(call.kwargs))
            return Answer(VALUE, _prepare(function, function(*args, **kwargs)), here.turn)
        except streams.BadInputError as error:
            return Answer(BAD_INPUT, _encode(function, error.cause), here.turn)
        except exceptions.ActorExit:
            raise
        except BaseException as error:  # no error may end the worker, or affect another closure
            empty = _find_out_of_data(error)
            if empty is None:
                return Answer(ERROR, _encode(function, error), here.turn)
            if here.turn:
                return Answer(OUT_OF_DATA, empty.stream, here.turn)
            drawn = self._streams[empty.stream].num_drawn
            for stream in self._streams.values():
                stream.put_back()
            return Answer(OUT_OF_DATA, empty.stream, put_back=drawn)
        finally:
            here.leave()

    def _fill(self, structure: object) -> Any:
        """Replace per-worker values with this worker's own."""
        return closures.map_instances(structure, streams.PerWorkerValue, lambda one: one.value)


def _find_out_of_data(error: BaseException) -> streams.OutOfData | None:
    """Return the `OutOfData` error, if `error` is one. A generator wraps it in a RuntimeError."""
    found = error.__cause__ if type(error) is RuntimeError else error
    is_it = issubclass(type(found), streams.OutOfData)
    return found if is_it else None  # type: ignore[return-value]  # mypy does not look at classes


def _prepare(function: Callable[..., object], value: object) -> object:
    """Encode a result for sending, so that one bad result in a batch does not spoil the others."""
    if values.is_simple(value):
        return value
    encoded = values.encode(value, f"the return value of {_name(function)}")
    if encoded.refs:
        return value  # references count only in an encoding that the engine makes
    return Encoded(pickle.dumps((encoded.data, [bytearray(buffer) for buffer in encoded.buffers])))


def read_value(value: object) -> object:
    """Decode a result that was sent."""
    if isinstance(value, Encoded):
        data, buffers = pickle.loads(value.data)
        return values.decode(data, buffers)
    return value


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _encode(function: Callable[..., object], error: BaseException) -> bytes:
    return values.encode_error(exceptions.TaskError(_name(function), texts.format_error(error), error))


def start(index: int, settings: Settings) -> actor.ActorHandle:
    """Start a worker."""
    return actor.ActorClass(Worker, dict(settings.options)).remote(index, os.getpid(), settings.is_watched)
