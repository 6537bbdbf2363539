"""Messages from one rank of a host to another, through a small ring for each pair.

A ring holds part of a message at most, so a sender may have to wait for its receiver. While a rank waits, for whatever it is, it moves all messages that
it can: two ranks that first send and then receive do not wait for each other for ever, as they would if sending waited alone.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Final, final

import numpy as np
import numpy.typing as npt

from hocket.collective import errors, segment

Bytes = npt.NDArray[np.uint8]

_HEAD: Final = struct.Struct("<qq")
"""A message begins with its length and its tag."""


class Transfer:
    """A message on its way. The rank that sends it has one, and the rank that receives it."""

    __slots__ = ("array", "at", "head", "tag")

    def __init__(self, array: Bytes, tag: int) -> None:
        self.array = array
        self.tag = tag
        #: How many bytes of the array have been moved.
        self.at = 0
        #: What of the message's head is still to be sent, or received.
        self.head = _HEAD.pack(len(array), tag)

    @property
    def is_done(self) -> bool:
        """Whether all of it has been moved."""
        return not self.head and self.at == len(self.array)


class _Ring:
    """One direction of a pair. Positions only grow; each is written by one rank alone."""

    def __init__(self, memory: segment.Segment, source: int, target: int) -> None:
        start = segment.find_box(memory.size, source, target)
        self._words = memory.words
        self._put = start // 8
        self._taken = self._put + segment.WORDS
        self.bytes = np.frombuffer(memory.view(), np.uint8, segment.BOX_BYTES, start + segment.BOX_LINES * segment.LINE)

    def count_full(self) -> int:
        return self._words[self._put] - self._words[self._taken]

    def put(self, data: Bytes) -> int:
        """Put in what there is room for; return how much that was."""
        put = self._words[self._put]
        count = min(len(data), segment.BOX_BYTES - (put - self._words[self._taken]))
        at = put % segment.BOX_BYTES
        first = min(count, segment.BOX_BYTES - at)
        self.bytes[at : at + first] = data[:first]
        self.bytes[: count - first] = data[first:count]
        self._words[self._put] = put + count
        return count

    def take(self, target: Bytes) -> int:
        """Take out what there is and what is wanted; return how much that was."""
        taken = self._words[self._taken]
        count = min(len(target), self._words[self._put] - taken)
        at = taken % segment.BOX_BYTES
        first = min(count, segment.BOX_BYTES - at)
        target[:first] = self.bytes[at : at + first]
        target[first:count] = self.bytes[: count - first]
        self._words[self._taken] = taken + count
        return count


@final
class Boxes:
    """All messages of one rank.

    Args:
        memory: What the ranks share.
        rank: This rank.
        ring: Wakes the other ranks.
    """

    def __init__(self, memory: segment.Segment, rank: int, ring: Callable[[], None]) -> None:
        self._rank = rank
        self._ring = ring
        others = [other for other in range(memory.size) if other != rank]
        self._to = {other: _Ring(memory, rank, other) for other in others}
        self._from = {other: _Ring(memory, other, rank) for other in others}
        self._sending: dict[int, deque[Transfer]] = {}
        self._receiving: dict[int, deque[Transfer]] = {}

    def close(self) -> None:
        """Let go of the memory."""
        self._to.clear()
        self._from.clear()

    def send(self, array: Bytes, target: int, tag: int) -> Transfer:
        """Begin to send; the array must stay as it is until that is done."""
        return self._begin(Transfer(array, tag), self._to, self._sending, target)

    def receive(self, array: Bytes, source: int, tag: int) -> Transfer:
        """Begin to receive into an array."""
        return self._begin(Transfer(array, tag), self._from, self._receiving, source)

    def find_sender(self) -> int | None:
        """Return a rank that has sent what nobody has asked for yet."""
        for other, ring in self._from.items():
            if not self._receiving.get(other) and ring.count_full():
                return other
        return None

    def _begin(
        self, transfer: Transfer, rings: dict[int, _Ring], waiting: dict[int, deque[Transfer]], other: int
    ) -> Transfer:
        if other not in rings:
            raise ValueError(
                f"A rank sends to and receives from another one of {sorted(rings)}, but received {other} (this is rank {self._rank})."
            )
        waiting.setdefault(other, deque()).append(transfer)
        self.progress()
        return transfer

    def progress(self) -> bool:
        """Move what can be moved; return whether anything was."""
        has_moved = False
        for waiting, move in ((self._sending, self._push), (self._receiving, self._pull)):
            for other in list(waiting):
                transfers = waiting[other]
                while transfers and move(transfers[0], other):
                    has_moved = True
                    if transfers[0].is_done:
                        transfers.popleft()
                if not transfers:
                    del waiting[other]
        if has_moved:
            self._ring()
        return has_moved

    def _push(self, transfer: Transfer, target: int) -> bool:
        ring = self._to[target]
        if transfer.head:
            if segment.BOX_BYTES - ring.count_full() < _HEAD.size:
                return False
            ring.put(np.frombuffer(transfer.head, np.uint8))
            transfer.head = b""
            return True
        count = ring.put(transfer.array[transfer.at :])
        transfer.at += count
        return bool(count)

    def _pull(self, transfer: Transfer, source: int) -> bool:
        ring = self._from[source]
        if transfer.head:
            if ring.count_full() < _HEAD.size:
                return False
            head = np.empty(_HEAD.size, np.uint8)
            ring.take(head)
            length, tag = _HEAD.unpack(head.tobytes())
            if (length, tag) != (len(transfer.array), transfer.tag):
                raise errors.CollectiveMismatchError(
                    f"Rank {self._rank} receives {len(transfer.array):,} bytes with tag {transfer.tag} from rank {source}, which sent {length:,} bytes with tag {tag}. "
                    "Messages between two ranks arrive in the order in which they were sent; receive into an array of the same size."
                )
            transfer.head = b""
            return True
        count = ring.take(transfer.array[transfer.at :])
        transfer.at += count
        return bool(count)
