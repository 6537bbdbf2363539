"""The hub's end of each worker."""

from __future__ import annotations

import socket
import time

from hocket.engine.local import channel
from hocket.kernel import records


class Link:
    """The hub's end of a worker."""

    __slots__ = (
        "channel",
        "exported",
        "functions",
        "heard_at",
        "is_closed",
        "is_refused",
        "is_writable_watched",
        "pid",
        "stopped_at",
        "worker",
    )

    def __init__(self, worker: records.WorkerRecord, sock: socket.socket) -> None:
        self.worker = worker
        self.channel = channel.Channel(sock)
        #: Functions whose code the worker has.
        self.functions: set[bytes] = set()
        #: Functions whose code the worker has sent.
        self.exported: set[bytes] = set()
        self.pid = 0
        self.heard_at = time.monotonic()
        #: When it was told to stop.
        self.stopped_at = 0.0
        self.is_writable_watched = False
        #: Whether its socket has ended.
        self.is_closed = False
        #: Whether it said what makes no sense, and is being ended for it.
        self.is_refused = False
