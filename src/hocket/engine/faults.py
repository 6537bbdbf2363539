"""Named points in the code at which a test can kill a process, stop it, or make it fail.

The engines' processes pass these points anyway. Each point only checks `plan`, which is None unless a test has armed a
fault with `hocket.testing.fail_at`. An armed fault travels in the environment, so the guardian and its workers know it
without a message. All processes append its hits to a file: a test can see whether the fault has fired, even after the
process has died.
"""

from __future__ import annotations

import fcntl
import os
import signal

VARIABLE = "HOCKET_FAULTS"
"""The environment variable: one fault per line, with its fields separated by tabs."""

POINTS: dict[str, str] = {
    "worker.before_task": "a worker has taken a task and not yet called the user's code",
    "worker.before_result": "the user's code has returned, and its result is not known outside yet",
    "worker.after_result": "the result is in memory that outlives the worker, and has not been sent",
    "worker.in_put": "a worker has stored a value and not yet announced it; it holds the engine's lock",
    "worker.in_submit": "a worker is submitting a task of its own; it holds the engine's lock",
    "worker.in_flush": "a worker is about to send; it holds the engine's lock",
    "guardian.before_spawn": "the guardian is about to fork a worker",
    "guardian.after_spawn": "the guardian has forked a worker and not yet reported its pid",
    "guardian.before_report": "the guardian has reaped a worker and not yet reported why it died",
    "hub.before_flush": "the driver is about to send to a worker",
    "hub.in_handle": "the driver is about to handle a worker's messages",
    "train.in_upload": "a rank is sending bytes of a checkpoint's file, and the driver has not received them",
    "train.in_download": "a rank has received bytes of a checkpoint's file, and not yet checked them",
}
"""Every point, and the state of the process there."""

DATA_POINTS = frozenset({"train.in_upload", "train.in_download"})
"""The points that pass bytes, which a fault can damage."""

ACTIONS = ("kill", "exit", "raise", "stop", "flip", "cut")
"""The actions of a fault: SIGKILL to its own process; exit at once with status 3; raise `InjectedFaultError`; SIGSTOP
to its own process; change a bit of the bytes; drop the last byte."""

DAMAGES = frozenset({"flip", "cut"})
"""The actions that damage bytes, and are possible only at `DATA_POINTS`."""

EXIT_CODE = 3


class InjectedFaultError(RuntimeError):
    """The error that a fault with the action ``raise`` raises."""


class Fault:
    """One armed fault."""

    __slots__ = ("action", "file", "hit", "point", "times")

    def __init__(self, point: str, action: str, hit: int, times: int, file: str) -> None:
        self.point = point
        self.action = action
        #: The number of the first hit, counted over all processes, that fires.
        self.hit = hit
        #: How many hits from that one on fire.
        self.times = times
        #: The file that gets one byte for each hit.
        self.file = file

    def format(self) -> str:
        """Return the line for the environment."""
        return "\t".join((self.point, self.action, str(self.hit), str(self.times), self.file))

    def count_hits(self) -> int:
        """Return how often processes have passed the point."""
        return os.stat(self.file).st_size

    def note_hit(self) -> bool:
        """Count a hit; return whether it fires."""
        fd = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # the operating system releases it if the process dies
            os.write(fd, b".")
            number = os.fstat(fd).st_size
        finally:
            os.close(fd)
        return self.hit <= number < self.hit + self.times


class FaultPlan:
    """The armed faults."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults

    def reach(self, point: str) -> None:
        """Pass a point: fire the faults that are due there, which may end the process."""
        for fault in self.faults:
            if fault.point == point and fault.note_hit():
                _fire(fault)

    def pass_bytes(self, point: str, data: bytes) -> bytes:
        """Pass a point with at least one byte: fire the faults that are due there; return the bytes after damages."""
        for fault in self.faults:
            if fault.point == point and fault.note_hit():
                if fault.action == "flip":
                    data = bytes([data[0] ^ 1]) + data[1:]
                elif fault.action == "cut":
                    data = data[:-1]
                else:
                    _fire(fault)
        return data


def _fire(fault: Fault) -> None:
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.action == "exit":
        os._exit(EXIT_CODE)
    else:
        raise InjectedFaultError(f"a fault was injected at {fault.point!r} by hocket.testing.fail_at")


def parse_environment(text: str) -> FaultPlan | None:
    """Return the plan in the variable's text; None if it is empty."""
    lines = [line.split("\t") for line in text.splitlines() if line]
    faults = [Fault(point, action, int(hit), int(times), file) for point, action, hit, times, file in lines]
    return FaultPlan(faults) if faults else None


plan: FaultPlan | None = parse_environment(os.environ.get(VARIABLE, ""))
"""The armed faults of this process; None outside of tests, so that each point costs one comparison."""


def set_plan(new: FaultPlan | None) -> None:
    """Arm faults in this process and in the processes that it starts from now on; None disarms all."""
    global plan  # noqa: PLW0603 (a process has one plan, as it has one environment)
    plan = new
    if new is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = "\n".join(fault.format() for fault in new.faults)
