"""Forks of a process with a session, which have no session themselves.

``os.fork`` and ``multiprocessing`` copy a process at any moment: its sockets, and its locks, which stay locked for ever
if a thread held them that the copy lacks. In a task, they also copy the stack, which leads back into the loop that
would send the task's result a second time. So in the child, before any other code runs, the engine is *cut off*: it
closes everything that it shares with other processes, and its methods raise. The child of a task ends where the task's
function ends, as a script ends after its last line. The parent is not affected.

All of this happens in the child, once. A process that does not fork pays nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, final

from hocket import exceptions
from hocket.engine import callers, contract

_REFUSAL = (
    "This process is a fork of a process with a session, and has no session itself: it cannot use the parent's "
    "references, actors or engine. Call hocket.init() here for a session of its own, or use these in the parent."
)

WAITED = (
    "A method of an asynchronous actor forked, and the child used `await`, but the event loop belongs to the parent. "
    "Do the child's work without `await` and end the child with os._exit(), or start a program with subprocess."
)
YIELDED = (
    "A generator that runs as a task or call forked, and the child reached a `yield`, but nothing receives its items. "
    "End the child with os._exit() before it yields."
)


def cut_off(engine: contract.Engine) -> None:
    """Have every method of an engine raise from now on, in this process."""
    engine.sever(_Severed(), _SeveredHandles(engine))


def _refuse(*args: object, **kwargs: object) -> NoReturn:
    raise exceptions.SessionClosedError(_REFUSAL)


@final
class _Severed:
    """A replacement for a part of an engine: all its methods raise."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        return _refuse


@final
class _SeveredHandles(contract.Handles):
    """The handles of the parent process: all their methods raise."""

    def adopt(self, object_id: int) -> None:
        _refuse()

    def reduce_pinned(self, ref: contract.ObjectRef[object]) -> NoReturn:
        _refuse()


def end(error: BaseException | None = None) -> NoReturn:
    """End this process as a script ends: after an uncaught exception, or without one."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if code and not isinstance(error.code, int):
            _write(f"{error.code}\n")
    elif error is not None:
        code = 1
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(callers.PACKAGE):
            frames = frames.tb_next
        _write("".join(traceback.format_exception(type(error), error, frames)))
    try:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001 (it ends all the same)
        _write(traceback.format_exc())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, or has no reader
                stream.flush()
        flush_native()
        os._exit(code)


def flush_native() -> None:
    """Flush C's output streams, as the ordinary end of a process does, because native code may have printed. This does
    nothing if no module has loaded ctypes: its import takes longer than the rest of the end. numpy and all frameworks
    load it."""
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is not None:
        with contextlib.suppress(Exception):  # a C library without that name
            ctypes.CDLL(None).fflush(None)


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
