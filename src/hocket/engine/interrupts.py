"""Signals: an exception of a handler breaks a wait, never a data structure.

Python calls the handler of a signal between any two bytecodes of the main thread, also half-way through the handling of
a message; what the handler raises (KeyboardInterrupt for Ctrl-C, whatever an alarm of the user's or pytest-timeout
raises) would leave that half done. So while a session is open the main thread's handlers wait until our code is at a
place where an exception does no harm.

**Which handlers.** All of them: those that are there when the session opens, and those that are set while it is open.
The module `signal` reaches the C functions through its global name ``_signal``; that name stands for `_Signals`
meanwhile, which wraps what is set and unwraps the answer, so a program sees its own handlers only. (Replacing
``signal.signal`` itself would miss whoever has imported it by name.) What C code sets is not seen.

**When.** A handler that finds the user's code interrupted runs at once, as without us. "The user's code" is judged by
the innermost frame that is neither the standard library's nor cloudpickle's: a ``time.sleep`` of the user's is the
user's, a lock that we wait for is ours, a ``__reduce__`` of the user's that we call is the user's. Ours is also what
`weakref` does when an object is gone, because it would be left half done. If it is ours, or if the thread holds the
engine's lock, the signal is noted, and whatever the engine waits for is woken. The engine then calls the handler in
`check`, without the lock.

**Nothing is lost.** Python prints and forgets what is raised in finalizers, in callbacks of weak references and in
functions that the garbage collector calls: JAX has one of these, and Python often finds signals there. So
`sys.unraisablehook` notes an exception of a handler's again while a session is open, and it is raised a moment later.

**The rest of the way.** Between the last `check` of a call and the return to the user lie some bytecodes. A signal that
is noted there is sent again, from a thread, until it finds the user's code or a `check`. A signal that was sent again
and finds nothing noted has been seen to meanwhile, and is ignored.

What was tried and does not work: to hold back only while the lock is held. The `with` statement itself can be
interrupted on its way in and out; of 40 sessions under one alarm each, 7 broke, by locks that were never released and
by half-sent messages.
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
"""The rooms whose code is not to be interrupted."""

_WEAK = frozenset({"weakref", "_weakrefset"})
_CALLBACKS = frozenset({"__call__", "remove", "_remove"})
"""What runs when an object is gone. An exception there is printed and lost, and what was to be done is not done."""

_TRANSPARENT = sys.stdlib_module_names | {"cloudpickle"}
"""Whose frames belong to whoever called them."""

RESEND_SECONDS = 0.001
"""After how long a signal that waits is sent again, at first; twice as long each time."""

SLOWEST_RESEND_SECONDS = 0.05
"""At most. Each time interrupts what the engine is doing for some microseconds."""

LOOK_SECONDS = 0.25
"""How long the main thread waits in the standard library at a time. Python does not see a signal that comes after its
last look and before the wait until that wait ends."""

INSISTENCE_SECONDS = 5.0
"""A Ctrl-C after another one that has waited so long is obeyed at once: whoever presses it again has a session that
hangs."""


_NUMBERS = tuple(_signal.valid_signals())
"""All signals. (`signal.valid_signals` makes an object of each: a tenth of what it takes to start a worker.)"""


class Lock(Protocol):
    """The part of an engine's lock that the guard needs."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> object: ...

    def _is_owned(self) -> bool: ...


