"""How a worker process ends."""

from __future__ import annotations

import atexit
import inspect
import sys
from typing import Any, Protocol, final

from hocket import texts
from hocket.engine import forks
from hocket.engine.local import messages, worker_engine


class Subject(Protocol):
    """The actor, which may have a farewell."""

    @property
    def instance(self) -> object:
        """The actor; None if there is none."""

    def complete(self, awaitable: object) -> bool:
        """Run something to its end on the actor's event loop; False if there is none."""


@final
class Life:
    """Whether the process is to end, and its goodbye.

    Args:
        engine: The worker's side.
        subject: The actor, if there is one.
    """

    def __init__(self, engine: worker_engine.WorkerEngine, subject: Subject) -> None:
        self._engine, self._subject = engine, subject
        #: Whether the process is to end when it has done what it has.
        self.is_stopping = False
        #: Whether the actor is to end whatever is left.
        self.is_exiting = False
        #: Whether the driver has been told that the actor ends: the callers of what has not begun have been, too.
        self.has_left = False
        self._is_forked = False

    def stop(self) -> None:
        """The driver wants the process to end when it has done what it has."""
        self.is_stopping = True

    def exit_soon(self) -> None:
        """End the actor before anything else is run. Called without the lock."""
        with self._engine.lock:
            self.is_exiting = True
            self._engine.reactor.poke()

    def exit_actor(self) -> None:
        """The actor ends itself: tell the driver first, so that it is not taken for a crash."""
        if self._is_forked:
            forks.end()
        with self._engine.lock:
            self.has_left = True
            self._engine.channel.post((messages.EXITING,))

    def exit_process(self, request: SystemExit) -> None:
        """`sys.exit` in a task ends the process, as it says; the driver learns the code from its parent."""
        if self._is_forked:
            forks.end(request)
        if request.code is not None and not isinstance(request.code, int):
            sys.stderr.write(f"{request.code}\n")
        self.finish()

    def finish(self) -> None:
        """Say goodbye: the actor's own hook, the interpreter's exit functions, and what is unsent."""
        hook: Any = getattr(self._subject.instance, "__ray_shutdown__", None)
        try:
            if hook is not None:
                farewell = hook()
                if inspect.isawaitable(farewell):
                    self._subject.complete(farewell)
            atexit._run_exitfuncs()
        except Exception as error:  # the process ends all the same, and the user sees why the hook did not work
            sys.stderr.write(texts.format_error(error))
        with self._engine.lock:
            self._engine.outbox.before_wait()
        flush_streams()

    def cut_off(self) -> None:
        """In a fork: end where the function ends that it came from."""
        self._is_forked = True


def flush_streams() -> None:
    """Flush what the task has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:  # not `suppress`, which costs a microsecond a task
            stream.flush()
        except Exception:  # noqa: S110 (closed, read by nobody, or something of the user's that can do anything)
            pass
