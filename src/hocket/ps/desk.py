"""The coordinator's desk: closures that wait, and a lane for each worker.

A lane is a thread that keeps its worker busy: it takes closures from the common queue, as many at once as the worker ends in a few milliseconds, sends them,
and sends the next before the first have come back, so that a worker never waits for the coordinator. A worker that is faster takes more.

**A worker's death.** Its lane starts another worker of the same index and sends it what was not answered, in the same order and with the same numbers.
Pushes that were applied before are known by them and dropped, and each dataset goes on where it was (`streams`). So a closure can run more than once, but what it
does to variables happens once. A closure never moves to another worker once it was sent.

**An error.** No further closure is sent; what was sent is waited for; what waits is cancelled. Then `join`, `done` or `schedule` raises all errors in one group,
once, and the desk works on.

**The end.** Closures that have not ended are cancelled, those that run too: their workers are killed. It comes with `close`, with the session's end, and when
nobody holds the coordinator any more.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from hocket import exceptions, texts
from hocket.core import actor, api
from hocket.engine import values
from hocket.ps import closures, errors, gate, queue, streams, worker

DEPTH: Final = 2
"""How many batches a worker has at once: one that it runs, and one that waits there."""

BATCH_SECONDS: Final = 0.005
"""How long a batch should take: short, so that workers share evenly what is left, and long against the 100 us that sending costs. A guess."""

MAX_BATCH: Final = 256

MAX_FUNCTIONS: Final = 2 * MAX_BATCH
"""How many functions a worker knows at once: those of a batch, and as many that may come again."""

_AHEAD_SECONDS: Final = 0.1
"""A worker whose closures take longer gets the next one when it has ended this one: there is little to be gained, and another may be free sooner. A guess."""

MAX_DEATHS: Final = 20
"""How many workers in a row may die in the middle of one closure, before the closure is given up. A guess: preemption kills a few, a closure that crashes its
process kills all."""

_RETRY_SECONDS: Final = 0.01

_AFTER_FAILURE: Final = "another closure failed before it. What failed is raised by join(), done() or schedule(), once; schedule it again then."

_AT_CLOSE: Final = "the coordinator was closed, or the session has ended. What it did to variables before, it did."

_log = logging.getLogger("hocket.ps")


@final
class Desk:
    """What the lanes share. All fields change under `condition`.

    Args:
        max_queued: How many closures may wait.
        options: What each worker's actor holds.
        gate: The strategy's.
        first_sequence: Above which number the workers' closures are counted, so that no number comes twice with these servers.
        is_synchronous: Whether the gate must know which workers have something to do.
        is_watched: Whether workers can be asked for their stacks.
    """

    def __init__(
        self,
        max_queued: int,
        options: Mapping[str, Any],
        gate: gate.Gate,
        first_sequence: int = 0,
        *,
        is_synchronous: bool = False,
        is_watched: bool = False,
    ) -> None:
        self.condition: Final = threading.Condition()
        self.options = options
        self.gate = gate
        self.first_sequence: Final = first_sequence
        self.is_synchronous: Final = is_synchronous
        self.is_watched: Final = is_watched
        self.lanes: dict[int, Lane] = {}
        self.helpers: list[threading.Thread] = []
        """Threads that end when it is closed."""
        self.num_workers = 0
        """How many workers there ever were; the next one's index."""
        self.sources: dict[int, tuple[Any, Any]] = {}
        """What makes each dataset and value: a reference to it, and what must be kept for it."""
        self.released: collections.deque[int] = collections.deque()
        """Datasets and values that nobody holds any more. Filled at any moment, without the lock."""
        self.failures: list[Exception] = []
        self.finished = 0
        self.restarts = 0
        self.out_of_data = 0
        self.seconds = 0.0
        self.last_end = time.monotonic()
        """When a closure ended, or the first began after none was left."""
        self.is_closed = False
        self._max_queued = max_queued
        self._queue = queue.Queue()
        self._blocked: dict[int, closures.Closure] = {}
        """Closures that wait for values, by number."""
        self._ready: collections.deque[closures.Closure] = collections.deque()
        """Those whose values are there now."""
        self._open: set[int] = set()
        """Closures that have not ended, by number."""
        self._count = 0
        self._lowest = 0
        """No open closure has a lower number."""

    # -- the coordinator's side --

    def schedule(
        self, function: closures.Function, args: tuple[Any, ...], kwargs: Mapping[str, Any], drawn: frozenset[int]
    ) -> closures.RemoteValue:
        """Put a closure into the queue."""
        with self.condition:
            self._wait(lambda: bool(self.failures) or len(self._queue) + len(self._blocked) < self._max_queued)
            self.raise_failures(wait=True)
            result = closures.RemoteValue(self.condition, function.name)
            closure = closures.Closure(self._count, function, args, kwargs, drawn, result)
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
            except BaseException:  # a Ctrl-C: nobody has the result, and nobody must wait for it
                self._open.discard(closure.number)
                raise
            self.condition.notify_all()
        return result

    def ask(self, lane: Lane, function: closures.Function, args: tuple[Any, ...]) -> closures.RemoteValue:
        """Have one worker run something before all that waits. It is no closure of the user's: nobody waits for it but who holds the result."""
        with self.condition:
            self.check_open()
            result = closures.RemoteValue(self.condition, function.name)
            drawn = frozenset(one.number for one in args)
            lane.private.append(closures.Closure(-1, function, args, {}, drawn, result, is_private=True))
            self.condition.notify_all()
        return result

    def join(self, timeout: float | None) -> bool:
        """Wait until all closures that are there now have ended; return whether they have."""
        with self.condition:
            last = self._count
            is_over = self._wait(lambda: bool(self.failures) or self._find_lowest() >= last, timeout)
            self.raise_failures(wait=True)
            return is_over

    def is_done(self) -> bool:
        """Tell whether nothing is left to do."""
        with self.condition:
            self.check_open()
            self.raise_failures(wait=False)
            return not self._open

    def raise_failures(self, *, wait: bool) -> None:
        """Raise what closures have raised, once no closure runs any more.

        Args:
            wait: Whether to wait for those that run; else nothing is raised as long as some do.
        """
        while self.failures:  # while it waits, another thread may raise them
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
        """Return how many closures the workers have."""
        return sum(lane.count_sent() for lane in self.lanes.values())

    def close(self) -> None:
        """End the lanes and their workers. What has not ended is cancelled."""
        with self.condition:
            self.is_closed = True
            self._cancel_waiting(_AT_CLOSE)
            self.condition.notify_all()
        for lane in list(self.lanes.values()):
            lane.stop()
        for helper in self.helpers:
            if helper is not threading.current_thread():
                helper.join()
        with self.condition:
            self.lanes.clear()  # lanes and desk hold each other
            for _, kept in self.sources.values():
                if kept is not None:
                    kept.close()
            self.sources.clear()
            self.lanes.clear()  # they know the desk: the cycle would keep the gate's memory until somebody collects garbage

    def add_lane(self) -> int:
        """Start one more worker; return its index."""
        with self.condition:
            self.check_open()
            index = self.num_workers
            self.num_workers += 1
        lane = Lane(self, index)
        with self.condition:
            self.lanes[index] = lane
            self._count_workers()
        lane.begin()
        return index

    def remove_lane(self, index: int) -> None:
        """End a worker, after it has done what it has."""
        lane = self.lanes[index]
        lane.leave()
        with self.condition:
            del self.lanes[index]
            self._count_workers()
            for stream in set().union(*(other.empty for other in self.lanes.values())):
                self._end_if_undrawn(stream)  # it may have been the last with data for them
            self._settle()
            self.condition.notify_all()

    def get_positions(self, number: int) -> dict[int, int]:
        """Return how many items of a dataset each worker has drawn in closures that ended."""
        with self.condition:
            return {index: lane.get_position(number) for index, lane in self.lanes.items()}

    def set_positions(self, number: int, positions: Mapping[int, int]) -> None:
        """Have workers begin a dataset, of which nothing was drawn yet, where others stopped."""
        with self.condition:
            for index, position in positions.items():
                self.lanes[index].set_position(number, position)

    def _count_workers(self) -> None:
        if self.is_synchronous:
            self.gate.set_workers(len(self.lanes))

    # -- the lanes' side, under the lock --

    def take(self, lane: Lane, count: int) -> list[closures.Closure]:
        """Return closures for a worker: its own, or else such as anybody may run."""
        if lane.private:
            return [lane.private.popleft()]
        if self.failures:
            return []
        taken: list[closures.Closure] = []
        while len(taken) < count and (closure := self._queue.pop(lane.empty)) is not None:
            taken.append(closure)
        if taken:
            self.condition.notify_all()  # there is room in the queue
        return taken

    def count_queued(self) -> int:
        """Return how many closures could be sent."""
        return 0 if self.failures else len(self._queue)

    def has_idle(self) -> bool:
        """Tell whether some worker has nothing to do, though there is something for it."""
        return any(not lane.has_sent and self.has_work(lane) for lane in self.lanes.values() if not lane.is_leaving)

    def has_work(self, lane: Lane) -> bool:
        """Tell whether there is something for a worker."""
        return bool(lane.private) or (not self.failures and self._queue.has(lane.empty))

    def end(self, closure: closures.Closure, value: Any, error: Exception | None) -> None:
        """Note what became of a closure."""
        self._note_end(closure, value, error)
        self._settle()
        self.condition.notify_all()

    def abandon(self, closure: closures.Closure) -> None:
        """A worker was ended in the middle of a closure, as all are."""
        self._open.discard(closure.number)
        closure.cancel(_AT_CLOSE)
        self.condition.notify_all()

    def return_undrawn(self, closure: closures.Closure, lane: Lane, stream: int) -> None:
        """A worker's stream is empty: have another worker run the closure, or none."""
        lane.empty.add(stream)
        if self.failures:
            self._open.discard(closure.number)
            closure.cancel(_AFTER_FAILURE)
        else:
            self._queue.put_back(closure)
        self._end_if_undrawn(stream)
        self._settle()
        self.condition.notify_all()

    def release_inputs(self) -> None:
        """Have the workers let go of datasets and values that nobody holds any more."""
        while self.released:
            number = self.released.popleft()
            self.sources.pop(number, None)
            for lane in self.lanes.values():
                lane.released.append(number)

    def _end_if_undrawn(self, stream: int) -> None:
        """End the closures that no worker has data for."""
        if any(stream not in lane.empty for lane in self.lanes.values() if not lane.is_leaving):
            return
        for closure in self._queue.remove(stream):
            self._end_undrawn(closure)

    def _end_undrawn(self, closure: closures.Closure) -> None:
        self.out_of_data += 1
        error = errors.OutOfDataError(
            f"{closure.name} did not run: no worker has items left in its dataset. Begin another pass: iterator = iter(dataset)."
        )
        self._open.discard(closure.number)
        self.last_end = time.monotonic()
        self._ready += closure.finish(None, error)

    def _note_end(self, closure: closures.Closure, value: Any, error: Exception | None) -> None:
        self._ready += closure.finish(value, error)
        if closure.is_private:
            return
        self._open.discard(closure.number)
        self.last_end = time.monotonic()
        if error is None:
            self.finished += 1
        elif not self.is_closed:
            self.failures.append(error)
            self._cancel_waiting(_AFTER_FAILURE)

    def _settle(self) -> None:
        """Put closures into the queue whose values are there. One that cannot run for these may let others run, or not."""
        while self._ready:
            closure = self._ready.popleft()
            if closure.function is None:  # cancelled meanwhile
                continue
            self._blocked.pop(closure.number, None)
            try:
                closure.fill()
            except (
                errors.OutOfDataError
            ):  # a value that it needs never came to be: it does not either, and this is no failure
                self._end_undrawn(closure)
            except Exception as error:  # noqa: BLE001 (a value that it needs is an error: so is it)
                self._note_end(closure, None, error)
            else:
                self._queue.put(closure)
                for stream in closure.streams:
                    self._end_if_undrawn(stream)

    def _cancel_waiting(self, reason: str) -> None:
        waiting = [*self._queue.clear(), *self._blocked.values()]
        self._blocked.clear()
        for closure in waiting:
            self._open.discard(closure.number)
            closure.cancel(reason)
        if waiting:
            self.condition.notify_all()

    def _find_lowest(self) -> int:
        while self._lowest < self._count and self._lowest not in self._open:
            self._lowest += 1
        return self._lowest

    def check_open(self) -> None:
        """Refuse to go on when it is closed.

        Raises:
            RuntimeError: It is.
        """
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
            self.condition.wait(left)


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
        self.private: collections.deque[closures.Closure] = collections.deque()
        """Closures for this worker alone."""
        self.released: collections.deque[int] = collections.deque()
        """Datasets and values that it need not keep."""
        self.is_leaving = False
        self._is_idle = False
        self._is_dead = False
        """Whether somebody has found the worker dead."""
        self._positions: dict[int, int] = {}
        self._contexts: dict[int, streams.InputContext] = {}
        """What each dataset was told when it was first opened: it is told the same when a worker is replaced."""
        self._sequence = desk.first_sequence
        self._seconds: float | None = None
        """How long a closure takes here, about; None until one has ended."""
        self._sent: collections.deque[tuple[Any, list[tuple[worker.Call, closures.Closure]]]] = collections.deque()
        self._known: dict[int, None] = {}
        """Functions that the worker knows, least recently used first."""
        self._opened: set[int] = set()
        self._handle: actor.ActorHandle
        self._description: Any
        self._start()
        self._thread = threading.Thread(target=self._run, name=f"hocket-ps-lane-{index}", daemon=True)

    def begin(self) -> None:
        """Take closures, from now on."""
        self._thread.start()

    @property
    def has_sent(self) -> bool:
        """Whether its worker has something to do."""
        return bool(self._sent)

    def count_sent(self) -> int:
        """Return how many closures its worker has."""
        return sum(len(batch) for _, batch in self._sent)

    def list_sent(self) -> list[str]:
        """Return the names of the closures that its worker has."""
        return [closure.name for _, batch in self._sent for _, closure in batch]

    def describe(self) -> worker.Description:
        """Return who its worker is; waits for one that is being replaced."""
        while True:
            asked = self._description
            try:
                found: worker.Description = api.get(asked)
            except exceptions.ActorError:
                with self._desk.condition:
                    if self._desk.is_closed:
                        raise
                    if asked is self._description:
                        self._is_dead = True
                        self._desk.condition.notify_all()
                        self._desk.condition.wait(_RETRY_SECONDS)
            else:
                return found

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
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()
        with self._desk.condition:
            self._abandon()
            while self.private:
                self.private.popleft().cancel(_AT_CLOSE)

    def get_position(self, number: int) -> int:
        """Return how many items of a dataset its worker has drawn."""
        return self._positions.get(number, 0)

    def set_position(self, number: int, position: int) -> None:
        """Begin a dataset there."""
        self._positions[number] = position

    # -- the thread --

    def _run(self) -> None:
        while True:
            try:
                if self._step():
                    return
            except Exception as error:  # noqa: BLE001 (our own mistake must not let the user wait for ever)
                _log.exception("The lane of worker %d goes on after an error of its own", self.index)
                with self._desk.condition:
                    self._fail(error)

    def _step(self) -> bool:
        """Send, or receive; return whether the lane is at its end."""
        desk = self._desk
        with desk.condition:
            while not (desk.is_closed or self.is_leaving or self._sent or self._is_dead or desk.has_work(self)):
                self._say_idle(is_idle=True)
                desk.condition.wait()
            if desk.is_closed or (self.is_leaving and not self._sent):
                while self.private:
                    self.private.popleft().cancel("its worker was removed.")
                return True
            if self._is_dead and not self._sent:
                self._sent.append((None, []))
            batch: list[closures.Closure] = []
            if self._may_take():
                batch = desk.take(self, self._choose_size())
            desk.release_inputs()
        if batch:
            self._say_idle(is_idle=False)
            self._send([(self._make_call(closure), closure) for closure in batch])
            if self._may_take() and desk.has_work(self):
                return False
        if self._sent:
            self._receive()
        return False

    def _say_idle(self, *, is_idle: bool) -> None:
        """Tell the gate whether synchronous steps should wait for this worker."""
        if self._desk.is_synchronous and is_idle != self._is_idle:
            self._is_idle = is_idle
            self._desk.gate.set_idle(self.index, is_idle)

    def _may_take(self) -> bool:
        """Tell whether the worker may have more than it has."""
        if self.is_leaving:
            return False
        if not self._sent:
            return True
        if self._seconds is None or self._seconds > _AHEAD_SECONDS or len(self._sent) >= DEPTH:
            return False
        return not self._desk.has_idle()  # who has nothing to do goes first

    def _choose_size(self) -> int:
        if self._seconds is None or self._desk.is_synchronous:
            return 1  # in a synchronous step a second one would wait for workers that might have none
        fair = -(-self._desk.count_queued() // (DEPTH * max(1, len(self._desk.lanes))))
        return max(1, min(fair, int(BATCH_SECONDS / max(self._seconds, 1e-6)), MAX_BATCH))

    def _make_call(self, closure: closures.Closure) -> worker.Call:
        self._sequence += 1
        assert closure.function is not None, "it has not ended"
        return worker.Call(self._sequence, closure.function.number, closure.args, closure.kwargs)

    def _send(self, batch: list[tuple[worker.Call, closures.Closure]]) -> None:
        try:
            self._teach([closure for _, closure in batch])
            ref: Any = self._handle.run.remote([call for call, _ in batch])
        except exceptions.ActorError:  # dead already: found out when the answer is asked for
            ref = None
        except Exception as error:  # noqa: BLE001 (an argument that cannot be sent)
            if len(batch) > 1:
                for one in batch:
                    self._send([one])
                return
            closure = batch[0][1]
            with self._desk.condition:
                self._desk.end(closure, None, _explain(closure, error))
            return
        with self._desk.condition:
            self._sent.append((ref, batch))

    def _teach(self, batch: list[closures.Closure]) -> None:
        """Send the worker what it does not know yet of what closures need, and have it forget what is needed no more."""
        forgotten = []
        while self.released:
            number = self.released.popleft()
            self._positions.pop(number, None)
            self._contexts.pop(number, None)
            self.empty.discard(number)
            if number in self._opened:
                self._opened.discard(number)
                forgotten.append(number)
        for closure in batch:
            function = closure.function
            assert function is not None, "it has not ended"
            if function.number not in self._known:
                self._handle.learn.remote(function.number, function.ref)
            else:
                del self._known[function.number]
            self._known[function.number] = None
            for number in closure.streams - self._opened:
                context = self._contexts.setdefault(
                    number, streams.InputContext(max(self._desk.num_workers, self.index + 1), self.index)
                )
                source = self._desk.sources[number][0]
                self._handle.open_input.remote(number, source, context, self._positions.get(number, 0))
                self._opened.add(number)
        too_many = list(self._known)[: max(0, len(self._known) - MAX_FUNCTIONS)]
        for known in too_many:
            del self._known[known]
        if too_many or forgotten:
            self._handle.forget.remote(too_many, forgotten)

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
            self._divide(batch, error)
            return
        seconds = max(found.seconds, 1e-7) / len(batch)
        self._seconds = seconds if self._seconds is None else self._seconds + 0.3 * (seconds - self._seconds)
        ended = [self._read(closure, answer) for (_, closure), answer in zip(batch, found.answers, strict=True)]
        desk = self._desk
        with desk.condition:
            self._sent.popleft()
            desk.seconds += found.seconds
            self._positions.update(found.positions)
            for closure, answer, value, failure in ended:
                if answer.kind == worker.OUT_OF_DATA and not answer.pushes and not closure.is_private:
                    desk.return_undrawn(closure, self, answer.value)
                else:
                    desk.end(closure, value, failure)

    def _read(
        self, closure: closures.Closure, answer: worker.Answer
    ) -> tuple[closures.Closure, worker.Answer, Any, Exception | None]:
        """Return a closure with its value, or its error."""
        value: Any = None
        error: Exception | None = None
        try:
            if answer.kind == worker.VALUE:
                value = worker.read_value(answer.value)
            elif answer.kind == worker.OUT_OF_DATA:
                error = errors.OutOfDataError(
                    f"{closure.name} ran out of data on worker {self.index} after it had pushed {answer.pushes} times. Draw before the first push."
                )
            else:
                error = _unwrap(values.decode(answer.value))
                if answer.kind == worker.BAD_INPUT:
                    BaseException.add_note(
                        error,
                        f"(it was raised by the dataset or value of worker {self.index} that {closure.name} uses)",
                    )
        except Exception as failure:  # noqa: BLE001 (a user's class may raise anything when it is read)
            error = errors.ClosureError(
                f"What {closure.name} returned or raised cannot be read here: {texts.describe(failure)}"
            )
            error.__cause__ = failure
        return closure, answer, value, error

    def _divide(self, batch: list[tuple[worker.Call, closures.Closure]], error: Exception) -> None:
        """Some argument of a batch could not be read in the worker, so nothing of it ran: send each closure alone, and give up the one that it was."""
        with self._desk.condition:
            self._sent.popleft()
            if len(batch) == 1 or self._desk.is_closed or not isinstance(error, exceptions.TaskError):
                for _, closure in batch:
                    self._desk.end(closure, None, error)
                return
        for _, closure in batch:  # with new numbers: the next batch may have run already
            self._send([(self._make_call(closure), closure)])

    def _fail(self, error: Exception) -> None:
        while self._sent:
            for _, closure in self._sent.popleft()[1]:
                self._desk.end(closure, None, error)

    def _abandon(self) -> None:
        while self._sent:
            for _, closure in self._sent.popleft()[1]:
                self._desk.abandon(closure)

    # -- a worker's death --

    def _replace(self, error: exceptions.ActorError) -> None:
        """Start another worker, and send it what was not answered."""
        desk = self._desk
        with desk.condition:
            if desk.is_closed:
                self._abandon()
                return
            desk.restarts += 1
            batches = [batch for _, batch in self._sent]
            self._sent.clear()
            first = batches[0]
            if first:
                self._suspect(first[0][1], error)
            batches[:1] = [
                [one] for one in first if one[1].function is not None
            ]  # alone, so that the next death shows which it is
        desk.gate.forget(self.index)
        self._known.clear()
        self._opened.clear()
        try:
            self._start()
        except Exception as failure:  # noqa: BLE001 (the session is closed, or there is no room)
            with desk.condition:
                for batch in batches:
                    for _, closure in batch:
                        desk.end(closure, None, failure)
            return
        for batch in batches:
            self._send(batch)

    def _suspect(self, closure: closures.Closure, error: exceptions.ActorError) -> None:
        """A worker died when this was the first that it had not answered."""
        closure.deaths += 1
        if closure.deaths >= MAX_DEATHS:
            failure = errors.ClosureError(
                f"{closure.name} was given up: {closure.deaths} workers in a row died in the middle of it. The last one: {error}"
            )
            self._desk.end(closure, None, failure)

    def _start(self) -> None:
        handle = worker.start(self.index, self._desk.options, is_watched=self._desk.is_watched)
        description = handle.describe.remote()
        with self._desk.condition:
            self._handle, self._description, self._is_dead = handle, description, False
            is_late = self._desk.is_closed
        if is_late:
            self._end_worker()

    def _end_worker(self) -> None:
        try:
            api.kill(self._handle)
        except Exception:  # noqa: BLE001 (the session is closed, which has ended it)
            return


def _explain(closure: closures.Closure, error: Exception) -> Exception:
    """Return why a closure cannot be sent, in words that name the argument."""
    try:
        values.encode((closure.args, dict(closure.kwargs)), closure.name, values.explain_arguments)
    except Exception as better:  # noqa: BLE001 (a user's __reduce__ may raise anything)
        return better
    return error


def _unwrap(error: Any) -> Exception:
    """Return what the user's code raised, as an error that tells where."""
    found: Any = error.as_instanceof_cause() if isinstance(error, exceptions.TaskError) else error
    return found  # type: ignore[no-any-return]  # what can be sent is an Exception
