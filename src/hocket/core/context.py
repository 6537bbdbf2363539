"""Where the calling code runs."""

from __future__ import annotations

from hocket.engine import contract


class RuntimeContext:
    """Facts about the calling task, actor or driver. Names are Ray's; what does not apply is None."""

    def __init__(self, record: contract.WorkContext) -> None:
        self._record = record

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

    def get_actor_id(self) -> str | None:
        """Return the id of the actor that this code belongs to."""
        return self._record.actor_id

    def get_placement_group_id(self) -> str | None:
        """Return the id of the placement group that this code runs in."""
        return self._record.placement_group_id

    def get_assigned_resources(self) -> dict[str, float]:
        """Return the resources that this code holds."""
        return dict(self._record.resources)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the accelerators that this code may use, by kind."""
        return {"GPU": [str(index) for index in self._record.gpu_ids]}

    def is_canceled(self) -> bool:
        """Tell whether the running call has been cancelled."""
        return self._record.is_canceled

    @property
    def namespace(self) -> str:
        """The namespace that actors' names live in."""
        return self._record.namespace
