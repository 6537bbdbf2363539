"""What only the driver knows: a question, and its answer."""

from __future__ import annotations

import pickle
import socket
from typing import Any

from hocket import exceptions
from hocket.engine import contract, rules, values
from hocket.engine.local import messages
from hocket.engine.local.worker_engine import inbox
from hocket.kernel import resources


def _build_question(name: str) -> Any:
    """Return a method that has the driver's engine call its own of that name."""

    def ask(engine: Questions, *args: Any, **kwargs: object) -> object:
        return engine._ask(name, *args, **kwargs)

    ask.__name__ = name
    return ask


class Questions(inbox.Inbox):
    """Asks the driver."""

    def __init__(self, worker_id: int, sock: socket.socket, page_fd: int) -> None:
        super().__init__(worker_id, sock, page_fd)
        #: Shapes that the driver has found feasible; the answer does not change during a session.
        self._feasible: set[resources.Shape] = set()

    def _ask(self, method: str, *args: object, **kwargs: object) -> Any:
        """Call a method of the driver and wait for what it returns, or raises."""
        encoded = values.encode_whole((args, kwargs))
        with self.lock:
            self.publish(encoded.refs)
            question_id = self._open_question()
            self.channel.post((messages.ASK, question_id, method, encoded.data))
        return self._wait_answer(question_id)

    def _open_question(self) -> int:
        """Return the number of a question that is about to be asked."""
        question_id = next(self._ids)
        self._answers[question_id] = None
        return question_id

    def _wait_answer(self, question_id: int) -> Any:
        try:
            self.reactor.wait_until(lambda: self._answers[question_id] is not None)
        finally:  # whoever is interrupted waits no longer: the answer, and the references in it, are for nobody then
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

    def _ask_room(self, needed: int) -> bool:
        with self.lock:
            question_id = self._open_question()
            self._room_questions.add(question_id)
            self.channel.post((messages.ROOM, question_id, needed, *self.store.get_account()))
        granted, _ = self._wait_answer(question_id)
        return bool(granted)

    def _explain_full(self, size: int, reason: str, is_disk: bool) -> str:
        return str(self._ask("explain_full", size, reason, is_disk))

    def _check_feasible(
        self, shape: resources.Shape, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        is_usual = shape.demand == _ONE_CPU and not shape.group_id and self.setup["has_cpu"]
        if shape.demand and not is_usual and shape not in self._feasible:
            self._ask("check_feasible", shape, kind, what)
            self._feasible.add(shape)

    # --- what the driver's engine answers -----------------------------------------------------------------------------

    list_named_actors = _build_question("list_named_actors")
    describe_actor = _build_question("describe_actor")
    kill_actor = _build_question("kill_actor")
    check_pending = _build_question("check_pending")
    reserve = _build_question("reserve")
    remove_group = _build_question("remove_group")
    list_groups = _build_question("list_groups")
    list_nodes = _build_question("list_nodes")
    get_total_resources = _build_question("get_total_resources")
    get_free_resources = _build_question("get_free_resources")
    list_errors = _build_question("list_errors")
    list_records = _build_question("list_records")
    statistics = _build_question("statistics")

    def find_actor(self, name: str, namespace: str) -> contract.ActorInfo | None:
        return rules.await_claim(lambda: self._ask("look_up_name", name, namespace))

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


_ONE_CPU = (("CPU", resources.UNIT),)
"""What most tasks ask for; whether it can be had is known without a question."""
