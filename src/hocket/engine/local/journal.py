"""A worker's unsent messages, in memory that outlives the worker.

Sending each result by itself would cost a system call a task (some 5 us of 8). So results wait up to a millisecond to
be sent together. A worker that dies in that millisecond must not take them along: finished work is finished, and no
other task may be blamed for the death. So each worker has a *page*, a piece of shared memory that the driver maps, too:

- **The journal.** Every message to the driver is written here first, and then counted in one word (`END`). The frame is
  sent from here, in one piece and without a further copy. When the worker is dead, the driver reads the socket to its
  end and then the journal, less the messages that have come by the socket. A message with descriptors is sent at once
  instead: a descriptor cannot lie in memory.
- **Replies.** Answers to direct calls (`direct_channels`) go to other workers. They are written here, too, until all
  have been sent.
- **Running calls.** An actor that runs several calls at once notes each of them. A process that runs one at a time has
  one word for it in the table of `messages.STATUS_SLOTS`.
- **The claim.** Tasks are sent ahead, and the driver may want them back from a silent worker: its task holds the
  interpreter, or is stopped, or yields for ever. `BEGUN` is the worker's word: the number of the task that it is about
  to start. `WITHDRAWN` is the driver's word: the worker must not start tasks up to this number any more.

**The claim needs no lock.** The worker writes `BEGUN` and then reads `WITHDRAWN`. The driver writes `WITHDRAWN`, lets
`SETTLE_SECONDS` pass, and then reads `BEGUN`; it takes back the tasks with greater numbers. Had the worker missed the
driver's word for such a task, its own word would have been written before, and seen: a processor holds stores back for
nanoseconds (it has some dozens of places for them), and lets them go whenever it changes threads; the driver waits
100 us. In the opposite case both may see each other's word. Then the driver counts the task as begun, the worker does
not start it, and reports that (`BACK`).

**After a death the order of stores does not matter**: the Linux kernel has seen all of them. The order of the words
makes a death between any two of them harmless. A message is written before the word that counts it. When a frame has
been sent, first `END` is set to 0, and then `BASE`, the number of messages before the journal's first, is raised.

Tried: a ring that the driver reads while the worker writes. It saves the copy to the socket, and needs a bell all the
same; the journal leaves the driver's reading as it was.
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
"""How long after its own word the driver reads the worker's. A hundred times the longest delay of a store."""

MAX_RUNNING = 8192
"""How many calls of one actor may be noted as running. If more run at once and the actor dies, all calls that it was
sent count as running."""

BODY_BYTES = 128 * 1024
"""Room for unsent messages: some thousand results. The results of a millisecond take a tenth of it."""

LATER = 64
"""How many messages of `post_later` are encoded at once. With `LATER_BYTES` each, they fit into `BODY_BYTES`."""

LATER_BYTES = 1024
"""The most data in a message for `post_later`."""

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
"""How many places for running calls have ever been used; more than `MAX_RUNNING` means that there were not enough."""
_FIRST_RUNNING = 8
_WORDS = _FIRST_RUNNING + MAX_RUNNING

_BODY = _WORDS * 8 + 16
"""Where the journal's messages begin. Before them is room for the head of a frame."""
_HEAD = _BODY - channel.HEAD.size
_REPLIES = _BODY + BODY_BYTES

PAGE_BYTES = _REPLIES + REPLY_BYTES
"""The size of a page. Only the used part takes memory."""


