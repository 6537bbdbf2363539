"""The dashboard's server on loopback, which runs as long as it has viewers and a session to show."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import uvicorn
from uvicorn.protocols.http import h11_impl

from hocket.observe import searches, sessions, training, watching
from hocket.observe.dashboard import app
from hocket.observe.runs import lines, log

IDLE_SECONDS = 600.0
"""Seconds without a request after which the server ends. An open page sends one each second."""

NICENESS = 10
"""The server's niceness: if processor time is short, the program comes first."""

LOOK_SECONDS = 0.5
"""Seconds between two checks whether the server ends."""

GRACE_SECONDS = 3.0
"""Seconds that pages may still ask after their session's end, to show how its run ended."""

CONNECTIONS = 64
"""The most connections at once; a browser has six."""

REQUEST_SECONDS = 10.0
"""Seconds after which a connection that is silent, or amid a request, is cut: other users could hold all of them."""


_LOOPBACK = re.compile(rb"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")
"""The ``Host`` of a browser's request to a port that is forwarded to the socket, whatever the port is."""

_CREDENTIALS = struct.Struct("iII")


@final
class _Connection(h11_impl.H11Protocol):
    """A connection that the server cuts if there are too many, if it is slow, or if it is visibly another user's."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or cut it at once."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS or _is_stranger(transport.get_extra_info("socket")):
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
    """A server that leaves signals to asyncio. uvicorn would raise them again, as an error in a task."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def serve(driver_pid: int | None, folder: Path | None, where: int | Path, say: Callable[[str], object]) -> int:
    """Serve until Ctrl-C, the end of the session, or idleness; return the exit code.

    Args:
        driver_pid: The session; None for all.
        folder: The folder of a run or of several, to show instead of sessions.
        where: A port on 127.0.0.1, 0 for any free one; or the path of a Unix socket.
        say: Prints a line.
    """
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        return _serve(driver_pid, folder, where, say)
    return 0


def _serve(driver_pid: int | None, folder: Path | None, where: int | Path, say: Callable[[str], object]) -> int:
    if driver_pid is not None and not sessions.list_found(driver_pid):
        say(f"There is no session of yours whose driver has the pid {driver_pid}. `hocket status` lists your sessions.")
        return 1
    if folder is not None and not any(lines.find_logs(folder, name) for name in (log.NAME, searches.NAME)):
        say(
            f"There is no run or search in {str(folder)!r}: neither it nor its folders have a {log.NAME} or "
            f"{searches.NAME}. Give Result.path, ResultGrid.experiment_path, or a folder that holds several of these."
        )
        return 1
    os.nice(NICENESS)
    place = _open_socket(where) if isinstance(where, Path) else _open_port(where)
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
        say(f"{place.greet(token)}\nAnyone who has this address may use the dashboard until Ctrl-C ends it.")

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
    """Serve; return why it ended, unless a signal ended it. Greet once Ctrl-C works."""
    serving = asyncio.ensure_future(server.serve([listener]))
    why = ""
    with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C
        greet()
        while not why and not serving.done():
            await asyncio.wait([serving], timeout=LOOK_SECONDS)
            if driver_pid is not None and not sessions.list_found(driver_pid):
                await asyncio.wait([serving], timeout=GRACE_SECONDS)
                if not sessions.list_found(driver_pid):  # it may have opened another session
                    why = f"The session of pid {driver_pid} is over."
            elif time.monotonic() - pages.asked_at > IDLE_SECONDS:
                why = f"The dashboard was not used for {IDLE_SECONDS:.0f} s."
    server.should_exit = True
    await serving
    return why


@dataclass(frozen=True)
class _Place:
    """The listener of the dashboard: a port on loopback, or a Unix socket that only its user may open."""

    listener: socket.socket
    is_own: Callable[[bytes], bool]
    """Returns whether a value of ``Host`` is the dashboard's."""
    greet: Callable[[str], str]
    """Returns instructions for access, given the token."""
    path: Path | None = None
    """The socket's path."""

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        self.listener.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _open_port(port: int) -> _Place:
    """Listen on a port of 127.0.0.1; 0 for any free one."""
    listener = socket.create_server(("127.0.0.1", port))
    port = listener.getsockname()[1]
    hosts = {f"127.0.0.1:{port}".encode(), f"localhost:{port}".encode()}
    return _Place(listener, hosts.__contains__, lambda token: f"The dashboard is at http://127.0.0.1:{port}/#{token}")


def _open_socket(path: Path) -> _Place:
    """Listen on a new Unix socket that only this user may open; raise OSError if the path exists."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise OSError(
            f"The socket {str(path)!r} cannot be created: {error.strerror or error}. Give a path that does not exist "
            "yet, in a folder of yours. If a dashboard was killed and left its socket there, remove the socket."
        ) from error
    finally:
        os.umask(before)
    listener.listen()
    path = path.absolute()
    way = (
        f"The dashboard listens on {path}, for you alone. On the machine of your browser run\n"
        f"    ssh -N -L 8265:{path} {socket.gethostname()}\n"
        "and open http://127.0.0.1:8265/#"
    )
    return _Place(listener, lambda host: _LOOPBACK.fullmatch(host) is not None, lambda token: f"{way}{token}", path)


def _is_stranger(connection: socket.socket | None) -> bool:
    """Return whether another user is at the other end of a Unix socket."""
    with contextlib.suppress(OSError):
        if connection is not None and connection.family == socket.AF_UNIX:
            data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return bool(_CREDENTIALS.unpack(data)[1] != os.getuid())
    return False
