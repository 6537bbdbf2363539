"""A worker's questions to the driver, and their answers."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any, final

from hocket import exceptions
from hocket.engine import contract, rules, values
from hocket.engine.local import journal, messages, reactor, store
from hocket.engine.local.worker_engine import arrivals, duty
from hocket.kernel import resources


@final
class Questions:
    """The questions to the driver.

    Args:
        lock: The engine's lock.
        driver: The channel to the driver.
        own: Makes the questions' numbers.
        known: The process's handles.
        come: The values that have come.
        waiters: The threads that wait.
    """

    def __init__(
        self,
        lock: threading.RLock,
        driver: journal.JournalChannel,
        own: duty.Duty,
        known: arrivals.WorkerHandles,
        come: arrivals.Arrivals,
        waiters: reactor.Reactor,
    ) -> None:
        self._lock, self._driver, self._duty = lock, driver, own
        self._handles, self._arrivals, self._waiters = known, come, waiters
        #: The answers that a thread waits for, by question; None before the answer comes.
        self._answers: dict[int, tuple[bool, bytes, list[contract.AnyRef]] | None] = {}
        #: The stores that wait for room, by question.
        self._of_room: dict[int, store.WorkerStore] = {}

    def ask(self, method: str, *args: object, **kwargs: object) -> Any:
        """Have the driver call its function of a name; return the result, or raise its exception."""
        encoded = values.encode_whole((args, kwargs))
        with self._lock:
            self._arrivals.publish(encoded.refs)
            question_id = self._open()
            self._driver.post((messages.ASK, question_id, method, encoded.data))
        return self._wait(question_id)

    def ask_room(self, memory: store.WorkerStore, needed: int) -> bool:
        """Ask for room for a new segment; return whether the driver grants it."""
        with self._lock:
            question_id = self._open()
            self._of_room[question_id] = memory
            self._driver.post((messages.ROOM, question_id, needed, *memory.get_account()))
        granted, _ = self._wait(question_id)
        return bool(granted)

    def explain_full(self, size: int, reason: str, is_disk: bool) -> str:
        """Return the message for a value that finds no room."""
        return str(self.ask("explain_full", size, reason, is_disk))

    def _open(self) -> int:
        """Return the number of a new question."""
        question_id = next(self._duty.ids)
        self._answers[question_id] = None
        return question_id

    def _wait(self, question_id: int) -> Any:
        try:
            self._waiters.wait_until(lambda: self._answers[question_id] is not None)
        finally:  # also after an interrupt: then the answer, and the references in it, are dropped
            answer = self._answers.pop(question_id)
        assert answer is not None
        ok, data, held = answer
        answer = pickle.loads(data)
        del held
        try:
            if not ok:
                raise answer
            return answer
        finally:
            del answer  # else the error and this frame hold each other, and what the frames above hold

    def take_answer(self, question_id: int, ok: bool, data: bytes, contained: tuple[int, ...]) -> None:
        """Take an answer of the driver. Called with the lock held."""
        memory = self._of_room.pop(question_id, None)
        if memory is not None:  # counted here, because the thread that asked may have been interrupted meanwhile
            memory.credit(*pickle.loads(data))
        held = self._handles.hold(contained)
        if question_id in self._answers:
            self._answers[question_id] = (ok, data, held)


@final
class AskedActors(contract.Actors):
    """Actors and their names, which only the driver knows.

    Args:
        questions: The questions to the driver.
        own: The running work.
        taker: Ends the actor of this process soon, whatever runs.
    """

    def __init__(self, questions: Questions, own: duty.Duty, taker: duty.Taker) -> None:
        self._questions, self._duty, self._taker = questions, own, taker

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        return rules.await_claim(lambda: self._questions.ask("look_up_name", name, namespace))

    def list_named_actors(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = self._questions.ask("list_named_actors")
        return found

    def describe_actor(self, actor_id: int) -> contract.ActorInfo:
        found: contract.ActorInfo = self._questions.ask("describe_actor", actor_id)
        return found

    def kill_actor(self, actor: contract.ObjectRef[None], *, no_restart: bool = True) -> None:
        self._questions.ask("kill_actor", actor, no_restart=no_restart)

    def request_exit(self) -> None:
        self._duty.running.request_exit()
        self._taker.note_exit()

    def check_pending(self, actor: contract.ObjectRef[None]) -> None:
        self._questions.ask("check_pending", actor)


@final
class AskedResources(contract.Resources):
    """Resources and placement groups, which only the driver knows.

    Args:
        questions: The questions to the driver.
    """

    def __init__(self, questions: Questions) -> None:
        self._ask = questions.ask

    def reserve(
        self, bundles: Sequence[resources.Demand], strategy: str, name: str, *, is_detached: bool = False
    ) -> contract.ObjectRef[None]:
        found: contract.ObjectRef[None] = self._ask("reserve", bundles, strategy, name, is_detached=is_detached)
        return found

    def remove_group(self, group_id: int) -> None:
        self._ask("remove_group", group_id)

    def list_groups(self) -> list[dict[str, Any]]:
        return self._ask("list_groups")  # type: ignore[no-any-return]

    def list_nodes(self) -> list[dict[str, Any]]:
        return self._ask("list_nodes")  # type: ignore[no-any-return]

    def get_total_resources(self) -> dict[str, float]:
        return self._ask("get_total_resources")  # type: ignore[no-any-return]

    def get_free_resources(self) -> dict[str, float]:
        return self._ask("get_free_resources")  # type: ignore[no-any-return]


@final
class WorkerView(contract.View):
    """See `contract.View`.

    Args:
        own: The running work.
        asked: The questions to the driver.
        taker: Knows the functions' names.
    """

    def __init__(self, own: duty.Duty, asked: Questions, taker: duty.Taker) -> None:
        self._duty, self._ask, self._taker = own, asked.ask, taker

    def get_context(self) -> contract.WorkContext:
        own, running = self._duty, self._duty.running
        extra = {**own.actor_extra, **running.extra}
        task_id = running.task_id
        group_id = extra.get("group_id", 0)
        return contract.WorkContext(
            job_id=own.setup["job_id"],
            node_id=own.setup["node_id"],
            worker_id=f"{own.worker_id:016x}",
            task_id=f"{task_id:016x}" if task_id else None,
            task_name=running.name or None,
            function_name=self._taker.name_function(running) if task_id else None,
            actor_id=f"{own.actor_id:016x}" if own.actor_id else None,
            resources=extra.get("resources", {"CPU": 1.0}),
            gpu_ids=tuple(extra.get("gpu_ids", ())),
            placement_group_id=f"{group_id:016x}" if group_id else None,
            namespace=extra.get("namespace", own.setup["namespace"]),
            attempt=extra.get("attempt", 0),
            actor_attempt=own.actor_extra.get("attempt", 0),
            actor_name=extra.get("actor_name"),
            environment=extra.get("environment", ""),
            captures_children=extra.get("captures_children", False),
            is_canceled=task_id in own.cancelled,
        )

    def list_errors(self) -> list[exceptions.ErrorRecord]:
        return self._ask("list_errors")  # type: ignore[no-any-return]

    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, object]] = (), limit: int | None = None
    ) -> list[dict[str, Any]]:
        return self._ask("list_records", kind, filters, limit)  # type: ignore[no-any-return]

    def statistics(self) -> dict[str, Any]:
        return self._ask("statistics")  # type: ignore[no-any-return]
