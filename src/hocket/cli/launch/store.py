"""Serves the store through which the ranks find each other, in a process of its own, as torchrun's agent does.

If rank 0 served the store, it would take the store with it when it ends first: the others could make no new group, and
NCCL would complain. Scripts for torchrun do not expect that.

torch's store has no password, and every user of a machine may connect to its loopback addresses. So a gate stands
before it. The gate listens at MASTER_PORT, looks up the user of each connecting socket in ``/proc/net``, and closes the
connections of other users. The store itself listens at the same port of another loopback address, with a random key in
its socket (TCP_MD5SIG, RFC 2385). The kernel drops packets without a signature by that key before they make a
connection, and only the gate has the key. Without such keys or ``/proc/net``, the store is open, as in torchrun.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import signal
import socket
import struct
import threading
from pathlib import Path
from typing import Any, Final

from hocket.engine import descriptors

_GATE: Final = "127.0.0.1"
_STORE: Final = "127.0.0.2"

_TCP_MD5SIG_EXT: Final = 32
_WITH_PREFIX: Final = 1  # TCP_MD5SIG_FLAG_PREFIX: the key is for all addresses with this prefix
_KEY: Final = struct.Struct("=HH4s120xBBHi80s")  # struct tcp_md5sig

_ESTABLISHED: Final = "01"


def listen() -> socket.socket:
    """Return the store's socket. Connections, only from this machine, may come from now on, and wait for `serve`."""
    listener = socket.socket()
    listener.bind((_GATE, 0))
    listener.listen(socket.SOMAXCONN)
    return listener


def serve(listener: socket.socket) -> None:
    """Serve the store until this process is killed. torch is loaded, at the latest, when the first rank connects."""
    descriptors.is_readable(listener.fileno(), timeout_s=None)
    distributed: Any = importlib.import_module("torch.distributed")
    address, port = listener.getsockname()
    with contextlib.suppress(OSError):  # the kernel has no keys, or does not list sockets
        Path("/proc/net/tcp").stat()
        key = secrets.token_bytes(80)
        inner = _open_socket(key)
        inner.bind((_STORE, port))
        inner.listen(socket.SOMAXCONN)
        threading.Thread(target=_guard, args=(listener, key), daemon=True).start()
        listener = inner
    server = distributed.TCPStore(  # the server first connects to itself, through the gate
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=os.dup(listener.fileno())
    )
    while server:  # a thread of torch's serves as long as this object exists
        signal.pause()


def _open_socket(key: bytes) -> socket.socket:
    """Return a socket that, on loopback, exchanges data only with sockets that have the key."""
    opened = socket.socket()
    packed = _KEY.pack(socket.AF_INET, 0, socket.inet_aton("127.0.0.0"), _WITH_PREFIX, 8, len(key), 0, key)
    opened.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG_EXT, packed)
    return opened


def _guard(listener: socket.socket, key: bytes) -> None:
    """Accept connections at the gate, and connect those of this user to the store."""
    while True:
        with contextlib.suppress(OSError):  # the peer has closed the connection, or there are too many
            outer, _ = listener.accept()
            if not is_own(outer):
                outer.close()
                continue
            threading.Thread(target=_connect, args=(outer, key), daemon=True).start()


def _connect(outer: socket.socket, key: bytes) -> None:
    """Relay data between a socket and the store until both ends are closed."""
    with outer, contextlib.suppress(OSError), _open_socket(key) as inner:
        inner.connect((_STORE, outer.getsockname()[1]))
        for end in (outer, inner):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = threading.Thread(target=_pass_on, args=(inner, outer), daemon=True)
        answers.start()
        _pass_on(outer, inner)
        answers.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # one end is gone
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def is_own(connection: socket.socket) -> bool:
    """Return whether the socket at the other end of a loopback connection belongs to this user, or to root."""
    there = [_format(address) for address in (connection.getpeername(), connection.getsockname())]
    for table, head in (("tcp", ""), ("tcp6", "0000000000000000FFFF0000")):
        with contextlib.suppress(OSError):  # the system has no IPv6
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1:4] == [f"{head}{there[0]}", f"{head}{there[1]}", _ESTABLISHED]:
                    return int(fields[7]) in (os.geteuid(), 0)
    return False


def _format(address: tuple[str, int]) -> str:
    """Return an address in the form of ``/proc/net/tcp``."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
