"""Batches out of blocks: cut, mixed within a window, read ahead."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent import futures
from pathlib import Path
from typing import TypeVar

import numpy as np

from hocket import exceptions, texts
from hocket.data import blocks, order

T = TypeVar("T")

texts.add_carriers(str(Path(futures.__file__).parent))  # `read_ahead` waits in there, for a thread that runs in there


def cut_batches(stream: Iterable[blocks.Block], batch_size: int | None, *, drop_last: bool) -> Iterator[blocks.Block]:
    """Give batches of equal size; without a size, the blocks. A batch may be a part of a block, and shares its memory.

    Args:
        stream: The blocks.
        batch_size: How many rows a batch has.
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
    """Give the same rows, shuffled within windows of so many."""
    for number, block in enumerate(cut_batches(stream, window, drop_last=False)):
        yield block.pick(order.Order(block.num_rows, seed=seed, epoch=number).rows(np.arange(block.num_rows)))


def read_ahead(items: Iterator[T], count: int) -> Generator[T]:
    """Give the same, made by a thread that is up to `count` ahead. It ends with the loop."""
    if not count:
        yield from items
        return
    end = object()
    with futures.ThreadPoolExecutor(1, "hocket-data") as pool:
        coming: deque[futures.Future[T | object]] = deque()
        try:
            while True:
                while len(coming) <= count:
                    coming.append(pool.submit(next, items, end))
                item = coming.popleft().result()
                if item is end:
                    return
                yield item  # type: ignore[misc]  # it is not the end
        finally:
            for waiting in coming:
                waiting.cancel()


def hide_frames(items: Iterator[T]) -> Generator[T]:
    """Give the same; an error of this package comes to the loop without the frames that it came through."""
    try:
        yield from items
    except exceptions.HocketError as error:
        exceptions.hide_frames(error)
        raise


class Restartable(Iterable[T]):
    """Something to loop over more than once: each loop is begun anew.

    Args:
        begin: Begins a loop.
    """

    def __init__(self, begin: Callable[[], Iterator[T]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[T]:
        return self._begin()


def check_batch_size(batch_size: object, *, may_be_none: bool) -> None:
    """Raise if it is no size of a batch.

    Raises:
        ValueError: It is less than 1, or None where each batch must have the same size.
        TypeError: It is no whole number.
    """
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
    """Return whether something is a number between two others, or one of them."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def check_count(name: str, value: object, least: int, instead_of_none: str = "", *, most: float = math.inf) -> None:
    """Raise if it is no whole number, or less or more than allowed.

    Args:
        name: What the argument is called.
        value: What was given.
        least: The least that is allowed.
        instead_of_none: What to write where None was given; empty where None is the default.
        most: The most that is allowed.

    Raises:
        ValueError: It is so.
    """
    if value is None and instead_of_none:
        raise ValueError(f"{name} must be a whole number from {least}, but received None. Write {instead_of_none}.")
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if value is not None and not (is_whole and least <= value <= most):  # type: ignore[operator]
        upto = f" to {most:,}" if most < math.inf else ""
        remedy = f"Write {instead_of_none}." if instead_of_none else "Leave it out for the default."
        raise ValueError(f"{name} must be a whole number from {least}{upto}, but received {value!r}. {remedy}")
