"""How a task is interrupted, and how a worker process ends."""

from __future__ import annotations

import _thread
import atexit
import inspect
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Final, Protocol, final

from hocket._base import texts
from hocket.engine import forks
from hocket.engine.local import messages, worker_engine

AGAIN_SECONDS: Final = 0.02
"""After how long a task is interrupted again that goes on, at first; twice as long each time. A guess."""

SLOWEST_AGAIN_SECONDS: Final = 0.5
"""At most. Each time breaks into a wait of the task's for some microseconds."""


@final
class Interruption:
    """The task in the main thread, as far as it may be interrupted there.

    A signal is sent until the task has been interrupted. One is not enough: Python may get it when it has looked for
    signals and is not in the wait yet that the signal is to break (on a busy machine the thread that sends it often
    runs just then), and the import of a module goes on to its end.
    """

    def __init__(self) -> None:
        self.main_id = threading.get_ident()
        #: The task whose code runs; 0 where an interrupt would hit our own.
        self._interruptible_id = 0
        self._cancelling_id = 0

    def install(self) -> None:
        """Take over SIGINT."""
        signal.signal(signal.SIGINT, self._on_interrupt)

    def remove(self) -> None:
        """Give SIGINT back, in a fork."""
        if signal.getsignal(signal.SIGINT) == self._on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def open(self, task_id: int) -> None:
        """From here on a task may be interrupted. Called by the main thread."""
        self._interruptible_id = task_id

    def close(self) -> None:
        """From here on nothing may be."""
        self._interruptible_id = 0

    def raise_if_cancelled(self, task_id: int, cancelled: set[int]) -> None:
        """Interrupt a task that was cancelled before it could be interrupted."""
        if self._interruptible_id and task_id in cancelled:
            self._cancelling_id = task_id
            raise KeyboardInterrupt

    def is_cancelling(self, task_id: int) -> bool:
        """Tell whether it was this task that was interrupted last."""
        return self._cancelling_id == task_id

    def cancel(self, task_id: int) -> None:
        """Interrupt a task if it runs."""
        if self._interruptible_id == task_id:
            self._cancelling_id = task_id
            _thread.start_new_thread(self._interrupt, (task_id,))

    def _interrupt(self, task_id: int) -> None:
        seconds = AGAIN_SECONDS
        while self._interruptible_id == task_id:
            signal.pthread_kill(self.main_id, signal.SIGINT)
            time.sleep(seconds)
            seconds = min(2 * seconds, SLOWEST_AGAIN_SECONDS)

    def _on_interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        # A module that is broken off might never be imported in this process again.
        if self._interruptible_id and self._interruptible_id == self._cancelling_id and not _is_importing(frame):
            self._interruptible_id = 0
            raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    """Tell whether the task imports a module there."""
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("hocket.engine.local.worker."):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


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
