"""Streams and values that each worker has of its own.

A **stream** is what one worker draws batches from. There are two kinds:

- Of a function: each worker calls it, with an `InputContext` that says which worker it is, and iterates over what it
  returns.
- Of a sequence (anything with ``len`` and ``[]``): its items are *dealt*. A worker takes the next one that nobody has,
  so fast workers take more, and all together take each exactly once. Who took which is written in memory that outlives
  them.

Either way a stream's state is how many items its worker has drawn in closures that ended. A worker that dies is
replaced by one of the same index, which goes on from there: the closure that was cut short draws the same items again,
and no other item is drawn twice or left out. What a closure drew before it found no more is put back: its worker still
has it, for closures that draw less. Dealt items that several workers have left so, or one that was removed, are dealt
once more, to one worker, before a closure ends without data (`Deal.deal_left`).

What the coordinator holds of a stream is an iterator. With the last one the stream ends: workers let go of it.
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
from hocket.ps import closure_context, foreign, remote
from hocket.ps.stores import gate, memory, mutex

ASKABLE: Final = frozenset({"list_owned", "take"})
"""What a worker on another machine may ask the first server to do with a `Deal`."""

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
    """Making a worker's dataset or value has raised. Never seen outside: the closure fails with the cause."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause: Final = cause


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
    layout.add("done", (gate.MAX_WORKERS,), np.int64)
    return layout


def count_deal_bytes(count: int) -> int:
    """Return how much memory dealing so many items takes."""
    return _plan(count).nbytes


def build_deal(kept: memory.Memory, count: int, left: Sequence[int] | None = None) -> None:
    """Begin to deal, in new memory. Called once, by who made it.

    Args:
        kept: The memory.
        count: How many items there are.
        left: Which of them are to be dealt. Default: all.
    """
    arrays = _plan(count).view(kept)
    mutex.build(int(arrays["mutex"].ctypes.data))
    arrays["owners"].fill(_FREE)
    if left is not None:
        arrays["owners"].fill(_DONE)
        arrays["owners"][np.asarray(left, np.int64)] = _FREE


@final
class Deal:
    """The holder of each item, as one process sees it."""

    def __init__(self, ref: memory.MemoryRef, count: int) -> None:
        arrays = _plan(count).view(memory.open_memory(ref))
        self._next = arrays["next"]
        self._owners = arrays["owners"]
        #: How many of each worker's first items have no owner any more, as closures that ended drew them.
        self._done = arrays["done"]
        self._count = count
        # Nothing is half done in dealing: an item has an owner, or has none.
        self._mutex = mutex.Mutex(int(arrays["mutex"].ctypes.data), "a dataset", _WAIT_SECONDS)

    def list_owned(self, worker: int, position: int) -> list[int]:
        """Return what a worker has taken after its first items, of which there are `position`, in order."""
        taken = np.flatnonzero(self._owners == worker)
        return [int(item) for item in taken[position - int(self._done[worker]) :]]

    def list_left(self, positions: Mapping[int, int]) -> list[int]:
        """Return the items that nobody has drawn in a closure that ended, of which each worker has drawn so many."""
        left = [int(item) for item in np.flatnonzero(self._owners == _FREE)]
        for worker, position in positions.items():
            left += self.list_owned(worker, position)
        return sorted(left)

    def deal_left(self, positions: Mapping[int, int]) -> None:
        """Take back what workers have taken and not drawn in a closure that ended, so that it is dealt once more.

        Called while no closure draws; every worker must open its stream again before the next one does.

        Args:
            positions: How many items each worker has drawn in closures that ended, by worker.
        """
        with self._mutex:
            left = self.list_left(positions)
            self._owners[:] = _DONE
            self._owners[np.asarray(left, np.int64)] = _FREE
            for worker, position in positions.items():
                self._done[worker] = position
            self._next[0] = 0

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


# --- in a worker -----------------------------------------------------------------------------------------------------


