"""The scheduler of closures: it knows which closures wait, which the workers have, and how each ended.

It starts no thread and calls no worker. The coordinator gives it closures; each worker's dispatcher
(`hocket.ps.executor.dispatcher`) takes closures from it, and reports their outcomes.

**An error.** After an error no further closure is sent, running closures finish, and waiting ones are cancelled. Then
`join`, `done` or `schedule` raises all errors in one group, once, and the scheduler works on.
"""

from __future__ import annotations

import collections
import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias, final

from hocket.engine import contract, interrupts
from hocket.ps import errors
from hocket.ps.executor import closures, inputs, streams, worker

_AFTER_FAILURE: Final = (
    "another closure failed before it. join(), done() or schedule() raises that error once; schedule this closure "
    "again after that."
)

AT_CLOSE: Final = (
    "the coordinator was closed, or the session has ended. If the closure had begun, its changes to variables remain."
)
"""The reason in messages of closures cancelled at the end."""

Batch: TypeAlias = list[tuple[worker.Call, closures.Closure]]
"""Closures that go to a worker together, each with its call."""


_Kind: TypeAlias = tuple[frozenset[int], frozenset[int]]
"""The streams that a closure draws from, and the workers that had too few items for it."""


@final
class SchedulerCondition(threading.Condition):
    """The lock of a scheduler; it counts the user's threads that wait for closures.

    The user's threads wait with `wait_for`, other threads with `wait`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_awaiting = 0

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Count the caller as waiting for the duration of a block; the caller holds the lock."""
        self.num_awaiting += 1
        self.notify_all()
        try:
            yield
        finally:
            self.num_awaiting -= 1

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> Any:
        """Wait until a predicate holds; return its value."""
        found = predicate()
        if found:
            return found
        with self.awaited():
            return super().wait_for(predicate, timeout)


@final
class Queue:
    """Closures that wait for a worker, in the order of scheduling. A worker skips closures that it has no data for.

    There is a queue for each pair of a set of streams to draw from and a set of workers with too few items. The same
    workers can run all closures of such a queue.

    Example:
        >>> queue = Queue()
        >>> len(queue), queue.pop(WorkerState(0))
        (0, None)
    """

    def __init__(self) -> None:
        self._queues: dict[_Kind, collections.deque[closures.Closure]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, closure: closures.Closure) -> None:
        """Put a closure behind the others."""
        self._queues.setdefault((closure.streams, closure.tried), collections.deque()).append(closure)
        self._count += 1

    def put_back(self, closure: closures.Closure) -> None:
        """Put a closure before the others."""
        self._queues.setdefault((closure.streams, closure.tried), collections.deque()).appendleft(closure)
        self._count += 1

    def has(self, worker: WorkerState) -> bool:
        """Tell whether there is a closure for a worker."""
        return any(worker.fits(kind) for kind in self._queues)

    def pop(self, worker: WorkerState) -> closures.Closure | None:
        """Take the first closure for a worker; return None if there is none."""
        fitting = [kind for kind in self._queues if worker.fits(kind)]
        if not fitting:
            return None
        first = min(fitting, key=lambda kind: self._queues[kind][0].number)
        queue = self._queues[first]
        closure = queue.popleft()
        if not queue:
            del self._queues[first]
        self._count -= 1
        return closure

    def list_kinds(self) -> list[_Kind]:
        """Return the kinds of the waiting closures: their streams, and the workers that had too few items for them."""
        return list(self._queues)

    def remove(self, kind: _Kind) -> list[closures.Closure]:
        """Remove and return all closures of a kind."""
        return self._take([kind] if kind in self._queues else [])

    def forget_tries(self, stream: int) -> None:
        """Let all workers try the closures that draw from a stream again."""
        taken = self._take([kind for kind in self._queues if stream in kind[0]])
        for closure in taken:
            closure.tried = frozenset()
            self.put(closure)

    def clear(self) -> list[closures.Closure]:
        """Remove and return all closures."""
        return self._take(list(self._queues))

    def _take(self, kinds: list[_Kind]) -> list[closures.Closure]:
        taken = [closure for kind in kinds for closure in self._queues.pop(kind)]
        self._count -= len(taken)
        return sorted(taken, key=lambda closure: closure.number)


