"""Signals: an exception of a handler breaks a wait, never a data structure.

Python calls the handler of a signal between any two bytecodes of the main thread, even in the middle of the handling of
a message. An exception of the handler (such as KeyboardInterrupt for Ctrl-C, or the error of a user's alarm or of
pytest-timeout) would leave that half done. So while a session is open, the main thread's handlers wait until our code
is at a place where an exception does no harm.

**Which handlers.** All handlers in Python: those that exist when the session opens, and those that the program sets
later. The module `signal` calls the C functions through its global name ``_signal``. While a session is open, that name
refers to `_Signals`, which wraps handlers when they are set and unwraps them when they are returned: a program sees
only its own handlers. (A replaced ``signal.signal`` would miss code that has imported it by name.) Handlers that C code
sets stay as they are.

**When.** A handler that interrupts the user's code runs at once, as without a session. The innermost frame that belongs
neither to the standard library nor to cloudpickle decides: a ``time.sleep`` of the user's is the user's code, a lock
for which we wait is our code, a ``__reduce__`` of the user's that we call is the user's code. The callbacks of
`weakref` for a dead object also count as our code, because an exception would leave them half done. If our code was
interrupted, or if the thread holds the engine's lock, the guard notes the signal, and wakes the engine's wait. The
engine then calls the handler in `check`, without the lock.

**No exception is lost.** Python prints and drops exceptions from finalizers, from callbacks of weak references and from
functions that the garbage collector calls. JAX has such a function, in which Python often handles signals. So while a
session is open, `sys.unraisablehook` notes an exception of a handler, and the guard raises it a moment later.

**The last bytecodes.** Between the last `check` of a call and the return to the user there are some bytecodes. A thread
sends a signal that is noted there again, until it finds the user's code or a `check`. If a repeated signal finds
nothing noted, `check` has already handled it, and it is ignored.

An earlier version held handlers back only while the lock was held. It failed, because a signal can interrupt the `with`
statement itself when it enters or exits: of 40 sessions under one alarm each, 7 broke, by locks that were never
released and by half-sent messages.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from hocket._base import texts
from hocket.engine import contract

_signal: Any = importlib.import_module("_signal")
"""The C module behind `signal`."""

_PACKAGE = __name__.partition(".")[0]

_OURS = tuple(f"{_PACKAGE}.{room}" for room in ("engine", "kernel", "core", "exceptions"))
"""The packages and modules whose code must not be interrupted."""

_WEAK = frozenset({"weakref", "_weakrefset"})
_CALLBACKS = frozenset({"__call__", "remove", "_remove"})
"""Functions of these modules that run when an object is gone. Python prints and drops an exception there, and their
work stays undone."""

_TRANSPARENT = sys.stdlib_module_names | {"cloudpickle"}
"""Modules whose frames belong to their caller."""

RESEND_SECONDS = 0.001
"""After how many seconds a waiting signal is sent again for the first time; the time doubles with each repetition."""

SLOWEST_RESEND_SECONDS = 0.05
"""The longest time between repetitions. Each interrupts the engine for some microseconds."""

LOOK_SECONDS = 0.25
"""How many seconds the main thread waits in the standard library at a time. If a signal comes between Python's last
check for signals and the wait, Python sees it only when the wait ends."""

INSISTENCE_SECONDS = 5.0
"""If one Ctrl-C has waited so many seconds, the next has its effect at once: the session seems to hang."""


_NUMBERS = tuple(_signal.valid_signals())
"""All signals. (`signal.valid_signals` would make an object of each, a tenth of the time to start a worker.)"""


class Lock(Protocol):
    """The methods of an engine's lock that the guard needs."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> object: ...

    def _is_owned(self) -> bool: ...


