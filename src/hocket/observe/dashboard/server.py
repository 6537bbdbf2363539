"""Serves the pages, on loopback, as long as somebody looks and there is something to see."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import uvicorn
from uvicorn.protocols.http import h11_impl

from hocket.observe import searches, sessions, training, watching
from hocket.observe.dashboard import app, listening
from hocket.observe.runs import lines, log

IDLE_SECONDS = 600.0
"""How long nobody asks for anything before the server ends. An open page asks each second."""

NICENESS = 10
"""Where there is too little processor time, the program goes before its viewer."""

LOOK_SECONDS = 0.5
"""How often it looks whether it is to end."""

GRACE_SECONDS = 3.0
"""How long a page may still ask when its session is over: how a run has ended is what one wants to see."""

CONNECTIONS = 64
"""How many connections there may be at once; a browser has six."""

REQUEST_SECONDS = 10.0
"""How long a connection may say nothing, or send parts of a request, before it is cut. Other users of the
machine could hold all connections otherwise."""


@final
class _Connection(h11_impl.H11Protocol):
    """Cuts those that are too many, or too slow, or of another user where that can be seen."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or cut it at once."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS or listening.is_stranger(transport.get_extra_info("socket")):
            transport.abort()
            return
        self._seen: object = self
        self.loop.call_later(REQUEST_SECONDS, self._look)

    def _look(self) -> None:
        cycle: Any = self.cycle
        is_idle = cycle is None or cycle.response_complete
        if self.transport.is_closing():
            return
        if is_idle and cycle in (None, self._seen):
            self.transport.abort()
            return
        self._seen = cycle
        self.loop.call_later(REQUEST_SECONDS, self._look)


@final
class _Server(uvicorn.Server):
    """Leaves signals to asyncio, which ends what runs: raised again by uvicorn, they would be an error in a task."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def serve(driver_pid: int | None, folder: Path | None, where: int | Path, say: Callable[[str], object]) -> int:
    """Serve until Ctrl-C, the end of the session, or nobody looks; return the exit code.

    Args:
        driver_pid: The session; None for all.
        folder: The runs of a folder, or one run's, in place of sessions.
        where: To listen: a port on 127.0.0.1, 0 for any free one; or the path of a Unix socket.
        say: Prints a line.
    """
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        return _serve(driver_pid, folder, where, say)
    return 0


def _serve(driver_pid: int | None, folder: Path | None, where: int | Path, say: Callable[[str], object]) -> int:
    if driver_pid is not None and not sessions.list_found(driver_pid):
        say(f"There is no session of yours with the driver's pid {driver_pid}. `hocket status` lists those there are.")
        return 1
    if folder is not None and not any(lines.find_logs(folder, name) for name in (log.NAME, searches.NAME)):
        say(
            f"There is no run or search in {str(folder)!r}: no {log.NAME} or {searches.NAME} there, nor in its "
            "folders. Give Result.path, ResultGrid.experiment_path, or the folder of several."
        )
        return 1
    os.nice(NICENESS)
    place = listening.open_socket(where) if isinstance(where, Path) else listening.open_port(where)
    token = secrets.token_hex(32)
    watch = watching.Watch(driver_pid if folder is None else -1)
    runs = training.Runs(folder)
    pages = app.Pages(watch, runs, searches.Searches(folder))
    guarded = app.build(pages, token=token, is_own=place.is_own)
    config = uvicorn.Config(
        guarded,
        access_log=False,
        date_header=False,
        h11_max_incomplete_event_size=16384,
        http=_Connection,
        lifespan="off",
        log_level="error",
        loop="asyncio",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=5,
        ws="none",
    )
    server = _Server(config)

    def greet() -> None:
        say(f"{place.greet(token)}\nWhoever has this address may look until Ctrl-C ends it.")

    try:
        why = asyncio.run(_run(server, place.listener, pages, driver_pid, greet))
    finally:
        place.close()
        watch.close()
        runs.close()
    if why:
        say(why)
    return 0


async def _run(
    server: uvicorn.Server,
    listener: socket.socket,
    pages: app.Pages,
    driver_pid: int | None,
    greet: Callable[[], None],
) -> str:
    """Serve; return why it ended, if not by a signal. Greets when Ctrl-C is heeded."""
    serving = asyncio.ensure_future(server.serve([listener]))
    why = ""
    with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C
        greet()
        while not why and not serving.done():
            await asyncio.wait([serving], timeout=LOOK_SECONDS)
            if driver_pid is not None and not sessions.list_found(driver_pid):
                await asyncio.wait([serving], timeout=GRACE_SECONDS)
                if not sessions.list_found(driver_pid):  # it may have opened another one
                    why = f"The session of pid {driver_pid} is over."
            elif time.monotonic() - pages.asked_at > IDLE_SECONDS:
                why = f"Nobody has looked for {IDLE_SECONDS:.0f} s."
    server.should_exit = True
    await serving
    return why
