"""What each worker has of its own: datasets that it reads, and values.

A **stream** is what one worker draws batches from. There are two kinds:

- Of a function: each worker calls it, with an `InputContext` that says which worker it is, and iterates over what it returns.
- Of a sequence (anything with ``len`` and ``[]``): its items are *dealt*. A worker takes the next one that nobody has, so fast workers take more, and all
  together take each exactly once. Who took which is written in memory that outlives them.

Either way a stream's state is how many items its worker has drawn in closures that ended. A worker that dies is replaced by one of the same index, which
goes on from there: the closure that was cut short draws the same items again, and no other item is drawn twice or left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, final

import numpy as np

from hocket.core import actor, api
from hocket.ps import memory, mutex, place

_FREE: Final = -1

_WAIT_SECONDS: Final = 600.0


@final
class OutOfData(StopIteration):
    """This worker's stream has no more items. Raised by ``next`` in a closure; the closure then goes to a worker that has some."""

    def __init__(self, stream: int) -> None:
        super().__init__(stream)
        self.stream: Final = stream


@final
@dataclass(frozen=True, slots=True)
class InputContext:
    """Which worker a dataset is for. Names are TensorFlow's; there the numbers are always 1 and 0, here they are true.

    Attributes:
        num_input_pipelines: How many workers there are.
        input_pipeline_id: The worker's index.
    """

    num_input_pipelines: int
    input_pipeline_id: int


# --- dealing ---------------------------------------------------------------------------------------------------------


def _plan(count: int) -> memory.Plan:
    layout = memory.Plan()
    layout.add("mutex", (mutex.MUTEX_BYTES,), np.uint8)
    layout.add("next", (8,), np.int64)
    layout.add("owners", (count,), np.int16)
    return layout


def count_deal_bytes(count: int) -> int:
    """Return how much memory dealing so many items takes."""
    return _plan(count).nbytes


def build_deal(kept: memory.Memory, count: int) -> None:
    """Begin to deal, in new memory. Called once, by who made it."""
    arrays = _plan(count).view(kept)
    mutex.build(int(arrays["mutex"].ctypes.data))
    arrays["owners"].fill(_FREE)


@final
class Deal:
    """Who has which item, as one process sees it.

    Args:
        ref: The memory.
        count: How many items there are.
    """

    def __init__(self, ref: memory.MemoryRef, count: int) -> None:
        arrays = _plan(count).view(memory.open_memory(ref))
        self._next = arrays["next"]
        self._owners = arrays["owners"]
        self._count = count
        self._mutex = mutex.Mutex(int(arrays["mutex"].ctypes.data), "a dataset", _WAIT_SECONDS, lambda: _do_nothing)

    def list_owned(self, worker: int) -> list[int]:
        """Return what a worker has taken, in order."""
        return [int(item) for item in np.flatnonzero(self._owners == worker)]

    def take(self, worker: int) -> int | None:
        """Give a worker the next item; None if there is none."""
        with self._mutex:
            item = int(self._next[0])
            while item < self._count and self._owners[item] != _FREE:  # its taker died before it could count it
                item += 1
            if item >= self._count:
                return None
            self._owners[item] = worker
            self._next[0] = item + 1
            return item


def _do_nothing() -> None:
    """Of dealing nothing is half done: an item has an owner, or has none."""


# --- in a worker -----------------------------------------------------------------------------------------------------


@final
class FromFunction:
    """Makes a worker's stream by calling a function.

    Args:
        function: Returns something to iterate over; takes an `InputContext`, or nothing.
        takes_context: Which.
    """

    def __init__(self, function: Callable[..., Any], *, takes_context: bool) -> None:
        self._function = function
        self._takes_context = takes_context

    def open(self, here: place.Place, position: int) -> Iterator[Any]:
        """Return the items from a position on."""
        context = InputContext(here.num_workers, here.worker)
        source = self._function(context) if self._takes_context else self._function()
        return itertools.islice(iter(source), position, None)


@final
class FromSequence:
    """Makes a worker's stream by dealing the items of a sequence.

    Args:
        items: The sequence.
        ref: The memory that says who has which.
        handle: Who reaches that memory for workers on other machines.
    """

    def __init__(self, items: Sequence[Any], ref: memory.MemoryRef, handle: actor.ActorHandle) -> None:
        self._items = items
        self._ref = ref
        self._handle = handle

    def open(self, here: place.Place, position: int) -> Iterator[Any]:
        """Return the items from a position on."""
        count = len(self._items)
        if memory.is_reachable(self._ref):
            deal = Deal(self._ref, count)
            owned, take = deal.list_owned(here.worker), deal.take
        else:
            owned = api.get(self._handle.call_deal.remote(self._ref, count, "list_owned", here.worker))
            take = self._take_far
        for item in owned[position:]:
            yield self._items[item]
        while (item_taken := take(here.worker)) is not None:
            yield self._items[item_taken]

    def _take_far(self, worker: int) -> int | None:
        item: int | None = api.get(self._handle.call_deal.remote(self._ref, len(self._items), "take", worker))
        return item


@final
class WorkerStream:
    """One worker's stream.

    Args:
        number: Which stream of the strategy.
        items: What it still has.
        position: How many items were drawn before.
    """

    def __init__(self, number: int, items: Iterator[Any], position: int) -> None:
        self._number = number
        self._items = items
        self.position = position

    def __next__(self) -> Any:
        """Draw an item.

        Raises:
            OutOfData: There is none.
        """
        try:
            item = next(self._items)
        except StopIteration:
            raise OutOfData(self._number) from None
        self.position += 1
        return item


# --- what a closure holds --------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class PerWorkerIterator:
    """Each worker's own iterator over a dataset. ``next`` works in closures only. Made by ``iter(per_worker_dataset)``."""

    number: int

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> Any:
        """Draw the worker's next item.

        Raises:
            OutOfData: There is none. It is a StopIteration.
            NotImplementedError: It is called outside a closure.
        """
        here = place.get_optional_place()
        if here is None:
            raise NotImplementedError(
                "A per-worker iterator has no items of its own: each worker draws from its part. Call next(iterator) in the function that you schedule."
            )
        return next(here.values[self.number])


@final
@dataclass(frozen=True, slots=True)
class PerWorkerValue:
    """A value of which each worker has its own. Given as an argument, the worker's own is put in its place. Made by ``Coordinator.per_worker``."""

    number: int

    @property
    def value(self) -> Any:
        """The calling worker's own.

        Raises:
            RuntimeError: It is called outside a closure.
        """
        return place.get_place("PerWorkerValue.value").values[self.number]


@final
class PerWorkerDataset:
    """A dataset of which each worker reads its part. Made by ``Coordinator.create_per_worker_dataset``; give ``iter`` of it to closures.

    Args:
        begin: Begins a new pass over it, and returns its number.
    """

    def __init__(self, begin: Callable[[], int]) -> None:
        self._begin = begin

    def __iter__(self) -> PerWorkerIterator:
        """Begin a pass over the data.

        Raises:
            RuntimeError: It is called in a closure.
        """
        if place.get_optional_place() is not None:
            raise RuntimeError(
                "iter(per_worker_dataset) was called in a closure. Call it in the coordinator, and give the iterator to the closure."
            )
        return PerWorkerIterator(self._begin())

    def __next__(self) -> NoReturn:
        raise TypeError("A per-worker dataset is no iterator. Write: iterator = iter(dataset)")
