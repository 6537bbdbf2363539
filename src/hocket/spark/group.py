"""The ranks of an attempt, as the driver sees them: calls to them, and the errors of those that failed."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from hocket import exceptions
from hocket.core import placement
from hocket.spark import hub as hubs
from hocket.spark import messages
from hocket.train import configs, errors
from hocket.train.rank import rank_placement, reports
from hocket.train.run import failures, worker_group

DEATH_SECONDS: Final = 5.0
"""How long to wait for a rank's parent to report the cause of death, after the rank's connection closed. A guess; it
takes milliseconds, unless the parent or the machine is gone, too."""


_ENDS: Final = ("was shut down", "JOB_CANCELLED")
"""Spark's words for a job that a person or program ended, rather than a failure of its own."""


@final
class SparkGroup(worker_group.WorkerGroup):
    """Ranks that are tasks of a barrier stage. Used by one thread.

    Args:
        hub: The driver's end of the connections.
        scaling: The scaling that the user configured.
        size: The number of ranks.
    """

    def __init__(self, hub: hubs.Hub, scaling: configs.ScalingConfig, size: int) -> None:
        super().__init__(placement.PlacementGroup.empty(), (), (), scaling)
        self._hub = hub
        self._size = size
        self._order: list[int] = []
        """The number of the task of each rank."""
        self._ranks: dict[int, int] = {}
        self._aside: deque[tuple[int, messages.FromRank | hubs.Lost]] = deque()
        """Events that came while another event was expected."""

    def __len__(self) -> int:
        return self._size

    def wait_ranks(self) -> None:
        """Wait until all tasks have connected, and assign their ranks."""
        found: dict[int, rank_placement.Introduction] = {}
        deadline: float | None = None
        while len(found) < self._size:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                index, event = self._hub.events.get(timeout=left)
            except queue.Empty:
                raise errors.TrainingFailedError(
                    f"Only {len(found)} of the {self._size} tasks of the barrier stage have connected to the driver at "
                    f"{self._hub.address[0]}:{self._hub.address[1]} after {worker_group.START_SECONDS:.0f} s. Check "
                    "that all of Spark's machines reach that address, which is spark.driver.host."
                ) from None
            if isinstance(event, messages.Hello):
                found[index] = event.introduction
                deadline = deadline or time.monotonic() + worker_group.START_SECONDS
            elif isinstance(event, hubs.JobEnded):
                raise explain_job(event)
        self._order = rank_placement.sort_by_node([found[index] for index in range(self._size)])
        self._ranks = {index: rank for rank, index in enumerate(self._order)}
        self.places = rank_placement.assign([found[index] for index in self._order])

    def send(self, rank: int, message: messages.ToRank) -> None:
        """Send a message to a rank."""
        self._hub.send(self._order[rank], message)

    def take(self, timeout_s: float | None = None) -> tuple[int, messages.FromRank | hubs.Lost]:
        """Wait for the next event, and return its rank and the event."""
        if self._aside:
            return self._aside.popleft()
        while True:
            index, event = self._hub.events.get(timeout=timeout_s)
            if isinstance(event, hubs.JobEnded):
                raise explain_job(event)
            if index in self._ranks:
                return self._ranks[index], event

    def take_good(self) -> tuple[int, messages.FromRank]:
        """Wait for the next event. Raise if it is a failure."""
        rank, event = self.take()
        if isinstance(event, messages.Failed | messages.Died | hubs.Lost):
            raise self._explain_event(rank, event)
        return rank, event

    def execute(self, function: Callable[..., object], args_by_rank: Sequence[tuple[object, ...]]) -> list[object]:
        """Call a function in all ranks at once, and return its results by rank."""
        return self._call({rank: messages.Call(function, args) for rank, args in enumerate(args_by_rank)})

    def call(self, rank: int, function: Callable[..., object], *args: object) -> Any:
        """Call a function in one rank, and return its result."""
        return self._call({rank: messages.Call(function, args)})[0]

    def list_addresses(self) -> list[str]:
        """Return the address of each rank's machine, by rank."""
        return [place.node_id for place in self.places]

    def start_exchange(self, size: int) -> Any:
        """Raise: in Spark, ranks on several machines have no exchange of arrays."""
        raise errors.TrainingFailedError(
            f"The ranks run on {size} machines ({', '.join(sorted(set(self.list_addresses())))}), but in Spark "
            "Hocket's collectives on numpy arrays work only between ranks of one machine. Use TorchTrainer, whose "
            "ranks communicate over gloo or NCCL, or no more workers than a machine has slots for."
        )

    def shutdown(self) -> None:
        """Close the resources that backends have opened."""
        self.resources.close()

    def _call(self, calls: dict[int, messages.Call]) -> list[object]:
        values: dict[int, Any] = {}
        for rank, message in calls.items():
            self.send(rank, message)
        while len(values) < len(calls):
            rank, event = self.take_good()
            assert isinstance(event, messages.Reply), "nothing else was asked for"
            values[rank] = event.value
        return [values[rank] for rank in calls]

    # --- failures -----------------------------------------------------------------------------------------------------

    def _explain_event(self, rank: int, event: messages.Failed | messages.Died | hubs.Lost) -> errors.WorkerGroupError:
        """Return the group's error after a rank failed. If another rank is dead, its death was the cause."""
        failed: dict[int, Exception] = {}
        if isinstance(event, messages.Failed):
            failed[rank] = event.failure.build_error()
            dead = self._find_dead(rank)
        else:
            dead = {rank: self._describe_death(rank, event)}
        failed = {**dead, **failed}
        return errors.WorkerGroupError(failures.build_message(failed, len(self), self._name_hosts()), failed)

    def _find_dead(self, asking: int) -> dict[int, Exception]:
        """Return the other ranks that died without raising an error."""
        waiting = {rank for rank in range(len(self)) if rank != asking}
        dead: dict[int, Exception] = {}
        others: list[tuple[int, messages.FromRank | hubs.Lost]] = []
        for rank in waiting:
            self.send(rank, messages.Ping())
        deadline = time.monotonic() + failures.PING_SECONDS
        while waiting and (left := deadline - time.monotonic()) > 0:
            try:
                rank, event = self.take(left)
            except (queue.Empty, errors.TrainingFailedError):
                break
            if rank in waiting and isinstance(event, messages.Died | hubs.Lost):
                dead[rank] = self._describe_death(rank, event)
            if isinstance(event, messages.Pong | messages.Failed | messages.Died | hubs.Lost):
                waiting.discard(rank)
            else:
                others.append((rank, event))
        self._aside.extend(others)
        return dead

    def _describe_death(self, rank: int, event: messages.Died | hubs.Lost) -> Exception:
        others: list[tuple[int, messages.FromRank | hubs.Lost]] = []
        deadline = time.monotonic() + DEATH_SECONDS
        while not isinstance(event, messages.Died):
            try:
                other, found = self.take(max(0.0, deadline - time.monotonic()))
            except (queue.Empty, errors.TrainingFailedError) as error:
                if any(word in str(error) for word in _ENDS):
                    raise
                where = self.places[rank].node_id if self.places else "?"
                text = (
                    f"The rank is dead: its process on {where}, or that machine, ended and reported no cause. {error}"
                )
                return exceptions.ActorDiedError(text.strip())
            if other == rank and isinstance(found, messages.Died):
                event = found
            elif isinstance(found, reports.Report) or (other != rank and not isinstance(found, messages.Pong)):
                others.append((other, found))
        self._aside.extend(others)
        return exceptions.ActorDiedError("The rank is dead.", death=event.death)

    def _name_hosts(self) -> dict[int, str]:
        are_apart = len(set(self.list_addresses())) > 1
        return {rank: f" (on {place.node_id})" if are_apart else "" for rank, place in enumerate(self.places)}


def explain_job(event: hubs.JobEnded) -> errors.TrainingFailedError:
    """Return the error of a run after Spark ended its job."""
    told = str(event.error).partition("\n\tat ")[0].strip()  # Java's frames follow
    return errors.TrainingFailedError(f"Spark ended the barrier stage before the ranks were done: {told[-3000:]}")
