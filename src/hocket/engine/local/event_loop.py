"""The event loop of an asynchronous actor: an actor with at least one ``async def`` method.

All its methods run here, in the worker's main thread. So do its constructor and its ordinary methods, which hold up the
others. The loop itself watches the worker's sockets, so a call costs no thread switch: a round of the loop reads calls,
starts them, and sends results. A concurrency group has a loop and a thread of its own.

asyncio is imported when the first such actor is made: it takes 24 ms, and most workers never need it.
"""

from __future__ import annotations

import contextvars
import inspect
import os
import threading
import time
import types
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, final

from hocket import exceptions
from hocket.engine import contract, forks, items, methods
from hocket.engine.local import flow, reactor, worker_engine
from hocket.engine.local.work import Work

if TYPE_CHECKING:
    import asyncio


DROP_SECONDS = 0.05
"""How soon the loop counts handles that were dropped outside any call, or while calls run. A guess: the delay does no
harm."""


_STOPPED = (
    b"A method has stopped the event loop of its actor, which all methods run on. Call hocket.exit_actor() to end the "
    b"actor, or leave out loop.stop().\n"
)


class Life(Protocol):
    """The end of the process; see `worker.life`."""

    @property
    def is_stopping(self) -> bool:
        """Whether the process ends when its work is done."""

    def exit_actor(self) -> None:
        """Report that the actor ends itself."""

    def finish(self) -> None:
        """Run exit functions, and send the rest."""


class Methods(Protocol):
    """The actor."""

    def find_method(self, work: Work) -> Any:
        """Return the function that the call runs."""


class Arguments(Protocol):
    """The arguments of calls."""

    def open_arguments(self, work: Work) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the call."""


class Answers(Protocol):
    """The receiver of results, errors and items of calls."""

    def send_result(self, work: Work, result: object, started: float) -> None:
        """Put the result in the outbox."""

    def send_item(self, work: Work, index: int, item: object) -> int:
        """Send one item of a generator; return how many bytes it takes."""

    def open_flow(self, work: Work) -> flow.Flow:
        """Begin to count how far a generator is ahead of its reader."""

    def close_flow(self, work: Work) -> None:
        """End that count."""

    def announce_pause(self, work: Work, ahead: flow.Flow) -> None:
        """Send a waiting generator's items, and ask how far its reader is."""

    def report(self, work: Work, error: BaseException) -> None:
        """Send the error of a call."""

    def report_unstarted(self, work: Work) -> None:
        """Report that a call was cancelled before it started."""


class Status(Protocol):
    """The record of the running work."""

    def note_start(self, work: Work, running: worker_engine.Running) -> None:
        """Record that the work runs now."""


@final
class Parts(NamedTuple):
    """The parts of the worker that a loop uses."""

    life: Life
    actor: Methods
    code: Arguments
    answers: Answers
    status: Status


