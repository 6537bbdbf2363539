"""Ends actors that nobody can reach any more, after a talk with their workers.

`kernel.reach` finds them by what the driver knows. Two things it does not know: what a worker has said and the driver
has not read, which may give a handle to somebody; and the calls that workers make directly. So each worker of an actor
that was found gets a question (`PROBE`). Its answer (`PROBED`) comes behind all that it has said before, and tells
whether it waits for a direct call, and how many it has made ever. When all have answered, each gets it once more: if
none waits and none has made a call between the two answers, then at the moment between no call was under way among
them, and since nobody else has a handle, none can begin but by their own doing. If the kernel still finds them then,
they end. This is the double counting by which F. Mattern (1987) detects that a distributed program has terminated.

What an actor does by itself, in a thread or a task of its own, is not waited for: it would not keep the actor if its
last handle went, either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from hocket.engine.local import links, messages
from hocket.kernel import machine
from hocket.kernel.records import WorkerRecord

OBJECTS_A_SECOND = 20_000
"""The search looks at each object. With more than so many it is made less often than at each look, so that it takes no
more than some 0.2 % of the time (measured: 80 ns an object)."""

PATIENCE_LOOKS = 10
"""After so many looks without all answers the workers are asked anew: one of them holds the interpreter's lock, or is
stopped."""


@final
class Ends:
    """One search at a time. Every method is called with the driver's lock held.

    Args:
        kernel: Finds the actors.
        ends: How their workers are talked to.
        carry_out: Does what the kernel asks.
    """

    def __init__(self, kernel: machine.Kernel, ends: links.Links, carry_out: Callable[[], None]) -> None:
        self._kernel, self._links, self._carry_out = kernel, ends, carry_out
        self._next_search = 0.0
        #: Of the round of questions that is under way, so that a late answer is not taken for one of it.
        self._number = 0
        #: The workers that have been asked and have not answered.
        self._asked: set[int] = set()
        #: How many direct calls each of them had made.
        self._sent: dict[int, int] = {}
        self._sent_before: dict[int, int] = {}
        self._looks = 0

    def look(self, now: float) -> float | None:
        """Search, if nothing is under way; return after how many seconds to look again, or None for not before
        something happens."""
        kernel = self._kernel
        if self._asked:
            self._looks += 1
            if self._looks < PATIENCE_LOOKS and self._asked <= kernel.workers.keys():
                return 1.0
            self._asked.clear()
        if not kernel.actors:
            return None
        if now < self._next_search:
            return self._next_search - now
        self._next_search = now + len(kernel.objects) / OBJECTS_A_SECOND
        found = [actor.worker for actor in kernel.find_unreachable() if actor.worker is not None]
        if not found:
            return None
        self._sent_before = {}
        self._ask(found)
        return 1.0

    def _ask(self, workers: list[WorkerRecord]) -> None:
        self._number += 1
        self._looks = 0
        self._sent = {}
        self._asked = {worker.id for worker in workers}
        for worker in workers:
            link = self._links.by_worker.get(worker.id)
            if link is not None:
                self._links.send(link, (messages.PROBE, self._number))

    def note_answer(self, worker: WorkerRecord, number: int, is_waiting: bool, sent: int) -> None:
        """A worker has answered."""
        if number != self._number or worker.id not in self._asked:
            return
        if is_waiting:
            self._asked.clear()
            return
        self._asked.discard(worker.id)
        self._sent[worker.id] = sent
        if not self._asked:
            self._finish_round()

    def _finish_round(self) -> None:
        kernel = self._kernel
        found = kernel.find_unreachable()
        workers = [actor.worker for actor in found if actor.worker is not None]
        if not workers or not {worker.id for worker in workers} <= self._sent.keys():
            return  # somebody can reach them now, or there are more: the next look will tell
        if not self._sent_before:
            self._sent_before = self._sent
            self._ask(workers)
        elif all(self._sent[worker.id] == self._sent_before[worker.id] for worker in workers):
            kernel.end_unreachable(found)
            self._carry_out()
