"""The interruption of a task, and the end of a worker process."""

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
"""How soon a task that goes on is interrupted again, at first; the time doubles with each try. A guess."""

SLOWEST_AGAIN_SECONDS: Final = 0.5
"""The limit of that time. Each try breaks into a wait of the task's for some microseconds."""


@final
class Interruption:
    """The interruption of the task in the main thread.

    Signals are sent until the task has been interrupted, because one is not enough. Python may get it between its look
    for signals and the wait that the signal should break (on a busy machine the sending thread often runs just then).
    And the import of a module goes on to its end.
    """

    def __init__(self) -> None:
        self.main_id = threading.get_ident()
        #: The task of the running code; 0 where an interrupt would hit the code of this package.
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
        """Allow the interruption of a task from here on. Called by the main thread."""
        self._interruptible_id = task_id

    def close(self) -> None:
        """Allow no interruption from here on."""
        self._interruptible_id = 0

    def raise_if_cancelled(self, task_id: int, cancelled: set[int]) -> None:
        """Interrupt a task that was cancelled before it could be interrupted."""
        if self._interruptible_id and task_id in cancelled:
            self._cancelling_id = task_id
            raise KeyboardInterrupt

    def is_cancelling(self, task_id: int) -> bool:
        """Tell whether the last interruption was of this task."""
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
        # A module with an interrupted import might never be imported in this process again.
        if self._interruptible_id and self._interruptible_id == self._cancelling_id and not _is_importing(frame):
            self._interruptible_id = 0
            raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    """Tell whether the task is importing a module in this frame."""
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("hocket.engine.local.worker."):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


class Subject(Protocol):
    """The actor, which may have a shutdown hook."""

    @property
    def instance(self) -> object:
        """The actor; None if there is none."""

    def complete(self, awaitable: object) -> bool:
        """Run an awaitable to its end on the actor's event loop; return False if there is none."""


@final
class Life:
    """The end of the process.

    Args:
        engine: The worker's engine.
        subject: The actor, if there is one.
    """

    def __init__(self, engine: worker_engine.WorkerEngine, subject: Subject) -> None:
        self._engine, self._subject = engine, subject
        #: Whether the process ends when its work is done.
        self.is_stopping = False
        #: Whether the actor ends before any further work.
        self.is_exiting = False
        #: Whether the driver knows that the actor ends, and has informed the callers of calls that have not begun.
        self.has_left = False
        self._is_forked = False

    def stop(self) -> None:
        """Have the process end when its work is done, by the driver's order."""
        self.is_stopping = True

    def exit_soon(self) -> None:
        """End the actor before any further work. Called without the lock."""
        with self._engine.lock:
            self.is_exiting = True
            self._engine.reactor.poke()

    def exit_actor(self) -> None:
        """Report to the driver that the actor ends itself: else the driver would take the end for a crash."""
        if self._is_forked:
            forks.end()
        with self._engine.lock:
            self.has_left = True
            self._engine.channel.post((messages.EXITING,))

    def exit_process(self, request: SystemExit) -> None:
        """End the process after a ``sys.exit`` in a task; the driver learns the exit code from the guardian."""
        if self._is_forked:
            forks.end(request)
        if request.code is not None and not isinstance(request.code, int):
            sys.stderr.write(f"{request.code}\n")
        self.finish()

    def finish(self) -> None:
        """Run the actor's own hook and the interpreter's exit functions, and send the rest."""
        hook: Any = getattr(self._subject.instance, "__ray_shutdown__", None)
        try:
            if hook is not None:
                farewell = hook()
                if inspect.isawaitable(farewell):
                    self._subject.complete(farewell)
            atexit._run_exitfuncs()
        except Exception as error:  # the process ends all the same, and the user sees the hook's error
            sys.stderr.write(texts.format_error(error))
        with self._engine.lock:
            self._engine.outbox.before_wait()
        flush_streams()

    def cut_off(self) -> None:
        """Have a fork end where the function that forked ends."""
        self._is_forked = True


def flush_streams() -> None:
    """Flush the task's printed output."""
    for stream in (sys.stdout, sys.stderr):
        try:  # not `suppress`, which costs a microsecond a task
            stream.flush()
        except Exception:  # noqa: S110 (closed, read by nobody, or something of the user's that can do anything)
            pass
