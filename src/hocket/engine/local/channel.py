"""Messages on a socket pair: batched in frames, with descriptors beside them.

A frame is a length (4 bytes, little-endian) and a marshalled list of messages; a message is a tuple that starts with a
number from `messages`. Marshal carries plain data only: reading a frame builds tuples, numbers and bytes and can run no
code, whatever the bytes are (from Python 3.13 on, not even build a code object). Measured here, 64 messages a frame:
0.1 us a message each way, against 0.24 us with msgpack and as much as with pickle, which could run code.

A message is encoded when it is posted, not when it is sent: one that cannot be built is an error of whoever made it,
and never stands in the way of others. Marshal's second format is used, in which no part of a message refers to another
one, so encoded messages can be strung together to a frame (and it is the faster one for single messages: 0.2 us against
0.4). One that is known to be short and plain, such as a task's, may be put in the outbox as it is: a frame of these is
encoded at once.

Descriptors travel in the order of the messages that they belong to (`take_descriptor`).

A socket is taken into use only if the kernel says that its other end was made by a process of the same user.

Marshal believes what a frame announces: nine bytes can ask for a tuple of 16 GiB. So each frame must begin like ours,
with a list that is no longer than the frame and a short tuple in it, before marshal sees it (0.3 us a frame, measured);
what is no frame of ours is refused there. What is not defended against: a frame that begins like ours and announces too
much further in. To find that, every byte would have to be looked at (measured, with a regular expression: 10 us for a
frame that is parsed in 12), and more than looked at, because any byte may also stand inside a value. Only a process of
the session, which could fill the memory anyway, can forge one; if the memory does not suffice, it is a `FrameError`
too.

`Channel` never blocks in a send: `flush` keeps what the socket will not take. A worker talks to the driver over a
`journal.JournalChannel`, which may block, and whose messages outlive the worker.
"""

from __future__ import annotations

import array
import functools
import io
import marshal
import mmap
import os
import socket
import struct
import sys
from collections import deque
from typing import Any

Message = tuple[Any, ...]

RECEIVE_BYTES = 256 * 1024
"""How much is read at once. About what a Unix socket holds here (208 KiB)."""

MAX_FRAME_BYTES = 1 << 31
"""A longer frame cannot be meant."""

MAX_MESSAGE_BYTES = 1 << 30
"""A longer message is refused where it is made. Large values lie in shared memory, so this is a call with thousands of
values beside it."""

FRAME_BYTES = 1 << 26
"""Messages that are longer together go in several frames."""

MAX_DESCRIPTORS = 128
"""Descriptors beside one frame; the kernel's limit is 253."""

_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)


_CREDENTIALS = struct.Struct("3i")


class FrameError(Exception):
    """The bytes on the socket are no frames of ours."""


class MessageError(ValueError):
    """A message cannot be built: it is too large, or holds what is no plain data."""


class PeerError(Exception):
    """The other end of the socket belongs to somebody else."""


def check_peer(sock: socket.socket) -> None:
    """Make sure that a socket is one end of a pair that a process of this user made, as the kernel says."""
    if sock.family != socket.AF_UNIX:
        raise PeerError(
            f"a session talks over Unix socket pairs only, but descriptor {sock.fileno()} is {sock.family!r}"
        )
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.geteuid() or pid <= 0:
        raise PeerError(
            f"the other end of descriptor {sock.fileno()} belongs to user {uid} (pid {pid}), and this process to user "
            f"{os.geteuid()}. All processes of a session must belong to one user; call hocket.init() after os.setuid()."
        )


def encode(message: Message) -> bytes:
    """Return the message as it stands in a frame.

    Raises:
        MessageError: It cannot be built.
    """
    try:
        data = marshal.dumps(message, FORMAT)
    except ValueError as error:
        raise MessageError(f"message {message[0]} cannot be built: {error}") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageError(f"message {message[0]} has {len(data):,} bytes, and the most is {MAX_MESSAGE_BYTES:,}")
    return data


