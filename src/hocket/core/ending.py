"""The end of tasks, calls and actors that are no longer needed.

`end` kills actors and cancels calls. It interrupts a task first, so that the task's ``finally`` runs and its process
stays warm for others. If the task runs on after `contract.GRACE_SECONDS`, for example in one long call of C, `end` ends
its process.

Any thread may call `end`, and so may a finalizer, which can run between any two lines of code. So a new thread calls
the engine. A second Ctrl-C cannot break that off half-way: the main thread only waits in this module, where signal
handlers are held back (`engine.interrupts`). If a finalizer has interrupted the engine itself, `end` does not wait for
the thread, which may need the engine's lock.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Final

from hocket import exceptions
from hocket.engine import contract

_ENGINE: Final = ("hocket.engine.", "hocket.kernel.")

_OF_NO_USER: Final = sys.stdlib_module_names | {"hocket"}


def end(
    engine: contract.Engine | None,
    tasks: Sequence[contract.AnyRef],
    others: Sequence[contract.AnyRef] = (),
    actors: Sequence[contract.ObjectRef[None]] = (),
    *,
    waits: bool = True,
) -> None:
    """End the tasks, calls and actors that a loop or call has started.

    Args:
        engine: Their engine. If its session is over, `end` does nothing.
        tasks: One reference of each task.
        others: One reference of each call on an actor that stays.
        actors: The actors to kill.
        waits: Whether to wait for the end, for three times `contract.GRACE_SECONDS` at most, where that is possible.
    """
    if engine is None or not (tasks or others or actors):
        return
    is_inside = _is_inside_engine()
    if "parallelism" in engine.limits and not is_inside:  # tasks run in this thread only
        _end(engine, tasks, others, actors)
        return
    ended = threading.Event()

    def run() -> None:
        _end(engine, tasks, others, actors)
        ended.set()

    with contextlib.suppress(RuntimeError):  # no thread can start: the interpreter ends, and the session with it
        _thread.start_new_thread(run, ())
        if waits and not is_inside:
            ended.wait(3 * contract.GRACE_SECONDS)


def _end(
    engine: contract.Engine,
    tasks: Sequence[contract.AnyRef],
    others: Sequence[contract.AnyRef],
    actors: Sequence[contract.ObjectRef[None]],
) -> None:
    if contract.current_engine is not engine:
        return
    with contextlib.suppress(exceptions.HocketError):  # the session may end at the same moment
        for actor in actors:
            engine.actors.kill_actor(actor)
        for ref in (*tasks, *others):
            engine.tasks.cancel(ref, force=False, recursive=True)
        left = _wait(engine, tasks)
        with contextlib.suppress(ValueError):  # an actor's generator cannot be cancelled by force
            for ref in left:
                engine.tasks.cancel(ref, force=True, recursive=True)
        _wait(engine, left)


def _wait(engine: contract.Engine, refs: Sequence[contract.AnyRef]) -> list[contract.AnyRef]:
    """Wait for `contract.GRACE_SECONDS` at most; return the references of tasks that still run."""
    there = engine.objects.wait(refs, len(refs), contract.GRACE_SECONDS) if refs else []
    return [ref for ref, is_over in zip(refs, there, strict=True) if not is_over]


def _is_inside_engine() -> bool:
    """Return whether a finalizer has interrupted the engine: whether a frame of the engine comes before any user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(_ENGINE):
            return True
        if name.partition(".")[0] not in _OF_NO_USER:
            return False
        frame = frame.f_back
    return False
