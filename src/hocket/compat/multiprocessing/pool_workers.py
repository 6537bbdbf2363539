"""The processes of a pool, and the threads that keep them busy.

Work waits in one queue. A thread takes a *worker*, which is an actor, and some chunks, sends them, waits for the
outcomes, delivers them, and gives the worker back. So a process that finishes early gets more work, as in
multiprocessing. There are up to as many threads as workers, started on demand. A caller that waits does the same in its
own thread, for its own work only, so a call on an idle pool needs no change of threads.

The number of chunks in a message follows from the time that earlier chunks of the same function took (see `chunks`).

If a process dies, its chunks fail with the engine's error, which names the cause, and the process is replaced.

A call that a signal interrupts, and a loop that ends early, withdraw their work: waiting chunks leave the queue, and
processes that work on nothing else are replaced.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hocket import exceptions
from hocket._base import texts
from hocket.compat.multiprocessing import chunks, results
from hocket.core import actor as core_actor
from hocket.core import api, session
from hocket.engine import contract, unsendable, values

MAX_CHUNKS = 1000
"""How many chunks a message has at most. A guess: by then the message's own cost hardly counts."""


@dataclass(slots=True, eq=False)
class Function:
    """A function that a pool calls, and facts about it."""

    encoded: contract.RemoteFunction
    seconds: float | None = None
    """The recent time of one chunk; None before the first."""


@dataclass(slots=True, eq=False)
class Item:
    """A chunk that waits for a worker."""

    function: Function
    kind: int
    work: Any
    receiver: results.Receiver
    position: int


@dataclass(slots=True, eq=False)
class PoolWorker:
    """A process of the pool."""

    handle: core_actor.ActorHandle
    known: dict[bytes, contract.RemoteFunction] = field(default_factory=dict)
    """Functions that the process knows, by last use. The dict keeps the references in their closures alive."""
    chunks_done: int = 0
    is_ended: bool = False
    """Whether it was killed because its work was withdrawn."""


