"""The state of a worker, and of the session as the driver knows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from hocket import exceptions
from hocket.engine import contract
from hocket.engine.local.worker_engine import duty, questions


@final
class WorkerView(contract.View):
    """See `contract.View`.

    Args:
        own: What runs.
        asked: The questions to the driver.
        taker: Knows the functions.
    """

    def __init__(self, own: duty.Duty, asked: questions.Questions, taker: duty.Taker) -> None:
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
