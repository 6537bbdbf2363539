"""Closures, and their future results."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, final

from hocket import exceptions
from hocket.engine import contract
from hocket.ps import errors

NOT_READY, READY = "NOT_READY", "READY"


@final
class RemoteValue:
    """The result of a closure, now or in the future.

    Made by `Coordinator.schedule`; may be an argument of another closure.

    The value comes to the coordinator when the closure ends, and lives as long as this object, not as the worker.
    """

    __slots__ = ("__weakref__", "_closure", "_condition", "_dependents", "_error", "_state", "_value")

    def __init__(self, condition: threading.Condition, name: str) -> None:
        self._condition = condition
        self._closure = name
        self._state = NOT_READY
        self._value: object = None
        self._error: BaseException | None = None
        self._dependents: list[Closure] = []

    def __repr__(self) -> str:
        return f"<RemoteValue of {self._closure}: {self._state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A RemoteValue can be an argument of Coordinator.schedule, also in lists, tuples and dicts, but not "
            "inside another object. Pass it by itself, or its value: remote_value.fetch()."
        )

    @property
    def is_ready(self) -> bool:
        """Whether the closure has ended."""
        return self._state is READY

    def fetch(self, timeout: float | None = None) -> Any:
        """Wait for the value, and return it.

        Args:
            timeout: The seconds to wait at most. Default: no limit.
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

    def _set(self, value: object, error: BaseException | None) -> list[Closure]:
        """Set the outcome, once, with the condition held; return the closures that waited for this value."""
        self._value, self._error, self._state = value, error, READY
        dependents, self._dependents = self._dependents, []
        return dependents


@final
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Function:
    """A function as workers know it: by number.

    It lives as long as a closure has it, or the user's function exists.
    """

    number: int
    name: str
    """The name in messages."""
    ref: contract.ObjectRef[Callable[..., Any]]
    """The function, encoded."""
    inputs: tuple[Any, ...]
    """The per-worker iterators and values that the function refers to. They live as long as this record."""


@final
@dataclass(slots=True, eq=False)
class Closure:
    """A function with its arguments, on its way. The scheduler owns it; all fields change with the lock held."""

    number: int
    """The closure's place in the order of scheduling."""
    name: str
    function: Function | None
    """The function; None once the closure has ended."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, object]
    streams: frozenset[int]
    """The streams that the closure draws from."""
    result: weakref.ref[RemoteValue]
    """The user's remote value, which the closure does not keep alive."""
    is_private: bool = False
    """Whether the coordinator made it for one worker. Its error then reaches only the holder of its result."""
    missing: int = 0
    """Number of values that the closure still waits for."""
    deaths: int = 0
    tried: frozenset[int] = frozenset()
    """Indices of workers that have items for it, but too few."""

    def watch(self) -> bool:
        """Wait for the remote values among the arguments; return whether all are ready. Called once."""
        needed: list[RemoteValue] = []
        map_instances((self.args, self.kwargs), RemoteValue, needed.append)
        for value in needed:
            if not value.is_ready:
                self.missing += 1
                value._dependents.append(self)
        return not self.missing

    def fill(self) -> None:
        """Replace the remote values among the arguments with their results."""
        self.args = map_instances(self.args, RemoteValue, RemoteValue.fetch)
        self.kwargs = map_instances(self.kwargs, RemoteValue, RemoteValue.fetch)

    def finish(self, value: object, error: BaseException | None) -> list[Closure]:
        """Set the result, if its remote value still exists, and drop the function and its arguments.

        Returns:
            The closures that have waited for this result, and now wait for no other.
        """
        result = self.result()
        self.function, self.args, self.kwargs = None, (), {}
        ready = []
        for dependent in result._set(value, error) if result is not None else ():
            dependent.missing -= 1
            if not dependent.missing and dependent.function is not None:
                ready.append(dependent)
        return ready

    def cancel(self, reason: str) -> None:
        """End the closure without running it."""
        self.finish(None, errors.CancelledClosureError(f"{self.name} did not run, because {reason}"))


def map_instances(structure: Any, kinds: Any, function: Callable[[Any], object]) -> Any:
    """Return the structure with some instances replaced, in nested lists, tuples, named tuples and dicts.

    Args:
        structure: The structure to search.
        kinds: The classes, as for `isinstance`.
        function: Returns the replacement of an instance.

    Example:
        >>> map_instances([1, {"a": (2, "b")}], int, lambda number: number * 10)
        [10, {'a': (20, 'b')}]
    """
    if isinstance(structure, kinds):
        return function(structure)
    kind = type(structure)
    if kind in (list, tuple):
        return kind(map_instances(item, kinds, function) for item in structure)
    if kind is dict:
        return {name: map_instances(item, kinds, function) for name, item in structure.items()}
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return kind(*(map_instances(item, kinds, function) for item in structure))
    return structure
