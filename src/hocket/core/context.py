"""The runtime context: facts about the task, actor or driver that runs the calling code."""

from __future__ import annotations

from typing import Any

from hocket.core import actor, environments
from hocket.engine import contract


class RuntimeContext:
    """Facts about the calling task, actor or driver. The names are Ray's; facts that do not apply are None."""

    def __init__(self, record: contract.WorkContext, engine: contract.Engine) -> None:
        self._record = record
        self._engine = engine

    def get(self) -> dict[str, Any]:
        """Return the most important facts as a dict."""
        facts = {
            "job_id": self.get_job_id(),
            "node_id": self.get_node_id(),
            "worker_id": self.get_worker_id(),
            "task_id": self.get_task_id(),
            "actor_id": self.get_actor_id(),
            "placement_group_id": self.get_placement_group_id(),
        }
        ids = {name: contract.Id(fact) for name, fact in facts.items() if fact is not None}
        return {**ids, "namespace": self.namespace}

    @property
    def job_id(self) -> contract.Id:
        """The session's id, as an object with `hex`; an old name of `get_job_id`."""
        return contract.Id(self._record.job_id)

    @property
    def node_id(self) -> contract.Id:
        """This machine's id; an old name of `get_node_id`."""
        return contract.Id(self._record.node_id)

    @property
    def worker_id(self) -> contract.Id:
        """The id of this process in the session; an old name of `get_worker_id`."""
        return contract.Id(self._record.worker_id)

    @property
    def task_id(self) -> contract.Id | None:
        """The id of the running task or call; an old name of `get_task_id`."""
        return _build_id(self._record.task_id)

    @property
    def actor_id(self) -> contract.Id | None:
        """The id of the actor that runs this code; an old name of `get_actor_id`."""
        return _build_id(self._record.actor_id)

    @property
    def current_placement_group_id(self) -> contract.Id | None:
        """The id of the placement group in which this code runs; an old name of `get_placement_group_id`."""
        return _build_id(self._record.placement_group_id)

    def get_job_id(self) -> str:
        """Return the session's id."""
        return self._record.job_id

    def get_node_id(self) -> str:
        """Return this machine's id."""
        return self._record.node_id

    def get_worker_id(self) -> str:
        """Return the id of this process in the session; all zeros for the driver."""
        return self._record.worker_id

    def get_task_id(self) -> str | None:
        """Return the id of the running task or call."""
        return self._record.task_id

    def get_task_name(self) -> str | None:
        """Return the name of the running task or call."""
        return self._record.task_name

    def get_task_function_name(self) -> str | None:
        """Return the defined name of the running function or method, with module and class: ``app.Counter.add``."""
        return self._record.function_name if self._record.task_id is not None else None

    def get_actor_name(self) -> str | None:
        """Return the name by which `get_actor` finds the actor that runs this code; empty if it has none."""
        return (self._record.actor_name or "") if self._record.actor_id is not None else None

    @property
    def current_actor(self) -> actor.ActorHandle:
        """A handle on the actor that runs this code.

        Raises:
            RuntimeError: No actor runs this code.
        """
        if self._record.actor_id is None:
            raise RuntimeError("This code does not run in an actor, so there is no current actor.")
        info = self._engine.actors.describe_actor(int(self._record.actor_id, 16))
        return actor.ActorHandle(info.ref, info.options)

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor that runs this code was built again after the death of its process.

        Raises:
            RuntimeError: No actor runs this code.
        """
        if self._record.actor_id is None:
            raise RuntimeError("This code does not run in an actor. Read this attribute in a method of an actor.")
        return self._record.actor_attempt > 0

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether tasks that this code submits run in the same placement group."""
        return self._record.captures_children

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The runtime environment of this code."""
        return environments.parse_environment(self._record.environment)

    def get_runtime_env_string(self) -> str:
        """Return the runtime environment as JSON."""
        return self._record.environment or "{}"

    def get_node_labels(self) -> dict[str, str]:
        """Return the labels of this machine."""
        return dict(self._engine.resources.list_nodes()[0]["Labels"])

    def get_session_name(self) -> str:
        """Return the session's name."""
        return f"session_{self._record.job_id}"

    @property
    def gcs_address(self) -> str:
        """The address of the cluster's state in Ray; here always empty."""
        return ""

    def get_actor_id(self) -> str | None:
        """Return the id of the actor that runs this code."""
        return self._record.actor_id

    def get_placement_group_id(self) -> str | None:
        """Return the id of the placement group in which this code runs."""
        return self._record.placement_group_id

    def get_assigned_resources(self) -> dict[str, float]:
        """Return the resources that this code holds."""
        return dict(self._record.resources)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the accelerators that this code may use, by kind."""
        return {"GPU": [str(index) for index in self._record.gpu_ids]}

    def is_canceled(self) -> bool:
        """Return whether the running call has been cancelled."""
        return self._record.is_canceled

    @property
    def namespace(self) -> str:
        """The namespace of actors' names."""
        return self._record.namespace


def _build_id(text: str | None) -> contract.Id | None:
    return None if text is None else contract.Id(text)