@final
class Loop:
    """The loops of one actor: the main loop, and one for each concurrency group. They decide when unsent messages are
    sent; see `worker_engine.outbox.Pace`.

    Args:
        engine: The worker's engine.
        parts: The other parts of the worker.
        size: How many calls may run at once in the main loop.
        groups: How many calls may run at once in each group's loop.
    """

    def __init__(self, engine: worker_engine.WorkerEngine, parts: Parts, size: int, groups: Mapping[str, int]) -> None:
        import asyncio

        self._engine = engine
        self._life, self._actor, self._code, self._answers, self._status = parts
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_pass_over_exit)
        asyncio.set_event_loop(self._loop)
        self._thread_id = threading.get_ident()
        self._main = Lane(self, self._loop, size)
        self._groups = {name: self._start_lane(name, group_size) for name, group_size in groups.items()}
        self._row: deque[Work] = deque()
        self._exit_code = 0
        self._is_told_to_stop = False
        self._is_flush_due = False
        self._flusher = Flusher(engine)
        self.flush_later = self._flusher.wake
        engine.outbox.set_pace(self)
        self._is_draining = False
        self._is_exiting = False
        self._is_forked = False

    def _start_lane(self, name: str, size: int) -> Lane:
        import asyncio

        loop = asyncio.new_event_loop()
        loop.set_exception_handler(_pass_over_exit)
        threading.Thread(target=loop.run_forever, name=f"hocket-{name}", daemon=True).start()
        return Lane(self, loop, size)

    def build(self, construct: Callable[[], object]) -> Any:
        """Run the actor's constructor on the loop; return the actor."""
        return methods.construct_on(self._loop, construct)

    def run(self, row: deque[Work]) -> int:
        """Serve the calls that come into the queue until the order to stop; return the exit code of the process."""
        self._row = row
        reactor = self._engine.reactor
        reactor.retire()
        self._loop.add_reader(reactor.get_pollable(), self._on_arrival)
        reactor.bell.answer(lambda: _call_soon(self._loop, self._count_dropped_soon))
        self._loop.call_soon(self._on_arrival)
        self._loop.call_soon(self._count_dropped)
        self._loop.run_forever()
        if not (self._is_told_to_stop or self._life.is_stopping):
            os.write(2, _STOPPED)  # the error that reports the death shows it
            return 1
        self._life.finish()
        return self._exit_code

    def complete(self, awaitable: object) -> None:
        """Run an awaitable to its end after `run` is over."""
        methods.complete_on(self._loop, awaitable)

    def notice(self) -> None:
        """Take the work that a thread, perhaps another one, has put into the queue."""
        if not self._is_draining:
            self._loop.call_soon_threadsafe(self._on_arrival)

    def stop(self, code: int = 0) -> None:
        """End the main loop after this round. Any thread may call this."""
        if self._is_forked:
            forks.end(SystemExit(code))
        self._exit_code = code
        self._is_told_to_stop = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def cut_off(self) -> None:
        """Let a method that has forked run in the fork, and end the fork where the method ends or first waits: the loop
        is the parent's."""
        import asyncio

        self._is_forked = True
        self._answers = _ForkedAnswers(self._answers)
        for lane in (self._main, *self._groups.values()):
            # The loop takes this handle next: the fork goes on with no other call, and does not look at the sockets.
            end = asyncio.Handle(forks.end, (RuntimeError(forks.WAITED),), lane.loop)
            lane.loop._ready.appendleft(end)  # type: ignore[attr-defined]

    def exit_soon(self) -> None:
        """End the actor after this round, at its own request. Any thread may call this, also again."""
        if self._is_forked:
            forks.end(SystemExit(0))
        self._loop.call_soon_threadsafe(self._exit)

    def _exit(self) -> None:
        if not self._is_exiting:
            self._is_exiting = True
            self._life.exit_actor()
            self.stop()

    def cancel(self, task_id: int) -> None:
        """Cancel a call that runs or waits."""
        for lane in (self._main, *self._groups.values()):
            lane.cancel(task_id)

    def _on_arrival(self) -> None:
        reactor = self._engine.reactor
        self._is_draining = True
        reactor.handle_arrived()
        self._is_draining = False
        reactor.run_due()
        self._engine.taker.check()
        row = self._row
        while row:
            work = row.popleft()
            group = (work.extra or {}).get("group")
            lane = self._groups[group] if group else self._main
            if lane is self._main:
                lane.add(work)
            else:
                lane.loop.call_soon_threadsafe(lane.add, work)
        self.flush()
        if self._life.is_stopping and not self._engine.outbox.owes():
            self._loop.stop()

    def flush(self) -> None:
        """Send all unsent messages."""
        with self._engine.lock:
            self._is_flush_due = False
            self._engine.outbox.before_wait()

    def _count_dropped_soon(self) -> None:
        """Count dropped handles a little later, since many may follow."""
        self._loop.call_later(DROP_SECONDS, self._count_dropped)

    def _count_dropped(self) -> None:
        self.flush()
        if not self._engine.reactor.bell.hang():  # a handle was dropped meanwhile
            self._engine.reactor.bell.take_down()
            self._count_dropped_soon()

    def flush_soon(self) -> None:
        """Send all unsent messages when the calls that are ready now have had their turn."""
        if threading.get_ident() != self._thread_id:
            self.flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)
            self._flusher.wake()

    def report_cancelled(self, work: Work) -> None:
        """Report that a call was cancelled before it started."""
        self._answers.report_unstarted(work)
        self.flush_soon()

    def _refuse(self, work: Work) -> None:
        """Report a call that was cancelled between two queues, or drop a call that comes after the actor's end."""
        if not self._is_exiting:  # else the caller knows already that the actor is dead
            self.report_cancelled(work)

    # --- one call -----------------------------------------------------------------------------------------------------

    async def run_call(self, work: Work, lane: Lane) -> None:
        """Run a call to its end."""
        engine, cancelled = self._engine, self._engine.duty.cancelled
        lane.note_start(work)
        if self._is_exiting or work.task_id in cancelled:
            lane.note_end(work)
            self._refuse(work)
            return
        running = worker_engine.Running()
        worker_engine.current.set(running)
        self._status.note_start(work, running)
        place: int | None = engine.channel.note_running(work.task_id)
        started = work.started
        try:
            method = self._actor.find_method(work)
            args, kwargs = self._code.open_arguments(work)
            result = method(*args, **kwargs)
            if _is_to_be_awaited(result):
                result = await result
            if work.num_returns < 0 or type(result) in items.KINDS:
                result = await self._take_items(work, method, result)
            if work.task_id in cancelled:  # the user's code caught it; the caller wants no result
                raise _build_cancelled(work)
            if running.is_exiting:
                return
        except SystemExit as request:
            place = self._leave(request, place)
        except BaseException as error:  # noqa: BLE001 (whatever the user's code raises is the caller's to see)
            self._report(work, running, error)
        else:
            self._answers.send_result(work, result, started)
        finally:
            cancelled.discard(work.task_id)
            work.clear()
            if place is not None:
                engine.channel.note_ended(place)
            lane.note_end(work)
            if lane.is_idle():  # no other answer can go with this one: that saves a round of the loop
                self.flush()
            else:
                self.flush_soon()

    def _leave(self, request: SystemExit, place: int | None) -> int | None:
        """Obey a ``sys.exit`` of the user's code; return the call's place if that ends the call alone."""
        if not request.code:  # as in Ray: an actor that exits without an error is not built again
            self.exit_soon()
            return place
        self.stop(request.code & 0xFF if isinstance(request.code, int) else 1)
        return None  # the call counts as running when the process dies

    def _report(self, work: Work, running: worker_engine.Running, error: BaseException) -> None:
        """Send an error of the user's code to the caller, unless the actor ends."""
        if issubclass(type(error), exceptions.ActorExit):
            self.exit_soon()
        elif not running.is_exiting:
            if work.task_id in self._engine.duty.cancelled and type(error).__name__ == "CancelledError":
                error = _build_cancelled(work)
            self._answers.report(work, error)

    async def _take_items(self, work: Work, method: object, result: object) -> object:
        """Run the generator that a method may have returned; return the call's result."""
        if work.num_returns < 0:
            await self._send_items(work, result)
            return None
        if items.is_to_be_taken(result, work.num_returns, method):
            return await items.take_async(result, work.num_returns, work.name)
        return result

    async def _send_items(self, work: Work, found: Any) -> None:
        """Run a generator and send its items; between items other calls run, and a cancellation takes effect."""
        import asyncio

        ahead = self._answers.open_flow(work)
        loop, has_room = asyncio.get_running_loop(), asyncio.Event()
        ahead.wake = lambda: _call_soon(loop, has_room.set)
        index = 0
        try:
            async for item in found if hasattr(found, "__aiter__") else _take_turns(found):
                is_full = ahead.add(self._answers.send_item(work, index, item))
                self.flush_soon()
                index += 1
                while is_full and ahead.is_full():
                    has_room.clear()
                    self._answers.announce_pause(work, ahead)
                    await has_room.wait()
        finally:
            self._answers.close_flow(work)


