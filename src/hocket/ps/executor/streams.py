"""Streams and values that each worker has for itself.

A worker draws batches from its part of a **stream**. There are two kinds of streams:

- From a function: each worker calls it, with an `InputContext` that describes the worker, and iterates over the result.
- From a sequence (any object with ``len`` and ``[]``): the items are *dealt*. A worker takes the next free item, so
  fast workers take more, and all workers together take each item exactly once. The owner of each item is written in
  memory that outlives the workers.

Either way a stream's state is the number of items that its worker has drawn in closures that ended. A dead worker's
replacement has the same index, and continues from that number: the interrupted closure draws the same items again, and
no other item is drawn twice or skipped. If a closure finds too few items, the items that it drew are put back: its
worker keeps them for closures that draw less. Several workers may keep dealt items in this way, and so may a removed
worker. Such items are dealt once more, to one worker, before a closure ends without data (`Deal.deal_left`).

The coordinator holds an iterator for each stream. When the last copy of the iterator goes, the workers drop the stream.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, final

import numpy as np

from hocket.core import actor, api
from hocket.engine import contract
from hocket.ps.access import closure_context, remote
from hocket.ps.stores import gate, memory, mutex
from hocket.ps.variables import foreign

ASKABLE: Final = frozenset({"list_owned", "take"})
"""The names in `Deal` that a worker on another machine may use, through the first server."""

_FREE: Final = -1
_DONE: Final = -2

_WAIT_SECONDS: Final = 600.0


@final
class OutOfData(StopIteration):
    """This worker's stream has no more items.

    Raised by ``next`` in a closure; the closure then goes to a worker that has some.
    """

    def __init__(self, stream: int) -> None:
        super().__init__(stream)
        self.stream: Final = stream


class BadInputError(Exception):
    """A worker's dataset or value raised while it was made. Users never see it: the closure fails with the cause."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause: Final = cause


@final
@dataclass(frozen=True, slots=True)
class InputContext:
    """The worker that a dataset is for. Names are TensorFlow's; there the numbers are always 1 and 0, here the real
    ones.

    Attributes:
        num_input_pipelines: The number of workers.
        input_pipeline_id: The worker's index.
    """

    num_input_pipelines: int
    input_pipeline_id: int


# --- dealing ---------------------------------------------------------------------------------------------------------


def _plan(count: int) -> memory.SegmentPlan:
    layout = memory.SegmentPlan()
    layout.add("mutex", (mutex.MUTEX_BYTES,), np.uint8)
    layout.add("next", (8,), np.int64)
    layout.add("owners", (count,), np.int16)
    layout.add("done", (gate.MAX_WORKERS,), np.int64)
    return layout


def count_deal_bytes(count: int) -> int:
    """Return the size of the memory for dealing `count` items."""
    return _plan(count).nbytes


def build_deal(kept: memory.Memory, count: int, left: Sequence[int] | None = None) -> None:
    """Initialise a deal in new memory. The process that made the memory calls this once.

    Args:
        kept: The memory.
        count: The number of items.
        left: The items that are to be dealt. Default: all.
    """
    arrays = _plan(count).view(kept)
    mutex.build(int(arrays["mutex"].ctypes.data))
    arrays["owners"].fill(_FREE)
    if left is not None:
        arrays["owners"].fill(_DONE)
        arrays["owners"][np.asarray(left, np.int64)] = _FREE


@final
class Deal:
    """The owner of each item, as one process sees it."""

    def __init__(self, ref: memory.MemoryRef, count: int) -> None:
        arrays = _plan(count).view(memory.open_memory(ref))
        self._next = arrays["next"]
        self._owners = arrays["owners"]
        #: For each worker, how many of its first items have lost their owner, because closures that ended drew them.
        self._done = arrays["done"]
        self._count = count
        # No repair is needed after a death: an item has an owner, or has none.
        self._mutex = mutex.Mutex(int(arrays["mutex"].ctypes.data), "a dataset", _WAIT_SECONDS)

    def list_owned(self, worker: int, position: int) -> list[int]:
        """Return the items that a worker has taken beyond its first `position` items, in order."""
        taken = np.flatnonzero(self._owners == worker)
        return [int(item) for item in taken[position - int(self._done[worker]) :]]

    def list_left(self, positions: Mapping[int, int]) -> list[int]:
        """Return the items that no ended closure has drawn. `positions` has the number of items drawn, by worker."""
        left = [int(item) for item in np.flatnonzero(self._owners == _FREE)]
        for worker, position in positions.items():
            left += self.list_owned(worker, position)
        return sorted(left)

    def deal_left(self, positions: Mapping[int, int]) -> None:
        """Take back the items that no ended closure has drawn, and deal them once more.

        Call it while no closure draws. Every worker must open its stream again before its next closure.

        Args:
            positions: The number of items that each worker has drawn in closures that ended, by worker.
        """
        with self._mutex:
            left = self.list_left(positions)
            self._owners[:] = _DONE
            self._owners[np.asarray(left, np.int64)] = _FREE
            for worker, position in positions.items():
                self._done[worker] = position
            self._next[0] = 0

    def take(self, worker: int) -> int | None:
        """Give a worker the next item; return None if there is none left."""
        with self._mutex:
            item = int(self._next[0])
            while item < self._count and self._owners[item] != _FREE:  # its taker died before counting it
                item += 1
            if item >= self._count:
                return None
            self._owners[item] = worker
            self._next[0] = item + 1
            return item


# --- in a worker -----------------------------------------------------------------------------------------------------


