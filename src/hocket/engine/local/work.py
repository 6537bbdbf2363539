"""An entry of a worker's queue: one task or call, from its message to its answer."""

from __future__ import annotations

from typing import Any

from hocket.engine import contract
from hocket.engine.local import worker_engine


class Work:
    """One task or call in the queue."""

    __slots__ = (
        "args",
        "dependencies",
        "extra",
        "function_id",
        "held",
        "method",
        "name",
        "num_returns",
        "number",
        "reply_to",
        "started",
        "task_id",
    )

    def __init__(self, task_id: int, name: str, num_returns: int) -> None:
        self.task_id = task_id
        self.name = name
        self.num_returns = num_returns
        self.function_id = b""
        #: Its number among all tasks and calls from the driver; 0 for a direct call.
        self.number = 0
        #: The worker that made the direct call; 0 for work from the driver.
        self.reply_to = 0
        self.method = ""
        self.extra: dict[str, Any] | None = None
        self.args: worker_engine.Arrived | None = None
        self.dependencies: list[tuple[int, worker_engine.Arrived]] = []
        self.held: list[contract.AnyRef] = []
        #: The time of its start; 0 before that.
        self.started = 0.0

    def clear(self) -> None:
        """Drop the arguments and handles that it holds."""
        self.args = None
        self.dependencies = []
        self.held = []
