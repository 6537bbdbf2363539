"""A loop or a call owns all that it has started, and ends it.

A loop over what tasks make may end before they do: by break, by an exception (an alarm's or Ctrl-C's among them), or
because the garbage collector finds its iterator. Nobody wants what its tasks make from then on. A `Scope` owns what one
loop has started, and `close` ends it, as `ending` says.

It takes no lock, because a finalizer may close it: what one thread starts while another one closes it finds afterwards
that it is closed, and is ended by its own thread.
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
        """Starts a call."""


@final
class Scope:
    """The tasks, calls and actors of one loop or call."""

    def __init__(self) -> None:
        self._engine: contract.Engine | None = None
        self._tasks: dict[Started, None] = {}
        """The last reference of each that is not released."""
        self._calls: dict[Started, None] = {}
        self._actors: dict[actor.ActorHandle, None] = {}
        self._at_end: list[Callable[[], object]] = []
        self._is_closed = False

    def start(self, function: Remote, *args: object) -> Any:
        """Start a call and return what ``.remote()`` does. The scope ends it unless its last reference is released."""
        self._check()
        made = function.remote(*args)  # no handler of a signal runs in this module: none comes between these lines
        kept = self._calls if isinstance(function, actor.ActorMethod) else self._tasks
        kept[made[-1] if isinstance(made, list) else made] = None
        self._check()
        return made

    def keep_call(self, made: contract.AnyRef) -> None:
        """Have the scope end a call on an actor that was started, unless it is released."""
        self._calls[made] = None
        self._check()

    def own(self, handle: actor.ActorHandle) -> actor.ActorHandle:
        """Have the scope kill an actor at its end; return it."""
        self._actors[handle] = None
        self._check()
        return handle

    def _check(self) -> None:
        self._engine = contract.current_engine
        if self._is_closed:
            self._end(waits=False)
            raise exceptions.TaskCancelledError("The loop that asked for this has ended.")

    def release(self, made: Started) -> None:
        """Forget a call: it has ended, or belongs to somebody else from now on."""
        self._tasks.pop(made, None)
        self._calls.pop(made, None)

    def kill(self, handle: actor.ActorHandle) -> None:
        """Kill an actor of the scope now, if its end has not come already."""
        if self._actors.pop(handle, handle) is None:
            api.kill(handle)

    def at_end(self, function: Callable[[], object]) -> None:
        """Have a function called at the scope's end, when its tasks are over."""
        self._at_end.append(function)

    def bind(self, function: Remote) -> Bound:
        """Return a remote function whose calls are the scope's."""
        return Bound(self, function)

    def close(self) -> None:
        """End what runs. Waits for that, a second at most."""
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
    """A remote function whose calls belong to a scope."""

    def __init__(self, scope: Scope, function: Remote) -> None:
        self._scope, self._function = scope, function

    def remote(self, *args: object) -> Any:
        """Start a call; see `Scope.start`."""
        return self._scope.start(self._function, *args)


def _take(held: dict[Any, None]) -> list[Any]:
    """Empty a dict; each key is taken by one thread alone."""
    taken = []
    with contextlib.suppress(KeyError):
        while True:
            taken.append(held.popitem()[0])
    return taken


def _list_refs(held: dict[Started, None]) -> list[contract.AnyRef]:
    return [one.completed() if isinstance(one, generators.ObjectRefGenerator) else one for one in _take(held)]