@final
class WorkerState:
    """A worker as the scheduler knows it. Changes under the scheduler's lock."""

    def __init__(self, index: int) -> None:
        self.index: Final = index
        self.is_leaving = False
        self.num_taken = 0
        """Number of closures that the worker has taken."""
        self.sent: Final[collections.deque[tuple[contract.ObjectRef[worker.Batch] | None, Batch]]] = collections.deque()
        """Batches that the worker has, each with a reference to its answer."""
        self.private: Final[collections.deque[closures.Closure]] = collections.deque()
        """Closures for this worker alone."""
        self.empty: Final[set[int]] = set()
        """Streams that this worker has exhausted."""
        self.positions: Final[dict[int, int]] = {}
        """Number of items that the worker has drawn from each dataset in closures that ended."""
        self.released: Final[collections.deque[int]] = collections.deque()
        """Datasets and values that the worker may drop."""
        self.redealt: Final[set[int]] = set()
        """Datasets that the worker must open again, because their remaining items are dealt once more."""

    def fits(self, kind: _Kind) -> bool:
        """Tell whether the worker may have items for closures of a kind."""
        return kind[0].isdisjoint(self.empty) and self.index not in kind[1]

    def list_sent(self) -> list[closures.Closure]:
        """Return the closures that the worker has."""
        return [closure for _, batch in self.sent for _, closure in batch]

    def cancel_private(self, reason: str) -> None:
        """Cancel the closures for this worker alone."""
        while self.private:
            self.private.popleft().cancel(reason)


