"""Closures, and the values they will have."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, final

from hocket import exceptions
from hocket.ps import errors

NOT_READY, READY = "NOT_READY", "READY"


@final
class RemoteValue:
    """The result of a closure, that is or will be there. Made by `Coordinator.schedule`; may be an argument of another closure.

    Its value comes to the coordinator with the closure's end, so it outlives the worker. It is kept as long as this object is.
    """

    __slots__ = ("__weakref__", "_closure", "_condition", "_error", "_state", "_value")

    def __init__(self, condition: threading.Condition, name: str) -> None:
        self._condition = condition
        self._closure = name
        self._state = NOT_READY
        self._value: Any = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<RemoteValue of {self._closure}: {self._state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A RemoteValue travels as an argument of Coordinator.schedule, also in lists, tuples and dicts, but not inside another object. Pass it by itself, or "
            "its value: remote_value.fetch()."
        )

    @property
    def is_ready(self) -> bool:
        """Whether the closure has ended."""
        return self._state is READY

    def fetch(self, timeout: float | None = None) -> Any:
        """Wait for the value, and return it.

        Args:
            timeout: Seconds to wait at most. Default: as long as it takes.

        Raises:
            GetTimeoutError: It is not there by then.
            CancelledClosureError: The closure did not run, because another had failed.
            Exception: What the closure raised.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._state is READY, timeout):
                raise exceptions.GetTimeoutError(
                    f"The closure {self._closure} has not ended after {timeout} s. It goes on."
                )
        if self._error is not None:
            exceptions.raise_stored(self._error)
        return self._value

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the value, and return it. TensorFlow's other name for `fetch`."""
        return self.fetch(timeout)

    def _set(self, value: Any, error: BaseException | None) -> None:
        """Called once, with the condition held."""
        self._value, self._error, self._state = value, error, READY


@final
class Closure:
    """A function with its arguments, on its way. Belongs to the desk; all fields change with its lock held.

    Args:
        number: In the order of scheduling.
        function: Its number among the functions.
        name: For messages.
        args: As the user gave them.
        kwargs: The same.
        streams: The streams that it draws from.
        result: What the user holds; the closure does not keep it.
    """

    __slots__ = ("args", "deaths", "function", "kwargs", "name", "number", "result", "streams", "waits_for")

    def __init__(
        self,
        number: int,
        function: int,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        streams: frozenset[int],
        result: RemoteValue,
    ) -> None:
        self.number: Final = number
        self.function: Final = function
        self.name: Final = name
        self.args = args
        self.kwargs = kwargs
        self.streams: Final = streams
        self.result = weakref.ref(result)
        self.waits_for = _collect((args, kwargs))
        self.deaths = 0

    @property
    def is_ready(self) -> bool:
        """Whether all values that it needs are there."""
        return all(value.is_ready for value in self.waits_for)

    def fill(self) -> None:
        """Put values in the place of remote ones.

        Raises:
            Exception: What one of them raised.
        """
        if self.waits_for:
            self.args = _substitute(self.args)
            self.kwargs = _substitute(self.kwargs)
            self.waits_for = []

    def finish(self, value: Any, error: BaseException | None) -> None:
        """Set the result, if somebody holds it."""
        result = self.result()
        if result is not None:
            result._set(value, error)
        self.args, self.kwargs = (), {}


def map_remote(structure: Any, function: Callable[[RemoteValue], Any]) -> Any:
    """Replace the remote values of nested lists, tuples and dicts."""
    if isinstance(structure, RemoteValue):
        return function(structure)
    kind = type(structure)
    if kind in (list, tuple):
        return kind(map_remote(item, function) for item in structure)
    if kind is dict:
        return {name: map_remote(item, function) for name, item in structure.items()}
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return kind(*(map_remote(item, function) for item in structure))
    return structure


def _collect(structure: Any) -> list[RemoteValue]:
    found: list[RemoteValue] = []

    def note(value: RemoteValue) -> RemoteValue:
        found.append(value)
        return value

    map_remote(structure, note)
    return found


def _substitute(structure: Any) -> Any:
    return map_remote(structure, lambda value: value.fetch(0))


def cancel(closure: Closure) -> None:
    """End a closure that will not run."""
    closure.finish(
        None,
        errors.CancelledClosureError(
            f"{closure.name} did not run, because another closure failed before it. What failed is raised by join(), done() or schedule(), once; schedule it again then."
        ),
    )
