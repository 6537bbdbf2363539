"""Calls of a store that end: it answers, or after a bounded time an error says which store, what, and why.

A client may wait for ever for a store that takes a connection and says nothing. So each call runs in a thread of its
own, and who waits for it gives up. The thread is left behind then, as nobody can end it; it is a daemon, which does not
keep the process.

What fails is tried again a few times, because stores refuse now and then when they are busy; not so what was refused
for good, such as credentials, and what is not there.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from hocket import exceptions
from hocket._base import settings, texts
from hocket.stores import places

A = TypeVar("A")
T = TypeVar("T")

PATIENCE_SECONDS: Final = settings.read_seconds("HOCKET_STORE_TIMEOUT_S", 60)
"""How long a store may take to answer, besides the time that its bytes take. A guess: clients give up earlier."""

LEAST_RATE: Final = 1 << 20
"""Bytes a second below which a store counts as gone. A guess, far below any network where training makes sense."""

TRIES: Final = 3
"""How often a call is made that fails; a guess, on top of what clients do by themselves."""

_PAUSE_SECONDS: Final = 0.2  # before the second try, and twice as long before each next one; a guess

_REFUSALS: Final = (
    "ACCESS_DENIED",
    "AccessDenied",
    "Forbidden",
    "INVALID_ACCESS_KEY",
    "InvalidAccessKeyId",
    "SIGNATURE_DOES_NOT",
    "SignatureDoesNotMatch",
    "EXPIRED_TOKEN",
    "ExpiredToken",
    "INVALID_CLIENT_TOKEN",
    "HTTP response code 403",
    "HTTP response code 401",
)
"""How the clients of stores say that who asks may not; Arrow raises a plain OSError with such a text."""


def is_refusal(error: Exception) -> bool:
    """Tell whether a store said that this user may not."""
    return isinstance(error, PermissionError) or any(word in str(error) for word in _REFUSALS)


def ask(place: places.Place, what: str, action: Callable[[], T], *, size_bytes: int = 0) -> T:
    """Return what a call of a store's client returns.

    Args:
        place: What it is about.
        what: For the message: what was to be done, such as ``"write"``.
        action: The call. It may be made several times.
        size_bytes: How much it moves.
    """
    for attempt in range(TRIES):
        try:
            return _wait(place, what, action, PATIENCE_SECONDS + size_bytes / LEAST_RATE)
        except (FileNotFoundError, exceptions.StoreError):
            raise
        except Exception as error:
            is_last = attempt == TRIES - 1 or not isinstance(error, OSError)
            if is_refusal(error):
                raise exceptions.StoreAccessError(
                    f"The store refuses to {what} {place.shown!r}: {texts.safe_text(error).rstrip('.')}. Check the "
                    "credentials, and who may read and write there."
                ) from error
            if is_last:
                again = f", also when it was tried {attempt + 1} times" if attempt else ""
                raise exceptions.StoreError(
                    f"The store cannot {what} {place.shown!r}{again}: "
                    f"{texts.safe_text(error).rstrip('.')}. Check the address, the network and the store's room; what "
                    "was committed before is whole."
                ) from error
            time.sleep(_PAUSE_SECONDS * 2**attempt)
    raise AssertionError("the last try returns or raises")


def _wait(place: places.Place, what: str, action: Callable[[], T], limit_s: float) -> T:
    returned: list[T] = []
    raised: list[Exception] = []

    def run() -> None:
        try:
            returned.append(action())
        except Exception as error:  # noqa: BLE001 (it is raised where the caller waits)
            raised.append(error)

    thread = threading.Thread(target=run, name="hocket-store", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise exceptions.StoreError(
            f"The store did not {what} {place.shown!r} within {limit_s:.0f} s. Check the network and the store, or "
            "give it longer: HOCKET_STORE_TIMEOUT_S in the environment."
        )
    if raised:
        raise raised[0]
    return returned[0]


def do_all(action: Callable[[A], T], given: Sequence[A], at_once: int, name: str) -> Iterator[T]:
    """Do something with each of some things, several at a time; give what it returns, in their order.

    The first error is raised when those that have begun have ended. A loop that ends early waits for none, and neither
    does the interpreter.

    Args:
        action: What is done.
        given: With what.
        at_once: With how many at once.
        name: Of the threads.
    """
    waiting = deque(enumerate(given))
    done: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        while waiting:
            try:
                number, one = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                done.put((number, action(one), None))
            except BaseException as error:  # noqa: BLE001 (it is raised where the caller waits)
                done.put((number, None, error))

    for _ in range(min(at_once, len(given))):
        threading.Thread(target=work, name=name, daemon=True).start()
    found: dict[int, T] = {}
    try:
        for wanted in range(len(given)):
            while wanted not in found:
                number, value, error = done.get()
                if error is not None:
                    left = len(given) - wanted - len(found) - 1
                    with contextlib.suppress(IndexError):
                        while True:
                            waiting.popleft()
                            left -= 1
                    for _ in range(left):
                        done.get()
                    raise error
                found[number] = value  # type: ignore[assignment]  # it is one
            yield found.pop(wanted)
    finally:
        waiting.clear()