@final
class FromFunction:
    """A source of workers' streams that calls a function, with an `InputContext` if it takes one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._takes_context = _takes_argument(function)

    def open(self, context: InputContext, position: int) -> Iterator[Any]:
        """Return an iterator over the items from a position on."""
        source = self._function(context) if self._takes_context else self._function()
        return itertools.islice(iter(source), position, None)


def _takes_argument(function: Callable[..., object]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters
    )


@final
class FromSequence:
    """A source of workers' streams that deals the items of a sequence.

    Args:
        items: A reference to the sequence.
        count: The number of its items.
        ref: The memory with the owner of each item.
        handle: The actor through which workers on other machines reach that memory.
    """

    def __init__(
        self, items: contract.ObjectRef[Sequence[object]], count: int, ref: memory.MemoryRef, handle: actor.ActorHandle
    ) -> None:
        self._items = items
        self._count = count
        self._ref = ref
        self._handle = handle

    def open(self, context: InputContext, position: int) -> Iterator[Any]:
        """Return an iterator over the items from a position on."""
        items = api.get(self._items)
        worker = context.input_pipeline_id
        if memory.is_reachable(self._ref):
            deal = Deal(self._ref, self._count)
        else:
            ask = functools.partial(remote.ask, self._handle.call_deal, self._ref, self._count)
            deal = remote.build_proxy(Deal, ASKABLE, ask)
        return self._draw(items, deal.list_owned(worker, position), deal, worker)

    def _draw(self, items: Sequence[object], owned: list[int], deal: Deal, worker: int) -> Iterator[object]:
        for item in owned:
            yield items[item]
        while (taken := deal.take(worker)) is not None:
            yield items[taken]


@final
class WorkerStream:
    """One worker's stream: the items that remain after the first `position` items."""

    def __init__(self, number: int, items: Iterator[Any], position: int) -> None:
        self._number = number
        self._items = items
        self._drawn: list[object] = []
        self.position = position

    def __next__(self) -> object:
        """Draw an item."""
        try:
            item = next(self._items)
        except StopIteration:
            raise OutOfData(self._number) from None
        self._drawn.append(item)
        self.position += 1
        return item

    @property
    def num_drawn(self) -> int:
        """Number of items that the current closure has drawn."""
        return len(self._drawn)

    def begin(self) -> None:
        """Note that a closure begins."""
        self._drawn = []

    def put_back(self) -> None:
        """Put back the items that the closure has drawn, because it does not count."""
        self.position -= len(self._drawn)
        self._items = itertools.chain(self._drawn, self._items)
        self._drawn = []


# --- in a closure ----------------------------------------------------------------------------------------------------


_collecting = threading.local()


@contextlib.contextmanager
def collected() -> Iterator[list[object]]:
    """Collect the per-worker iterators and values that this thread pickles."""
    found: list[Any] = []
    _collecting.found = found
    try:
        yield found
    finally:
        _collecting.found = None


@dataclass(frozen=True, slots=True)
class PerWorker:
    """A placeholder, in the coordinator and in closures, for an object that differs in each worker."""

    number: int
    holder: object = field(default=None, repr=False, compare=False)
    """In the coordinator: an object whose end releases the workers' objects."""

    def __reduce__(self) -> tuple[object, ...]:
        found = getattr(_collecting, "found", None)
        if found is not None:
            found.append(self)
        return type(self), (self.number,)

    def _find(self, context: closure_context.ClosureContext) -> Any:
        """Return the calling worker's own object."""
        if self.number in context.failures:
            raise BadInputError(context.failures[self.number])
        if self.number not in context.values:
            raise ValueError(
                "This closure uses a per-worker iterator or value that is hidden inside another object. Pass it as an "
                "argument, by itself or in a list, tuple or dict, or let the function refer to it directly."
            )
        return context.values[self.number]


@final
class PerWorkerIterator(PerWorker):
    """Each worker's own iterator over a dataset.

    ``next`` works in closures only. Made by ``iter(per_worker_dataset)``.
    """

    __slots__ = ()

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> Any:
        """Draw the worker's next item."""
        here = closure_context.get_optional_context()
        if here is None:
            raise NotImplementedError(
                "A per-worker iterator has no items in this process: each worker draws from its own part. Call "
                "next(iterator) in the function that you schedule."
            )
        foreign.refuse_in_graph("next(iterator)", "draws another item each time")
        return next(self._find(here))


@final
class PerWorkerValue(PerWorker):
    """A value that differs in each worker.

    As an argument of a closure, it is replaced with the worker's own value. Made by ``Coordinator.per_worker``.
    """

    __slots__ = ()

    @property
    def value(self) -> Any:
        """The calling worker's own value."""
        foreign.refuse_in_graph("PerWorkerValue.value", "is the worker's own")
        return self._find(closure_context.get_context("PerWorkerValue.value"))


@final
class PerWorkerDataset:
    """A dataset of which each worker reads a part.

    Made by ``Coordinator.create_per_worker_dataset``; closures take ``iter`` of it.
    """

    def __init__(self, begin: Callable[[], PerWorkerIterator]) -> None:
        self._begin = begin

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A per-worker dataset stays in the coordinator. Write iterator = iter(dataset) there, and give closures "
            "the iterator."
        )

    def __iter__(self) -> PerWorkerIterator:
        """Begin a pass over the dataset."""
        if closure_context.get_optional_context() is not None:
            raise RuntimeError(
                "iter(per_worker_dataset) was called in a closure. Call it in the coordinator, and give the iterator "
                "to the closure."
            )
        return self._begin()

    def __next__(self) -> NoReturn:
        raise TypeError("A per-worker dataset is not an iterator. Write: iterator = iter(dataset)")
