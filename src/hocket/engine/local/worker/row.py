"""Work that waits for its turn in a worker, and the threads of an actor that runs several calls at once."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, final

from hocket.engine.local import event_loop, messages, worker_engine
from hocket.engine.local.work import Work
from hocket.engine.local.worker import residents

T = TypeVar("T")


@final
class CallThreads(Generic[T]):
    """Threads that take calls from one queue, in the order in which the calls came.

    As many threads are started as have calls to run, up to `size`. There are two differences to
    ``ThreadPoolExecutor``. No future is made for a call: no code here needs it, and it is a quarter of the cost of a
    short call. And a call without a thread always gets a new thread: calls of one actor may wait for each other.

    Args:
        size: How many calls may run at once.
        name: The threads' name, without their number.
        run: Runs a call, and raises nothing.
    """

    def __init__(self, size: int, name: str, run: Callable[[T], None]) -> None:
        self._size = size
        self._name = name
        self._run = run
        self._calls: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: How many calls wait or run.
        self._unfinished = 0
        self._lock = threading.Lock()

    def submit(self, call: T) -> None:
        """Have the next free thread run a call."""
        with self._lock:
            self._unfinished += 1
            number = len(self._threads)
            if number < self._unfinished and number < self._size:
                self._start_thread(f"{self._name}_{number}")
        self._calls.put(call)

    def shutdown(self) -> None:
        """Wait until all calls have run, and end the threads."""
        self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _start_thread(self, name: str) -> None:
        thread = threading.Thread(target=self._serve, name=name)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                self._calls.put(None)  # for the next thread
                return
            self._run(call)
            del call  # it holds handles
            with self._lock:
                self._unfinished -= 1


@final
class Row:
    """The queue of the main thread, and the queues of an actor's threads.

    Args:
        engine: The worker's engine.
        subject: The actor, if there is one.
        functions: The code of functions, and the values in messages.
    """

    def __init__(self, engine: worker_engine.WorkerEngine, subject: residents.Actor, functions: residents.Code) -> None:
        self._engine, self._actor, self._code = engine, subject, functions
        self.works: deque[Work] = deque()
        #: The threads for calls without a group, if such calls run in threads; below, the threads of each group.
        self.threads: CallThreads[Work] | None = None
        self._groups: dict[str, CallThreads[Work]] = {}

    def add(self, work: Work) -> None:
        """Give work to the thread that runs it. Called with the lock held."""
        if self._groups and self._give_to_group(work):
            return
        self.works.append(work)
        loop: event_loop.Loop | None = self._actor.loop
        if loop is not None:
            loop.notice()

    def _give_to_group(self, work: Work) -> bool:
        """Give the call to the threads of its concurrency group; return False if it has no group."""
        group = (work.extra or {}).get("group")
        if not group or work.function_id:
            return False
        self._groups[group].submit(work)
        return True

    def start_threads(self, size: int, groups: dict[str, int], run: Callable[[Work], None]) -> None:
        """Have calls run in threads, when the actor has been built.

        Args:
            size: How many calls without a group may run at once.
            groups: How many calls of each group may run at once.
            run: Runs a call.
        """
        self._groups = {name: CallThreads(most, f"hocket-{name}", run) for name, most in groups.items()}
        if self._groups:
            with self._engine.lock:  # calls that came while the actor was being built
                remaining = [work for work in self.works if not self._give_to_group(work)]
                self.works.clear()
                self.works.extend(remaining)
        if size > 1:
            self.threads = CallThreads(size, "hocket-call", run)

    def end_threads(self) -> None:
        """Wait until all calls in threads have run."""
        for pool in (self.threads, *self._groups.values()):
            if pool is not None:
                pool.shutdown()

    # --- work that does not run here ----------------------------------------------------------------------------------

    def remove(self, task_id: int, withdrawn: int) -> Work | None:
        """Take cancelled work out of the queue and return it; None if it is not there, or withdrawn: then it goes back
        to the driver by itself. Called with the lock held."""
        for work in list(self.works):
            if work.task_id == task_id and not 0 < work.number <= withdrawn:
                try:
                    self.works.remove(work)
                except ValueError:  # another thread has just taken it
                    return None
                return work
        return None

    def hand_back(self, work: Work) -> None:
        """Hand a withdrawn task back to the driver, which may take it for started."""
        with self._engine.lock:
            self._engine.duty.cancelled.discard(work.task_id)
            self._code.close_unopened(work)
            self._engine.channel.post((messages.BACK, [(work.task_id, work.number)]))

    def take_unstarted(self) -> list[tuple[int, int]]:
        """Empty the queue, and return the tasks with their numbers. Called with the lock held."""
        if self._actor.exists:  # its calls cannot run elsewhere
            return []
        taken: list[tuple[int, int]] = []
        row = self.works
        while row:
            try:
                work = row.pop()
            except IndexError:
                break
            if work.function_id and not (work.extra or {}).get("creates_actor"):
                taken.append((work.task_id, work.number))
                self._code.close_unopened(work)
            else:
                row.append(work)
                break
        taken.reverse()
        return taken
