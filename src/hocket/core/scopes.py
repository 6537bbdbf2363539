"""Scopes: a loop or a call owns the tasks, calls and actors that it has started, and ends them.

A loop over the results of tasks may end before they do: by ``break``, by an exception (such as an alarm's or Ctrl-C's),
or because the garbage collector finds its iterator. The results of its tasks are then no longer needed. A `Scope` owns
the work that one loop has started, and `close` ends that work, as `ending` describes.

A scope takes no lock, because a finalizer may close it. If one thread starts a task while another closes the scope, the
first thread sees afterwards that the scope is closed, and ends its task itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, final

from hocket import exceptions
from hocket.core import actor, api, ending, generators
from hocket.engine import contract

Started: TypeAlias = contract.ObjectRef[Any] | generators.ObjectRefGenerator[Any]


class Remote(Protocol):
    """A remote function, or a method of an actor."""

    @property
    def remote(self) -> Callable[..., Any]:
        """The function that starts a call."""


@final
class Scope:
    """The tasks, calls and actors of one loop or call."""

    def __init__(self) -> None:
        self._engine: contract.Engine | None = None
        self._tasks: dict[Started, None] = {}
        """The last reference of each task that is not released."""
        self._calls: dict[Started, None] = {}
        self._actors: dict[actor.ActorHandle, None] = {}
        self._at_end: list[Callable[[], object]] = []
        self._is_closed = False

    def start(self, function: Remote, *args: object) -> Any:
        """Start a call, and return the result of ``.remote()``. The scope ends the call unless its last reference is
        released."""
        self._check()
        made = function.remote(*args)  # no signal handler runs in this module, so none runs between these lines
        kept = self._calls if isinstance(function, actor.ActorMethod) else self._tasks
        kept[made[-1] if isinstance(made, list) else made] = None
        self._check()
        return made

    def keep_call(self, made: contract.AnyRef) -> None:
        """Have the scope end a started call on an actor, unless the call is released."""
        self._calls[made] = None
        self._check()

    def own(self, handle: actor.ActorHandle) -> actor.ActorHandle:
        """Have the scope kill an actor at the scope's end; return the actor."""
        self._actors[handle] = None
        self._check()
        return handle

    def _check(self) -> None:
        self._engine = contract.current_engine
        if self._is_closed:
            self._end(waits=False)
            raise exceptions.TaskCancelledError("The loop that started this call has ended.")

    def release(self, made: Started) -> None:
        """Release a call from the scope: it has ended, or another owner has it from now on."""
        self._tasks.pop(made, None)
        self._calls.pop(made, None)

    def kill(self, handle: actor.ActorHandle) -> None:
        """Kill an actor of the scope now, unless it has been killed already."""
        if self._actors.pop(handle, handle) is None:
            api.kill(handle)

    def at_end(self, function: Callable[[], object]) -> None:
        """Have the scope call a function at its end, when its tasks are over."""
        self._at_end.append(function)

    def bind(self, function: Remote) -> Bound:
        """Return a remote function with calls that belong to the scope."""
        return Bound(self, function)

    def close(self) -> None:
        """End the scope's work, and wait a moment for that; see `ending.end`."""
        if not self._is_closed:
            self._is_closed = True
            self._end(waits=True)
            while self._at_end:
                self._at_end.pop()()

    def _end(self, *, waits: bool) -> None:
        actors = [handle._ref for handle in _take(self._actors)]
        ending.end(self._engine, _list_refs(self._tasks), _list_refs(self._calls), actors, waits=waits)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@final
class Bound:
    """A remote function with calls that belong to a scope."""

    def __init__(self, scope: Scope, function: Remote) -> None:
        self._scope, self._function = scope, function

    def remote(self, *args: object) -> Any:
        """Start a call; see `Scope.start`."""
        return self._scope.start(self._function, *args)


def _take(held: dict[Any, None]) -> list[Any]:
    """Empty a dict, and return its keys. If two threads do so at once, each key goes to only one."""
    taken = []
    with contextlib.suppress(KeyError):
        while True:
            taken.append(held.popitem()[0])
    return taken


def _list_refs(held: dict[Started, None]) -> list[contract.AnyRef]:
    return [one.completed() if isinstance(one, generators.ObjectRefGenerator) else one for one in _take(held)]
