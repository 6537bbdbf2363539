"""Batches made from blocks: cut, shuffled within windows, read ahead."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final, TypeVar

import numpy as np

from hocket import exceptions
from hocket.data import blocks, order
from hocket.engine import interrupts

T = TypeVar("T")

END_SECONDS: Final = 0.3
"""How long the end of a loop waits for the thread that reads ahead. An idle thread ends at once. A guess."""


def cut_batches(stream: Iterable[blocks.Block], batch_size: int | None, *, drop_last: bool) -> Iterator[blocks.Block]:
    """Yield batches of equal size; without a size, the blocks. A batch may share memory with a block.

    Args:
        stream: The blocks.
        batch_size: Number of rows of a batch.
        drop_last: Whether to leave out the rows at the end that do not fill a batch.
    """
    left: list[blocks.Block] = []
    count = 0
    for block in stream:
        at = 0
        if batch_size is None:
            if block.num_rows:
                yield block
            continue
        while count + block.num_rows - at >= batch_size:
            stop = at + batch_size - count
            left.append(block.cut(at, stop))
            yield left[0] if len(left) == 1 else blocks.join(left)
            left, count, at = [], 0, stop
        if at < block.num_rows:
            left.append(block.cut(at, block.num_rows))
            count += block.num_rows - at
    if left and not drop_last:
        yield left[0] if len(left) == 1 else blocks.join(left)


def mix(stream: Iterable[blocks.Block], window: int, seed: int) -> Iterator[blocks.Block]:
    """Yield the same rows in blocks of `window` rows, each shuffled in itself."""
    for number, block in enumerate(cut_batches(stream, window, drop_last=False)):
        yield block.pick(order.Order(block.num_rows, seed=seed, epoch=number).rows(np.arange(block.num_rows)))


def read_ahead(items: Iterator[T], count: int, close: Callable[[], object] = lambda: None) -> Generator[T]:
    """Yield the items. A thread makes up to `count` of them ahead.

    No wait for the thread's end is unbounded, not even the interpreter's: the thread may be in a user's function.

    Args:
        items: The items.
        count: Number of items ahead. 0: there is no thread.
        close: Called at the end of the loop, however it ends. It has to release a thread that waits.
    """
    wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()  # reentrant: a finalizer may put into it
    made: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    thread = threading.Thread(target=_make, args=(items, wanted, made), name="hocket-data", daemon=True)
    try:
        for _ in range(count):
            wanted.put(True)
        if count:
            thread.start()
        while True:
            wanted.put(True)
            if not count:
                _make_one(items, made)
            item, error = _wait(made)
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]  # without an error, it is an item
            del item
    finally:
        error = None
        close()
        with contextlib.suppress(queue.Empty):
            while True:
                wanted.get_nowait()
        wanted.put(False)
        if thread.ident is not None and thread is not threading.current_thread():
            thread.join(END_SECONDS)


def _wait(made: queue.SimpleQueue[T]) -> T:
    while True:
        with contextlib.suppress(queue.Empty):
            return made.get(timeout=interrupts.LOOK_SECONDS)


def _make(
    items: Iterator[T], wanted: queue.SimpleQueue[bool], made: queue.SimpleQueue[tuple[T | None, BaseException | None]]
) -> None:
    while wanted.get() and _make_one(items, made):
        pass


def _make_one(items: Iterator[T], made: queue.SimpleQueue[tuple[T | None, BaseException | None]]) -> bool:
    try:
        made.put((next(items), None))
    except BaseException as error:  # noqa: BLE001 (the loop raises it)
        made.put((None, error))
        return False
    return True


def hide_frames(items: Iterator[T]) -> Generator[T]:
    """Yield the items. An error of this package reaches the loop without the frames that it passed through."""
    try:
        yield from items
    except exceptions.HocketError as error:
        exceptions.hide_frames(error)
        raise


class Restartable(Iterable[T]):
    """An iterable that begins a new loop each time.

    Args:
        begin: Begins a loop.
    """

    def __init__(self, begin: Callable[[], Iterator[T]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[T]:
        return self._begin()


def check_batch_size(batch_size: object, *, may_be_none: bool) -> None:
    """Raise if a value is not a batch size."""
    if batch_size is None and may_be_none:
        return
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer):
        raise TypeError(
            f"batch_size must be a whole number of rows, but received {batch_size!r}. Pass batch_size=256, for example."
        )
    if batch_size < 1:
        raise ValueError(
            f"batch_size must be 1 or more rows, but received {batch_size}. Pass batch_size=256, for example."
        )


def is_number(value: object, low: float, high: float) -> bool:
    """Return whether a value is a number from `low` to `high`, both included."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def check_count(name: str, value: object, least: int, instead_of_none: str = "", *, most: float = math.inf) -> None:
    """Raise if a value is not a whole number, or is out of range.

    Args:
        name: The argument's name.
        value: The value.
        least: The smallest allowed value.
        instead_of_none: Advice for None where it is not allowed; empty where None is the default.
        most: The largest allowed value.
    """
    if value is None and instead_of_none:
        raise ValueError(f"{name} must be a whole number from {least}, but received None. Write {instead_of_none}.")
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if value is not None and not (is_whole and least <= value <= most):  # type: ignore[operator]
        upto = f" to {most:,}" if most < math.inf else ""
        remedy = f"Write {instead_of_none}." if instead_of_none else "Leave it out for the default."
        raise ValueError(f"{name} must be a whole number from {least}{upto}, but received {value!r}. {remedy}")
