"""The data for viewers about the processes of an engine that has none."""

from __future__ import annotations

import os
from collections import deque
from typing import final

from hocket.engine import inspection
from hocket.engine.inprocess import base, payloads
from hocket.kernel import records


@final
class NoProcesses:
    """The processes behind the in-process engine: none. See `kernel_parts.Processes`.

    Args:
        running: The running tasks.
    """

    def __init__(self, running: base.Running) -> None:
        self.starts = running.starts
        self.lost: deque[inspection.LostWorker] = deque(maxlen=0)
        self.spans: deque[inspection.OwnSpan] = deque(maxlen=0)
        self.read_events = None

    def get_pid(self, worker_id: int) -> int:
        return os.getpid()

    def find_running(self, worker: records.WorkerRecord) -> tuple[int, float]:
        return 0, 0.0

    def measure(self, payload: payloads.Payload) -> int:
        return payloads.measure(payload)

    def locate(self, payload: payloads.Payload) -> str:
        return ""

    def count(self) -> dict[str, object]:
        return {"workers": 0, "worker_pids": [], "guardian_pid": None, "shared_bytes": 0}
