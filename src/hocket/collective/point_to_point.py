"""Messages from one rank of a host to another, through a small ring for each pair.

A ring holds part of a message at most, so a sender may have to wait for its receiver. While a rank waits, for whatever
it is, it moves all messages that it can, and while it waits to send it keeps what comes and nobody has asked for: ranks
that first send and then receive, in a ring say, do not wait for each other for ever, as they would if sending waited
alone.
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
"""A message begins with its length and its tag."""


class Transfer:
    """A message on its way. The rank that sends it has one, and the rank that receives it."""

    __slots__ = ("array", "at", "error", "head", "tag")

    def __init__(self, array: Bytes, tag: int) -> None:
        self.array = array
        self.tag = tag
        #: How many bytes of the array have been moved.
        self.at = 0
        #: The part of the message's head that is still to be sent, or received.
        self.head = _HEAD.pack(len(array), tag)
        #: Why it cannot be received. Whoever waits for it raises this, and not who happens to move the messages.
        self.error: errors.CollectiveError | None = None

    @property
    def is_done(self) -> bool:
        """Whether all of it has been moved, or it has failed."""
        return self.error is not None or (not self.head and self.at == len(self.array))


class _Ring:
    """One direction of a pair. Positions only grow; each is written by one rank alone."""

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
        """Put in what there is room for; return how much that was."""
        put = self._words[self._put]
        count = min(len(data), segment.RING_BYTES - (put - self._words[self._taken]))
        futex.order()
        at = put % segment.RING_BYTES
        first = min(count, segment.RING_BYTES - at)
        self.bytes[at : at + first] = data[:first]
        self.bytes[: count - first] = data[first:count]
        futex.order()
        self._words[self._put] = put + count
        return count

    def take(self, target: Bytes) -> int:
        """Take out what there is and what is wanted; return how much that was."""
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

    Messages between two ranks arrive in the order in which they were sent. The receiver names tags, in any
    order: a message that arrives while the receiver waits for another one is kept. Several threads may use it: one at a
    time moves messages, also those of others.

    Args:
        memory: What the ranks share.
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
        #: Requested messages that have not begun to come, in the order of the requests.
        self._receiving: dict[int, list[Transfer]] = {}
        #: The message that has begun to come.
        self._coming: dict[int, Transfer] = {}
        #: Messages that have come, or begun to, without a request yet, in the order in which they were sent.
        self._kept: dict[int, list[Transfer]] = {other: [] for other in others}

    def close(self) -> None:
        """Let go of the memory."""
        with self._lock:
            self._to.clear()
            self._from.clear()
            self._sending.clear()
            self._receiving.clear()
            self._coming.clear()

    def send(self, array: Bytes, target: int, tag: int) -> Transfer:
        """Begin to send; the array must stay as it is until that is done."""
        self._check(target)
        transfer = Transfer(array, tag)
        with self._lock:
            self._sending.setdefault(target, deque()).append(transfer)
            self.progress()
        return transfer

    def receive(self, array: Bytes, source: int, tag: int) -> Transfer:
        """Begin to receive into an array the first message of the tag that was not asked for yet."""
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
        """Return a rank that has sent a message of the tag that nobody has asked for yet."""
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
                f"A rank sends to and receives from another one of {sorted(self._kept)}, but received {other} (this "
                f"is rank {self._rank})."
            )

    def _find_mismatch(self, transfer: Transfer, length: int, source: int) -> errors.CollectiveError | None:
        if length == len(transfer.array):
            return None
        return errors.CollectiveMismatchError(
            f"Rank {self._rank} receives {len(transfer.array):,} bytes with tag {transfer.tag} from rank "
            f"{source}, which sent {length:,} bytes with that tag. Messages of one tag arrive in the order in "
            "which they were sent; receive into an array of the same size."
        )

    # --- moving -------------------------------------------------------------------------------------------------------

    def progress(self) -> bool:
        """Move what can be moved; return whether anything was."""
        with self._lock:
            return self._progress()

    def _progress(self) -> bool:
        has_moved = False
        for target in list(self._sending):
            has_moved |= self._push_all(target)
        takes_all = bool(self._sending)  # those who are to make room may be waiting for room themselves
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
        """Take the arrived messages that match the requests; keep those that come before them, or all of them."""
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
        """Take the head of the next message, and return what its bytes are to go into."""
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
        """Take what there is of what comes; tell whether it is all there now."""
        transfer = self._coming[source]
        transfer.at += ring.take(transfer.array[transfer.at :])
        if transfer.is_done:
            del self._coming[source]
        return transfer.is_done
