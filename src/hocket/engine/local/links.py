"""The driver's ends of the sockets to its workers."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Protocol, final

from hocket.engine import faults
from hocket.engine.local import channel, journal
from hocket.kernel import records


class Link:
    """The driver's end of the socket to a worker, and the worker's page."""

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
        #: The worker's numbers of waits that do not count: their objects are there, and only have to be sent.
        self.fetching: set[int] = set()
        #: Functions whose code the worker has sent.
        self.exported: set[bytes] = set()
        self.pid = 0
        #: The worker's journal, in memory that outlives the worker.
        self.page = journal.Page()
        #: The number of the task that the worker has started last, and the time of the first look that found it.
        self.begun = 0
        self.begun_at = 0.0
        #: The time of the last look at the worker.
        self.looked_at = 0.0
        #: The time of the order to stop.
        self.stopped_at = 0.0
        self.is_writable_watched = False
        #: Whether the socket has ended.
        self.is_closed = False
        #: Whether the worker has sent a message that makes no sense, and is being ended for it.
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
                for fd in (theirs.fileno(), link.page.fd):  # `Channel.flush` will duplicate both
                    spare.callback(os.close, os.dup(fd))
            opened.pop_all()
        return link, theirs

    def note_birth(self, pid: int) -> None:
        """Note that the worker has been forked."""
        self.pid = pid

    def stop(self, now: float) -> None:
        """Note the time of the worker's order to stop."""
        self.stopped_at = now

    def refuse(self) -> None:
        """Note that the worker has sent a message that makes no sense."""
        self.is_refused = True

    def note_progress(self, begun: int, now: float, patience_s: float) -> float:
        """Note which task the worker has started last; return for how many seconds this has not changed.

        The count begins anew after a while without a look, as the worker had nothing to do meanwhile.
        """
        if begun != self.begun or now - self.looked_at > patience_s:
            self.begun, self.begun_at = begun, now
        self.looked_at = now
        return now - self.begun_at

    def end(self) -> None:
        """Note that the socket has ended."""
        self.is_closed = True

    def close(self) -> None:
        """Close the socket and let go of the page."""
        self.channel.close()
        self.page.close()


class Poller(Protocol):
    """The reactor, which reads the sockets."""

    def watch(self, fd: int) -> None:
        """Handle messages that arrive on this descriptor."""

    def watch_writable(self, fd: int, wanted: bool) -> None:
        """Start or stop handling the moment when the descriptor takes more."""

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor."""


@final
class Links:
    """All links, and the set of links with unsent messages. Every method is called with the lock held.

    Args:
        poller: The reader of the sockets.
        kill: Ends a worker when its socket fails.
    """

    def __init__(self, poller: Poller, kill: Callable[[int], None]) -> None:
        self._poller, self._kill = poller, kill
        self.by_worker: dict[int, Link] = {}
        self.by_fd: dict[int, Link] = {}
        #: Links with unsent messages.
        self.dirty: dict[Link, None] = {}

    def add(self, link: Link) -> None:
        """Add a new worker's link."""
        self.by_worker[link.worker.id] = link
        self.by_fd[link.channel.fd] = link
        self._poller.watch(link.channel.fd)

    def hang_up(self, link: Link) -> bool:
        """Note that a worker's socket has ended; return whether that is new."""
        if link.is_closed:
            return False
        link.end()
        self._poller.unwatch(link.channel.fd)
        del self.by_fd[link.channel.fd]
        return True

    def remove(self, link: Link) -> None:
        """Remove a dead worker's link."""
        del self.by_worker[link.worker.id]
        self.dirty.pop(link, None)
        link.close()

    def tell(self, worker_id: int, message: channel.Message) -> bool:
        """Put a message into a worker's outbox; return False if the worker is dead."""
        link = self.by_worker.get(worker_id)
        if link is not None:
            self.post(link, message)
        return link is not None

    def post(self, link: Link, message: channel.Message) -> None:
        """Put a message in a worker's outbox, to be sent before the next wait."""
        link.channel.post(message)
        self.dirty[link] = None

    def send(self, link: Link, message: channel.Message) -> None:
        """Put a message in a worker's outbox, and send it."""
        link.channel.post(message)
        self.flush(link)

    def flush(self, link: Link) -> None:
        """Send a worker's outbox; the rest goes when the socket takes more."""
        if faults.plan is not None:
            faults.plan.reach("hub.before_flush")
        try:
            is_sent = link.channel.flush()
        except OSError as error:  # the worker is dying; the guardian will report why
            link.channel.outbox.clear()
            is_sent = True
            if not isinstance(error, BrokenPipeError | ConnectionResetError):  # the worker would wait for ever
                self._kill(link.worker.id)
        if is_sent == link.is_writable_watched and not link.is_closed:
            link.is_writable_watched = not is_sent
            self._poller.watch_writable(link.channel.fd, link.is_writable_watched)
        if link in self.dirty:
            del self.dirty[link]

    def close(self) -> None:
        """Close all sockets and pages."""
        for link in self.by_worker.values():
            link.close()
        self.by_worker.clear()
