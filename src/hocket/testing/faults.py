"""Fault injection at named points."""

from __future__ import annotations

import os
import tempfile
from types import TracebackType
from typing import Self

from hocket.engine import faults

InjectedFaultError = faults.InjectedFaultError


class fail_at:  # noqa: N801 (it reads as a verb: `with fail_at(...)`)
    """A context manager that makes a process of the session fail at a named point, and counts that.

    Enter it before the session starts processes, because the fault travels in their environment.

    Args:
        point: The point, one of `fail_at.points`, which describes the state at each.
        action: ``"kill"`` (SIGKILL), ``"exit"`` (at once, with status 3), ``"raise"`` (an `InjectedFaultError`) or
            ``"stop"`` (SIGSTOP). At points where bytes pass, also ``"flip"`` (one bit of them changes) or ``"cut"``
            (the last byte is lost).
        hit: The first pass of the point that fires, counted from 1 over all processes.
        times: The number of passes from there on that fire.

    Raises:
        ValueError: The point or the action does not exist, or a number is below 1.

    Example:
        >>> from hocket.testing import fail_at
        >>> with fail_at("worker.before_result", action="kill", hit=2) as fault:
        ...     pass  # a session that is opened here loses the worker that finishes the second task
        >>> fault.hits, fault.fired
        (0, 0)
    """

    points = faults.POINTS

    def __init__(self, point: str, *, action: str = "kill", hit: int = 1, times: int = 1) -> None:
        if point not in faults.POINTS:
            raise ValueError(f"point must be one of {sorted(faults.POINTS)}, but received {point!r}.")
        if action not in faults.ACTIONS:
            raise ValueError(f"action must be one of {list(faults.ACTIONS)}, but received {action!r}.")
        if action in faults.DAMAGES and point not in faults.DATA_POINTS:
            raise ValueError(
                f"action {action!r} damages bytes, but no bytes pass at {point!r}. Choose one of "
                f"{sorted(faults.DATA_POINTS)}."
            )
        for name, number in (("hit", hit), ("times", times)):
            if number < 1:
                raise ValueError(f"{name} must be 1 or more, but received {number!r}. Leave it out for 1.")
        self._given = (point, action, hit, times)
        self._fault: faults.Fault | None = None
        self._hits = 0

    def __enter__(self) -> Self:
        fd, file = tempfile.mkstemp(prefix="hocket-fault-")
        os.close(fd)
        self._fault = faults.Fault(*self._given, file)
        armed = faults.plan.faults if faults.plan is not None else []
        faults.set_plan(faults.FaultPlan([*armed, self._fault]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fault = self._fault
        assert fault is not None
        self._hits = fault.count_hits()
        self._fault = None
        left = [other for other in (faults.plan.faults if faults.plan is not None else []) if other is not fault]
        faults.set_plan(faults.FaultPlan(left) if left else None)
        os.unlink(fault.file)

    @property
    def hits(self) -> int:
        """How often the point was passed while the fault was armed."""
        return self._hits if self._fault is None else self._fault.count_hits()

    @property
    def fired(self) -> int:
        """How often the fault fired."""
        _, _, hit, times = self._given
        return max(0, min(times, self.hits - hit + 1))
