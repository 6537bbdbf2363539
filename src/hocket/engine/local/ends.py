"""Ends actors that no process can reach any more, after two rounds of questions to their workers.

`kernel.reach` finds these actors by the knowledge of the driver. The driver does not know two things: the messages that
it has not read, which may pass a handle on, and the calls that workers make directly. So it sends a question (`PROBE`)
to each worker of an actor that was found. The answer (`PROBED`) comes behind all earlier messages of the worker. It
says whether the worker waits for a direct call, and how many direct calls the worker has ever made.

When all workers have answered, the driver asks them once more. Suppose that no worker waits, and none has made a call
between its two answers. Then at the moment between the rounds no call was under way among them. No other process has a
handle, so only these actors themselves could begin a call. If the kernel still finds the actors, they end. This is the
double counting by which F. Mattern (1987) detects that a distributed program has terminated.

Work that an actor does by itself, in a thread or a task of its own, is not waited for: such work does not keep an actor
alive after its last handle, either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from hocket.engine.local import links, messages
from hocket.kernel import machine
from hocket.kernel.records import WorkerRecord

OBJECTS_A_SECOND = 20_000
"""The objects that the search may look at in a second. With more objects, the search skips some looks and takes about
0.2 % of the time (measured: 80 ns an object)."""

PATIENCE_LOOKS = 10
"""The number of looks without all answers after which the driver asks the workers anew: a worker holds the
interpreter's lock, or is stopped."""


@final
class Ends:
    """The search, one at a time. Every method is called with the driver's lock held.

    Args:
        kernel: Finds the actors.
        ends: The links to their workers.
        carry_out: Carries out the kernel's instructions.
    """

    def __init__(self, kernel: machine.Kernel, ends: links.Links, carry_out: Callable[[], None]) -> None:
        self._kernel, self._links, self._carry_out = kernel, ends, carry_out
        self._next_search = 0.0
        #: The number of the present round of questions, which exposes a late answer to an earlier round.
        self._number = 0
        #: The workers that have not answered yet.
        self._asked: set[int] = set()
        #: The direct calls that each worker has ever made, in this round and in the one before.
        self._sent: dict[int, int] = {}
        self._sent_before: dict[int, int] = {}
        self._looks = 0

    def look(self, now: float) -> float | None:
        """Search, if no round is under way; return the seconds until the next look, or None to wait for an event."""
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
        """Take a worker's answer."""
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
            return  # another process can reach the actors now, or more were found: the next look decides
        if not self._sent_before:
            self._sent_before = self._sent
            self._ask(workers)
        elif all(self._sent[worker.id] == self._sent_before[worker.id] for worker in workers):
            kernel.end_unreachable(found)
            self._carry_out()