@final
class _ForkedAnswers:
    """Answers in a fork that a method has made: the process ends where the method ends, and sends nothing.

    Args:
        own: The parent's answers.
    """

    def __init__(self, own: Answers) -> None:
        self.open_flow, self.close_flow, self.announce_pause = own.open_flow, own.close_flow, own.announce_pause
        self.report_unstarted = own.report_unstarted

    def send_result(self, work: Work, result: object, started: float) -> NoReturn:
        forks.end()

    def report(self, work: Work, error: BaseException) -> NoReturn:
        forks.end(error)

    def send_item(self, work: Work, index: int, item: object) -> NoReturn:
        forks.end(RuntimeError(forks.YIELDED))


def _is_to_be_awaited(result: object) -> bool:
    """Tell whether a method's return value must be awaited for the result. A reference is the result itself."""
    return type(result) is types.CoroutineType or (
        inspect.isawaitable(result) and not isinstance(result, contract.ObjectRef)
    )


def _build_cancelled(work: Work) -> exceptions.TaskCancelledError:
    return exceptions.TaskCancelledError(f"Call `{work.name}` was cancelled while it ran.")


@final
class Flusher:
    """The sender of messages that another thread has left unsent, or that wait while an ordinary method, or a coroutine
    that does not wait, holds up the loop.

    It replaces the background reader, which an event loop has retired, with the same tick. Its thread begins with the
    first answer that does not go at once, and looks as long as there are such answers. The loop itself sends at the end
    of each round, so the thread finds a message only if a round takes longer than a tick.
    """

    def __init__(self, engine: worker_engine.WorkerEngine) -> None:
        self._engine = engine
        self._awake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_parked = True

    def wake(self) -> None:
        """Have the thread look from now on."""
        if not self._is_parked:
            return
        self._is_parked = False
        with self._engine.lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hocket-flusher", daemon=True)
                self._thread.start()
        self._awake.set()

    def _run(self) -> None:
        engine, post, last_flush, quiet_ticks = self._engine, self._engine.outbox, 0.0, 0
        while True:
            time.sleep(reactor.TICK_SECONDS)
            is_waiting = post.has_unsent()
            if is_waiting and post.last_flush == last_flush:
                try:
                    with engine.lock:
                        post.flush()
                except OSError:  # the driver is gone, and this process goes with it
                    return
            last_flush = post.last_flush
            quiet_ticks = 0 if is_waiting else quiet_ticks + 1
            if quiet_ticks > reactor.PARK_TICKS:
                self._awake.clear()
                self._is_parked = True
                if not post.has_unsent():  # else the loop has posted before it could see that
                    self._awake.wait()
                self._is_parked = False
                quiet_ticks = 0


