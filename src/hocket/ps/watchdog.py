"""The watchdog: once a stall of closures, it writes the stacks of the coordinator and of the workers to stderr."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time

from hocket import exceptions
from hocket.collective import segment
from hocket.engine import descendants, stack_questions
from hocket.ps import dispatcher, workers


def check(seconds: float | None) -> None:
    """Raise if nobody can wait so long for a closure to end."""
    if seconds is not None and not seconds > 0:
        raise ValueError(
            f"watchdog_s must be more than 0 seconds, but received {seconds!r}. Leave it out for no watchdog."
        )


def start(watched: workers.Workers, seconds: float) -> None:
    """Write the stacks when no closure has ended for so many seconds, while some run; until the scheduler is closed."""
    thread = threading.Thread(target=_watch, args=(watched, seconds), name="hocket-ps-watchdog", daemon=True)
    watched.helpers.append(thread)
    thread.start()


def _watch(watched: workers.Workers, seconds: float) -> None:
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
        sys.stderr.write(_describe(seconds, running, found) + "\n")
        sys.stderr.flush()


def _describe(seconds: float, running: list[str], found: list[tuple[int, dispatcher.WorkerDispatcher]]) -> str:
    names = ", ".join(sorted(set(running)))
    parts = [
        (
            f"hocket.ps: no closure has ended for {seconds:g} s, and {len(running)} are with the workers: {names}. "
            "What everybody is doing:"
        ),
        f"The coordinator (pid {os.getpid()}):\n{_dump_own()}",
    ]
    parts += [f"Worker {index} {_fetch(one)}" for index, one in found]
    return "\n".join(parts)


def _fetch(one: dispatcher.WorkerDispatcher) -> str:
    try:
        who = one.describe()
    except exceptions.HocketError as error:
        return f"cannot be asked: {error}"
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
