"""Limits on the time that ranks wait for another rank through the driver: for its report, or in a meeting.

Waits in a collective end by themselves (`hocket.collective`). Waits through the driver do not, because a rank that is
stopped, waits for a lock, or is slow is still alive. So the driver logs which rank the others wait for, with its stack,
and gives up in the end. It does the same for frameworks with collectives that wait for ranks which have ended. It also
does so for stopped processes of ranks on the driver's machine, even if no other rank waits for them.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from hocket._base import settings, texts
from hocket.core import api
from hocket.engine import descendants
from hocket.train import errors
from hocket.train.run import worker_group

NOTICE_SECONDS = settings.read_seconds("HOCKET_TRAIN_COLLECTIVE_WARN_INTERVAL_S", 20)
"""Seconds of waiting until the first warning. Each later warning comes after twice the time of the one before."""

LIMIT_SECONDS = settings.read_seconds("HOCKET_TRAIN_COLLECTIVE_TIMEOUT_S", 1800)
"""Seconds of waiting until the missing rank counts as failed; 0 or less for never. The default of Ray, and of
`hocket.collective`."""

ANSWER_SECONDS = 2.0
"""Seconds that a rank may take to send its stack: milliseconds, unless it is stopped or keeps the interpreter's lock. A
guess."""

STATE_SECONDS = 1.0
"""Seconds between checks for stopped processes, because a check reads a file for each."""

_log = logging.getLogger("hocket.train")


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of some ranks for others."""

    number: tuple[str, int]
    """The wait's identity, the same until a missing rank comes."""
    call: str
    """The function in which the waiting ranks are."""
    waiting: tuple[int, ...]
    """The waiting ranks; empty if only the run itself waits."""
    missing: tuple[int, ...]
    what: str
    """The state of the missing ranks, for messages: ``"has not called it"``."""
    has_ended: bool = False
    """Whether the missing ranks have returned and never come. Messages then show the first waiting rank's stack."""

    @property
    def shown(self) -> int:
        """The rank to describe in messages."""
        return self.waiting[0] if self.has_ended else self.missing[0]


class StoppedRanks:
    """The ranks with stopped processes, as by SIGSTOP, on the driver's machine.

    Args:
        group: The ranks.
    """

    def __init__(self, group: worker_group.WorkerGroup) -> None:
        self._group = group
        self._here = api.get_runtime_context().get_node_id()
        self._next = 0.0
        self._found: tuple[int, ...] = ()

    def find(self) -> tuple[int, ...]:
        """Return the stopped ranks, as of the last check."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + STATE_SECONDS
            own = os.getpid()
            pids = {
                rank: place.introduction.pid
                for rank, place in enumerate(self._group.places)
                if place.node_id == self._here and place.introduction.pid != own
            }
            self._found = tuple([rank for rank, pid in pids.items() if descendants.is_stopped(pid)])
        return self._found


class Patience:
    """The policy that watches the waits of one attempt. Used by one thread.

    Args:
        group: The ranks.
        find: Returns the present wait; None if no rank waits.
        has_ended: Returns whether a rank's training function has ended.
    """

    def __init__(
        self, group: worker_group.WorkerGroup, find: Callable[[], Wait | None], has_ended: Callable[[int], bool]
    ) -> None:
        self._group = group
        self._find = find
        self._has_ended = has_ended
        self._stopped = StoppedRanks(group)
        self._wait: Wait | None = None
        self._since = 0.0
        self._next_notice = NOTICE_SECONDS

    @property
    def due(self) -> float | None:
        """When to look again; None for never."""
        return None if self._wait is None else self._since + min(self._next_notice, _get_limit())

    @property
    def stopped(self) -> tuple[int, ...]:
        """The ranks with stopped processes, of those on the driver's machine."""
        return self._stopped.find()

    def look(self, now: float) -> None:
        """Check which ranks wait; warn or give up if it is time.

        Raises:
            WorkerGroupError: Ranks have waited longer than the limit.
        """
        before, self._wait = self._wait, self._find() or self._find_stopped()
        if self._wait is None:
            return
        if before is None or before.number != self._wait.number:
            self._since, self._next_notice = now, NOTICE_SECONDS
        seconds = now - self._since
        if seconds >= _get_limit():
            self._give_up(self._wait, seconds)
        elif seconds >= self._next_notice:
            self._next_notice = 2 * seconds
            where = self._describe(self._wait.shown)
            _log.warning("%s\n%s", _tell(self._wait, seconds), texts.escape(where))

    def _find_stopped(self) -> Wait | None:
        stopped = tuple([rank for rank in self.stopped if not self._has_ended(rank)])
        return Wait(("stopped", stopped[0]), "", (), stopped, "is stopped") if stopped else None

    def _give_up(self, wait: Wait, seconds: float) -> None:
        rank = wait.shown
        message = (
            f"{_tell(wait, seconds)} The limit is "
            f"HOCKET_TRAIN_COLLECTIVE_TIMEOUT_S={LIMIT_SECONDS:g}: set it higher in the environment of the driver if "
            f"a rank may take so long.\n{self._describe(rank)}"
        )
        raise errors.WorkerGroupError(message, {rank: errors.TrainingFailedError(message)})

    def _describe(self, rank: int) -> str:
        """Return a rank's stack, or why it is not known."""
        pid = self._group.places[rank].introduction.pid
        if rank in self.stopped:
            return (
                f"Rank {rank} (pid {pid}) cannot say where it is: its process is stopped, by a signal such as SIGSTOP "
                f"or by a debugger. `kill -CONT {pid}` lets it go on, `kill -KILL` ends it."
            )
        ref = self._group.actors[rank].describe.remote()
        if api.wait([ref], timeout=ANSWER_SECONDS)[0]:
            stack: str = self._group.get(rank, ref)
            return f"Rank {rank} is here:\n{stack}"
        return (
            f"Rank {rank} (pid {pid}) cannot say where it is: its process is stopped, or code in C keeps the "
            f"interpreter's lock. `py-spy dump --native --pid {pid}` shows more."
        )


def _get_limit() -> float:
    return LIMIT_SECONDS if LIMIT_SECONDS > 0 else math.inf


def _tell(wait: Wait, seconds: float) -> str:
    others = f" (and ranks {list(wait.missing[1:])})" if len(wait.missing) > 1 else ""
    if not wait.waiting:
        return f"The run has waited for {seconds:.0f} s for rank {wait.missing[0]}{others}, which {wait.what}."
    who = f"Rank {wait.waiting[0]} has" if len(wait.waiting) == 1 else f"Ranks {list(wait.waiting)} have"
    if wait.has_ended:
        return (
            f"{who} gone on for {seconds:.0f} s since rank {wait.missing[0]}{others} ended. {wait.what} All ranks must "
            "call collectives equally often."
        )
    return f"{who} waited for {seconds:.0f} s in {wait.call} for rank {wait.missing[0]}{others}, which {wait.what}."