class PoolWorkers:
    """All processes of a pool.

    Args:
        size: The number of processes.
        create: Starts a process.
        max_chunks: After how many chunks to replace a process; None for never.
    """

    def __init__(self, size: int, create: Callable[[], core_actor.ActorHandle], max_chunks: int | None) -> None:
        self.size = size
        self._create = create
        self._max_chunks = max_chunks
        self._engine = session.get_engine()
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[Item] = deque()
        self._free = [PoolWorker(create()) for _ in range(size)]
        self._busy: dict[PoolWorker, list[Item]] = {}
        self._threads: list[threading.Thread] = []
        self._idle_threads = 0
        #: The function encoded last, while there is work: many calls of a function encode it once, but a later call
        #: sees the globals of its own time.
        self._latest: tuple[object, Function] | None = None
        #: Functions that are encoded only once, by their address.
        self._fixed: dict[int, tuple[object, Function]] = {}
        #: Functions by digest, to remember their times; the oldest are forgotten.
        self._functions: dict[bytes, Function] = {}
        self._is_closed = False
        self._is_terminated = False

    # --- called by the pool -------------------------------------------------------------------------------------------

    def check_running(self) -> None:
        """Raise ValueError if the pool takes no more work."""
        if self._is_closed:
            raise ValueError("Pool not running: it was closed or terminated. Make a new one.")

    @property
    def is_closed(self) -> bool:
        """Whether the pool takes no more work."""
        return self._is_closed

    def encode(self, function: Callable[..., object]) -> Function:
        """Return a function in its encoded form."""
        latest = self._latest
        if latest is not None and latest[0] is function:
            return latest[1]
        fixed = self._fixed.get(id(function))
        if fixed is not None and fixed[0] is function:
            return fixed[1]
        if not callable(function):
            raise TypeError(f"func must be a function, but received {function!r}. Pass it without calling it.")
        name = getattr(function, "__name__", type(function).__name__)
        encoded = values.encode_function(function, f"function `{name}`")
        with self._changed:
            known = self._functions.get(encoded.id)
            if known is None:
                known = Function(encoded)
                chunks.remember(self._functions, encoded.id, known)
            if self._queue or self._busy:
                self._latest = (function, known)
            if chunks.is_fixed(function):
                chunks.remember(self._fixed, id(function), (function, known))
        return known

    def submit(self, items: Iterable[Item], *, helps: bool = False) -> None:
        """Put chunks at the end of the queue.

        Args:
            items: The chunks.
            helps: Whether the calling thread works on the chunks itself, with `help_out`.
        """
        with self._changed:
            self.check_running()
            self._queue.extend(items)
            self._call_threads(spared=helps)

    def _call_threads(self, *, spared: bool) -> None:
        """Start or wake threads for the work, one fewer if `spared`: the caller takes a part. The lock must be held."""
        wanted = min(len(self._queue), len(self._free)) - spared
        for _ in range(min(wanted - self._idle_threads, self.size - len(self._threads))):
            thread = threading.Thread(target=self._work, name="hocket-pool", daemon=True)
            self._threads.append(thread)
            thread.start()
        if wanted > 0 and self._idle_threads:
            self._changed.notify(wanted)

    def help_out(self, receiver: results.Receiver) -> None:
        """Work on the receiver's chunks in the calling thread, but not on others', which might take long."""
        while True:
            with self._changed:
                if not self._queue or not self._free or self._queue[0].receiver is not receiver:
                    # The threads do the rest: another receiver's chunk comes first, or all workers are busy.
                    self._call_threads(spared=False)
                    return
                worker, items = self._take(receiver)
            self._run(worker, items)

    def count_ahead(self, function: Function) -> int:
        """Return how many chunks to have in flight to keep all processes busy."""
        per_worker = 2 if function.seconds is None else chunks.SLICE_SECONDS / max(function.seconds, 1e-6)
        return self.size * int(min(max(per_worker, 1) + 1, MAX_CHUNKS))

    def close(self) -> None:
        """Take no more work. The processes end when the queue is empty."""
        with self._changed:
            self._is_closed = True
            self._drop_workers_if_done()
            self._changed.notify_all()

    def terminate(self) -> None:
        """End the processes now. Unfinished work fails."""
        with self._changed:
            if self._is_terminated:
                return
            self._is_closed = self._is_terminated = True
            workers = [*self._free, *self._busy]
            self._free.clear()
            dropped = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        self._kill(workers)
        # Without the lock: the receivers call the user's callbacks.
        for item in dropped:
            item.receiver.receive(item.position, False, _build_cancelled())

    def abandon(self, receiver: results.Receiver | None = None) -> None:
        """Withdraw the receiver's work, or terminate the pool, in a new thread. The garbage collector may call this
        while its thread holds the lock."""
        run = self.terminate if receiver is None else self.withdraw
        threading.Thread(
            target=run, args=() if receiver is None else (receiver,), name="hocket-pool-end", daemon=True
        ).start()

    def withdraw(self, receiver: results.Receiver) -> None:
        """End the work of a receiver whose results are no longer wanted."""
        with self._changed:
            kept = [item for item in self._queue if item.receiver is not receiver]
            self._queue.clear()
            self._queue.extend(kept)
            ended = [worker for worker, items in self._busy.items() if all(item.receiver is receiver for item in items)]
            for worker in ended:
                worker.is_ended = True
            self._drop_workers_if_done()
            self._changed.notify_all()
        self._kill(ended)

    def _kill(self, workers: Iterable[PoolWorker]) -> None:
        if contract.current_engine is self._engine:
            for worker in workers:
                with contextlib.suppress(exceptions.HocketError):  # the session may end at the same time
                    api.kill(worker.handle)

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    # --- the threads --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._queue and self._free):
                    if self._is_closed and not (self._queue and not self._is_terminated):
                        return
                    self._idle_threads += 1
                    try:
                        self._changed.wait()
                    finally:
                        self._idle_threads -= 1
                worker, items = self._take()
            self._run(worker, items)
            del worker, items

    def _take(self, receiver: results.Receiver | None = None) -> tuple[PoolWorker, list[Item]]:
        """Take a worker and a suitable number of chunks, only from `receiver` if one is given. Called with the lock
        held, when there are a free worker and a chunk."""
        worker = self._free.pop()
        queue = self._queue
        # An even share: the other workers need chunks, too.
        most = min(MAX_CHUNKS, math.ceil(len(queue) / self.size))
        if self._max_chunks is not None:
            most = min(most, self._max_chunks - worker.chunks_done)
        first = queue.popleft()
        items, function, each = [first], first.function, _estimate(first)
        seconds = each
        while len(items) < most:
            item = queue[0]
            seconds += each if item.function is function else _estimate(item)
            if seconds > chunks.SLICE_SECONDS or (receiver is not None and item.receiver is not receiver):
                break
            items.append(queue.popleft())
        self._busy[worker] = items
        return worker, items

    def _run(self, worker: PoolWorker, items: list[Item]) -> None:
        """Have a process work on chunks, and deliver the outcomes."""
        is_lost = False
        try:
            outcomes = self._send(worker, items)
        except BaseException as error:
            if _is_of_signal(error):
                self.withdraw(items[0].receiver)
                self._give_back(worker, len(items), [], is_lost=True)
                raise
            # These two errors come from a living process.
            is_lost = not isinstance(error, exceptions.TaskError | exceptions.SerializationError)
            outcomes = [(False, _build_cancelled() if self._is_terminated else error)] * len(items)
        self._give_back(worker, len(outcomes), items[len(outcomes) :], is_lost=is_lost)
        _deliver(items, outcomes)

    def _send(self, worker: PoolWorker, items: list[Item]) -> list[chunks.Outcome]:
        if len(items) == 1:
            item = items[0]
            encoded = item.function.encoded
            # Only for a function known to be short: `run` alone measures times.
            if item.kind == chunks.APPLY and _estimate(item) < chunks.SLICE_SECONDS and encoded.id in worker.known:
                args, kwargs = item.work
                if not kwargs and values.PLAIN_TYPES.issuperset(map(type, args)):
                    return [_open(api.get(worker.handle.apply.remote(encoded.id, *args)))]
        work, refused = _pack(items)
        if len(refused) == len(items):
            return list(refused.values())
        needed = {item.function.encoded.id: item.function.encoded for item in items}  # in the order of the items
        new = [
            (digest, chunks.Parcel(encoded.blob, list(map(pickle.PickleBuffer, encoded.buffers))))
            for digest, encoded in needed.items()
            if digest not in worker.known
        ]
        digests = [item.function.encoded.id for item in (items if len(needed) > 1 else items[:1])]
        ref = worker.handle.run.remote(new, digests, work)
        chunks.renew(worker.known, needed)  # only after it was sent
        chunks.forget(worker.known)
        outcomes: list[chunks.Outcome]
        outcomes, seconds = api.get(ref)
        if len(digests) == 1:
            function = items[0].function
            each = seconds / len(outcomes)
            # An average that halves the weight of older times, because a function's cost may change.
            function.seconds = each if function.seconds is None else (function.seconds + each) / 2
        return [refused.get(position) or _open(outcome) for position, outcome in enumerate(outcomes)]

    def _give_back(self, worker: PoolWorker, done: int, undone: list[Item], *, is_lost: bool) -> None:
        worker.chunks_done += done
        is_used_up = self._max_chunks is not None and worker.chunks_done >= self._max_chunks
        with self._changed:
            self._busy.pop(worker, None)
            # To the front, because these chunks were first. A killed worker's rest was withdrawn with it.
            self._queue.extendleft(() if worker.is_ended else reversed(undone))
        is_over = (is_lost or is_used_up or worker.is_ended) and not self._is_terminated
        replacement = self._replace(worker) if is_over else worker
        with self._changed:
            if not self._queue and not self._busy:
                self._latest = None
            if replacement is not None and not self._is_terminated:
                self._free.append(replacement)
            self._drop_workers_if_done()
            if self._is_closed:
                self._changed.notify_all()
            elif self._queue:
                # This thread itself takes the next part.
                self._call_threads(spared=True)

    def _replace(self, worker: PoolWorker) -> PoolWorker | None:
        if contract.current_engine is not self._engine:  # the session has ended, and the pool with it
            self.terminate()
            return None
        try:
            return PoolWorker(self._create())
        except exceptions.HocketError:
            self.terminate()
            return None

    def _drop_workers_if_done(self) -> None:
        """Let the processes end if all work is done. Called with the lock held."""
        if self._is_closed and not self._queue and not self._busy:
            self._free.clear()


