"""Explains why a rank does not come: it is dead, stopped, elsewhere in its program, or has left.

A look at the other ranks costs system calls. So a rank looks only after a while, and then about ten times a second.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Sequence
from typing import Final, final

from hocket._base import settings
from hocket.collective import errors, segment
from hocket.collective.arithmetic import ReduceOp
from hocket.engine import descendants, stack_questions, stacks

STALL_SECONDS = settings.read_seconds("HOCKET_COLLECTIVE_STALL_S", 20)
"""Seconds after which a waiting rank logs a warning with all ranks' stacks. It waits on until the group's time-out."""

JOINED, LEFT, ENDED = 1, 2, 3
"""The state of a rank in its header; 0 before it joins."""

KINDS: Final = (
    "nothing",
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)
"""The operations, by the number in a header."""

_log = logging.getLogger("hocket.collective")


def pack(kind: int, op: int, root: int, dtype: str) -> int:
    """Return the description of an operation, packed into one word."""
    return kind | op << 8 | (root & 0xFFF) << 12 | int.from_bytes(shorten(dtype).encode()[:5], "little") << 24


def shorten(dtype: str) -> str:
    """Return a dtype's name in at most five characters: ``"f32"``, ``"bf16"``."""
    name = dtype.removeprefix("torch.")
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name[:5]


def describe(doing: int, amount: int) -> str:
    """Return a packed operation as text for messages."""
    kind = KINDS[doing & 0xFF]
    if kind in ("nothing", "barrier"):
        return kind
    dtype = (doing >> 24).to_bytes(5, "little").rstrip(b"\0").decode()
    details = [f"{amount:,} bytes of {dtype}"]
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        details.append(ReduceOp(doing >> 8 & 0xF).name.lower())
    if kind in ("reduce", "broadcast", "gather", "scatter"):
        details.append(f"root {doing >> 12 & 0xFFF}")
    return f"{kind}({', '.join(details)})"