@final
class Page:
    """The driver's side of a worker's page."""

    __slots__ = ("_map", "_words", "fd")

    def __init__(self) -> None:
        #: Passed to the guardian for the worker, and then closed by `hand_over`.
        self.fd = os.memfd_create("hocket-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, PAGE_BYTES)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # a read beyond the end would kill the reader
        self._map = mmap.mmap(self.fd, PAGE_BYTES)
        self._words = memoryview(self._map)[: _WORDS * 8].cast("Q")

    def hand_over(self) -> None:
        """Close the descriptor, which the guardian now has."""
        os.close(self.fd)
        self.fd = -1

    def read_begun(self) -> int:
        """Return the number of the task that the worker started last, or is about to."""
        return self._words[BEGUN]

    def withdraw(self, last: int) -> int:
        """Take back the tasks up to this number; return the number of the last task that the worker keeps."""
        self._words[WITHDRAWN] = last
        time.sleep(SETTLE_SECONDS)
        return self._words[BEGUN]

    def list_running(self) -> list[int] | None:
        """Return the ids of the calls that a dead actor was running at once; None if they are not known."""
        top = self._words[RUNNING_TOP]
        if top > MAX_RUNNING:
            return None
        return [task_id for task_id in self._words[_FIRST_RUNNING : _FIRST_RUNNING + top] if task_id]

    def read_unsent(self, received: int) -> list[channel.Message]:
        """Return a dead worker's unsent messages, if so many messages have come by its socket."""
        end = min(self._words[END], BODY_BYTES)
        found = channel.parse_all(memoryview(self._map)[_BODY : _BODY + end])
        return found[max(0, received - self._words[BASE]) :]

    def read_replies(self) -> list[channel.Message]:
        """Return answers to direct calls that may not have reached their callers."""
        end = min(self._words[REPLIES], REPLY_BYTES)
        return channel.parse_all(memoryview(self._map)[_REPLIES : _REPLIES + end])

    def close(self) -> None:
        """Release the memory."""
        if self.fd >= 0:
            self.hand_over()
        self._words.release()
        self._map.close()


@final
class JournalChannel(channel.Channel):
    """A worker's end of its socket to the driver, with its page. Its messages survive the process.

    `post` and `flush` wait if the driver is slow: a worker has nothing better to do.
    """

    __slots__ = ("_count", "_end", "_free", "_later", "_map", "_page", "_reply_end", "_room", "_top_lock", "words")

    def __init__(self, sock: socket.socket, page_fd: int) -> None:
        """Take the socket and the page into use, and close the page's descriptor."""
        super().__init__(sock)
        self._map = mmap.mmap(page_fd, PAGE_BYTES)
        os.close(page_fd)
        self._page = memoryview(self._map)
        #: The page's words; the worker's main loop writes `BEGUN` itself.
        self.words = self._page[: _WORDS * 8].cast("Q")
        self._end = 0
        self._count = 0
        #: Messages of `post_later` that are not encoded yet. They go ahead of the next posted message.
        self._later: list[channel.Message] = []
        #: The bytes that `post_short` may fill by itself: none while messages of `post_later` wait.
        self._room = BODY_BYTES
        self._reply_end = 0
        #: Places for running calls that were used and are free again.
        self._free: list[int] = []
        self._top_lock = threading.Lock()

    def cut_off(self) -> None:
        """Let go of the socket and the page in a fork: they inform the driver of the parent."""
        self.sock.close()
        self._map = mmap.mmap(-1, PAGE_BYTES)
        self.words = memoryview(self._map)[: _WORDS * 8].cast("Q")

    # --- messages -----------------------------------------------------------------------------------------------------

    def post(self, message: channel.Message) -> None:
        self._keep(channel.encode(message))

    def post_short(self, message: channel.Message) -> None:
        """Post a message that is known to be plain and short, such as a result; somewhat faster than `post`."""
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
        """Put a message in the outbox that may be lost if the process dies before the next `post` or `flush`.

        Such are a short `put`, whose reference has not left the process, and a dropped handle. Many are encoded at
        once, which takes a third of the time.
        """
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
        self._end = self.words[END] = end  # after the data: a death in between must not count half a message
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
            words[END] = 0  # before `BASE`: else a death in between would deliver the messages twice
            words[BASE] += count
            self._end = self._count = 0
        return True

    def has_unsent(self) -> bool:
        return bool(self._count or self._later)

    def _send_alone(self, data: bytes) -> None:
        """Send a message that cannot lie in the journal, after the messages there."""
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
        """Keep an encoded answer until `forget_replies`; return False if there is no room."""
        end = self._reply_end + len(data)
        if end > REPLY_BYTES:
            return False
        self._map[_REPLIES + self._reply_end : _REPLIES + end] = data
        self._reply_end = self.words[REPLIES] = end
        return True

    def forget_replies(self) -> None:
        """Drop the answers, because all of them have been sent."""
        if self._reply_end:
            self._reply_end = self.words[REPLIES] = 0

    # --- running calls ------------------------------------------------------------------------------------------------

    def note_running(self, task_id: int) -> int:
        """Note one of several calls that run at once; return its place for `note_ended`. Needs no lock: taking from a
        list is atomic."""
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
        """Free the place of a call that has been answered. Needs no lock."""
        if place < MAX_RUNNING:
            self.words[_FIRST_RUNNING + place] = 0
        self._free.append(place)
