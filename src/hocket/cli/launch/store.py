"""Serves the store in which the ranks find each other, in a process of its own, as torchrun's agent does.

If rank 0 served it, a rank 0 that ends first would take the store with it: the others could make no new group, and NCCL
would complain. Scripts of torchrun's do not expect that.
"""

from __future__ import annotations

import importlib
import signal
import socket
from typing import Any

from hocket.engine import descriptors


def listen() -> socket.socket:
    """Return the socket of the store: it takes connections from now on, only of this machine, and they wait for
    `serve`."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(socket.SOMAXCONN)
    return listener


def serve(listener: socket.socket) -> None:
    """Serve the store until this process is killed. torch is loaded when the first rank asks, if it is not there
    yet."""
    descriptors.is_readable(listener.fileno(), timeout_s=None)
    distributed: Any = importlib.import_module("torch.distributed")
    address, port = listener.getsockname()
    server = distributed.TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    while server:  # it lives in a thread of torch's, as long as this object
        signal.pause()
