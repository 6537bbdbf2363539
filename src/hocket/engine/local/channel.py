"""Messages on a socket pair: batched in frames, with descriptors beside them.

A frame is a length (4 bytes, little-endian) and a marshalled list of messages; a message is a tuple that starts with a
number from `messages`. Marshal carries plain data only: reading a frame builds tuples, numbers and bytes and can run no
code, whatever the bytes are (from Python 3.13 on, not even build a code object). Measured here, 64 messages a frame:
0.1 us a message each way, against 0.24 us with msgpack or with pickle, which could run code.

A message is encoded when it is posted, not when it is sent: a message that cannot be built is its maker's error, and
never holds up others. Marshal's second format is used. In this format no part of a message refers to another part, so
encoded messages can be joined to a frame (and single messages are faster: 0.2 us against 0.4). A message that is known
to be short and plain, such as a task's, may be put in the outbox unencoded; a frame of these is encoded at once.

Descriptors travel in the order of their messages (`take_descriptor`).

A socket is used only if the Linux kernel says that a process of the same user made its other end.

Marshal believes the sizes that a frame announces: nine bytes can ask for a tuple of 16 GiB. So a check refuses, before
marshal sees it, each frame that does not begin with a list no longer than the frame and a short tuple in the list
(0.3 us a frame, measured). There is no defence against a frame that begins correctly and announces too much further in.
To find such a frame, the check would have to look at every byte (measured, with a regular expression: 10 us for a
frame that is parsed in 12), and to parse as well, because any byte may also stand inside a value. Only a process of the
session can forge such a frame, and it could fill the memory anyway. If the memory does not suffice, the frame is a
`FrameError` too.

`Channel` never blocks in a send: `flush` keeps the bytes that the socket will not take. A worker talks to the driver
over a `journal.JournalChannel`, which may block, and whose messages outlive the worker.
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
"""The bytes that are read at once: about as many as a Unix socket holds here (208 KiB)."""

MAX_FRAME_BYTES = 1 << 31
"""The longest frame; a longer announcement is an error."""

MAX_MESSAGE_BYTES = 1 << 30
"""A longer message is refused where it is made. Large values lie in shared memory, so only a call with thousands of
values beside its arguments is so long."""

FRAME_BYTES = 1 << 26
"""Messages with more bytes together go in several frames."""

MAX_DESCRIPTORS = 128
"""Descriptors beside one frame; the kernel's limit is 253."""

_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)


_CREDENTIALS = struct.Struct("3i")


class FrameError(Exception):
    """The bytes on the socket are no valid frames."""


class MessageError(ValueError):
    """A message cannot be built: it is too large, or holds more than plain data."""


class PeerError(Exception):
    """The socket is no Unix socket, or another user's process made its other end."""


def check_peer(sock: socket.socket) -> None:
    """Raise unless the kernel says that a process of this user made the other end of a socket pair."""
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
    """Return the bytes of a message in a frame.

    Raises:
        MessageError: The message cannot be built.
    """
    try:
        data = marshal.dumps(message, FORMAT)
    except ValueError as error:
        raise MessageError(f"message {message[0]} cannot be built: {error}") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageError(f"message {message[0]} has {len(data):,} bytes; the limit is {MAX_MESSAGE_BYTES:,}")
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
        #: The messages of the next frame: encoded, or known to be short and plain.
        self.outbox: list[bytes | Message] = []
        #: The number of messages that have come.
        self.received = 0
        #: The descriptors of the messages in `outbox`; still the sender's, and duplicated until they are sent.
        self.outbox_fds: list[int] = []
        # Not a bytearray, which would touch all its memory: most channels never carry as much at once.
        self._view = memoryview(mmap.mmap(-1, RECEIVE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._partial = bytearray()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._descriptors: deque[int] = deque()

    # --- sending ------------------------------------------------------------------------------------------------------

    def post(self, message: Message) -> None:
        """Put a message in the outbox. Its descriptors stand in `outbox_fds` already."""
        self.outbox.append(encode(message))

    def flush(self) -> bool:
        """Send the outbox without blocking; return whether all of it is on its way."""
        if self.outbox:
            fds = self.outbox_fds
            frame, *more = build_frames(self.outbox)
            self.outbox = []
            if fds:
                self.outbox_fds = []
                # The kernel may take a descriptor after its object's end; a duplicate stays open until then.
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
                self._unsent.append((memoryview(frame), list(fds)))  # a copy: an empty `fds` is the outbox's list
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
        """Tell whether the socket has left bytes unsent."""
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
                    raise FrameError(f"a frame of {size} bytes was announced; the limit is {MAX_FRAME_BYTES}")
                if len(partial) - position - 4 < size:
                    break
                messages += _parse(view[position + 4 : position + 4 + size], size)
                position += 4 + size
        del partial[:position]
        self.received += len(messages)
        return messages

    def take_descriptor(self) -> int:
        """Return the descriptor of the message being handled; the caller closes it."""
        if not self._descriptors:
            raise FrameError("a message announced a descriptor, but none came with it")
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
    """Return the frame of an outbox; several frames, if the messages are long."""
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
    """Return the messages in bytes that have no frame's head."""
    messages: list[Message] = []
    stream = io.BytesIO(encoded)
    while stream.tell() < len(encoded):
        try:
            message = _load_from(stream)
        except Exception as error:
            raise FrameError(f"message {len(messages) + 1} is not plain data: {error}") from error
        if type(message) is not tuple or not message:
            raise FrameError(f"message {len(messages) + 1} must be a tuple, but is a {type(message).__name__}")
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
    except Exception as error:  # MemoryError and SystemError included: such bytes are no frame
        raise FrameError(f"a frame does not hold plain data: {error}") from error
    if type(messages) is not list or not set(map(type, messages)) <= _SHORT or () in messages:
        raise FrameError("a frame must hold a list of tuples")
    return messages


if sys.version_info >= (3, 13):
    _load = functools.partial(marshal.loads, allow_code=False)
    _load_from = functools.partial(marshal.load, allow_code=False)
else:
    _load = marshal.loads  # it builds plain data only, which the fuzz test checks
    _load_from = marshal.load

FORMAT = 2
"""The version of marshal's format in which objects do not refer to each other."""

HEAD = struct.Struct("<IBI")
"""The head of a frame: its length without these four bytes, and the head of marshal's list with its length."""
LIST = ord("[")
LIST_BYTES = 5
_LENGTH = struct.Struct("<I")
_SHORT = {tuple}
"""The types in an outbox without encoded messages."""
_TYPE = 0x7F
"""The bits of a type; the last bit marks an object that may be referred to later."""
_START = struct.Struct("<BIBxBH")
"""The start of a list: its type and length, and the first message's type and the upper bytes of its length."""
_SHORT_TUPLE = [ord("("), 0, 0]
"""The start of the first message: a tuple of less than 256 parts, as every message is."""

_EMPTY_FRAME = _build_frame([])
