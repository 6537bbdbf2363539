"""The end of tasks, calls and actors that nobody wants any more.

Actors are killed. Calls are cancelled. A task is interrupted first, so that its ``finally`` runs and its process stays
warm for others; the process of one that has not given way after `contract.GRACE_SECONDS`, as in one long call of C, is
ended.

`end` may be called in any thread, and by a finalizer, which comes between any two lines of any code. So a thread of
its own asks the engine. A second Ctrl-C cannot break that off half-way: the main thread only waits here, where
handlers of signals are held back (`engine.interrupts`). And where a finalizer has interrupted the engine itself, nobody
waits for that thread, which may need the engine's lock.
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
    """End what a loop or call has started.

    Args:
        engine: Whose they are. Nothing is done if its session is over.
        tasks: One reference of each task.
        others: One of each call on an actor that stays.
        actors: Those that do not.
        waits: Whether to wait for that, a second at most, where that can be done.
    """
    if engine is None or not (tasks or others or actors):
        return
    is_inside = _is_inside_engine()
    if "parallelism" in engine.limits and not is_inside:  # nothing runs but this thread
        _end(engine, tasks, others, actors)
        return
    ended = threading.Event()

    def run() -> None:
        _end(engine, tasks, others, actors)
        ended.set()

    with contextlib.suppress(RuntimeError):  # the interpreter ends, and the session with it
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
        with contextlib.suppress(ValueError):  # it is a generator of an actor
            for ref in left:
                engine.tasks.cancel(ref, force=True, recursive=True)
        _wait(engine, left)


def _wait(engine: contract.Engine, refs: Sequence[contract.AnyRef]) -> list[contract.AnyRef]:
    """Wait a moment; return what goes on."""
    there = engine.objects.wait(refs, len(refs), contract.GRACE_SECONDS) if refs else []
    return [ref for ref, is_over in zip(refs, there, strict=True) if not is_over]


def _is_inside_engine() -> bool:
    """Tell whether a finalizer has interrupted the engine: whether there is code of it before any of the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(_ENGINE):
            return True
        if name.partition(".")[0] not in _OF_NO_USER:
            return False
        frame = frame.f_back
    return False
