"""The kernel's instructions to its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from hocket.kernel.records import TaskRecord, WorkerRecord


class Start(NamedTuple):
    """Start a process for a worker. The engine may send it tasks at once."""

    worker: WorkerRecord


class Run:
    """Send a worker a task or a call. No tuple: this is the most frequent instruction, and a plain class costs less."""

    __slots__ = __match_args__ = ("worker", "task")

    def __init__(self, worker: WorkerRecord, task: TaskRecord) -> None:
        self.worker = worker
        self.task = task


class Cancel(NamedTuple):
    """Interrupt a task, or take it out of the worker's queue; the worker answers in both cases."""

    worker: WorkerRecord
    task_id: int
    recursive: bool


class Kill(NamedTuple):
    """End a process now."""

    worker: WorkerRecord


class Stop(NamedTuple):
    """Let a process finish the tasks that it has, then exit."""

    worker: WorkerRecord


class End(NamedTuple):
    """End a process if it runs this task. First the engine keeps it from starting more, and withdraws the tasks that it
    has not started (`Kernel.withdraw`): the end then hits no other task."""

    worker: WorkerRecord
    task_id: int


class Free(NamedTuple):
    """Free a value that nothing needs any more. Sent only for values of more than two parts: the others own no memory
    outside of themselves."""

    object_id: int
    """0 for arguments."""
    value: tuple[Any, ...]


class Tell(NamedTuple):
    """Announce an object to a worker that waits for it."""

    worker_id: int
    """The worker's id; negative if the worker needs no value, but only the news that the value is there."""
    object_id: int


class Pass(NamedTuple):
    """Pass a marker of `Kernel.introduce` on to the actor's worker: the calls before it have been sent."""

    worker: WorkerRecord
    marker: tuple[Any, ...]


class Refuse(NamedTuple):
    """Refuse a marker of `Kernel.introduce`, because its actor is dead."""

    marker: tuple[Any, ...]


class Moved(NamedTuple):
    """Say to a worker that the driver holds a value that the worker expects from a direct call."""

    worker_id: int
    object_id: int


class Consumed(NamedTuple):
    """Answer a paused generator with the number of items that its reader has taken."""

    worker: WorkerRecord
    task_id: int
    taken: int


Instruction: TypeAlias = Start | Run | Cancel | Kill | Stop | End | Free | Tell | Pass | Refuse | Moved | Consumed
