"""The process that runs closures."""

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
from hocket.ps import closure_context
from hocket.ps.executor import closures, streams

VALUE, ERROR, OUT_OF_DATA, BAD_INPUT = range(4)
"""What an `Answer` is."""

MAX_BEGUN = 16
"""How many batches a worker remembers to have begun. It has two at a time, and is asked before it gets another."""


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of all workers of a coordinator."""

    options: Mapping[str, Any]
    """What a worker's actor holds."""
    first_sequence: int
    """Above which number each worker's closures are counted, so that no number comes twice with these servers."""
    is_watched: bool
    """Whether a worker can be asked for its stacks."""


@final
@dataclass(frozen=True, slots=True)
class Call:
    """A closure, as it is sent to a worker."""

    sequence: int
    """Which of the worker's closures it is."""
    function: int
    """Which of the functions that it knows."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, object]


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a closure."""

    kind: int
    value: Any
    """The result, see `read_value`; the error, encoded; or the stream that is empty."""
    pushes: int = 0
    """How many pushes it made."""
    put_back: int = 0
    """How many items it drew from the stream before that was empty, which the worker still has."""


@final
@dataclass(slots=True)
class Batch:
    """The outcomes of closures that were sent together."""

    answers: list[Answer]
    positions: dict[int, int] = field(default_factory=dict)
    """How many items of each stream the worker has drawn."""
    seconds: float = 0.0
    """How long they took."""


@final
@dataclass(frozen=True, slots=True)
class Encoded:
    """A result that had to be encoded to find out whether it can travel."""

    data: bytes


@final
@dataclass(frozen=True, slots=True)
class Description:
    """A worker's identity."""

    pid: int
    host: str
    probe: stacks.StackProbe | None
    """Where to ask it for its stacks; None if it was not told to keep such a place."""


@final
class Worker:
    """Runs closures, one after the other; an actor. One that replaces another has its index."""

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
        """Return who it is."""
        return Description(os.getpid(), segment.identify_host(), self._probe)

    def learn(self, number: int, function: Callable[..., object]) -> None:
        """Know a function by number."""
        self._functions[number] = function

    def forget(self, functions: Sequence[int], inputs: Sequence[int]) -> None:
        """Let go of functions, and of datasets and values."""
        for number in functions:
            self._functions.pop(number, None)
        for number in inputs:
            self._streams.pop(number, None)
            self._context.values.pop(number, None)
            self._context.failures.pop(number, None)

    def open_input(self, number: int, source: Any, context: streams.InputContext, position: int) -> None:
        """Open a dataset, or make a value. An error is kept for the closures that use it.

        Args:
            number: What closures call it.
            source: What makes it.
            context: Which part of a dataset.
            position: How many items of it were drawn by the worker that this one replaces.
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
        """Tell whether the batch whose first closure has this number was begun, one of the last `MAX_BEGUN`. One whose
        arguments could not be read was not: nothing of it ran."""
        return sequence in self._begun

    def run(self, calls: Sequence[Call]) -> Batch:
        """Run closures. The outcome of each is its own, whatever it raises; `hocket.exit_actor` alone ends the
        worker."""
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
        except BaseException as error:  # none of them ends the worker, or is another closure's
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
        """Put this worker's own in the place of per-worker values."""
        return closures.map_instances(structure, streams.PerWorkerValue, lambda one: one.value)


def _find_out_of_data(error: BaseException) -> streams.OutOfData | None:
    """Return what a worker without data has raised, if this is it: a generator makes a RuntimeError of it."""
    found = error.__cause__ if type(error) is RuntimeError else error
    is_it = issubclass(type(found), streams.OutOfData)
    return found if is_it else None  # type: ignore[return-value]  # mypy does not look at classes


def _prepare(function: Callable[..., object], value: object) -> object:
    """Return a result as it can travel with others, without one that cannot taking them along."""
    if values.is_simple(value):
        return value
    encoded = values.encode(value, f"the return value of {_name(function)}")
    if encoded.refs:
        return value  # references count only in an encoding that the engine makes
    return Encoded(pickle.dumps((encoded.data, [bytearray(buffer) for buffer in encoded.buffers])))


def read_value(value: object) -> object:
    """Return a result that has travelled."""
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
