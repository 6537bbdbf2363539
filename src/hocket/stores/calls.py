"""Calls of a store that end: the store answers, or after a bounded time an error names the store, the call and why.

A client may wait for ever for a store that accepts a connection and says nothing. So each call runs in a thread of its
own, and the caller gives up after a time-out. The thread, which cannot be ended, is then left behind; as a daemon, it
does not keep the process alive.

A failed call is tried again a few times, because busy stores refuse calls now and then. Lasting refusals, such as of
credentials, and missing files are not tried again.
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
"""How long a store may take to answer, besides the time for the bytes. A guess: clients give up earlier."""

LEAST_RATE: Final = 1 << 20
"""Bytes a second below which a store counts as gone. A guess, far below any network where training makes sense."""

TRIES: Final = 3
"""The number of tries of a failing call; a guess, on top of the clients' own tries."""

_PAUSE_SECONDS: Final = 0.2  # before the second try, and doubled before each further try; a guess

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
"""The words for a refusal in the errors of stores' clients; Arrow raises a plain OSError with such a text."""


def is_refusal(error: Exception) -> bool:
    """Tell whether a store refused this user's access."""
    return isinstance(error, PermissionError) or any(word in str(error) for word in _REFUSALS)


def ask(place: places.Place, what: str, action: Callable[[], T], *, size_bytes: int = 0) -> T:
    """Call a store's client, with several tries and a time-out for each; return the result.

    Args:
        place: The file or folder of the call.
        what: The operation, for the message, such as ``"write"``.
        action: The call. It may be made several times.
        size_bytes: The bytes that the call moves, which extend the time-out.
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
                    "credentials and the permissions there."
                ) from error
            if is_last:
                again = f", even after {attempt + 1} tries" if attempt else ""
                raise exceptions.StoreError(
                    f"The store cannot {what} {place.shown!r}{again}: "
                    f"{texts.safe_text(error).rstrip('.')}. Check the address, the network and the store's free "
                    "space. Earlier commits are whole."
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
            "set HOCKET_STORE_TIMEOUT_S in the environment to more seconds."
        )
    if raised:
        raise raised[0]
    return returned[0]


def do_all(action: Callable[[A], T], given: Sequence[A], at_once: int, name: str) -> Iterator[T]:
    """Yield an action's result for each item, in the items' order; several threads run the action.

    The first error is raised when all actions that have begun have ended. A loop that ends early waits for no action,
    and neither does the interpreter.

    Args:
        action: The function to call.
        given: The items.
        at_once: The number of items at a time.
        name: The threads' name.
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
