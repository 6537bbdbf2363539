"""The coordinator's desk: closures that wait, and a lane for each worker.

A lane is a thread that keeps its worker busy: it takes closures from the common queue, as many at once as the worker ends in a few milliseconds, sends them,
and sends the next before the first have come back, so that a worker never waits for the coordinator. A worker that is faster takes more.

**A worker's death.** Its lane starts another worker of the same index and sends it what was not answered, in the same order and with the same numbers.
Pushes that were applied before are known by them and dropped, and each dataset goes on where it was (`streams`). So a closure can run more than once, but what it
does to variables happens once. A closure never moves to another worker once it was sent.

**An error.** No further closure is sent; what was sent is waited for; what waits is cancelled. Then `join`, `done` or `schedule` raises all errors in one group,
once, and the desk works on.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from hocket import exceptions
from hocket.core import actor, api
from hocket.engine import values
from hocket.ps import access, closures, errors, worker

DEPTH: Final = 2
"""How many batches a worker has at once: one that it runs, and one that waits there."""

BATCH_SECONDS: Final = 0.005
"""How long a batch should take: short, so that workers share evenly what is left, and long against the 100 us that sending costs. A guess."""

MAX_BATCH: Final = 256

MAX_DEATHS: Final = 20
"""How many workers in a row may die in the middle of one closure, before the closure is given up. A guess: preemption kills a few, a closure that crashes its
process kills all."""


@final
class Desk:
    """What the lanes share. All fields change under `condition`.

    Args:
        max_queued: How many closures may wait.
        options: What each worker's actor holds.
        gate: The strategy's.
        is_synchronous: Whether the gate must know which workers have something to do.
    """

    def __init__(
        self, max_queued: int, options: Mapping[str, Any], gate: access.GateAccess, *, is_synchronous: bool
    ) -> None:
        self.condition: Final = threading.Condition()
        self.options = options
        self.gate = gate
        self.is_synchronous = is_synchronous
        self.lanes: dict[int, Lane] = {}
        self.num_workers = 0
        self.functions: list[Any] = []
        self.sources: dict[int, Any] = {}
        self.failures: list[Exception] = []
        self.finished = 0
        self.restarts = 0
        self.out_of_data = 0
        self.is_closed = False
        self._max_queued = max_queued
        self._queue: collections.deque[closures.Closure] = collections.deque()
        self._blocked: list[closures.Closure] = []
        self._open: dict[int, None] = {}
        """Closures that have not ended, by number."""
        self._count = 0

    # -- the coordinator's side --

    def schedule(
        self, function: int, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], drawn: frozenset[int]
    ) -> closures.RemoteValue:
        """Put a closure into the queue."""
        with self.condition:
            self._wait(lambda: bool(self.failures) or len(self._queue) + len(self._blocked) < self._max_queued)
            self.raise_failures(wait=True)
            result = closures.RemoteValue(self.condition, name)
            closure = closures.Closure(self._count, function, name, args, kwargs, drawn, result)
            self._count += 1
            self._open[closure.number] = None
            if closure.waits_for and not closure.is_ready:
                self._blocked.append(closure)
            else:
                self._enqueue(closure)
            self.condition.notify_all()
        return result

    def join(self, timeout: float | None) -> bool:
        """Wait until all closures that are there now have ended; return whether they have."""
        with self.condition:
            last = self._count
            is_over = self._wait(
                lambda: bool(self.failures) or not self._open or next(iter(self._open)) >= last, timeout
            )
            self.raise_failures(wait=True)
            return is_over

    def is_done(self) -> bool:
        """Tell whether nothing is left to do."""
        with self.condition:
            self.raise_failures(wait=False)
            return not self._open

    def raise_failures(self, *, wait: bool) -> None:
        """Raise what closures have raised, once no closure runs any more.

        Args:
            wait: Whether to wait for those that run; else nothing is raised as long as some do.
        """
        if not self.failures:
            return
        self._cancel_waiting()
        if wait:
            self._wait(lambda: not self._open)
        if self._open:
            return
        failures, self.failures = self.failures, []
        raise errors.ClosureFailures(f"{len(failures)} of the scheduled closures failed", failures)

    def statistics(self) -> dict[str, int]:
        """Return counts."""
        with self.condition:
            return {
                "queued_closures": len(self._queue) + len(self._blocked),
                "inflight_closures": sum(lane.count_sent() for lane in self.lanes.values()),
                "finished_closures": self.finished,
                "scheduled_closures": self._count,
                "recoverable_worker_failure_count": self.restarts,
                "out_of_data": self.out_of_data,
            }

    def close(self) -> None:
        """End the lanes and their workers. What waits is cancelled."""
        with self.condition:
            self.is_closed = True
            self._cancel_waiting()
            self.condition.notify_all()
        for lane in list(self.lanes.values()):
            lane.stop()

    # -- the lanes' side, under the lock --

    def take(self, lane: Lane, count: int) -> list[closures.Closure]:
        """Return closures for a worker."""
        if self.failures:
            return []
        taken: list[closures.Closure] = []
        skipped: list[closures.Closure] = []
        while self._queue and len(taken) < count:
            closure = self._queue.popleft()
            if closure.streams and not closure.streams.isdisjoint(lane.empty):
                skipped.append(closure)
            else:
                taken.append(closure)
        self._queue.extendleft(reversed(skipped))
        if taken:
            self.condition.notify_all()  # there is room in the queue
        return taken

    def count_queued(self) -> int:
        """Return how many closures could be sent."""
        return 0 if self.failures else len(self._queue)

    def has_work(self, lane: Lane) -> bool:
        """Tell whether something in the queue is for a worker."""
        if self.failures:
            return False
        if not lane.empty:
            return bool(self._queue)
        return any(closure.streams.isdisjoint(lane.empty) for closure in self._queue)

    def end(self, closure: closures.Closure, value: Any, error: Exception | None) -> None:
        """Note what became of a closure."""
        self._open.pop(closure.number, None)
        closure.finish(value, error)
        if error is None:
            self.finished += 1
        else:
            self.failures.append(error)
            self._cancel_waiting()
        self._unblock()
        self.condition.notify_all()

    def return_undrawn(self, closure: closures.Closure, lane: Lane, stream: int) -> None:
        """A worker's stream is empty: have another worker run the closure, or none."""
        lane.empty.add(stream)
        if any(stream not in other.empty for other in self.lanes.values() if not other.is_leaving):
            self._queue.appendleft(closure)
        else:
            self._end_undrawn(closure)
            for waiting in [one for one in self._queue if stream in one.streams]:
                self._queue.remove(waiting)
                self._end_undrawn(waiting)
        self.condition.notify_all()

    def _end_undrawn(self, closure: closures.Closure) -> None:
        self._open.pop(closure.number, None)
        self.out_of_data += 1
        closure.finish(
            None,
            errors.OutOfDataError(
                f"{closure.name} did not run: no worker has items left in its dataset. Begin another pass: iterator = iter(dataset)."
            ),
        )
        self._unblock()

    def _enqueue(self, closure: closures.Closure) -> None:
        try:
            closure.fill()
        except Exception as error:  # noqa: BLE001 (a value that it needs is an error: so is it)
            self._open.pop(closure.number, None)
            closure.finish(None, error)
            if not isinstance(error, errors.CancelledClosureError | errors.OutOfDataError):
                self.condition.notify_all()
            return
        if closure.streams and all(not closure.streams.isdisjoint(lane.empty) for lane in self.lanes.values()):
            self._end_undrawn(closure)
            return
        self._queue.append(closure)

    def _unblock(self) -> None:
        ready = [closure for closure in self._blocked if closure.is_ready]
        if ready:
            self._blocked = [closure for closure in self._blocked if not closure.is_ready]
            for closure in ready:
                self._enqueue(closure)

    def _cancel_waiting(self) -> None:
        waiting = [*self._queue, *self._blocked]
        self._queue.clear()
        self._blocked.clear()
        for closure in waiting:
            self._open.pop(closure.number, None)
            closures.cancel(closure)
        if waiting:
            self.condition.notify_all()

    def _wait(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not predicate():
            if self.is_closed:
                raise RuntimeError(
                    "The coordinator was closed while this waited. Make a new one: ps.Coordinator(strategy)."
                )
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self.condition.wait(left)
        return True


@final
class Lane:
    """A worker, with the thread that keeps it busy.

    Args:
        desk: What it shares with the others.
        index: Which worker.
    """

    def __init__(self, desk: Desk, index: int) -> None:
        self._desk = desk
        self.index: Final = index
        self.empty: set[int] = set()
        """Streams from which the worker has drawn everything."""
        self.is_leaving = False
        self.executed = 0
        self._is_idle = False
        self._positions: dict[int, int] = {}
        self._sequence = 0
        self._seconds = BATCH_SECONDS
        """How long a closure takes here, about."""
        self._sent: collections.deque[tuple[Any, list[tuple[worker.Call, closures.Closure]]]] = collections.deque()
        self._known: set[int] = set()
        self._opened: set[int] = set()
        self.handle = self._start()
        self._thread = threading.Thread(target=self._run, name=f"hocket-ps-lane-{index}", daemon=True)
        self._thread.start()

    def count_sent(self) -> int:
        """Return how many closures its worker has."""
        return sum(len(batch) for _, batch in self._sent)

    def leave(self) -> None:
        """End once the worker has done what it has."""
        with self._desk.condition:
            self.is_leaving = True
            self._desk.condition.notify_all()
        self._thread.join()
        self._end_worker()

    def stop(self) -> None:
        """End now; the desk is closed."""
        self._end_worker()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- the thread --

    def _run(self) -> None:
        desk = self._desk
        while True:
            with desk.condition:
                while not (desk.is_closed or self.is_leaving or self._sent or desk.has_work(self)):
                    self._say_idle(is_idle=True)
                    desk.condition.wait()
                if desk.is_closed or (self.is_leaving and not self._sent):
                    return
                batch: list[closures.Closure] = []
                if len(self._sent) < DEPTH and not self.is_leaving:
                    batch = desk.take(self, self._choose_size())
            if batch:
                self._say_idle(is_idle=False)
                self._send([(self._make_call(closure), closure) for closure in batch])
                if len(self._sent) < DEPTH and desk.count_queued():
                    continue
            if self._sent:
                self._receive()

    def _say_idle(self, *, is_idle: bool) -> None:
        """Tell the gate whether synchronous steps should wait for this worker."""
        if self._desk.is_synchronous and is_idle != self._is_idle:
            self._is_idle = is_idle
            self._desk.gate.set_idle(self.index, is_idle)

    def _choose_size(self) -> int:
        if self._desk.is_synchronous:
            return 1  # a second one would wait for workers that might have none
        fair = -(-self._desk.count_queued() // (DEPTH * max(1, len(self._desk.lanes))))
        return max(1, min(fair, int(BATCH_SECONDS / max(self._seconds, 1e-6)), MAX_BATCH))

    def _make_call(self, closure: closures.Closure) -> worker.Call:
        self._sequence += 1
        return worker.Call(self._sequence, closure.function, closure.args, closure.kwargs)

    def _send(self, batch: list[tuple[worker.Call, closures.Closure]]) -> None:
        for call, closure in batch:
            if call.function not in self._known:
                self._known.add(call.function)
                self.handle.learn.remote(call.function, self._desk.functions[call.function])
            for number in closure.streams - self._opened:
                self._opened.add(number)
                self.handle.open_stream.remote(number, self._desk.sources[number])
        try:
            ref: Any = self.handle.run.remote([call for call, _ in batch])
        except exceptions.ActorError:  # dead already: found out when the answer is asked for
            ref = None
        except Exception as error:  # noqa: BLE001 (an argument that cannot be sent)
            with self._desk.condition:
                for _, closure in batch:
                    self._desk.end(closure, None, error)
            return
        with self._desk.condition:
            self._sent.append((ref, batch))

    def _receive(self) -> None:
        ref, batch = self._sent[0]
        try:
            if ref is None:
                raise exceptions.ActorUnavailableError("the worker died before it could be asked")
            found: worker.Batch = api.get(ref)
        except exceptions.ActorError as error:
            self._replace(error)
            return
        except Exception as error:  # noqa: BLE001 (the session is closed, or an argument cannot be read there)
            self._give_up(batch, error)
            return
        seconds = max(found.seconds, 1e-7) / len(batch)
        self._seconds += 0.3 * (seconds - self._seconds)
        desk = self._desk
        with desk.condition:
            self._sent.popleft()
            self._positions.update(found.positions)
            for (_, closure), answer in zip(batch, found.answers, strict=True):
                self._note(closure, answer)

    def _note(self, closure: closures.Closure, answer: worker.Answer) -> None:
        desk = self._desk
        if answer.kind == worker.VALUE:
            self.executed += 1
            desk.end(closure, answer.value, None)
        elif answer.kind == worker.OUT_OF_DATA and not answer.pushes:
            desk.return_undrawn(closure, self, answer.value)
        elif answer.kind == worker.OUT_OF_DATA:
            desk.end(
                closure,
                None,
                errors.OutOfDataError(
                    f"{closure.name} ran out of data on worker {self.index} after it had pushed {answer.pushes} times. Draw before the first push."
                ),
            )
        else:
            error: Any = values.decode(answer.value)
            if answer.kind == worker.BAD_INPUT:
                error.add_note(
                    f"(it was raised by the dataset or value of worker {self.index} that {closure.name} uses)"
                )
            desk.end(closure, None, _unwrap(error))

    def _give_up(self, batch: list[tuple[worker.Call, closures.Closure]], error: Exception) -> None:
        with self._desk.condition:
            self._sent.popleft()
            for _, closure in batch:
                self._desk.end(closure, None, error)

    # -- a worker's death --

    def _replace(self, error: exceptions.ActorError) -> None:
        """Start another worker, and send it what was not answered."""
        desk = self._desk
        with desk.condition:
            if desk.is_closed:
                self._sent.clear()
                return
            desk.restarts += 1
            batches = [batch for _, batch in self._sent]
            self._sent.clear()
            suspect = batches[0][0][1]
            suspect.deaths += 1
            if suspect.deaths >= MAX_DEATHS:
                failure = errors.ClosureError(
                    f"{suspect.name} was given up: {suspect.deaths} workers in a row died in the middle of it or of what was sent with it. The last one: {error}"
                )
                desk.end(suspect, None, failure)
                batches[0] = batches[0][1:]
        desk.gate.forget(self.index)
        self._known.clear()
        self._opened.clear()
        self._seconds = BATCH_SECONDS
        self.handle = self._start()
        for batch in batches:
            if batch:
                self._send(batch)

    def _start(self) -> actor.ActorHandle:
        return worker.start(self.index, self._desk.num_workers, self._positions, self._desk.options)

    def _end_worker(self) -> None:
        try:
            api.kill(self.handle)
        except Exception:  # noqa: BLE001 (the session is closed, which has ended it)
            return


def _unwrap(error: Any) -> Exception:
    """Return what the user's code raised, as an error that tells where."""
    found: Any = error.as_instanceof_cause() if isinstance(error, exceptions.TaskError) else error
    return found  # type: ignore[no-any-return]  # what can be sent is an Exception
