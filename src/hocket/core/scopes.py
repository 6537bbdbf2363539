"""What a loop or a call has started, and its end.

A loop over what tasks make may end before they do: by break, by an exception (an alarm's or Ctrl-C's among them), or
because the garbage collector finds its iterator. Nobody wants what its tasks make from then on, so they end, too. A
`Scope` owns what one loop has started: `close` kills the actors, interrupts the tasks as `hocket.cancel` does, and ends
the processes of tasks that have not given way after `GRACE_SECONDS`, as with ``force=True``. A function in one long
call of C does not; one that is interrupted has its ``finally`` run, and leaves its process warm for others.

`close` may be called in any thread, more than once, and by a finalizer, which comes between any two lines of any code:

- It takes no lock. A scope is a dict, and what one thread starts while another one closes it sees afterwards that it is
  closed.
- The engine is asked in a thread. So a second Ctrl-C cannot break it off half-way, as the main thread only waits here,
  and handlers are held back while it does (`engine.interrupts`).
- Where a finalizer has interrupted the engine itself, nobody waits for that thread, which may need the engine's lock.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, final

from hocket import exceptions
from hocket.core import actor, api, generators
from hocket.engine import contract

GRACE_SECONDS: Final = 0.3
"""How long tasks may take to give way, and then processes to end. A guess: a function in Python needs milliseconds, and
both together must be over within a second."""

_ENGINE: Final = ("hocket.engine.", "hocket.kernel.")

_OF_NO_USER: Final = sys.stdlib_module_names | {"hocket"}

Started: TypeAlias = contract.ObjectRef[Any] | generators.ObjectRefGenerator[Any]

_Taken: TypeAlias = tuple[dict[Started, bool], list[actor.ActorHandle]]


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
        self._running: dict[Started, bool] = {}
        """What is not released: the last reference of each call, and whether it is a task."""
        self._actors: dict[actor.ActorHandle, None] = {}
        self._at_end: list[Callable[[], object]] = []
        self._is_closed = False

    def start(self, function: Remote, *args: object) -> Any:
        """Start a call and return what ``.remote()`` does. The scope ends it unless its last reference is released.

        Raises:
            TaskCancelledError: The scope is closed.
        """
        self._check()
        made = function.remote(*args)  # no handler of a signal runs in this module: none comes between these lines
        self.keep(made[-1] if isinstance(made, list) else made, is_task=not isinstance(function, actor.ActorMethod))
        return made

    def keep(self, made: Started, *, is_task: bool) -> None:
        """Have the scope end a call that was started, unless it is released."""
        self._running[made] = is_task
        self._engine = contract.get_optional_current_engine()
        self._check()

    def own(self, handle: actor.ActorHandle) -> actor.ActorHandle:
        """Have the scope kill an actor at its end; return it."""
        self._actors[handle] = None
        self._engine = contract.get_optional_current_engine()
        self._check()
        return handle

    def _check(self) -> None:
        if self._is_closed:
            self._end(self._take(), threading.Event())
            raise exceptions.TaskCancelledError("The loop that asked for this has ended.")

    def release(self, made: Started) -> None:
        """Forget a call: it has ended, or belongs to somebody else from now on."""
        self._running.pop(made, None)

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
        if self._is_closed:
            return
        self._is_closed = True
        if self._running or self._actors:
            ended = threading.Event()
            is_inside = _is_inside_engine()
            if self._engine is not None and "parallelism" in self._engine.limits and not is_inside:
                self._end(self._take(), ended)  # nothing runs but this thread
            else:
                with contextlib.suppress(RuntimeError):  # the interpreter ends, and the session with it
                    _thread.start_new_thread(self._end, (self._take(), ended))
                    ended.wait(0 if is_inside else 3 * GRACE_SECONDS)
        while self._at_end:
            self._at_end.pop()()

    def _take(self) -> _Taken:
        """Take what is to be ended, each by one thread alone."""
        running: dict[Started, bool] = {}
        actors: list[actor.ActorHandle] = []
        with contextlib.suppress(KeyError):
            while True:
                actors.append(self._actors.popitem()[0])
        with contextlib.suppress(KeyError):
            while True:
                running.update([self._running.popitem()])
        return running, actors

    def _end(self, taken: _Taken, ended: threading.Event) -> None:
        if contract.get_optional_current_engine() is self._engine:
            with contextlib.suppress(exceptions.HocketError):  # the session may end at the same moment
                _end_all(*taken)
        ended.set()

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


def _end_all(running: dict[Started, bool], actors: list[actor.ActorHandle]) -> None:
    for handle in actors:
        api.kill(handle)
    for made in running:
        api.cancel(made)
    left: list[contract.AnyRef] = [
        made.completed() if isinstance(made, generators.ObjectRefGenerator) else made
        for made, is_task in running.items()
        if is_task
    ]
    for is_forced in (False, True):
        if is_forced:
            for ref in left:
                api.cancel(ref, force=True)
        left = api.wait(left, num_returns=len(left), timeout=GRACE_SECONDS)[1] if left else []


def _is_inside_engine() -> bool:
    """Tell whether a finalizer has interrupted the engine: whether there is code of it before any of the user's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(_ENGINE):
            return True
        if name.partition(".")[0] not in _OF_NO_USER:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False
