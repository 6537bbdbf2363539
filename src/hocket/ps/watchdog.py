"""Says where everybody is when no closure ends: the stacks of the coordinator's threads and of the workers, on stderr, once a stall."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time

from hocket import exceptions
from hocket.collective import segment, stacks
from hocket.ps import desk


def start(watched: desk.Desk, seconds: float) -> None:
    """Watch a desk until it is closed.

    Args:
        watched: Which.
        seconds: After how long without a closure's end, while some run, it speaks.
    """
    thread = threading.Thread(target=_watch, args=(watched, seconds), name="hocket-ps-watchdog", daemon=True)
    watched.helpers.append(thread)
    thread.start()


def _watch(watched: desk.Desk, seconds: float) -> None:
    reported = 0.0
    while True:
        with watched.condition:
            while True:
                if watched.is_closed:
                    return
                left = watched.last_end + seconds - time.monotonic()
                if watched.count_sent() and watched.last_end != reported and left <= 0:
                    break
                watched.condition.wait(left if left > 0 else seconds)
            reported = watched.last_end
            lanes = sorted(watched.lanes.items())
            running = [name for _, lane in lanes for name in lane.list_sent()]
        sys.stderr.write(_describe(seconds, running, lanes) + "\n")
        sys.stderr.flush()


def _describe(seconds: float, running: list[str], lanes: list[tuple[int, desk.Lane]]) -> str:
    names = ", ".join(sorted(set(running)))
    parts = [
        f"hocket.ps: no closure has ended for {seconds:g} s, and {len(running)} are with the workers: {names}. What everybody is doing:",
        f"The coordinator (pid {os.getpid()}):\n{_dump_own()}",
    ]
    parts += [f"Worker {index} {_fetch(lane)}" for index, lane in lanes]
    return "\n".join(parts)


def _fetch(lane: desk.Lane) -> str:
    try:
        who = lane.describe()
    except exceptions.HocketError as error:
        return f"cannot be asked: {error}"
    name = f"(pid {who.pid})"
    if who.host != segment.identify_host():
        return f"{name} is on another machine, {who.host}: its stack cannot be read from here."
    if who.desk is None:
        return f"{name} is a thread of the coordinator's process."
    if stacks.is_stopped(who.pid):
        return f"{name} is stopped, as by SIGSTOP or Ctrl-Z. `kill -CONT {who.pid}` lets it go on."
    return f"{name}:\n{stacks.fetch(who.pid, who.desk)}"


def _dump_own() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")
