"""The driver's end of each worker."""

from __future__ import annotations

import contextlib
import os
import socket

from hocket.engine.local import channel, journal
from hocket.kernel import records


class Link:
    """The driver's end of a worker."""

    __slots__ = (
        "begun",
        "begun_at",
        "channel",
        "exported",
        "fetching",
        "functions",
        "is_closed",
        "is_refused",
        "is_writable_watched",
        "looked_at",
        "page",
        "pid",
        "stopped_at",
        "worker",
    )

    def __init__(self, worker: records.WorkerRecord, sock: socket.socket) -> None:
        self.worker = worker
        self.channel = channel.Channel(sock)
        #: Functions whose code the worker has.
        self.functions: set[bytes] = set()
        #: Waits that are none, because what they wait for is there and only has to be sent; by the worker's number.
        self.fetching: set[int] = set()
        #: Functions whose code the worker has sent.
        self.exported: set[bytes] = set()
        self.pid = 0
        #: What the worker says and does, in memory that outlives it.
        self.page = journal.Page()
        #: The number of the task that it was seen to have started last, and when that was seen first.
        self.begun = 0
        self.begun_at = 0.0
        #: When it was looked at last.
        self.looked_at = 0.0
        #: When it was told to stop.
        self.stopped_at = 0.0
        self.is_writable_watched = False
        #: Whether its socket has ended.
        self.is_closed = False
        #: Whether it said what makes no sense, and is being ended for it.
        self.is_refused = False

    @classmethod
    def open(cls, worker: records.WorkerRecord) -> tuple[Link, socket.socket]:
        """Return a new link and the worker's end of its socket."""
        with contextlib.ExitStack() as opened:
            ours, theirs = socket.socketpair()
            opened.callback(ours.close)
            opened.callback(theirs.close)
            link = cls(worker, ours)
            opened.callback(link.close)
            with contextlib.ExitStack() as spare:
                for fd in (theirs.fileno(), link.page.fd):  # as `Channel.flush` will
                    spare.callback(os.close, os.dup(fd))
            opened.pop_all()
        return link, theirs

    def close(self) -> None:
        """Close the socket and let go of the page."""
        self.channel.close()
        self.page.close()