@final
class Lane:
    """The calls of one concurrency group: so many run at once, and the others wait in the order of arrival."""

    def __init__(self, parent: Loop, loop: asyncio.AbstractEventLoop, size: int) -> None:
        self.loop = loop
        self._parent = parent
        self._size = size
        self._waiting: deque[Work] = deque()
        self._running: dict[int, asyncio.Task[None]] = {}
        #: Calls that have not made their first step. A call that is cancelled before it cannot report that itself.
        self._unstarted: dict[asyncio.Task[None], Work] = {}
        #: The context in which each call begins: the variables of the call that made room for it stay out.
        self._context = contextvars.copy_context()

    def add(self, work: Work) -> None:
        """Start a call, or let it wait for its turn. Runs in the lane's own thread."""
        if self._waiting or len(self._running) >= self._size:
            self._waiting.append(work)
        else:
            self._start(work)

    def _start(self, work: Work) -> None:
        task = self.loop.create_task(self._parent.run_call(work, self))
        self._running[work.task_id] = task
        self._unstarted[task] = work
        task.add_done_callback(self._end_unstarted)

    def note_start(self, work: Work) -> None:
        """Note that a call makes its first step. From here on the call notes its own end: a callback would cost a round
        of the loop."""
        task = self._running[work.task_id]
        del self._unstarted[task]
        task.remove_done_callback(self._end_unstarted)

    def note_end(self, work: Work) -> None:
        """Note that a call is over, and let the next one begin."""
        self._running.pop(work.task_id, None)
        if self._waiting:
            self.loop.call_soon(self._start_next, context=self._context)

    def is_idle(self) -> bool:
        """Tell whether no call runs or waits."""
        return not (self._running or self._waiting)

    def _start_next(self) -> None:
        if self._waiting and len(self._running) < self._size:
            self._start(self._waiting.popleft())

    def _end_unstarted(self, task: asyncio.Task[None]) -> None:
        work = self._unstarted.pop(task)
        self._running.pop(work.task_id, None)
        self._parent.report_cancelled(work)
        self._start_next()

    def cancel(self, task_id: int) -> None:
        """Cancel a call that runs or waits. Any thread may call this."""
        task = self._running.get(task_id)
        if task is not None:
            self.loop.call_soon_threadsafe(task.cancel)
            return
        for work in list(self._waiting):
            if work.task_id == task_id:
                self.loop.call_soon_threadsafe(self._drop, work)

    def _drop(self, work: Work) -> None:
        if work in self._waiting:
            self._waiting.remove(work)
            self._parent.report_cancelled(work)


async def _take_turns(found: Iterable[object]) -> AsyncIterator[object]:
    """Yield the items of an ordinary generator, and give the loop a turn after each."""
    import asyncio

    for item in found:
        yield item
        await asyncio.sleep(0)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Have a loop call a function; any thread may use this."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)


def _pass_over_exit(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Pass over the exception of a background task that ended its actor: no code was to fetch the exception."""
    if not isinstance(context.get("exception"), exceptions.ActorExit):
        loop.default_exception_handler(context)