@final
class PeerMonitor:
    """A monitor of the other ranks (peers) of this host. All must have joined before it is made.

    Args:
        memory: The ranks' shared segment.
        rank: This rank.
        timeout_s: The seconds that an operation may wait.
        names: The ranks' names in messages: their numbers in the whole group.
    """

    def __init__(self, memory: segment.Segment, rank: int, timeout_s: float, names: Sequence[int]) -> None:
        self._memory = memory
        self._rank = rank
        self._timeout_s = timeout_s
        self._names = names
        self._has_reported = False
        self._processes = {
            other: os.pidfd_open(self._read(other, segment.PID)) for other in range(memory.size) if other != rank
        }

    def close(self) -> None:
        for descriptor in self._processes.values():
            os.close(descriptor)
        self._processes.clear()
        stacks.close_probe()

    def begin(self) -> None:
        """Begin a new wait, which may log a warning again."""
        self._has_reported = False

    def check(self, missing: Sequence[int], waited_s: float) -> None:
        """Look at the ranks; raise if waiting for the missing ones has become useless."""
        for other in self._processes:
            if self._is_dead(other):
                raise errors.RankDiedError(
                    f"{self._name(other)} died while rank {self._names[self._rank]} waited for it in "
                    f"{self._describe(self._rank)}. For the cause, look at that rank's own error, or at the output of "
                    "the process that started it."
                )
        for other in missing:
            if self._read(other, segment.STATE) == LEFT:
                raise errors.RankDiedError(
                    f"{self._name(other)} has left the group, but rank {self._names[self._rank]} waits for it in "
                    f"{self._describe(self._rank)}. All ranks must call the same operations, the same number of times."
                )
            if self._read(other, segment.STATE) == ENDED:
                raise errors.RankDiedError(
                    f"{self._name(other)} has ended: its function returned. Rank {self._names[self._rank]} has waited "
                    f"for it in {self._describe(self._rank)} for {waited_s:.1f} s. All ranks must call the same "
                    "operations, the same number of times."
                )
        if waited_s > self._timeout_s:
            raise errors.CollectiveTimeoutError(self._report(missing, waited_s))
        if waited_s > STALL_SECONDS and not self._has_reported:
            self._has_reported = True
            _log.warning("%s", self._report(missing, waited_s))

    def build_mismatch(self, other: int) -> errors.CollectiveMismatchError:
        """Return the error for two ranks in different operations."""
        return errors.CollectiveMismatchError(
            f"Rank {self._names[self._rank]} calls {self._describe(self._rank)}, but rank {self._names[other]} calls "
            f"{self._describe(other)} at the same point. All ranks must call the same operations in the same order, "
            "with equal shapes, dtypes and roots."
        )

    def describe_own(self) -> str:
        """Return this rank's operation as text."""
        return self._describe(self._rank)

    def _read(self, rank: int, word: int) -> int:
        return self._memory.words[segment.find_header(rank) + word]

    def _describe(self, rank: int) -> str:
        return describe(self._read(rank, segment.DOING), self._read(rank, segment.AMOUNT))

    def _name(self, rank: int) -> str:
        return f"Rank {self._names[rank]} (pid {self._read(rank, segment.PID)})"

    def _is_dead(self, rank: int) -> bool:
        poller = select.poll()
        poller.register(self._processes[rank], select.POLLIN)
        return bool(poller.poll(0))

    def _report(self, missing: Sequence[int], waited_s: float) -> str:
        names = ", ".join(str(self._names[other]) for other in missing)
        head = (
            f"Rank {self._names[self._rank]} has waited for {waited_s:.0f} s in {self._describe(self._rank)} for rank "
            f"{names}. The state of each rank:"
        )
        parts = [
            f"\n{self._name(rank)} {self._tell_state(rank, missing)}\n{self._fetch_stack(rank)}".rstrip()
            for rank in range(self._memory.size)
        ]
        return "\n".join([head, *parts])

    def _tell_state(self, rank: int, missing: Sequence[int]) -> str:
        if rank == self._rank:
            return f"waits in {self._describe(rank)}."
        if self._read(rank, segment.STATE) == LEFT:
            return "has left the group."
        if self._read(rank, segment.STATE) == ENDED:
            return "has ended: its function returned."
        if self._is_stopped(rank):
            pid = self._read(rank, segment.PID)
            return f"is stopped, for example by SIGSTOP or Ctrl-Z. `kill -CONT {pid}` continues it."
        if rank in missing:
            return f"has not arrived; its last operation is {self._describe(rank)}."
        return f"also waits, in {self._describe(rank)}."

    def _is_stopped(self, rank: int) -> bool:
        return descendants.is_stopped(self._read(rank, segment.PID))

    def _fetch_stack(self, rank: int) -> str:
        """Return a rank's stack; empty if the rank cannot answer."""
        if rank != self._rank and (
            self._is_stopped(rank) or self._is_dead(rank) or self._read(rank, segment.STATE) not in (JOINED, ENDED)
        ):
            return ""
        probe = stacks.StackProbe(self._read(rank, segment.REPORT), self._read(rank, segment.ASK))
        return stack_questions.fetch(self._read(rank, segment.PID), probe, self._processes.get(rank))


def join(memory: segment.Segment, rank: int) -> None:
    """Write this rank's process and state into its header."""
    header = segment.find_header(rank)
    memory.words[header + segment.PID] = os.getpid()
    probe = stacks.open_probe()
    memory.words[header + segment.REPORT] = probe.report
    memory.words[header + segment.ASK] = probe.ask
    memory.words[header + segment.STATE] = JOINED


def end(memory: segment.Segment, rank: int) -> None:
    """Write into the header that this rank's program is over."""
    memory.words[segment.find_header(rank) + segment.STATE] = ENDED


def leave(memory: segment.Segment, rank: int) -> None:
    """Write into the header that this rank has left the group."""
    memory.words[segment.find_header(rank) + segment.STATE] = LEFT
