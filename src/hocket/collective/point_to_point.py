"""Messages from one rank of a host to another, through a small ring for each ordered pair.

A ring holds only a part of a long message, so a sender may have to wait for its receiver. A rank that waits, for any
reason, moves all messages that it can. While it waits to send, it also stores incoming messages that no receiver has
requested. So ranks that first send and then receive, such as ranks in a ring, do not deadlock.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, final

import numpy as np
import numpy.typing as npt

from hocket.collective import errors, futex, segment

Bytes = npt.NDArray[np.uint8]

_HEAD: Final = struct.Struct("<qq")
"""The head of a message: its length and its tag."""


class Transfer:
    """A message on its way. Its sender has one object for it, and its receiver another."""

    __slots__ = ("array", "at", "error", "head", "tag")

    def __init__(self, array: Bytes, tag: int) -> None:
        self.array = array
        self.tag = tag
        #: Number of the array's bytes that have been moved.
        self.at = 0
        #: The part of the message's head that is still to be sent or received.
        self.head = _HEAD.pack(len(array), tag)
        #: The reason why it cannot be received. The thread that waits for it raises this, not the one that moves it.
        self.error: errors.CollectiveError | None = None

    @property
    def is_done(self) -> bool:
        """Whether all bytes have been moved, or the message has failed."""
        return self.error is not None or (not self.head and self.at == len(self.array))


class _Ring:
    """One direction of a pair. Positions only grow, and only one rank writes each."""

    def __init__(self, memory: segment.Segment, source: int, target: int) -> None:
        start = segment.find_ring(memory.size, source, target)
        self._words = memory.words
        self._put = start // 8
        self._taken = self._put + segment.WORDS
        self.bytes = np.frombuffer(
            memory.view(), np.uint8, segment.RING_BYTES, start + segment.RING_LINES * segment.LINE
        )

    def count_full(self) -> int:
        return self._words[self._put] - self._words[self._taken]

    def put(self, data: Bytes) -> int:
        """Put in as many bytes as there is room for; return their number."""
        put = self._words[self._put]
        count = min(len(data), segment.RING_BYTES - (put - self._words[self._taken]))
        # The receiver must be done with this room, and later must see the data before the new position.
        futex.order()
        at = put % segment.RING_BYTES
        first = min(count, segment.RING_BYTES - at)
        self.bytes[at : at + first] = data[:first]
        self.bytes[: count - first] = data[first:count]
        futex.order()
        self._words[self._put] = put + count
        return count

    def take(self, target: Bytes) -> int:
        """Take out as many bytes as are there and wanted; return their number."""
        taken = self._words[self._taken]
        count = min(len(target), self._words[self._put] - taken)
        futex.order()
        at = taken % segment.RING_BYTES
        first = min(count, segment.RING_BYTES - at)
        target[:first] = self.bytes[at : at + first]
        target[first:count] = self.bytes[: count - first]
        futex.order()
        self._words[self._taken] = taken + count
        return count


@final
class PointToPoint:
    """All messages of one rank: a ring for each direction of each pair.

    Messages between two ranks arrive in the order of sending. The receiver may request tags in any order: a message
    that arrives while the receiver waits for another one is stored. Several threads may use the object; one thread at a
    time moves messages, including those of other threads.

    Args:
        memory: The ranks' segment.
        rank: This rank.
        wake: Wakes the other ranks.
    """

    def __init__(self, memory: segment.Segment, rank: int, wake: Callable[[], None]) -> None:
        self._rank = rank
        self._wake = wake
        self._lock = threading.RLock()
        others = [other for other in range(memory.size) if other != rank]
        self._to = {other: _Ring(memory, rank, other) for other in others}
        self._from = {other: _Ring(memory, other, rank) for other in others}
        self._sending: dict[int, deque[Transfer]] = {}
        #: Requests whose messages have not begun to arrive, in order.
        self._receiving: dict[int, list[Transfer]] = {}
        #: The message that is arriving, by sender.
        self._coming: dict[int, Transfer] = {}
        #: Messages without a request that have arrived, or begun to, in the order of sending.
        self._kept: dict[int, list[Transfer]] = {other: [] for other in others}

    def close(self) -> None:
        """Drop all references to the memory."""
        with self._lock:
            self._to.clear()
            self._from.clear()
            self._sending.clear()
            self._receiving.clear()
            self._coming.clear()

    def send(self, array: Bytes, target: int, tag: int) -> Transfer:
        """Begin to send an array, which must stay unchanged until the transfer is done."""
        self._check(target)
        transfer = Transfer(array, tag)
        with self._lock:
            self._sending.setdefault(target, deque()).append(transfer)
            self.progress()
        return transfer

    def receive(self, array: Bytes, source: int, tag: int) -> Transfer:
        """Begin to receive the next message of the tag into an array."""
        self._check(source)
        transfer = Transfer(array, tag)
        with self._lock:
            kept = next((one for one in self._kept[source] if one.tag == tag), None)
            if kept is None:
                self._receiving.setdefault(source, []).append(transfer)
            else:
                error = self._find_mismatch(transfer, len(kept.array), source)
                if error is not None:
                    raise error
                self._kept[source].remove(kept)
                transfer.head, transfer.at = b"", kept.at
                transfer.array[: kept.at] = kept.array[: kept.at]
                if self._coming.get(source) is kept:
                    self._coming[source] = transfer
            self.progress()
        return transfer

    def find_sender(self, tag: int) -> int | None:
        """Return a rank that has sent a message of the tag without a request yet; None if there is none."""
        with self._lock:
            return self._find_sender(tag)

    def _find_sender(self, tag: int) -> int | None:
        for other, ring in self._from.items():
            if any(one.tag == tag for one in self._kept[other]):
                return other
            while not self._receiving.get(other) and other not in self._coming and ring.count_full() >= _HEAD.size:
                if self._begin_next(ring, other).tag == tag:
                    return other
                self._take(ring, other)
        return None

    def _check(self, other: int) -> None:
        if other not in self._kept:
            raise ValueError(
                f"A rank can send to and receive from the other ranks {sorted(self._kept)} only, but received {other} "
                f"(this is rank {self._rank})."
            )

    def _find_mismatch(self, transfer: Transfer, length: int, source: int) -> errors.CollectiveError | None:
        if length == len(transfer.array):
            return None
        return errors.CollectiveMismatchError(
            f"Rank {self._rank} receives {len(transfer.array):,} bytes with tag {transfer.tag} from rank {source}, "
            f"which sent {length:,} bytes with that tag. Messages with one tag arrive in the order in which they were "
            "sent; receive into an array of the same size."
        )

    # --- moving -------------------------------------------------------------------------------------------------------

    def progress(self) -> bool:
        """Move all bytes that can be moved; return whether there were any."""
        with self._lock:
            return self._progress()

    def _progress(self) -> bool:
        has_moved = False
        for target in list(self._sending):
            has_moved |= self._push_all(target)
        takes_all = bool(self._sending)  # the receivers may be waiting for room themselves
        for source in self._from if takes_all else {*self._receiving, *self._coming}:
            has_moved |= self._pull_all(source, takes_all=takes_all)
        if has_moved:
            self._wake()
        return has_moved

    def _push_all(self, target: int) -> bool:
        has_moved = False
        transfers = self._sending[target]
        while transfers and self._push(transfers[0], target):
            has_moved = True
            if transfers[0].is_done:
                transfers.popleft()
        if not transfers:
            del self._sending[target]
        return has_moved

    def _push(self, transfer: Transfer, target: int) -> bool:
        ring = self._to[target]
        if transfer.head:
            if segment.RING_BYTES - ring.count_full() < _HEAD.size:
                return False
            ring.put(np.frombuffer(transfer.head, np.uint8))
            transfer.head = b""
            return True
        count = ring.put(transfer.array[transfer.at :])
        transfer.at += count
        return bool(count)

    def _pull_all(self, source: int, *, takes_all: bool) -> bool:
        """Take the messages that match requests, and store those before them, or all messages if `takes_all`."""
        ring = self._from[source]
        has_moved = False
        while True:
            if source not in self._coming:
                if not (takes_all or self._receiving.get(source)) or ring.count_full() < _HEAD.size:
                    break
                self._begin_next(ring, source)
                has_moved = True
            if not self._take(ring, source):
                break
            has_moved = True
        if not self._receiving.get(source):
            self._receiving.pop(source, None)
        return has_moved

    def _begin_next(self, ring: _Ring, source: int) -> Transfer:
        """Take the head of the next message, and return the transfer that receives its bytes."""
        head = np.empty(_HEAD.size, np.uint8)
        ring.take(head)
        length, tag = _HEAD.unpack(head.tobytes())
        wanted = self._receiving.get(source, [])
        transfer = next((one for one in wanted if one.tag == tag), None)
        while transfer is not None:
            wanted.remove(transfer)
            transfer.error = self._find_mismatch(transfer, length, source)
            if transfer.error is None:
                break
            transfer = next((one for one in wanted if one.tag == tag), None)
        if transfer is None:
            transfer = Transfer(np.empty(length, np.uint8), tag)
            self._kept[source].append(transfer)
        transfer.head = b""
        self._coming[source] = transfer
        return transfer

    def _take(self, ring: _Ring, source: int) -> bool:
        """Take the available bytes of the arriving message; return whether it is complete."""
        transfer = self._coming[source]
        transfer.at += ring.take(transfer.array[transfer.at :])
        if transfer.is_done:
            del self._coming[source]
        return transfer.is_done
