"""A worker's unsent messages, in memory that outlives it.

Sending each result by itself would cost a system call a task (some 5 us of 8). So results wait for company, up to a
millisecond, and a worker that dies in that millisecond must not take them along: what is finished is finished, and
nobody else is to be blamed for the death. Each worker therefore has a *page*, a piece of shared memory that the driver
maps, too:

- **The journal.** Every message to the driver is written here first, and then counted in one word (`END`). The frame is
  sent from here, in one piece and without a further copy. When the worker is dead, the driver reads the socket to its
  end and then the journal, less what has come by the socket. A message that carries descriptors is sent at once
  instead: a descriptor cannot lie in memory.
- **Replies.** Answers to direct calls (`direct_channels`) go to other workers. They are written here, too, until all
  have been sent.
- **What runs.** An actor that runs several calls at once notes each of them; a process that runs one at a time has one
  word for it in the table of `messages.STATUS_SLOTS`.
- **The claim.** Tasks are sent ahead, and the driver may want them back from a worker that is silent: because its task
  holds the interpreter, or is stopped, or yields for ever. `BEGUN` is the worker's: the number of the task that it is
  about to start. `WITHDRAWN` is the driver's: tasks up to this number are not to be started any more.

**The claim needs no lock.** The worker writes `BEGUN` and then reads `WITHDRAWN`; the driver writes `WITHDRAWN`, lets
`SETTLE_SECONDS` pass, and then reads `BEGUN`. What the driver takes back are the numbers above what it reads. Had the
worker missed the driver's word for one of these, its own would have been written before, and seen: a processor holds a
store back for nanoseconds (it has some dozens of places for them), and empties them whenever it changes threads; the
driver waits 100 us. The other way round both may see each other's word. Then the driver counts the task as begun, the
worker does not start it, and says so (`BACK`).

**After a death no order of stores matters**: the kernel has seen all of them. The words are written so that a death
between any two of them loses nothing: a message before the word that counts it, and when a frame has been sent, first
`END` is set to 0 and then `BASE`, the number of messages before the journal's first, is raised.

What was tried: a ring that the driver reads while the worker writes. It saves the copy to the socket, and needs a bell
all the same; the journal leaves the driver's way as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import mmap
import os
import socket
import threading
import time
from typing import final

from hocket.engine import descriptors
from hocket.engine.local import channel

SETTLE_SECONDS = 1e-4
"""How long after its own word the driver reads the worker's. A hundred times what a store can take to be seen."""

MAX_RUNNING = 8192
"""How many calls of one actor may be noted as running. If more run at once, all that it was sent count as running when
it dies."""

BODY_BYTES = 128 * 1024
"""Room for messages that are not sent. Some thousand results; a millisecond's are a tenth of it."""

LATER = 64
"""How many messages that nobody misses are encoded at once. `LATER_BYTES` each, they fit into `BODY_BYTES`."""

LATER_BYTES = 1024
"""How long the data of a message may be that is to be encoded later."""

REPLY_BYTES = 128 * 1024
"""Room for answers to direct calls."""

# Words of the page, 8 bytes each.
END = 0
"""How many bytes of the journal count."""
BASE = 1
"""How many messages were sent before the journal's first."""
REPLIES = 2
"""How many bytes of the replies count."""
BEGUN = 3
WITHDRAWN = 4
RUNNING_TOP = 5
"""How many places for running calls have ever been used; more than `MAX_RUNNING` says that there were not enough."""
_FIRST_RUNNING = 8
_WORDS = _FIRST_RUNNING + MAX_RUNNING

_BODY = _WORDS * 8 + 16
"""Where the journal's messages begin. Before them is room for the head of a frame."""
_HEAD = _BODY - channel.HEAD.size
_REPLIES = _BODY + BODY_BYTES

PAGE_BYTES = _REPLIES + REPLY_BYTES
"""Only what is used takes memory."""


