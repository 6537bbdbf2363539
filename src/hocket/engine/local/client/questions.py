"""What only the hub knows: a question, and its answer."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from typing import Any

from hocket import exceptions
from hocket.engine import contract, rules, values
from hocket.engine.local import messages
from hocket.engine.local.client import inbox
from hocket.kernel import metrics, resources

METRICS_SECONDS = 1.0
"""How long what a running task counts may wait for company at most, if it goes on counting."""


class Questions(inbox.Inbox):
    """Asks the hub."""

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the hub and wait for what it returns, or raises."""
        encoded = values.encode_whole((args, kwargs))
        with self.lock:
            self.publish(encoded.refs)
            question_id = next(self._ids)
            self.channel.post((messages.ASK, question_id, method, encoded.data))
        return self._wait_answer(question_id)

    def _wait_answer(self, question_id: int) -> Any:
        self.pump.wait_until(lambda: question_id in self._answers)
        ok, data, held = self._answers.pop(question_id)
        answer = pickle.loads(data)
        del held
        try:
            if not ok:
                raise answer
            return answer
        finally:
            del answer  # else the error and this frame hold each other, and what the frames above hold

    def _ask_room(self, needed: int) -> bool:
        """Ask for room for a new segment, and wait until it is granted or refused."""
        with self.lock:
            question_id = next(self._ids)
            self._room_questions.add(question_id)
            self.channel.post((messages.ROOM, question_id, needed, *self.store.get_account()))
        granted, _ = self._wait_answer(question_id)
        return bool(granted)

    def _explain_full(self, size: int, reason: str, is_disk: bool) -> str:
        return str(self._ask("explain_full", size, reason, is_disk))

    def _check_feasible(
        self, shape: resources.Shape, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        if shape.demand not in _KNOWN_FEASIBLE:
            self._ask("check_feasible", shape, kind, what)

    # --- actors --------------------------------------------------------------------------------------------------------

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        return rules.await_claim(lambda: self._ask("look_up_name", name, namespace))

    def list_named_actors(self) -> list[tuple[str, str]]:
        return list(self._ask("list_named_actors"))

    def describe_actor(self, actor_id: int) -> contract.ActorInfo:
        info: contract.ActorInfo = self._ask("describe_actor", actor_id)
        return info

    def kill_actor(self, actor: contract.ObjectRef[None], *, no_restart: bool = True) -> None:
        self._ask("kill_actor", actor, no_restart=no_restart)

    def check_pending(self, actor: contract.ObjectRef[None]) -> None:
        self._ask("check_pending", actor)

    # --- resources -----------------------------------------------------------------------------------------------------

    def reserve(self, bundles: Sequence[resources.Demand], strategy: str, name: str) -> contract.ObjectRef[None]:
        ref: contract.ObjectRef[None] = self._ask("reserve", list(bundles), strategy, name)
        return ref

    def remove_group(self, group_id: int) -> None:
        self._ask("remove_group", group_id)

    def list_groups(self) -> list[dict[str, Any]]:
        return list(self._ask("list_groups"))

    def list_nodes(self) -> list[dict[str, Any]]:
        return list(self._ask("list_nodes"))

    def get_total_resources(self) -> dict[str, float]:
        return dict(self._ask("get_total_resources"))

    def get_free_resources(self) -> dict[str, float]:
        return dict(self._ask("get_free_resources"))

    # --- looking -------------------------------------------------------------------------------------------------------

    def list_errors(self) -> list[exceptions.ErrorRecord]:
        return list(self._ask("list_errors"))

    def list_records(
        self, kind: str, filters: Sequence[tuple[str, str, Any]] = (), limit: int | None = None
    ) -> list[dict[str, Any]]:
        return list(self._ask("list_records", kind, list(filters), limit))

    def statistics(self) -> dict[str, Any]:
        return dict(self._ask("statistics"))

    def record_metrics(self, batch: metrics.Batch) -> None:
        super().record_metrics(batch)
        if time.perf_counter() - self.last_flush > METRICS_SECONDS:
            with self.lock:
                self.flush()

    def get_context(self) -> contract.WorkContext:
        running = self.running
        extra = {**self.actor_extra, **running.extra}
        task_id = running.task_id
        group_id = extra.get("group_id", 0)
        return contract.WorkContext(
            job_id=self.setup["job_id"],
            node_id=self.setup["node_id"],
            worker_id=f"{self.worker_id:016x}",
            task_id=f"{task_id:016x}" if task_id else None,
            task_name=running.name or None,
            function_name=self.name_function(running) if task_id else None,
            actor_id=f"{self.actor_id:016x}" if self.actor_id else None,
            resources=extra.get("resources", {"CPU": 1.0}),
            gpu_ids=tuple(extra.get("gpu_ids", ())),
            placement_group_id=f"{group_id:016x}" if group_id else None,
            namespace=extra.get("namespace", self.setup["namespace"]),
            attempt=extra.get("attempt", 0),
            actor_attempt=self.actor_extra.get("attempt", 0),
            actor_name=extra.get("actor_name"),
            environment=extra.get("environment", ""),
            captures_children=extra.get("captures_children", False),
            is_canceled=task_id in self.cancelled,
        )


_KNOWN_FEASIBLE = frozenset({(), (("CPU", resources.UNIT),)})
"""Demands that every session can meet, so that common tasks need no question."""
