"""A queue of work for a fixed number of actors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, final

from hocket._base import texts
from hocket.core import actor as core_actor
from hocket.core import api, scopes
from hocket.engine import contract

V = TypeVar("V")

Refs = tuple[contract.AnyRef, ...]
"""The references of one call: several if its ``num_returns`` says so."""


class _Call:
    """A call that runs, or has a result that was not fetched."""

    __slots__ = ("actor", "error", "is_many", "refs", "scope")

    def __init__(
        self,
        actor: core_actor.ActorHandle | None,
        refs: Refs,
        scope: scopes.Scope | None,
        *,
        is_many: bool = False,
        error: Exception | None = None,
    ) -> None:
        self.actor = actor
        self.refs = refs
        self.scope = scope
        self.is_many = is_many
        #: The error of a call that failed when its actor became free; such a call has no actor and no references.
        self.error = error


@final
class ActorPool:
    """A pool that passes values to any free actor.

    An actor has one call at a time. It becomes free only when the result of its call is fetched.

    Args:
        actors: The actors, all with the methods that `fn` calls.

    Example:
        >>> import hocket
        >>> @hocket.remote
        ... class Worker:
        ...     def double(self, x):
        ...         return 2 * x
        >>> pool = hocket.util.ActorPool([Worker.remote(), Worker.remote()])
        >>> list(pool.map(lambda actor, value: actor.double.remote(value), [1, 2, 3]))
        [2, 4, 6]
    """

    def __init__(self, actors: Iterable[core_actor.ActorHandle]) -> None:
        try:
            self._idle = list(actors)
        except TypeError:
            raise TypeError(
                f"ActorPool() takes a list of actor handles, but received {texts.safe_repr(actors)}. Write "
                "ActorPool([Worker.remote(), Worker.remote()])."
            ) from None
        for actor in self._idle:
            _check_actor(actor)
        #: Work that waits for an actor.
        self._unsubmitted: deque[tuple[Callable[[Any, Any], object], object, scopes.Scope | None]] = deque()
        #: Calls that were submitted and not fetched, by number, in the order of submission.
        self._calls: dict[int, _Call] = {}
        self._next_number = 0
        #: Whether a result was fetched while the result of an earlier call was not.
        self._is_disordered = False

    def map(self, fn: Callable[[core_actor.ActorHandle, V], object], values: Iterable[V]) -> Iterator[Any]:
        """Call `fn` for each value; return an iterator over the results, in the order of the values.

        All calls are submitted at once. Calls that were pending before are dropped. If the loop over the results ends
        early, its pending calls are cancelled; a running call continues, as with `hocket.cancel`.

        Args:
            fn: Takes an actor and a value, and returns the result of ``actor.method.remote(...)``.
            values: The values.
        """
        return self._iterate(self._submit_all(fn, values), self.get_next)

    def map_unordered(self, fn: Callable[[core_actor.ActorHandle, V], object], values: Iterable[V]) -> Iterator[Any]:
        """Like `map`, with the results in the order in which they arrive."""
        return self._iterate(self._submit_all(fn, values), self.get_next_unordered)

    def _submit_all(self, fn: Callable[[core_actor.ActorHandle, V], object], values: Iterable[V]) -> scopes.Scope:
        self._unsubmitted.clear()
        for number in list(self._calls):
            self._finish(number)
        scope = scopes.Scope()
        for value in values:
            self._submit(fn, value, scope)
        return scope

    def _iterate(self, scope: scopes.Scope, get: Callable[[], object]) -> Iterator[object]:
        try:
            while self.has_next():
                yield get()
        finally:
            kept = [waiting for waiting in self._unsubmitted if waiting[2] is not scope]
            self._unsubmitted.clear()
            self._unsubmitted.extend(kept)
            scope.close()
            for number in [number for number, call in self._calls.items() if call.scope is scope]:
                self._finish(number)

    def submit(self, fn: Callable[[core_actor.ActorHandle, V], object], value: V) -> None:
        """Call ``fn(actor, value)`` with a free actor, now or when one becomes free.

        An error of `fn` is raised here. If the value had to wait, the error is raised in place of its result.

        Raises:
            TypeError: `fn` returned something other than references.
        """
        self._submit(fn, value, None)

    def _submit(self, fn: Callable[[core_actor.ActorHandle, V], object], value: V, scope: scopes.Scope | None) -> None:
        if not self._idle:
            self._unsubmitted.append((fn, value, scope))
            return
        actor = self._idle.pop()
        try:
            returned = fn(actor, value)
            refs = tuple(returned) if isinstance(returned, list) else (returned,)
            if not refs or any(type(ref) is not contract.ObjectRef for ref in refs):
                raise TypeError(
                    f"fn must return what actor.method.remote(...) returned, but returned {returned!r}. Write lambda "
                    "actor, value: actor.method.remote(value)."
                )
        except BaseException:
            self._idle.append(actor)
            raise
        if scope is not None:
            scope.keep_call(refs[0])
        self._note(_Call(actor, refs, scope, is_many=isinstance(returned, list)))

    def _note(self, call: _Call) -> None:
        self._calls[self._next_number] = call
        self._next_number += 1

    def has_next(self) -> bool:
        """Return whether there are results to fetch, now or later."""
        return bool(self._calls) or bool(self._unsubmitted)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Wait for the next result in the order of submission, and return it.

        Args:
            timeout: How many seconds to wait at most; None waits without end.
            ignore_if_timedout: Whether to drop the result after the time-out. Its actor then counts as free.

        Raises:
            StopIteration: There are no more results.
            TimeoutError: The result did not arrive in time.
            ValueError: `get_next_unordered` has fetched a later result, which breaks the order.
        """
        self._check_has_next()
        if self._is_disordered:
            raise ValueError(
                "It is not allowed to call get_next() after get_next_unordered(), while earlier results are pending. "
                "Fetch the rest with get_next_unordered() too."
            )
        number, call = next(iter(self._calls.items()))
        if call.error is not None:
            return self._fetch(number)
        ready, _ = api.wait(list(call.refs), num_returns=len(call.refs), timeout=timeout)
        if len(ready) == len(call.refs):
            return self._fetch(number)
        if not ignore_if_timedout:
            raise TimeoutError(f"Timed out waiting for result after {timeout} s. Call again, or give a longer timeout.")
        self._finish(number)
        raise TimeoutError(
            f"Timed out waiting for result after {timeout} s. The task {call.refs[0]} has been ignored: its result is "
            "dropped."
        )

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Wait for any result, and return it.

        Args:
            timeout: How many seconds to wait at most; None waits without end.
            ignore_if_timedout: Whether to drop all pending results after the time-out. Their actors then count as free.

        Raises:
            StopIteration: There are no more results.
            TimeoutError: No result arrived in time.
        """
        self._check_has_next()
        numbers = {call.refs[0]: number for number, call in self._calls.items() if call.error is None}
        done = [number for number, call in self._calls.items() if call.error is not None]
        if not done:
            ready, _ = api.wait(list(numbers), num_returns=1, timeout=timeout)
            done = [numbers[ref] for ref in ready]
        if done:
            number = done[0]
            self._is_disordered = self._is_disordered or number != next(iter(self._calls))
            return self._fetch(number)
        if not ignore_if_timedout:
            raise TimeoutError(f"Timed out waiting for result after {timeout} s. Call again, or give a longer timeout.")
        count = len(numbers)
        for number in numbers.values():
            self._finish(number)
        raise TimeoutError(
            f"Timed out waiting for result after {timeout} s. All {count} running calls have been ignored: their "
            "results are dropped."
        )

    def _check_has_next(self) -> None:
        if not self.has_next():
            raise StopIteration("No more results to get")
        if not self._calls:
            raise ValueError(
                f"{len(self._unsubmitted)} values wait for an actor, but the pool has none. Give it one with "
                "push(actor)."
            )

    def _fetch(self, number: int) -> object:
        call = self._finish(number)
        error, call.error = call.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which would keep the actor alive until garbage collection
        return api.get(list(call.refs)) if call.is_many else api.get(call.refs[0])

    def _finish(self, number: int) -> _Call:
        call = self._calls.pop(number)
        if call.scope is not None and call.refs:
            call.scope.release(call.refs[0])
        if not self._calls:
            self._is_disordered = False
        if call.actor is not None:
            self._give(call.actor)
        return call

    def _give(self, actor: core_actor.ActorHandle) -> None:
        self._idle.append(actor)
        while self._idle and self._unsubmitted:
            fn, value, scope = self._unsubmitted.popleft()
            try:
                self._submit(fn, value, scope)
            except Exception as error:  # noqa: BLE001 (it is raised in this value's turn, and harms no other one)
                self._note(_Call(None, (), scope, error=error))

    def has_free(self) -> bool:
        """Return whether a value that is submitted now would start now."""
        return bool(self._idle) and not self._unsubmitted

    def pop_idle(self) -> core_actor.ActorHandle | None:
        """Take a free actor out of the pool; None if there is none."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: core_actor.ActorHandle) -> None:
        """Add an actor.

        Raises:
            ValueError: The actor is in the pool already.
        """
        _check_actor(actor)
        if actor in self._idle or any(call.actor == actor for call in self._calls.values()):
            raise ValueError(f"Actor already belongs to current ActorPool: {actor!r}. Push each actor once.")
        self._give(actor)


def _check_actor(actor: object) -> None:
    if not isinstance(actor, core_actor.ActorHandle):
        raise TypeError(
            f"ActorPool takes actor handles, but received {actor!r}. Pass what ActorClass.remote() returned."
        )