@final
class ClosureScheduler:
    """The closures of a coordinator; at most `max_queued` may wait. All fields change under `condition`."""

    def __init__(self, max_queued: int) -> None:
        self.condition: Final = SchedulerCondition()
        self.workers: Final[dict[int, WorkerState]] = {}
        self.num_workers = 0
        """Number of workers ever started; the next worker's index."""
        self.inputs: Final = inputs.Inputs()
        self.failures: list[Exception] = []
        self.finished = 0
        self.restarts = 0
        self.out_of_data = 0
        self.seconds = 0.0
        self.last_end = time.monotonic()
        """The time when a closure last ended, or when the first closure came after a time without any."""
        self.is_closed = False
        self.scheduled_at = -math.inf
        """The time when the last closure was scheduled."""
        self.before_work: Final[list[Callable[[], None]]] = []
        """Functions to call, with the lock held, before new work is added."""
        self._is_polled = False
        self._max_queued = max_queued
        self._queue = Queue()
        self._removed: dict[int, dict[int, int]] = {}
        """Number of items that removed workers drew from each dataset, by worker."""
        self._running: set[closures.Closure] = set()
        """Closures that workers have, or that are on their way to a worker."""
        self._blocked: dict[int, closures.Closure] = {}
        """Closures that wait for values, by number."""
        self._ready: collections.deque[closures.Closure] = collections.deque()
        """Closures whose values have become ready."""
        self._open: set[int] = set()
        """Numbers of the closures that have not ended."""
        self._count = 0
        self._lowest = 0
        """A bound: no open closure has a lower number."""

    # -- the coordinator's side --

    def schedule(
        self, function: closures.Function, args: tuple[object, ...], kwargs: Mapping[str, object], drawn: frozenset[int]
    ) -> closures.RemoteValue:
        """Put a closure into the queue."""
        with self.condition:
            self._wait(lambda: bool(self.failures) or len(self._queue) + len(self._blocked) < self._max_queued)
            self.raise_failures(wait=True)
            result = closures.RemoteValue(self.condition, function.name)
            closure = closures.Closure(self._count, function.name, function, args, kwargs, drawn, weakref.ref(result))
            self.scheduled_at, self._is_polled = time.monotonic(), False
            for tell in self.before_work:
                tell()
            if not self._open:
                self.last_end = time.monotonic()
            self._count += 1
            self._open.add(closure.number)
            try:
                if closure.watch():
                    self._ready.append(closure)
                    self._settle()
                else:
                    self._blocked[closure.number] = closure
            except BaseException:  # a Ctrl-C: the caller gets no result, so no join may wait for the closure
                self._open.discard(closure.number)
                raise
            self.condition.notify_all()
        return result

    def ask_all(self, function: closures.Function, args: tuple[Any, ...]) -> list[closures.RemoteValue]:
        """Run a function on each worker, before all waiting closures. These closures are private: `join` does not wait
        for them, and only the holders of their results see errors."""
        results = []
        with self.condition:
            self.check_open()
            for _, one in sorted(self.workers.items()):
                result = closures.RemoteValue(self.condition, function.name)
                drawn = frozenset(one.number for one in args)
                closure = closures.Closure(
                    -1, function.name, function, args, {}, drawn, weakref.ref(result), is_private=True
                )
                one.private.append(closure)
                results.append(result)
            self.condition.notify_all()
        return results

    def join(self, timeout: float | None) -> bool:
        """Wait until all closures scheduled so far have ended; return whether they have."""
        with self.condition:
            last = self._count
            is_over = self._wait(lambda: bool(self.failures) or self._find_lowest() >= last, timeout)
            self.raise_failures(wait=True)
            return is_over

    def is_done(self) -> bool:
        """Tell whether all closures have ended."""
        with self.condition:
            if not self._is_polled:
                self._is_polled = True
                self.condition.notify_all()
            self.check_open()
            self.raise_failures(wait=False)
            return not self._open

    @property
    def is_awaited(self) -> bool:
        """Whether the program waits for closures, or polls whether they are done. Then it schedules no more for now."""
        return self._is_polled or self.condition.num_awaiting > 0

    def raise_failures(self, *, wait: bool) -> None:
        """Raise the errors of closures, once no closure runs any more.

        Args:
            wait: Whether to wait for running closures; otherwise no error is raised while some run.
        """
        while self.failures:  # another thread may raise them during the wait
            self._cancel_waiting(_AFTER_FAILURE)
            if self._open:
                if not wait:
                    return
                self._wait(lambda: not self._open or not self.failures)
                continue
            failures, self.failures = self.failures, []
            raise errors.ClosureFailures(f"{len(failures)} of the scheduled closures failed", failures)

    def statistics(self) -> dict[str, int | float]:
        """Return counts."""
        with self.condition:
            return {
                "queued_closures": len(self._queue) + len(self._blocked),
                "inflight_closures": self.count_sent(),
                "finished_closures": self.finished,
                "scheduled_closures": self._count,
                "recoverable_worker_failure_count": self.restarts,
                "out_of_data": self.out_of_data,
                "closure_execution_seconds": self.seconds,
            }

    def count_sent(self) -> int:
        """Return the number of closures that the workers have."""
        return sum(len(batch) for one in self.workers.values() for _, batch in one.sent)

    def close(self) -> None:
        """Accept no more closures, and cancel those that wait."""
        with self.condition:
            self.is_closed = True
            self._cancel_waiting(AT_CLOSE)
            self.condition.notify_all()

    def remove_worker(self, index: int) -> None:
        """Forget a worker that has finished its closures. Called with the lock held."""
        self._removed[index] = self.workers.pop(index).positions
        self._settle()  # it may have been the last with data for some closures
        self.condition.notify_all()

    def describe(self) -> dict[str, Any]:
        """Return the scheduler's progress, as JSON allows, for `restore`."""
        with self.condition:
            return {
                "finished": self.finished,
                "passes": self.inputs.describe_passes(self._list_positions(), self._removed),
            }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from the progress of another scheduler."""
        self.inputs.restore(kept["passes"])
        self.finished = int(kept["finished"])

    def begin_calls(self, source: contract.ObjectRef[streams.FromFunction]) -> streams.PerWorkerIterator:
        """Begin a pass over the items that a function returns. See `inputs.Inputs.begin_calls`."""
        with self.condition:
            return self.inputs.begin_calls(source, self._list_positions())

    def _list_positions(self) -> dict[int, dict[int, int]]:
        return {index: one.positions for index, one in self.workers.items()}

    # -- the dispatchers' side, under the lock --

    def take(self, worker: WorkerState, count: int) -> list[closures.Closure]:
        """Return closures for a worker: a private one, or else up to `count` from the queue."""
        if worker.private:
            return [worker.private.popleft()]
        if self.failures:
            return []
        taken: list[closures.Closure] = []
        while len(taken) < count and (closure := self._queue.pop(worker)) is not None:
            taken.append(closure)
        self._running.update(taken)
        if taken:
            worker.num_taken += len(taken)
            self.condition.notify_all()  # there is room in the queue
        return taken

    def count_queued(self) -> int:
        """Return the number of closures that could be sent."""
        return 0 if self.failures else len(self._queue)

    def has_idle(self) -> bool:
        """Tell whether some worker is idle although there is work for it."""
        return any(not one.sent and self.has_work(one) for one in self.workers.values() if not one.is_leaving)

    def goes_first(self, worker: WorkerState) -> bool:
        """Tell whether no idle worker with work for it has taken fewer closures than this worker."""
        return not any(
            one.num_taken < worker.num_taken and not (one.sent or one.is_leaving) and self.has_work(one)
            for one in self.workers.values()
        )

    def has_work(self, worker: WorkerState) -> bool:
        """Tell whether there is work for a worker."""
        return bool(worker.private) or (not self.failures and self._queue.has(worker))

    def end(self, closure: closures.Closure, value: Any, error: Exception | None) -> None:
        """Note a closure's outcome."""
        self._note_end(closure, value, error)
        self._settle()
        self.condition.notify_all()

    def abandon(self, closure: closures.Closure) -> None:
        """Cancel a closure whose worker was ended in the middle of it, because the scheduler closes."""
        self._cancel(closure, AT_CLOSE)
        self.condition.notify_all()

    def return_undrawn(self, closure: closures.Closure, worker: WorkerState, stream: int, put_back: int) -> None:
        """Return a closure to the queue, because the worker's stream has too few items. Another worker may run it.

        Args:
            closure: The closure.
            worker: The worker with too few items.
            stream: The number of the stream.
            put_back: The number of items that the worker has. 0: the stream is empty for all closures.
        """
        self._running.discard(closure)
        if put_back:
            closure.tried |= {worker.index}
        else:
            worker.empty.add(stream)
        if self.failures:
            self._cancel(closure, _AFTER_FAILURE)
        else:
            self._queue.put_back(closure)
        self._settle()
        self.condition.notify_all()

    def release_inputs(self) -> None:
        """Let the workers drop datasets and values without a holder."""
        for number in self.inputs.take_released():
            for one in self.workers.values():
                one.released.append(number)

    def _end_undrawn_closures(self) -> bool:
        """End the closures that no worker has data for, once no running closure can put items back. Return whether this
        makes other closures ready."""
        living = [one for one in self.workers.values() if not one.is_leaving]
        for kind in self._queue.list_kinds():
            drawn, _ = kind
            if any(one.fits(kind) for one in living):
                continue
            if not any(drawn & closure.streams for closure in self._running) and not self._deal_left(drawn, living):
                for closure in self._queue.remove(kind):
                    self._end_undrawn(closure)
        return bool(self._ready)

    def _deal_left(self, drawn: frozenset[int], living: list[WorkerState]) -> bool:
        """Give one worker the remaining items of dealt datasets that no worker can reach; return whether there were
        any.
        """
        positions = {**self._removed, **self._list_positions()}
        dealt = {
            stream
            for stream in drawn
            if self.inputs.is_scattered(
                stream,
                positions,
                {one.index for one in living},
                {one.index for one in living if stream not in one.empty},
            )
        }
        receiver = next((one for one in living if one.empty.isdisjoint(drawn - dealt)), None)
        if not dealt or receiver is None:
            return False
        for stream in dealt:
            self.inputs.deal_left(stream, positions)
            for one in self.workers.values():
                one.redealt.add(stream)
                one.empty.add(stream)
            receiver.empty.discard(stream)
            self._queue.forget_tries(stream)
        return True

    def _end_undrawn(self, closure: closures.Closure) -> None:
        self.out_of_data += 1
        error = errors.OutOfDataError(
            f"{closure.name} did not run: no worker has items left in its dataset. Begin another pass: iterator = "
            "iter(dataset)."
        )
        self._open.discard(closure.number)
        self.last_end = time.monotonic()
        self._ready += closure.finish(None, error)

    def _note_end(self, closure: closures.Closure, value: object, error: Exception | None) -> None:
        self._ready += closure.finish(value, error)
        if closure.is_private:
            return
        self._running.discard(closure)
        self._open.discard(closure.number)
        self.last_end = time.monotonic()
        if error is None:
            self.finished += 1
        elif not self.is_closed:
            self.failures.append(error)
            self._cancel_waiting(_AFTER_FAILURE)

    def _settle(self) -> None:
        """Move closures whose values are ready into the queue. A closure that cannot run because of its values may make
        other closures ready in turn."""
        while self._ready or self._end_undrawn_closures():
            closure = self._ready.popleft()
            if closure.function is None:  # cancelled meanwhile
                continue
            self._blocked.pop(closure.number, None)
            try:
                closure.fill()
            except (
                errors.OutOfDataError
            ):  # a value that it needs never came to be, so the closure cannot run either; this is no failure
                self._end_undrawn(closure)
            except Exception as error:  # a needed value is an error: so is this one
                self._note_end(closure, None, error)
            else:
                self._queue.put(closure)

    def _cancel_waiting(self, reason: str) -> None:
        waiting = [*self._queue.clear(), *self._blocked.values()]
        self._blocked.clear()
        for closure in waiting:
            self._cancel(closure, reason)
        if waiting:
            self.condition.notify_all()

    def _cancel(self, closure: closures.Closure, reason: str) -> None:
        self._running.discard(closure)
        self._open.discard(closure.number)
        closure.cancel(reason)

    def _find_lowest(self) -> int:
        while self._lowest < self._count and self._lowest not in self._open:
            self._lowest += 1
        return self._lowest

    def check_open(self) -> None:
        """Raise a RuntimeError if the scheduler is closed."""
        if self.is_closed:
            raise RuntimeError(
                "The coordinator is closed, or its session has ended. Make a new one: ps.Coordinator(strategy)."
            )

    def _wait(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            self.check_open()
            if predicate():
                return True
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            with self.condition.awaited():
                self.condition.wait(interrupts.LOOK_SECONDS if left is None else min(left, interrupts.LOOK_SECONDS))
