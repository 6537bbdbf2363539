"""Results of a pool's asynchronous calls."""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, final

from hocket._base import texts
from hocket.engine import interrupts

Callback = Callable[[Any], object]


class Receiver(Protocol):
    """A receiver of chunks' outcomes. Any thread may call it."""

    def receive(self, position: int, ok: bool, value: Any) -> None:
        """Take an outcome. If the chunk failed, the value is the exception."""


@final
class AsyncResult:
    """A pending or finished result.

    Args:
        size: The number of chunks of the result.
        is_single: Whether the result is the first chunk's own, and not a list of all items.
        callback: Called with the result, in a thread of the pool.
        error_callback: Called with the exception, in a thread of the pool.
        owner: An object that must live as long as the result.
    """

    def __init__(
        self,
        size: int,
        *,
        is_single: bool,
        callback: Callback | None = None,
        error_callback: Callback | None = None,
        owner: object = None,
    ) -> None:
        self._owner = owner
        for name, function in (("callback", callback), ("error_callback", error_callback)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function of one argument, but received {function!r}.")
        self._chunks: list[Any] = [None] * size
        self._missing = size
        self._is_single = is_single
        self._callback = callback
        self._error_callback = error_callback
        self._error: BaseException | None = None
        self._error_position = 0
        self._value: object = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        if not size:
            self._finish()

    def receive(self, position: int, ok: bool, value: Any) -> None:
        """Take the outcome of one chunk."""
        with self._lock:
            if ok:
                self._chunks[position] = value
            elif self._error is None or position < self._error_position:  # raise the same error in any order of arrival
                self._error, self._error_position = value, position
            self._missing -= 1
            is_last = self._missing == 0
        if is_last:
            self._finish()

    def _finish(self) -> None:
        if self._error is None:
            self._value = self._chunks[0] if self._is_single else [item for chunk in self._chunks for item in chunk]
        self._chunks = []
        callback, argument = (
            (self._callback, self._value) if self._error is None else (self._error_callback, self._error)
        )
        try:
            if callback is not None:
                callback(argument)
        except Exception as error:  # it must not end the pool's thread
            warnings.warn(
                f"A callback of a Pool raised {texts.describe(error)}. Handle exceptions in it.", stacklevel=2
            )
        finally:
            self._done.set()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the result arrives, or until the time-out."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._done.wait(_find_look(deadline)) and (deadline is None or time.monotonic() < deadline):
            pass

    def ready(self) -> bool:
        """Return whether the result, or an exception, has arrived."""
        return self._done.is_set()

    def successful(self) -> bool:
        """Return whether there is a result and no exception.

        Raises:
            ValueError: Neither has arrived yet.
        """
        if not self.ready():
            raise ValueError(f"{self!r} not ready. Call wait() first.")
        return self._error is None

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it, or raise the function's exception.

        Raises:
            multiprocessing.TimeoutError: The result did not arrive in time.
        """
        self.wait(timeout)
        if not self.ready():
            raise multiprocessing.TimeoutError(f"The result was not there after {timeout} s. The work goes on.")
        if self._error is not None:
            raise self._error
        return self._value


@final
class _Arrivals:
    """Outcomes that have arrived and were not taken, by number."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.outcomes: dict[int, tuple[bool, object]] = {}

    def receive(self, position: int, ok: bool, value: object) -> None:
        """Take the outcome of one chunk."""
        with self.changed:
            self.outcomes[position] = (ok, value)
            self.changed.notify_all()


class IMapIterator:
    """Results of `Pool.imap` or `Pool.imap_unordered`, to be taken one by one.

    Items are read as results are taken, some ahead, so the iterable may be endless. If the iterator is dropped after
    results were taken, its loop has ended early, and its pending work is withdrawn.

    Args:
        chunks: The chunks of items, made on demand.
        submit: Passes chunks to the pool. Takes the chunks, their receiver, and the number of the first.
        withdraw: Ends the work that was submitted for a receiver.
        begin: Called with this iterator when the first result is taken.
        ahead: Returns how many chunks may be in flight.
        is_ordered: Whether results come in the order of the items.
        owner: An object that must live as long as the iterator.
    """

    def __init__(
        self,
        chunks: Iterable[list[Any]],
        submit: Callable[[list[list[Any]], Receiver, int], None],
        withdraw: Callable[[Receiver], object],
        begin: Callable[[IMapIterator], object],
        ahead: Callable[[], int],
        *,
        is_ordered: bool,
        owner: object,
    ) -> None:
        self._owner = owner
        self._chunks = iter(chunks)
        self._submit, self._withdraw, self._begin = submit, withdraw, begin
        self._ahead = ahead
        self._is_ordered = is_ordered
        self._arrivals = _Arrivals()
        self._has_begun = False
        self._submitted = 0
        self._taken = 0
        self._is_exhausted = False
        #: The exception that the iterable raised in place of its next item.
        self._input_error: Exception | None = None
        #: Results of the current chunk.
        self._items: deque[object] = deque()
        self._feed()

    def __del__(self) -> None:
        if self._has_begun and self._taken < self._submitted:
            self._withdraw(self._arrivals)

    def _feed(self) -> None:
        if self._is_exhausted:
            return
        ahead = self._ahead()
        under_way = self._submitted - self._taken
        if under_way > ahead // 2:  # several at a time, because each submission wakes a thread
            return
        self._feed_chunks(ahead - under_way)

    def feed_all(self) -> None:
        """Submit all remaining items, because the pool is about to close."""
        while not self._is_exhausted:
            self._feed_chunks(1000)

    def _feed_chunks(self, count: int) -> None:
        chunks: list[list[object]] = []
        try:
            while len(chunks) < count:
                chunks.append(next(self._chunks))
        except StopIteration:
            self._is_exhausted = True
        except Exception as error:  # raised after the results before it were taken
            self._is_exhausted = True
            self._input_error = error
        self._submitted += len(chunks)
        if chunks:
            self._submit(chunks, self._arrivals, self._submitted - len(chunks))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """Wait for the next result and return it, or raise the function's exception for it.

        Raises:
            StopIteration: There are no more results.
            multiprocessing.TimeoutError: The result did not arrive in time.
        """
        if not self._has_begun:
            self._has_begun = True
            self._begin(self)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._items:
            ok, value = self._take(deadline, timeout)
            if not ok:
                raise value
            self._items.extend(value)
        return self._items.popleft()

    def _take(self, deadline: float | None, timeout: float | None) -> tuple[bool, Any]:
        """Wait for the outcome of the next chunk."""
        self._feed()
        arrivals = self._arrivals
        with arrivals.changed:
            while True:
                if self._taken == self._submitted:
                    error, self._input_error = self._input_error, None
                    raise error or StopIteration
                number = self._taken if self._is_ordered else next(iter(arrivals.outcomes), -1)
                if number in arrivals.outcomes:
                    self._taken += 1
                    return arrivals.outcomes.pop(number)
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise multiprocessing.TimeoutError(f"The result was not there after {timeout} s. The work goes on.")
                arrivals.changed.wait(_find_look(deadline))


def _find_look(deadline: float | None) -> float:
    """Return how long to wait at once, before the thread looks for signals again."""
    left_s = interrupts.LOOK_SECONDS if deadline is None else deadline - time.monotonic()
    return max(0.0, min(left_s, interrupts.LOOK_SECONDS))
