"""The dispatcher of a worker: a thread that keeps its worker busy.

It takes closures from the scheduler's queue and sends them, as many at once as the worker finishes in a few
milliseconds. It sends the next batch before the last one has come back, so a worker never waits for the coordinator. A
faster worker takes more closures.

**A worker's death.** The dispatcher starts another process for the same worker, and sends it the unanswered closures,
in the same order and with the same numbers. Servers recognise and drop pushes that were applied before, and each
dataset continues from its position (`streams`). So a closure can run more than once, but it changes variables once. A
closure never moves to another worker after it was sent.

**The end.** Unfinished closures are cancelled. Those that run are cancelled by killing their workers. The end comes
with `close`, with the end of the session, or when the last reference to the coordinator is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, final

from hocket import exceptions
from hocket._base import texts
from hocket.core import api
from hocket.engine import contract, unsendable, values
from hocket.ps import errors
from hocket.ps.access import links
from hocket.ps.executor import closures, scheduler, streams, worker

DEPTH: Final = 2
"""Number of batches that a worker has at once: one that runs, and one that waits in the worker."""

BATCH_SECONDS: Final = 0.005
"""The desired duration of a batch. It is short, so that workers share the remaining closures evenly, and long against
the 100 us that sending costs. A guess."""

MAX_BATCH: Final = 256

MAX_FUNCTIONS: Final = 2 * MAX_BATCH
"""Number of functions that a worker keeps: those of a batch, and as many that may come again."""

_AHEAD_SECONDS: Final = 0.1
"""The duration of a closure above which a worker gets the next closure only after this one. Sending ahead would gain
little, and another worker may be free sooner. A guess."""

IDLE_SECONDS: Final = 1.0
"""Seconds after the last `schedule` for which a synchronous step waits for workers without closures, if no thread waits
for results: the program may be about to schedule theirs. A guess."""

MAX_DEATHS: Final = 20
"""Number of deaths of a worker in one closure after which the closure is given up. A guess: preemption kills a few
workers, but a closure that crashes its process kills every one."""

_RETRY_SECONDS: Final = 0.01

_log = logging.getLogger("hocket.ps")


@final
class WorkerProcess:
    """A worker's process, and the functions and inputs sent to it. A replacement process starts without any."""

    def __init__(self, index: int, settings: worker.Settings) -> None:
        self._handle = worker.start(index, settings)
        self.description: Final[contract.ObjectRef[worker.Description]] = self._handle.describe.remote()
        self.known: Final[dict[int, None]] = {}
        """Numbers of functions that the process knows, least recently used first."""
        self.opened: Final[set[int]] = set()
        """Numbers of datasets and values that the process has."""

    def learn(self, function: closures.Function) -> None:
        """Send the process a function that it does not know."""
        if function.number not in self.known:
            self._handle.learn.remote(function.number, function.ref)
        else:
            del self.known[function.number]
        self.known[function.number] = None

    def open_input(
        self, number: int, source: contract.ObjectRef[object], context: streams.InputContext, position: int
    ) -> None:
        """Let the process open a dataset, or make a value."""
        self._handle.open_input.remote(number, source, context, position)
        self.opened.add(number)

    def forget(self, inputs: Sequence[int]) -> None:
        """Let the process drop datasets and values, and functions beyond `MAX_FUNCTIONS`."""
        forgotten = [number for number in inputs if number in self.opened]
        self.opened.difference_update(forgotten)
        too_many = list(self.known)[: max(0, len(self.known) - MAX_FUNCTIONS)]
        for known in too_many:
            del self.known[known]
        if too_many or forgotten:
            self._handle.forget.remote(too_many, forgotten)

    def run(self, calls: Sequence[worker.Call]) -> contract.ObjectRef[worker.Batch]:
        """Run closures; return a reference to their outcomes."""
        ref: contract.ObjectRef[worker.Batch] = self._handle.run.remote(calls)
        return ref

    def has_begun(self, batch: scheduler.Batch) -> bool:
        """Ask the process whether any part of a batch ran."""
        begun: bool = api.get(self._handle.has_begun.remote(batch[0][0].sequence))
        return begun

    def end(self) -> None:
        """End the process now."""
        try:
            api.kill(self._handle)
        except Exception:  # a closed session has ended it already
            return