def _estimate(item: Item) -> float:
    seconds = item.function.seconds
    return chunks.SLICE_SECONDS if seconds is None else seconds


def _deliver(items: list[Item], outcomes: list[chunks.Outcome]) -> None:
    for item, (ok, value) in zip(items, outcomes, strict=False):
        item.receiver.receive(item.position, ok, value)


def _pack(items: list[Item]) -> tuple[list[tuple[int, object]], dict[int, chunks.Outcome]]:
    """Return the packed work of chunks, and the outcomes of chunks that cannot travel, by position."""
    work: list[tuple[int, object]] = []
    refused: dict[int, chunks.Outcome] = {}
    for position, item in enumerate(items):
        explain = unsendable.explain_arguments if item.kind == chunks.APPLY else None
        try:
            work.append((item.kind, chunks.pack(item.work, item.function.encoded.name, explain)))
        except BaseException as error:  # a user's __reduce__ may raise anything
            refused[position] = _blame(error)
            work.append((chunks.REFUSED, None))
    return work, refused


def _open(outcome: chunks.Outcome) -> chunks.Outcome:
    """Decode an outcome for its receiver. If that fails, only this chunk fails."""
    ok, value = outcome
    try:
        return (True, chunks.unpack(value)) if ok else (False, value.open())
    except BaseException as error:  # a user's __setstate__ may raise anything
        return _blame(error)


def _blame(error: BaseException) -> chunks.Outcome:
    """Return the outcome of a chunk that cannot travel. Raise if a signal caused the error."""
    kind = type(error)
    if issubclass(kind, KeyboardInterrupt) or contract.is_from_handler(error):
        raise error
    if issubclass(kind, Exception):
        return False, error
    return False, exceptions.TaskError("Pool", texts.format_error(error), error)


def _is_of_signal(error: BaseException) -> bool:
    """Return whether a signal's handler raised the error: they run in the main thread, and raise no `HocketError`."""
    return not isinstance(error, exceptions.HocketError) and threading.current_thread() is threading.main_thread()


def _build_cancelled() -> exceptions.TaskCancelledError:
    return exceptions.TaskCancelledError("The pool was terminated before this work was done.")