class InterruptGuard:
    """Holds handlers back for one engine, for as long as it is open.

    Args:
        lock: The engine's. No handler runs while the main thread holds it.
        wake: Called by a handler that has to wait: ends the waits of the engine soon, so that they call `check`. Must
            take no lock.
        find_running: Returns the main thread's task: an exception that was lost is not raised in another one.
    """

    def __init__(
        self,
        lock: Lock | threading.RLock,
        wake: Callable[[], None] | None = None,
        find_running: Callable[[], object] | None = None,
    ) -> None:
        self._lock = lock
        self.wake = wake or _do_nothing
        #: Handlers that wait to be called, by their signals.
        self.noted: dict[int, Callable[..., object]] = {}
        #: Whether handlers are held back.
        self.is_active = False
        self._find_running = find_running or _do_nothing
        self._print_unraisable = sys.unraisablehook
        self._since = 0.0
        #: Signals that were sent again and have not arrived.
        self._resent: dict[int, bool] = {}
        self._is_resending = False

    def install(self) -> None:
        """Take all handlers over, those that are there and those that will be set. Outside the main thread, the latter
        only."""
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
        """Put all handlers back; what waits is called by the next `check`. Outside the main thread they stay and do
        what they did. One that is back may be called at once, and what it raises is raised here when all are back."""
        if _guard is not self or threading.current_thread() is not threading.main_thread():
            self.is_active = False
            return
        signal._signal = _signal  # type: ignore[attr-defined]
        if sys.unraisablehook == self._take_unraisable:  # else the program has set another one, which may call ours
            sys.unraisablehook = self._print_unraisable
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _NUMBERS)
        try:
            self._put_back()
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)

    def _put_back(self) -> None:
        """The mask does not help against a signal that another thread receives: its handler is called here, too."""
        wrapped = {number: handler for number in _NUMBERS if type(handler := _signal.getsignal(number)) is _Handler}
        try:
            for number, handler in wrapped.items():
                _signal.signal(number, handler.function)
            self.is_active = False
        finally:
            if self.is_active:
                self._put_back()

    def is_called(self) -> bool:
        """Tell whether a handler waits for the calling thread."""
        return bool(self.noted) and _thread.get_ident() == threading.main_thread().ident

    def check(self) -> None:
        """Call the handlers that had to wait, in the order of their signals. Called by the main thread without the
        lock."""
        if not (self.noted and self.is_called()):
            return
        while self.noted:
            number = next(iter(self.noted))
            _run(self.noted.pop(number), number, sys._getframe(1))

    def check_at_once(self) -> None:
        """As `check`, called by the user's code; nothing if the engine is at work."""
        if self.is_called() and not self._lock._is_owned():  # type: ignore[union-attr]
            self.check()

    def is_own(self, error: KeyboardInterrupt) -> bool:
        """Tell whether an exception is of a signal, and was not raised by a program itself. Signals that nobody guards
        against count as such."""
        return type(_signal.getsignal(signal.SIGINT)) is not _Handler or contract.is_from_handler(error)

    def check_and_print(self) -> None:
        """As `check`, where nobody could catch what a handler raises: it is printed."""
        while self.is_called():
            try:
                self.check()
            except BaseException:  # noqa: BLE001 (the user's handler may raise anything)
                traceback.print_exc()

    def take(self, function: Callable[..., object], number: int, frame: FrameType | None) -> None:
        """A signal has arrived: call its handler, now or later."""
        if number in self._resent:
            del self._resent[number]
            if number not in self.noted:  # `check` was faster
                return
        elif number == signal.SIGINT and number in self.noted and time.monotonic() - self._since > INSISTENCE_SECONDS:
            frame = None
        if self.is_active and frame is not None and (self._lock._is_owned() or _is_ours(frame)):  # type: ignore[union-attr]
            self._note(function, number)
            return
        _run(self.noted.pop(number, function), number, frame)

    def raise_later(self, error: BaseException) -> bool:
        """Note an exception again, and return true, if a handler has raised it in the calling thread."""
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
        """Python is about to forget an exception."""
        if lost.exc_value is None or not self.raise_later(lost.exc_value):
            self._print_unraisable(lost)

    def _note(self, function: Callable[..., object], number: int) -> None:
        if number not in self.noted:
            self.noted[number] = function
            self._since = time.monotonic()
        self.wake()
        if not self._is_resending:
            self._is_resending = True
            # Not `threading.Thread`, whose locks the interrupted code may hold.
            _thread.start_new_thread(self._resend, ())

    def _resend(self) -> None:
        is_over = False
        while not is_over:
            self._resend_all()
            self._is_resending = False
            is_over = not (self.is_active and self.noted)  # else one was noted when this was about to end

    def _resend_all(self) -> None:
        seconds = RESEND_SECONDS
        main_id = threading.main_thread().ident
        kill, noted, resent = _signal.pthread_kill, self.noted, self._resent
        while self.is_active and noted:
            time.sleep(seconds)
            seconds = min(2 * seconds, SLOWEST_RESEND_SECONDS)
            for number in list(noted):
                # It is one of ours, or it could end the process. Behind that is no call at which another thread could
                # have its turn: `check` would see to the signal, and the user's next one would be taken for this one.
                if type(_signal.getsignal(number)) is _Handler and number in noted and self.is_active:
                    resent[number] = True
                    kill(main_id, number)


_guard: InterruptGuard | None = None
"""The guard of the session, also when it is closed."""


class _Handler:
    """Stands in for a handler of the user's."""

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
    """Stands in for the module ``_signal`` in the module ``signal``."""

    def __getattr__(self, name: str) -> object:
        return getattr(_signal, name)

    def signal(self, number: int, handler: object) -> object:
        """Set a handler, wrapped; return the last one, unwrapped. As Python does, call those that wait before: what a
        program takes back is not called later."""
        wrapped = _Handler(handler) if callable(handler) else handler
        if _guard is None:
            return _unwrap(_signal.signal(number, wrapped))
        _guard.check_at_once()
        last = _signal.signal(number, wrapped)
        _guard.check_at_once()  # for one that came meanwhile
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
        with contextlib.suppress(Exception):  # a class of the user's may refuse, in any way
            error.__hocket_signal__ = number  # type: ignore[attr-defined]
        raise
    finally:
        contract.running_handlers.pop()


def raise_later(error: BaseException) -> None:
    """Have an exception that had to be caught be raised again a moment later, if it is of a signal's handler."""
    if _guard is not None:
        _guard.raise_later(error)


def _is_ours(frame: FrameType | None) -> bool:
    """Tell whether the code that is at work there is the engine's."""
    while frame is not None:
        # By the module's name, not by the file: generated methods (of dataclasses, of named tuples) have none.
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(_OURS) or (name in _WEAK and frame.f_code.co_name in _CALLBACKS):
            return True
        if name.partition(".")[0] not in _TRANSPARENT and not name.startswith("namedtuple_"):
            return False
        frame = frame.f_back
    return False


def is_interactive() -> bool:
    """Tell whether a person types at a prompt or in a notebook."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _do_nothing() -> None:
    pass
