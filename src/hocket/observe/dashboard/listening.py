"""Where the dashboard listens: a port on loopback, or a Unix socket that only its user may open."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = re.compile(rb"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")
"""What browsers call a socket that is forwarded to a port of their machine, whichever that is."""

_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True)
class Place:
    """Where it listens."""

    listener: socket.socket
    is_own: Callable[[bytes], bool]
    """Tells whether the value of a ``Host`` is ours."""
    greet: Callable[[str], str]
    """Says how to get there, given the token."""
    path: Path | None = None
    """Of the socket."""

    def close(self) -> None:
        """Listen no more."""
        self.listener.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def open_port(port: int) -> Place:
    """Listen on 127.0.0.1.

    Args:
        port: 0 for any that is free.
    """
    listener = socket.create_server(("127.0.0.1", port))
    port = listener.getsockname()[1]
    hosts = {f"127.0.0.1:{port}".encode(), f"localhost:{port}".encode()}
    return Place(listener, hosts.__contains__, lambda token: f"The dashboard is at http://127.0.0.1:{port}/#{token}")


def open_socket(path: Path) -> Place:
    """Listen on a Unix socket that only this user may open.

    Args:
        path: Where it is made; there must be nothing.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise OSError(
            f"The socket {str(path)!r} cannot be made: {error.strerror or error}. Give a path in a folder of yours at "
            "which nothing is; what an earlier dashboard left there, after a kill, may be removed."
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
    return Place(listener, lambda host: LOOPBACK.fullmatch(host) is not None, lambda token: f"{way}{token}", path)


def is_stranger(connection: socket.socket | None) -> bool:
    """Tell whether another user is at the other end of a Unix socket."""
    with contextlib.suppress(OSError):
        if connection is not None and connection.family == socket.AF_UNIX:
            data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return bool(_CREDENTIALS.unpack(data)[1] != os.getuid())
    return False