@final
class Page:
    """The driver's side of a worker's page."""

    __slots__ = ("_map", "_words", "fd")

    def __init__(self) -> None:
        #: To be handed to the worker, and then closed with `hand_over`.
        self.fd = os.memfd_create("hocket-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, PAGE_BYTES)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # who reads beyond its end is killed
        self._map = mmap.mmap(self.fd, PAGE_BYTES)
        self._words = memoryview(self._map)[: _WORDS * 8].cast("Q")

    def hand_over(self) -> None:
        """The worker's parent has the descriptor: this process needs it no more."""
        os.close(self.fd)
        self.fd = -1

    def read_begun(self) -> int:
        """Return the number of the task that the worker started last, or is about to."""
        return self._words[BEGUN]

    def withdraw(self, last: int) -> int:
        """Take back the tasks up to this number; return the number of the last one that is not taken back."""
        self._words[WITHDRAWN] = last
        time.sleep(SETTLE_SECONDS)
        return self._words[BEGUN]

    def list_running(self) -> list[int] | None:
        """Return the ids of the calls that a dead actor was running side by side; None if they are not known."""
        top = self._words[RUNNING_TOP]
        if top > MAX_RUNNING:
            return None
        return [task_id for task_id in self._words[_FIRST_RUNNING : _FIRST_RUNNING + top] if task_id]

    def read_unsent(self, received: int) -> list[channel.Message]:
        """Return what a dead worker had said and not sent, if so many messages have come by its socket."""
        end = min(self._words[END], BODY_BYTES)
        found = channel.parse_all(memoryview(self._map)[_BODY : _BODY + end])
        return found[max(0, received - self._words[BASE]) :]

    def read_replies(self) -> list[channel.Message]:
        """Return answers to direct calls that may not have reached their callers."""
        end = min(self._words[REPLIES], REPLY_BYTES)
        return channel.parse_all(memoryview(self._map)[_REPLIES : _REPLIES + end])

    def close(self) -> None:
        """Let go of the memory."""
        if self.fd >= 0:
            self.hand_over()
        self._words.release()
        self._map.close()


@final
class JournalChannel(channel.Channel):
    """A worker's end of its socket to the driver, with its page. What it says is not lost with the process.

    `post` and `flush` wait if the driver is slow: a worker has nothing better to do.
    """

    __slots__ = ("_count", "_end", "_free", "_later", "_map", "_page", "_reply_end", "_room", "_top_lock", "words")

    def __init__(self, sock: socket.socket, page_fd: int) -> None:
        """Take the socket and the page into use; closes the page's descriptor."""
        super().__init__(sock)
        self._map = mmap.mmap(page_fd, PAGE_BYTES)
        os.close(page_fd)
        self._page = memoryview(self._map)
        #: The page's words; the worker's main loop writes `BEGUN` itself.
        self.words = self._page[: _WORDS * 8].cast("Q")
        self._end = 0
        self._count = 0
        #: Messages of `post_later` that are not encoded yet. They go ahead of the next one that is posted.
        self._later: list[channel.Message] = []
        #: How many bytes `post_short` may fill by itself: none while messages of `post_later` wait.
        self._room = BODY_BYTES
        self._reply_end = 0
        #: Places for running calls that were used and are free again.
        self._free: list[int] = []
        self._top_lock = threading.Lock()

    def cut_off(self) -> None:
        """In a fork: let go of the socket, and of the page, which tell the driver of the parent."""
        self.sock.close()
        self._map = mmap.mmap(-1, PAGE_BYTES)
        self.words = memoryview(self._map)[: _WORDS * 8].cast("Q")

    # --- messages -----------------------------------------------------------------------------------------------------

    def post(self, message: channel.Message) -> None:
        self._keep(channel.encode(message))

    def post_short(self, message: channel.Message) -> None:
        """Do the same with a message that is known to be plain and short, somewhat faster: a result."""
        data = marshal.dumps(message, channel.FORMAT)
        start = self._end
        end = start + len(data)
        if end > self._room or self.outbox_fds:
            self._keep(data)
            return
        self._map[_BODY + start : _BODY + end] = data
        self._end = self.words[END] = end
        self._count += 1

    def post_later(self, message: channel.Message) -> None:
        """Put a message in the outbox that nobody misses if the process dies before the next `post` or `flush`. Such
        are a short `put`, whose reference has not left the process, and a dropped handle. They are encoded many at
        once, which takes a third of the time."""
        later = self._later
        later.append(message)
        self._room = 0
        if len(later) >= LATER:
            self._write_later()

    def _write_later(self) -> None:
        later, self._later, self._room = self._later, [], BODY_BYTES
        self._write(marshal.dumps(later, channel.FORMAT)[channel.LIST_BYTES :], len(later))

    def _keep(self, data: bytes) -> None:
        if self._later:
            self._write_later()
        if self.outbox_fds or len(data) > BODY_BYTES:
            self._send_alone(data)
        else:
            self._write(data, 1)

    def _write(self, data: bytes, count: int) -> None:
        start = self._end
        end = start + len(data)
        if end > BODY_BYTES:
            self.flush()
            start, end = 0, len(data)
        self._map[_BODY + start : _BODY + end] = data
        self._end = self.words[END] = end
        self._count += count

    def flush(self) -> bool:
        if self._later:
            self._write_later()
        count = self._count
        if count:
            end = _BODY + self._end
            channel.HEAD.pack_into(self._map, _HEAD, self._end + channel.LIST_BYTES, channel.LIST, count)
            try:
                sent = self.sock.send(self._page[_HEAD:end])
            except BlockingIOError:
                sent = 0
            if sent != end - _HEAD:
                self._send_rest_of(_HEAD + sent, end)
            words = self.words
            words[END] = 0
            words[BASE] += count
            self._end = self._count = 0
        return True

    def has_unsent(self) -> bool:
        return bool(self._count or self._later)

    def _send_alone(self, data: bytes) -> None:
        """Send a message that cannot lie in the journal, after those that do."""
        self.flush()
        self.outbox.append(data)
        while not super().flush():
            descriptors.is_writable(self.fd, None)
        self.words[BASE] += 1

    def _send_rest_of(self, start: int, end: int) -> None:
        while start < end:
            descriptors.is_writable(self.fd, None)
            with contextlib.suppress(BlockingIOError):
                start += self.sock.send(self._page[start:end])

    # --- replies ------------------------------------------------------------------------------------------------------

    def keep_reply(self, data: bytes) -> bool:
        """Keep an encoded answer until `forget_replies`; False if there is no room."""
        end = self._reply_end + len(data)
        if end > REPLY_BYTES:
            return False
        self._map[_REPLIES + self._reply_end : _REPLIES + end] = data
        self._reply_end = self.words[REPLIES] = end
        return True

    def forget_replies(self) -> None:
        """All of them have been sent."""
        if self._reply_end:
            self._reply_end = self.words[REPLIES] = 0

    # --- what runs ----------------------------------------------------------------------------------------------------

    def note_running(self, task_id: int) -> int:
        """Note one of several calls that run at once; return the place to give back. Needs no lock: taking from a list
        is atomic."""
        try:
            place = self._free.pop()
        except IndexError:
            with self._top_lock:
                place = self.words[RUNNING_TOP]
                self.words[RUNNING_TOP] = place + 1
        if place < MAX_RUNNING:
            self.words[_FIRST_RUNNING + place] = task_id
        return place

    def note_ended(self, place: int) -> None:
        """The call whose place this is has been answered. Needs no lock."""
        if place < MAX_RUNNING:
            self.words[_FIRST_RUNNING + place] = 0
        self._free.append(place)
