"""Starts, adds, removes and ends the workers of a coordinator, each with its dispatcher."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
from typing import Final, final

from hocket import exceptions
from hocket._base import showing
from hocket.collective import segment
from hocket.engine import descendants, stack_questions
from hocket.ps.access import links
from hocket.ps.executor import dispatcher, scheduler, worker


@final
class Workers:
    """All workers of a coordinator."""

    def __init__(self, queue: scheduler.ClosureScheduler, link: links.Link, settings: worker.Settings) -> None:
        self.scheduler: Final = queue
        self.dispatchers: Final[dict[int, dispatcher.WorkerDispatcher]] = {}
        """The dispatchers by worker. Changes under the scheduler's lock."""
        self.helpers: Final[list[threading.Thread]] = []
        """Threads that end when the scheduler is closed."""
        self._link = link
        self._settings = settings
        showing.show("coordinators", self, Workers._describe)

    def _describe(self) -> showing.Facts:
        queue = self.scheduler
        states = [state for _, state in sorted(queue.workers.items())]
        return {
            "strategy": self._link.address.gate.identity,
            **queue.statistics(),
            "workers": [
                {"worker": one.index, "taken": one.num_taken, "has": len(one.sent), "is_leaving": one.is_leaving}
                for one in states
            ],
        }

    def add(self) -> int:
        """Start one more worker; return its index."""
        queue = self.scheduler
        with queue.condition:
            queue.check_open()
            index = queue.num_workers
            queue.num_workers += 1
        added = dispatcher.WorkerDispatcher(queue, self._link, index, self._settings)
        with queue.condition:
            added.state.num_taken = max((one.num_taken for one in queue.workers.values()), default=0)
            self.dispatchers[index] = added
            queue.workers[index] = added.state
            self._tell_gate()
        added.begin()
        return index

    def remove(self, index: int) -> None:
        """End a worker, after it has finished its closures.

        Raises:
            ValueError: There is no such worker, or it is the last.
        """
        with self.scheduler.condition:  # if two threads remove the last two workers, one is refused
            living = sorted(number for number, one in self.scheduler.workers.items() if not one.is_leaving)
            if index not in living:
                raise ValueError(f"There is no worker {index}; the workers are {living}.")
            if len(living) == 1:
                raise ValueError(
                    f"Worker {index} is the last one, and closures need one. Use coordinator.close() to end all."
                )
            leaving = self.dispatchers[index]
            leaving.begin_to_leave()
        leaving.leave()
        with self.scheduler.condition:
            del self.dispatchers[index]
            self.scheduler.remove_worker(index)
            self._tell_gate()

    def close(self) -> None:
        """End all workers and their dispatchers' threads. Unfinished closures are cancelled."""
        queue = self.scheduler
        queue.close()
        for one in list(self.dispatchers.values()):
            one.stop()
        for helper in self.helpers:
            if helper is not threading.current_thread():
                helper.join()
        with queue.condition:
            self.dispatchers.clear()
            queue.workers.clear()
            queue.inputs.close()

    def _tell_gate(self) -> None:
        if self._link.address.is_synchronous:
            self._link.gate.set_workers(len(self.dispatchers))


def check_watchdog(seconds: float | None) -> None:
    """Raise a ValueError unless a watchdog can wait this many seconds."""
    if seconds is not None and not seconds > 0:
        raise ValueError(
            f"watchdog_s must be more than 0 seconds, but received {seconds!r}. Leave it out for no watchdog."
        )


def start_watchdog(watched: Workers, seconds: float) -> None:
    """Start a thread that writes all stacks to stderr if no closure ends for `seconds` seconds while some run.

    The thread ends when the scheduler closes."""
    thread = threading.Thread(target=_watch, args=(watched, seconds), name="hocket-ps-watchdog", daemon=True)
    watched.helpers.append(thread)
    thread.start()


def _watch(watched: Workers, seconds: float) -> None:
    queue = watched.scheduler
    reported = 0.0
    while True:
        with queue.condition:
            while True:
                if queue.is_closed:
                    return
                left = queue.last_end + seconds - time.monotonic()
                if queue.count_sent() and queue.last_end != reported and left <= 0:
                    break
                queue.condition.wait(left if left > 0 else seconds)
            reported = queue.last_end
            found = sorted(watched.dispatchers.items())
            running = [closure.name for _, one in found for closure in one.state.list_sent()]
        sys.stderr.write(_describe_stall(seconds, running, found) + "\n")
        sys.stderr.flush()


def _describe_stall(seconds: float, running: list[str], found: list[tuple[int, dispatcher.WorkerDispatcher]]) -> str:
    names = ", ".join(sorted(set(running)))
    parts = [
        (
            f"hocket.ps: no closure has ended for {seconds:g} s, and {len(running)} are with the workers: {names}. "
            "The stacks of all processes:"
        ),
        f"The coordinator (pid {os.getpid()}):\n{_dump_own()}",
    ]
    parts += [f"Worker {index} {_fetch_stack(one)}" for index, one in found]
    return "\n".join(parts)


def _fetch_stack(one: dispatcher.WorkerDispatcher) -> str:
    try:
        who = one.describe()
    except exceptions.HocketError as error:
        return f"does not answer: {error}"
    name = f"(pid {who.pid})"
    if who.host != segment.identify_host():
        return f"{name} is on another machine, {who.host}: its stack cannot be read from here."
    if who.probe is None:
        return f"{name} is a thread of the coordinator's process."
    if descendants.is_stopped(who.pid):
        return f"{name} is stopped, as by SIGSTOP or Ctrl-Z. `kill -CONT {who.pid}` lets it go on."
    return f"{name}:\n{stack_questions.fetch(who.pid, who.probe)}"


def _dump_own() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")