class InterruptGuard:
    """A guard that holds signal handlers back for one engine, while it is open.

    Args:
        lock: The engine's lock. No handler runs while the main thread holds it.
        wake: A function that ends the engine's waits soon, which then call `check`. The guard calls it when a handler
            has to wait. It must take no lock.
        find_running: A function that returns the main thread's task, so that an exception from one task is not raised
            in another.
    """

    def __init__(
        self,
        lock: Lock | threading.RLock,
        wake: Callable[[], None] | None = None,
        find_running: Callable[[], object] | None = None,
    ) -> None:
        self._lock = lock
        self.wake = wake or _do_nothing
        #: Handlers that wait for their call, by signal.
        self.noted: dict[int, Callable[..., object]] = {}
        #: Whether the guard holds handlers back.
        self.is_active = False
        self._find_running = find_running or _do_nothing
        self._print_unraisable = sys.unraisablehook
        self._since = 0.0
        #: Signals that were sent again and have not arrived yet.
        self._resent: dict[int, bool] = {}
        self._is_resending = False

    def install(self) -> None:
        """Wrap all handlers, present and future ones. Outside the main thread, wrap future ones only."""
        global _guard  # noqa: PLW0603 (a process has one handler for each signal, and one session)
        _guard = self
        self.is_active = True
        signal._signal = _SIGNALS  # type: ignore[attr-defined]
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _NUMBERS:
            handler = _signal.getsignal(number)
            if callable(handler) and type(handler) is not _Handler:
                _signal.signal(number, _Handler(handler))
        self._print_unraisable, sys.unraisablehook = sys.unraisablehook, self._take_unraisable

    def remove(self) -> None:
        """Unwrap all handlers; the next `check` calls those that wait. Outside the main thread the wrappers stay, and
        only call the handlers. An unwrapped handler may run at once; its exception is raised here when all are
        unwrapped."""
        if _guard is not self or threading.current_thread() is not threading.main_thread():
            self.is_active = False
            return
        signal._signal = _signal  # type: ignore[attr-defined]
        if sys.unraisablehook == self._take_unraisable:  # else the program has set another hook, which may call ours
            sys.unraisablehook = self._print_unraisable
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _NUMBERS)
        try:
            self._put_back()
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)

    def _put_back(self) -> None:
        """Unwrap all handlers, however often one of them raises."""
        # The mask holds no signal back that another thread receives: its handler runs in this thread, too.
        wrapped = {number: handler for number in _NUMBERS if type(handler := _signal.getsignal(number)) is _Handler}
        try:
            for number, handler in wrapped.items():
                _signal.signal(number, handler.function)
            self.is_active = False
        finally:
            if self.is_active:
                self._put_back()

    def is_called(self) -> bool:
        """Return whether a handler waits and this is the main thread, which has to call it."""
        return bool(self.noted) and _thread.get_ident() == threading.main_thread().ident

    def check(self) -> None:
        """Call the handlers that wait, in the order of their signals. The main thread calls this without the lock."""
        if not (self.noted and self.is_called()):
            return
        while self.noted:
            number = next(iter(self.noted))
            _run(self.noted.pop(number), number, sys._getframe(1))

    def check_at_once(self) -> None:
        """Call `check`, unless this thread holds the engine's lock; for calls from the user's code."""
        if self.is_called() and not self._lock._is_owned():  # type: ignore[union-attr]
            self.check()

    def is_own(self, error: KeyboardInterrupt) -> bool:
        """Return whether a signal raised an exception, and not the program itself. True if SIGINT's handler is not
        wrapped, because then nothing marks its exceptions."""
        return type(_signal.getsignal(signal.SIGINT)) is not _Handler or contract.is_from_handler(error)

    def check_and_print(self) -> None:
        """Call `check` where no caller could catch a handler's exception, and print it instead."""
        while self.is_called():
            try:
                self.check()
            except BaseException:  # noqa: BLE001 (the user's handler may raise anything)
                traceback.print_exc()

    def take(self, function: Callable[..., object], number: int, frame: FrameType | None) -> None:
        """Call the handler of a signal that has arrived, or note it for later."""
        if number in self._resent:
            del self._resent[number]
            if number not in self.noted:  # `check` has called the handler meanwhile
                return
        elif number == signal.SIGINT and number in self.noted and time.monotonic() - self._since > INSISTENCE_SECONDS:
            frame = None  # so that the handler runs now, whatever it interrupts
        if self.is_active and frame is not None and (self._lock._is_owned() or _is_ours(frame)):  # type: ignore[union-attr]
            self._note(function, number)
            return
        _run(self.noted.pop(number, function), number, frame)

    def raise_later(self, error: BaseException) -> bool:
        """If a handler has raised an exception in this thread, note it to be raised again, and return True."""
        is_main = threading.current_thread() is threading.main_thread()
        if not (self.is_active and is_main and contract.is_from_handler(error)):
            return False
        running = self._find_running()

        def raise_again(number: int, frame: FrameType | None) -> None:
            if self._find_running() == running:
                raise error.with_traceback(None)

        self._note(raise_again, vars(error)["__hocket_signal__"])
        return True

    def _take_unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Note an exception of a handler that Python is about to drop; print any other."""
        if lost.exc_value is None or not self.raise_later(lost.exc_value):
            self._print_unraisable(lost)

    def _note(self, function: Callable[..., object], number: int) -> None:
        if number not in self.noted:
            self.noted[number] = function
            self._since = time.monotonic()
        self.wake()
        if not self._is_resending:
            self._is_resending = True
            # Not `threading.Thread`: the interrupted code may hold its locks.
            _thread.start_new_thread(self._resend, ())

    def _resend(self) -> None:
        is_over = False
        while not is_over:
            self._resend_all()
            self._is_resending = False
            is_over = not (self.is_active and self.noted)  # else a signal was noted just before the line above

    def _resend_all(self) -> None:
        seconds = RESEND_SECONDS
        main_id = threading.main_thread().ident
        kill, noted, resent = _signal.pthread_kill, self.noted, self._resent
        while self.is_active and noted:
            time.sleep(seconds)
            seconds = min(2 * seconds, SLOWEST_RESEND_SECONDS)
            for number in list(noted):
                # Only with a wrapped handler: without one, the signal could end the process. After this check comes no
                # call at which another thread could run. Else `check` could handle the signal meanwhile, and `take`
                # would mistake the user's next signal for this one.
                if type(_signal.getsignal(number)) is _Handler and number in noted and self.is_active:
                    resent[number] = True
                    kill(main_id, number)


_guard: InterruptGuard | None = None
"""The guard of the last session, open or closed."""


class _Handler:
    """A wrapper of a user's handler."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __call__(self, number: int, frame: FrameType | None) -> None:
        assert _guard is not None
        try:
            _guard.take(self.function, number, frame)
        except BaseException as error:
            texts.drop_own_frames(error)
            raise