@final
class FromFunction:
    """Makes a worker's stream by calling a function, with an `InputContext` if it takes one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._takes_context = _takes_argument(function)

    def open(self, context: InputContext, position: int) -> Iterator[Any]:
        """Return the items from a position on."""
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
    """Makes a worker's stream by dealing the items of a sequence.

    Args:
        items: The sequence; a reference to it.
        count: How many items it has.
        ref: The memory that says who has which.
        handle: Who reaches that memory for workers on other machines.
    """

    def __init__(
        self, items: contract.ObjectRef[Sequence[object]], count: int, ref: memory.MemoryRef, handle: actor.ActorHandle
    ) -> None:
        self._items = items
        self._count = count
        self._ref = ref
        self._handle = handle

    def open(self, context: InputContext, position: int) -> Iterator[Any]:
        """Return the items from a position on."""
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
    """One worker's stream: what it still has, after so many items were drawn before."""

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
        """How many items the closure has drawn."""
        return len(self._drawn)

    def begin(self) -> None:
        """A closure begins."""
        self._drawn = []

    def put_back(self) -> None:
        """Put back what the closure has drawn, as it does not count."""
        self.position -= len(self._drawn)
        self._items = itertools.chain(self._drawn, self._items)
        self._drawn = []


# --- what a closure holds --------------------------------------------------------------------------------------------


_collecting = threading.local()


@contextlib.contextmanager
def collected() -> Iterator[list[object]]:
    """Note the per-worker iterators and values that this thread pickles."""
    found: list[Any] = []
    _collecting.found = found
    try:
        yield found
    finally:
        _collecting.found = None


@dataclass(frozen=True, slots=True)
class PerWorker:
    """A placeholder in the coordinator, and in closures, for something of which each worker has its own."""

    number: int
    holder: object = field(default=None, repr=False, compare=False)
    """In the coordinator: what ends it when it goes."""

    def __reduce__(self) -> tuple[object, ...]:
        found = getattr(_collecting, "found", None)
        if found is not None:
            found.append(self)
        return type(self), (self.number,)

    def _find(self, context: closure_context.ClosureContext) -> Any:
        """Return the worker's own."""
        if self.number in context.failures:
            raise BadInputError(context.failures[self.number])
        if self.number not in context.values:
            raise ValueError(
                "This closure uses a per-worker iterator or value that is hidden inside another object. Give it as "
                "an argument, also in a list, tuple or dict, or let the function refer to it by itself."
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
                "A per-worker iterator has no items of its own: each worker draws from its part. Call next(iterator) "
                "in the function that you schedule."
            )
        foreign.refuse_in_graph("next(iterator)", "draws another item each time")
        return next(self._find(here))


@final
class PerWorkerValue(PerWorker):
    """A value of which each worker has its own.

    Given as an argument, the worker's own is put in its place. Made by ``Coordinator.per_worker``.
    """

    __slots__ = ()

    @property
    def value(self) -> Any:
        """The calling worker's own."""
        foreign.refuse_in_graph("PerWorkerValue.value", "is the worker's own")
        return self._find(closure_context.get_context("PerWorkerValue.value"))


@final
class PerWorkerDataset:
    """A dataset of which each worker reads its part.

    Made by ``Coordinator.create_per_worker_dataset``; give ``iter`` of it to closures.
    """

    def __init__(self, begin: Callable[[], PerWorkerIterator]) -> None:
        self._begin = begin

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A per-worker dataset stays in the coordinator. Write iterator = iter(dataset) there, and give closures "
            "the iterator."
        )

    def __iter__(self) -> PerWorkerIterator:
        """Begin a pass over the data."""
        if closure_context.get_optional_context() is not None:
            raise RuntimeError(
                "iter(per_worker_dataset) was called in a closure. Call it in the coordinator, and give the iterator "
                "to the closure."
            )
        return self._begin()

    def __next__(self) -> NoReturn:
        raise TypeError("A per-worker dataset is no iterator. Write: iterator = iter(dataset)")
