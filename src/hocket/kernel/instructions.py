"""The kernel's instructions to its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from hocket.kernel.records import TaskRecord, WorkerRecord


class Start(NamedTuple):
    """Start a process for a worker. It may be sent tasks at once."""

    worker: WorkerRecord


class Run:
    """Send a worker a task or call. The usual instruction, and no tuple: to make one takes one call."""

    __slots__ = __match_args__ = ("worker", "task")

    def __init__(self, worker: WorkerRecord, task: TaskRecord) -> None:
        self.worker = worker
        self.task = task


class Cancel(NamedTuple):
    """Interrupt a task, or take it out of the worker's queue; an answer comes either way."""

    worker: WorkerRecord
    task_id: int
    recursive: bool


class Kill(NamedTuple):
    """End a process now."""

    worker: WorkerRecord


class Stop(NamedTuple):
    """Let a process finish what it has, then exit."""

    worker: WorkerRecord


class End(NamedTuple):
    """End a process if this is what it runs. First it is to start nothing more, and what it has not started is
    withdrawn (`Kernel.withdraw`): so nobody else's work is hit."""

    worker: WorkerRecord
    task_id: int


class Free(NamedTuple):
    """Nothing needs a value any more. Only for values of more than two parts: the others own nothing outside."""

    object_id: int
    """0 for arguments."""
    value: tuple[Any, ...]


class Tell(NamedTuple):
    """The object that a worker asked for is there."""

    worker_id: int
    """Negative if the worker does not want the value, but to know that it is there."""
    object_id: int


class Pass(NamedTuple):
    """A marker of `Kernel.introduce` has its turn."""

    worker: WorkerRecord
    marker: tuple[Any, ...]


class Refuse(NamedTuple):
    """The actor of a marker is dead."""

    marker: tuple[Any, ...]


class Moved(NamedTuple):
    """A value that a worker expected from a direct call is here instead."""

    worker_id: int
    object_id: int


class Consumed(NamedTuple):
    """So many of a generator's items have been taken; it has asked."""

    worker: WorkerRecord
    task_id: int
    taken: int


Instruction: TypeAlias = Start | Run | Cancel | Kill | Stop | End | Free | Tell | Pass | Refuse | Moved | Consumed