class Channel:
    """One end of a socket pair. Not thread-safe: the owner holds a lock."""

    __slots__ = (
        "_descriptors",
        "_partial",
        "_unsent",
        "_view",
        "fd",
        "outbox",
        "outbox_fds",
        "received",
        "sock",
    )

    def __init__(self, sock: socket.socket) -> None:
        """Take a socket into use."""
        check_peer(sock)
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        #: The contents of the next frame: encoded messages, and such as are known to be short and plain.
        self.outbox: list[bytes | Message] = []
        #: How many messages have come.
        self.received = 0
        #: Descriptors that belong to them; still the sender's, and duplicated until they are sent.
        self.outbox_fds: list[int] = []
        # Not a bytearray, which would touch all of it: most channels never carry as much at once.
        self._view = memoryview(mmap.mmap(-1, RECEIVE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._partial = bytearray()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._descriptors: deque[int] = deque()

    # --- sending ------------------------------------------------------------------------------------------------------

    def post(self, message: Message) -> None:
        """Put a message in the outbox. Descriptors that belong to it stand in `outbox_fds` already."""
        self.outbox.append(encode(message))

    def flush(self) -> bool:
        """Send what is in the outbox without blocking; tell whether all of it is on its way."""
        if self.outbox:
            fds = self.outbox_fds
            frame, *more = build_frames(self.outbox)
            self.outbox = []
            if fds:
                self.outbox_fds = []
                # A descriptor must stay open until the kernel has it, which may be later than its object lives.
                fds = [os.dup(fd) for fd in fds]
            if not self._unsent and not fds:
                try:
                    sent = self.sock.send(frame)
                except BlockingIOError:
                    sent = 0
                if sent == len(frame) and not more:
                    return True
                self._unsent.append((memoryview(frame)[sent:], []))
            else:
                # More descriptors than fit beside one frame go ahead of it, on empty frames.
                while len(fds) > MAX_DESCRIPTORS:
                    self._unsent.append((memoryview(_EMPTY_FRAME), fds[:MAX_DESCRIPTORS]))
                    fds = fds[MAX_DESCRIPTORS:]
                self._unsent.append((memoryview(frame), list(fds)))  # its own list: the outbox goes on with the other
            self._unsent += [(memoryview(other), []) for other in more]
        return self._send_rest()

    def _send_rest(self) -> bool:
        while self._unsent:
            view, fds = self._unsent[0]
            try:
                if fds:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                    sent = self.sock.sendmsg([view], rights)
                    for fd in fds:
                        os.close(fd)
                    fds = []
                else:
                    sent = self.sock.send(view)
            except BlockingIOError:
                return False
            if sent == len(view):
                self._unsent.popleft()
            else:
                self._unsent[0] = (view[sent:], fds)
        return True

    def has_unsent(self) -> bool:
        """Tell whether the socket would not take everything."""
        return bool(self._unsent)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def receive(self) -> list[Message] | None:
        """Return the messages that have arrived; None at the end of the stream."""
        try:
            count, ancillary, _, _ = self.sock.recvmsg_into((self._view,), _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return []
        except OSError:
            return None
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors.extend(array.array("i", data[: len(data) - len(data) % 4]))
        if not count:
            return None
        if self._partial:
            self._partial += self._view[:count]
            return self._parse_partial()
        if count >= 4 and int.from_bytes(self._view[:4], "little") == count - 4:  # the usual case: one whole frame
            found = _parse(self._view[4:count], count - 4)
            self.received += len(found)
            return found
        self._partial += self._view[:count]
        return self._parse_partial()

    def _parse_partial(self) -> list[Message]:
        messages: list[Message] = []
        partial = self._partial
        position = 0
        with memoryview(partial) as view:
            while len(partial) - position >= 4:
                size = int.from_bytes(view[position : position + 4], "little")
                if size > MAX_FRAME_BYTES:
                    raise FrameError(f"a frame of {size} bytes was announced; the most is {MAX_FRAME_BYTES}")
                if len(partial) - position - 4 < size:
                    break
                messages += _parse(view[position + 4 : position + 4 + size], size)
                position += 4 + size
        del partial[:position]
        self.received += len(messages)
        return messages

    def take_descriptor(self) -> int:
        """Return the descriptor that belongs to the message being handled; the caller closes it."""
        if not self._descriptors:
            raise FrameError("a message announced a descriptor, and none came with it")
        return self._descriptors.popleft()

    def close(self) -> None:
        """Close the socket and every descriptor that was not taken or sent."""
        for fd in self._descriptors:
            os.close(fd)
        for _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._descriptors.clear()
        self._unsent.clear()
        self.sock.close()


def build_frames(outbox: list[bytes | Message]) -> list[bytes]:
    """Return the frame of these messages; several, if they are long."""
    if set(map(type, outbox)) == _SHORT:
        body = marshal.dumps(outbox, FORMAT)
        return [_LENGTH.pack(len(body)) + body]
    encoded = [data if isinstance(data, bytes) else marshal.dumps(data, FORMAT) for data in outbox]
    if sum(map(len, encoded)) <= FRAME_BYTES:
        return [_build_frame(encoded)]
    frames, part, size = [], list[bytes](), 0
    for data in encoded:
        if part and size + len(data) > FRAME_BYTES:
            frames.append(_build_frame(part))
            part, size = [], 0
        part.append(data)
        size += len(data)
    return [*frames, _build_frame(part)]


def _build_frame(encoded: list[bytes]) -> bytes:
    body = b"".join(encoded)
    return HEAD.pack(len(body) + LIST_BYTES, LIST, len(encoded)) + body


def parse_all(encoded: memoryview) -> list[Message]:
    """Return messages that stand one behind the other, without a head."""
    messages: list[Message] = []
    stream = io.BytesIO(encoded)
    while stream.tell() < len(encoded):
        try:
            message = _load_from(stream)
        except Exception as error:
            raise FrameError(f"message {len(messages) + 1} is no plain data: {error}") from error
        if type(message) is not tuple or not message:
            raise FrameError(f"message {len(messages) + 1} is a {type(message).__name__}, and must be a tuple")
        messages.append(message)
    return messages


def _parse(frame: memoryview, size: int) -> list[Message]:
    if size < _START.size:
        is_list = frame == _EMPTY_FRAME[_LENGTH.size :]
    else:
        kind, count, *first = _START.unpack_from(frame)
        is_list = kind & _TYPE == LIST and count <= size and first == _SHORT_TUPLE
    if not is_list:
        raise FrameError("a frame does not begin with a list of messages")
    try:
        messages = _load(frame)
    except Exception as error:  # MemoryError and SystemError included: whatever the bytes are, they are not ours
        raise FrameError(f"a frame does not hold plain data: {error}") from error
    if type(messages) is not list or not set(map(type, messages)) <= _SHORT or () in messages:
        raise FrameError("a frame must hold a list of tuples")
    return messages


if sys.version_info >= (3, 13):
    _load = functools.partial(marshal.loads, allow_code=False)
    _load_from = functools.partial(marshal.load, allow_code=False)
else:
    _load = marshal.loads  # it builds plain data only, and the fuzz test holds it to that
    _load_from = marshal.load

FORMAT = 2
"""The version of marshal's format in which objects do not refer to each other."""

HEAD = struct.Struct("<IBI")
"""How a frame begins: its length without these four bytes, and the head of marshal's list, with how many are in it."""
LIST = ord("[")
LIST_BYTES = 5
_LENGTH = struct.Struct("<I")
_SHORT = {tuple}
"""The types in an outbox in which nothing is encoded yet."""
_TYPE = 0x7F
"""The bits of a type; the last one tells that the object may be referred to later."""
_START = struct.Struct("<BIBxBH")
"""How a list begins: its type and length, and the first message's type and the upper bytes of its length."""
_SHORT_TUPLE = [ord("("), 0, 0]
"""Of the first message: it is announced as a tuple of less than 256 parts, as every message is."""

_EMPTY_FRAME = _build_frame([])
