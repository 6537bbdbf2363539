"""Serves the store in which the ranks find each other, in a process of its own, as torchrun's agent does.

If rank 0 served it, a rank 0 that ends first would take the store with it: the others could make no new group, and NCCL
would complain. Scripts of torchrun's do not expect that.

torch's store asks nobody for a password, and every user of a machine may connect to its loopback addresses. So a gate
stands before it: it listens at MASTER_PORT, looks up in ``/proc/net`` whose the socket at the other end is, and hangs
up on other users. The store itself listens at the same port of another loopback address, with a random key in its
socket (TCP_MD5SIG, RFC 2385): the kernel drops, before there is a connection, what is not signed with the key, and only
the gate has it. A kernel without such keys, and a /proc without `net`, leave the store open, as torchrun does.
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
_WITH_PREFIX: Final = 1  # TCP_MD5SIG_FLAG_PREFIX: the key is for all addresses that begin so
_KEY: Final = struct.Struct("=HH4s120xBBHi80s")  # struct tcp_md5sig

_ESTABLISHED: Final = "01"


def listen() -> socket.socket:
    """Return the socket of the store: it takes connections from now on, only of this machine, and they wait for
    `serve`."""
    listener = socket.socket()
    listener.bind((_GATE, 0))
    listener.listen(socket.SOMAXCONN)
    return listener


def serve(listener: socket.socket) -> None:
    """Serve the store until this process is killed. torch is loaded when the first rank asks, if it is not there
    yet."""
    descriptors.is_readable(listener.fileno(), timeout_s=None)
    distributed: Any = importlib.import_module("torch.distributed")
    address, port = listener.getsockname()
    with contextlib.suppress(OSError):  # the kernel knows no keys, or does not say whose sockets are
        Path("/proc/net/tcp").stat()
        key = secrets.token_bytes(80)
        inner = _open_socket(key)
        inner.bind((_STORE, port))
        inner.listen(socket.SOMAXCONN)
        threading.Thread(target=_guard, args=(listener, key), daemon=True).start()
        listener = inner
    server = distributed.TCPStore(  # it is its own first caller, at the gate
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=os.dup(listener.fileno())
    )
    while server:  # it lives in a thread of torch's, as long as this object
        signal.pause()


def _open_socket(key: bytes) -> socket.socket:
    """Return a socket that talks on loopback only to those that have the key too."""
    opened = socket.socket()
    packed = _KEY.pack(socket.AF_INET, 0, socket.inet_aton("127.0.0.0"), _WITH_PREFIX, 8, len(key), 0, key)
    opened.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG_EXT, packed)
    return opened


def _guard(listener: socket.socket, key: bytes) -> None:
    """Connect this user's sockets to the store."""
    while True:
        with contextlib.suppress(OSError):  # who called has hung up, or there are too many
            outer, _ = listener.accept()
            if not is_own(outer):
                outer.close()
                continue
            threading.Thread(target=_connect, args=(outer, key), daemon=True).start()


def _connect(outer: socket.socket, key: bytes) -> None:
    """Connect a socket to the store, until both ends have hung up."""
    with outer, contextlib.suppress(OSError), _open_socket(key) as inner:
        inner.connect((_STORE, outer.getsockname()[1]))
        for end in (outer, inner):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = threading.Thread(target=_pass_on, args=(inner, outer), daemon=True)
        answers.start()
        _pass_on(outer, inner)
        answers.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # one of them is gone
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def is_own(connection: socket.socket) -> bool:
    """Tell whether the socket at the other end of a connection on loopback is this user's, or root's."""
    there = [_format(address) for address in (connection.getpeername(), connection.getsockname())]
    for table, head in (("tcp", ""), ("tcp6", "0000000000000000FFFF0000")):
        with contextlib.suppress(OSError):  # a system without IPv6
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1:4] == [f"{head}{there[0]}", f"{head}{there[1]}", _ESTABLISHED]:
                    return int(fields[7]) in (os.geteuid(), 0)
    return False


def _format(address: tuple[str, int]) -> str:
    """Return an address as ``/proc/net/tcp`` has it."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