class _Signals:
    """A replacement of the module ``_signal`` in the module ``signal``."""

    def __getattr__(self, name: str) -> object:
        return getattr(_signal, name)

    def signal(self, number: int, handler: object) -> object:
        """Set a handler, wrapped; return the previous handler, unwrapped. As Python does, call waiting handlers first:
        a handler that a program removes is not called later."""
        wrapped = _Handler(handler) if callable(handler) else handler
        if _guard is None:
            return _unwrap(_signal.signal(number, wrapped))
        _guard.check_at_once()
        last = _signal.signal(number, wrapped)
        _guard.check_at_once()  # for a signal that came meanwhile
        return _unwrap(last)

    def getsignal(self, number: int) -> object:
        """Return the handler, unwrapped."""
        return _unwrap(_signal.getsignal(number))


_SIGNALS = _Signals()


def _unwrap(handler: object) -> object:
    return handler.function if type(handler) is _Handler else handler


def _run(function: Callable[..., object], number: int, frame: FrameType | None) -> None:
    contract.running_handlers.append(number)
    try:
        function(number, frame)
    except BaseException as error:
        with contextlib.suppress(Exception):  # a user's class may refuse the attribute, by any error
            error.__hocket_signal__ = number  # type: ignore[attr-defined]
        raise
    finally:
        contract.running_handlers.pop()


def raise_later(error: BaseException) -> None:
    """Have a caught exception raised again a moment later, if a signal handler raised it."""
    if _guard is not None:
        _guard.raise_later(error)


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether a frame runs code that must not be interrupted; see the module's docstring."""
    while frame is not None:
        # By the module's name, because generated methods (of dataclasses and named tuples) have no file.
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(_OURS) or (name in _WEAK and frame.f_code.co_name in _CALLBACKS):
            return True
        if name.partition(".")[0] not in _TRANSPARENT and not name.startswith("namedtuple_"):
            return False
        frame = frame.f_back
    return False


def is_interactive() -> bool:
    """Return whether the program is a prompt or a notebook."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _do_nothing() -> None:
    pass