@final
class WorkerDispatcher:
    """The thread that keeps a worker busy, and the worker's process.

    Args:
        queue: The scheduler that closures come from.
        link: The strategy's servers. For synchronous steps, their gate learns when the worker has work.
        index: The worker's index.
        settings: The settings of all workers.
    """

    def __init__(
        self, queue: scheduler.ClosureScheduler, link: links.Link, index: int, settings: worker.Settings
    ) -> None:
        self.state: Final = scheduler.WorkerState(index)
        self._scheduler = queue
        self._link = link
        self._settings = settings
        self._sequence = settings.first_sequence
        self._is_synchronous = link.address.is_synchronous
        self._is_idle = False
        if self._is_synchronous:
            queue.before_work.append(self._say_busy)
        self._is_dead = False
        """Whether another thread has found the worker dead."""
        self._contexts: dict[int, streams.InputContext] = {}
        """The context of each dataset at its first opening. A replacement process gets the same context."""
        self._seconds: float | None = None
        """The average seconds of a closure on this worker; None until one has ended."""
        self._process: WorkerProcess
        self._start()
        self._thread = threading.Thread(target=self._run, name=f"hocket-ps-dispatcher-{index}", daemon=True)

    def begin(self) -> None:
        """Start to take closures."""
        self._thread.start()

    def describe(self) -> worker.Description:
        """Return the identity of the worker's process; wait while the process is being replaced."""
        while True:
            process = self._process
            try:
                found: worker.Description = api.get(process.description)
            except exceptions.ActorError:
                with self._scheduler.condition:
                    if self._scheduler.is_closed:
                        raise
                    if process is self._process:
                        self._is_dead = True
                        self._scheduler.condition.notify_all()
                        self._scheduler.condition.wait(_RETRY_SECONDS)
            else:
                return found

    def begin_to_leave(self) -> None:
        """Take no more closures. Called once, with the scheduler's lock held."""
        self.state.is_leaving = True
        if self._is_synchronous:
            self._scheduler.before_work.remove(self._say_busy)
        self._scheduler.condition.notify_all()

    def leave(self) -> None:
        """Wait until the worker has finished its closures, then end it."""
        self._thread.join()
        self._process.end()

    def stop(self) -> None:
        """End the worker now; the scheduler is closed."""
        self._process.end()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()
        with self._scheduler.condition:
            self._abandon()
            self.state.cancel_private(scheduler.AT_CLOSE)

    # -- the thread --

    def _run(self) -> None:
        while True:
            try:
                if self._step():
                    return
            except Exception as error:  # an error of the dispatcher must not let the user wait for ever
                _log.exception("The dispatcher of worker %d goes on after an error of its own", self.state.index)
                with self._scheduler.condition:
                    for closure in self._take_sent():
                        self._scheduler.end(closure, None, error)

    def _step(self) -> bool:
        """Send or receive a batch; return whether the dispatcher is at its end."""
        queue, state = self._scheduler, self.state
        with queue.condition:
            while not (queue.is_closed or state.is_leaving or state.sent or self._is_dead or self._has_turn()):
                queue.condition.wait(self._rest())
            if queue.is_closed or (state.is_leaving and not state.sent):
                state.cancel_private("its worker was removed.")
                return True
            if self._is_dead and not state.sent:
                state.sent.append((None, []))
            batch = queue.take(state, self._choose_size()) if self._may_take() else []
            queue.release_inputs()
        if batch:
            self._say_busy()
            self._send([(self._make_call(closure), closure) for closure in batch])
            if self._may_take() and queue.has_work(state):
                return False
        if state.sent:
            self._receive()
        return False

    def _has_turn(self) -> bool:
        """Tell whether the worker should take a closure. In a synchronous step each worker has one part, so a worker
        that has done its own lets the others take theirs first."""
        queue, state = self._scheduler, self.state
        return queue.has_work(state) and (not self._is_synchronous or queue.goes_first(state))

    def _rest(self) -> float | None:
        """Let synchronous steps go on without this worker if it has no work, and no more can come for the step; return
        the seconds until the next look."""
        queue = self._scheduler
        left = queue.scheduled_at + IDLE_SECONDS - time.monotonic()
        if not self._is_synchronous or self._is_idle or queue.has_work(self.state):
            return None
        if left > 0 and not queue.is_awaited:
            return left
        self._is_idle = True
        self._link.set_idle(self.state.index, is_idle=True)
        return None

    def _say_busy(self) -> None:
        """Let synchronous steps wait for this worker, because there is work."""
        if self._is_idle:
            self._is_idle = False
            self._link.set_idle(self.state.index, is_idle=False)

    def _may_take(self) -> bool:
        """Tell whether the worker may get more closures than it has."""
        if self.state.is_leaving:
            return False
        if not self.state.sent:
            return True
        if self._seconds is None or self._seconds > _AHEAD_SECONDS or len(self.state.sent) >= DEPTH:
            return False
        if self._is_synchronous and self._scheduler.count_queued() < len(self._scheduler.workers):
            return False  # each worker's part of a step is its own, even before it ends its last one
        return not self._scheduler.has_idle()  # workers without closures go first

    def _choose_size(self) -> int:
        if self._seconds is None or self._is_synchronous:
            return 1  # in a synchronous step a second closure would wait for workers that might have none
        fair = -(-self._scheduler.count_queued() // (DEPTH * max(1, len(self._scheduler.workers))))
        return max(1, min(fair, int(BATCH_SECONDS / max(self._seconds, 1e-6)), MAX_BATCH))

    def _make_call(self, closure: closures.Closure) -> worker.Call:
        self._sequence += 1
        assert closure.function is not None, "it has not ended"
        return worker.Call(self._sequence, closure.function.number, closure.args, closure.kwargs)

    def _send(self, batch: scheduler.Batch) -> None:
        try:
            self._teach([closure for _, closure in batch])
            ref: contract.ObjectRef[worker.Batch] | None = self._process.run([call for call, _ in batch])
        except exceptions.ActorError:  # already dead: reading the answer will show it
            ref = None
        except Exception as error:  # an argument that cannot be sent
            if len(batch) > 1:
                for one in batch:
                    self._send([one])
                return
            closure = batch[0][1]
            with self._scheduler.condition:
                self._scheduler.end(closure, None, _explain(closure, error))
            return
        with self._scheduler.condition:
            self.state.sent.append((ref, batch))
            if self._is_synchronous:
                self._scheduler.condition.notify_all()  # others need not let this worker go first any more

    def _teach(self, batch: list[closures.Closure]) -> None:
        """Send the worker the functions and inputs that closures need, and let it drop those no longer needed."""
        process, state = self._process, self.state
        released = []
        while state.released:
            number = state.released.popleft()
            state.positions.pop(number, None)
            state.empty.discard(number)
            self._contexts.pop(number, None)
            released.append(number)
        with self._scheduler.condition:
            process.forget(list(state.redealt))
            state.redealt.clear()
        for closure in batch:
            assert closure.function is not None, "it has not ended"
            process.learn(closure.function)
            for number in closure.streams - process.opened:
                count = max(self._scheduler.num_workers, state.index + 1)
                context = self._contexts.setdefault(number, streams.InputContext(count, state.index))
                source = self._scheduler.inputs.sources[number][0]
                process.open_input(number, source, context, state.positions.get(number, 0))
        process.forget(released)

    def _receive(self) -> None:
        ref, batch = self.state.sent[0]
        try:
            if ref is None:
                raise exceptions.ActorUnavailableError("the worker died before it received the call")
            found: worker.Batch = api.get(ref)
        except exceptions.ActorError as error:
            self._replace(error)
            return
        except Exception as error:  # the session is closed, or arguments or answers cannot be read
            self._receive_error(batch, error)
            return
        seconds = max(found.seconds, 1e-7) / len(batch)
        self._seconds = seconds if self._seconds is None else self._seconds + 0.3 * (seconds - self._seconds)
        index = self.state.index
        ended = [
            (closure, answer, *_read(closure, answer, index))
            for (_, closure), answer in zip(batch, found.answers, strict=True)
        ]
        queue = self._scheduler
        with queue.condition:
            self.state.sent.popleft()
            queue.seconds += found.seconds
            self.state.positions.update(found.positions)
            for closure, answer, value, failure in ended:
                if answer.kind == worker.OUT_OF_DATA and not answer.pushes and not closure.is_private:
                    queue.return_undrawn(closure, self.state, answer.value, answer.put_back)
                else:
                    queue.end(closure, value, failure)

    def _receive_error(self, batch: scheduler.Batch, error: Exception) -> None:
        """Handle a batch that has no answers.

        If the worker could not read an argument, it reports that no part of the batch ran. Then each closure is sent
        alone, to find the faulty one. A closure that may have run is never sent again: its pushes would count twice."""
        try:
            is_safe = len(batch) > 1 and not self._scheduler.is_closed and not self._process.has_begun(batch)
        except exceptions.ActorError as death:
            self._replace(death)
            return
        except Exception:  # the session is closed
            is_safe = False
        with self._scheduler.condition:
            self.state.sent.popleft()
            if not is_safe or self._scheduler.is_closed:
                for _, closure in batch:
                    self._scheduler.end(closure, None, error)
                return
        for _, closure in batch:  # with new numbers: the next batch may have run already
            self._send([(self._make_call(closure), closure)])

    def _take_sent(self) -> Iterator[closures.Closure]:
        """Yield the worker's closures, and remove them from its state."""
        while self.state.sent:
            for _, closure in self.state.sent.popleft()[1]:
                yield closure

    def _abandon(self) -> None:
        for closure in self._take_sent():
            self._scheduler.abandon(closure)

    # -- a worker's death --

    def _replace(self, error: exceptions.ActorError) -> None:
        """Start another process, and send it the unanswered closures."""
        queue = self._scheduler
        with queue.condition:
            if queue.is_closed:
                self._abandon()
                return
            queue.restarts += 1
            batches = [batch for _, batch in self.state.sent]
            self.state.sent.clear()
            first = batches[0]
            if first:
                self._suspect(first[0][1], error)
            # Each closure of the first batch goes alone, so that the next death shows which one kills.
            batches[:1] = [[one] for one in first if one[1].function is not None]
        self._link.gate.forget(self.state.index)
        try:
            self._start()
        except Exception as failure:  # the session is closed, or resources are short
            with queue.condition:
                for batch in batches:
                    for _, closure in batch:
                        queue.end(closure, None, failure)
            return
        for batch in batches:
            self._send(batch)

    def _suspect(self, closure: closures.Closure, error: exceptions.ActorError) -> None:
        """Count a death for the first closure that the dead worker had not answered."""
        closure.deaths += 1
        if closure.deaths >= MAX_DEATHS:
            failure = errors.ClosureError(
                f"{closure.name} was given up, because {closure.deaths} workers in a row died while they ran it. The "
                f"last error: {error}"
            )
            self._scheduler.end(closure, None, failure)

    def _start(self) -> None:
        process = WorkerProcess(self.state.index, self._settings)
        with self._scheduler.condition:
            self._process, self._is_dead = process, False
            is_late = self._scheduler.is_closed
        if is_late:
            process.end()


def _read(closure: closures.Closure, answer: worker.Answer, index: int) -> tuple[object, Exception | None]:
    """Return a closure's value, or its error."""
    try:
        if answer.kind == worker.VALUE:
            return worker.read_value(answer.value), None
        if answer.kind == worker.OUT_OF_DATA:
            return None, errors.OutOfDataError(
                f"{closure.name} ran out of data on worker {index} after it had pushed {answer.pushes} times. Call "
                "next(iterator) before the first push."
            )
        error = _unwrap(values.decode(answer.value))
        if answer.kind == worker.BAD_INPUT:
            BaseException.add_note(
                error, f"(it was raised by the dataset or value of worker {index} that {closure.name} uses)"
            )
        return None, error
    except Exception as failure:  # a user's class may raise anything when it is unpickled
        unreadable = errors.ClosureError(
            f"The result or error of {closure.name} cannot be read here: {texts.describe(failure)}"
        )
        unreadable.__cause__ = failure
        return None, unreadable


def _explain(closure: closures.Closure, error: Exception) -> Exception:
    """Return why a closure cannot be sent, in words that name the argument."""
    try:
        values.encode((closure.args, dict(closure.kwargs)), closure.name, unsendable.explain_arguments)
    except Exception as better:  # a user's __reduce__ may raise anything
        return better
    return error


def _unwrap(error: object) -> Exception:
    """Return what the user's code raised, as an error that shows where."""
    found: Any = error.as_instanceof_cause() if isinstance(error, exceptions.TaskError) else error
    return found  # type: ignore[no-any-return]  # only an Exception can be sent
