"""The process that runs closures."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from hocket import exceptions
from hocket.core import actor
from hocket.engine import values
from hocket.ps import place, streams

VALUE, ERROR, OUT_OF_DATA, BAD_INPUT = range(4)
"""What an `Answer` is."""


@final
@dataclass(frozen=True, slots=True)
class Call:
    """A closure, as it is sent to a worker."""

    sequence: int
    """Which of the worker's closures it is."""
    function: int
    """Which of the functions that it knows."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a closure."""

    kind: int
    value: Any
    """The result; the error, encoded; or the stream that is empty."""
    pushes: int = 0
    """How many pushes it made."""


@final
@dataclass(slots=True)
class Batch:
    """What became of closures that were sent together."""

    answers: list[Answer]
    positions: dict[int, int] = field(default_factory=dict)
    """How many items of each stream the worker has drawn."""
    seconds: float = 0.0
    """How long they took."""


@final
class Worker:
    """Runs closures, one after the other; an actor.

    Args:
        index: Which worker it is. One that replaces another has its index.
        num_workers: How many there are.
        positions: How many items of each stream the worker before it had drawn.
    """

    def __init__(self, index: int, num_workers: int, positions: dict[int, int]) -> None:
        self._place = place.Place(index, num_workers)
        self._positions = dict(positions)
        self._functions: dict[int, Callable[..., Any]] = {}
        self._streams: dict[int, streams.WorkerStream] = {}
        self._failed: dict[int, BaseException] = {}

    def get_pid(self) -> int:
        """Return its process."""
        return os.getpid()

    def learn(self, number: int, function: Callable[..., Any]) -> None:
        """Know a function by number."""
        self._functions[number] = function

    def open_stream(self, number: int, source: Any) -> None:
        """Open a dataset, or make a value. An error is kept for the closures that use it."""
        try:
            with place.entered(self._place):
                if isinstance(source, streams.FromFunction | streams.FromSequence):
                    position = self._positions.get(number, 0)
                    made: Any = streams.WorkerStream(number, source.open(self._place, position), position)
                    self._streams[number] = made
                else:
                    made = source()
            self._place.values[number] = made
        except Exception as error:  # noqa: BLE001 (a user's function may raise anything)
            self._failed[number] = error
            self._place.values.pop(number, None)

    def run(self, calls: Sequence[Call]) -> Batch:
        """Run closures."""
        begun = time.perf_counter()
        with place.entered(self._place):
            answers = [self._run(call) for call in calls]
        positions = {number: stream.position for number, stream in self._streams.items()}
        return Batch(answers, positions, time.perf_counter() - begun)

    def get_values(self, number: int) -> Any:
        """Return the worker's own of a per-worker value."""
        return self._place.values[number]

    def _run(self, call: Call) -> Answer:
        here = self._place
        here.begin(call.sequence)
        function = self._functions[call.function]
        try:
            args = [self._fill(value) for value in call.args]
            kwargs = {name: self._fill(value) for name, value in call.kwargs.items()}
            result = function(*args, **kwargs)
        except streams.OutOfData as error:
            return Answer(OUT_OF_DATA, error.stream, here.turn)
        except _BadInput as error:
            return Answer(BAD_INPUT, _encode(function, error.cause), here.turn)
        except Exception as error:  # noqa: BLE001 (a user's function may raise anything)
            return Answer(ERROR, _encode(function, error), here.turn)
        finally:
            here.leave()
        return Answer(VALUE, result, here.turn)

    def _fill(self, value: Any) -> Any:
        """Put this worker's own in the place of per-worker values."""
        if isinstance(value, streams.PerWorkerIterator | streams.PerWorkerValue):
            if value.number in self._failed:
                raise _BadInput(self._failed[value.number])
            return value if isinstance(value, streams.PerWorkerIterator) else self._place.values[value.number]
        if type(value) in (list, tuple):
            return type(value)(self._fill(item) for item in value)
        if type(value) is dict:
            return {name: self._fill(item) for name, item in value.items()}
        return value


class _BadInput(Exception):  # noqa: N818 (never seen outside)
    def __init__(self, cause: BaseException) -> None:
        super().__init__()
        self.cause: Final = cause


def _encode(function: Callable[..., Any], error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    name = getattr(function, "__qualname__", repr(function))
    return values.encode_error(exceptions.TaskError(name, text, error))


def start(index: int, num_workers: int, positions: dict[int, int], options: Mapping[str, Any]) -> actor.ActorHandle:
    """Start a worker."""
    return actor.ActorClass(Worker, dict(options)).remote(index, num_workers, positions)
