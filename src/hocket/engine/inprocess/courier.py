"""The courier, which carries out the kernel's instructions: it puts tasks that can run into a queue."""

from __future__ import annotations

import inspect
import os
import sys
from collections import deque
from collections.abc import Collection
from typing import final

from hocket import exceptions
from hocket.engine import forks, kernel_parts
from hocket.engine.inprocess import base, payloads
from hocket.kernel.instructions import Cancel, End, Kill, Run, Stop, Tell
from hocket.kernel.records import DRIVER, WorkerRecord


@final
class Courier:
    """Carries instructions out. Every method is called with the lock held.

    Args:
        session: The session, with the kernel and the callbacks.
        actors: The living actors.
    """

    def __init__(self, session: kernel_parts.Session, actors: base.Actors) -> None:
        self._session, self._kernel, self._actors = session, session.kernel, actors
        self.runnable: deque[base.Work] = deque()
        self._is_forked = False

    def carry_out(self) -> None:
        """Carry out the kernel's instructions."""
        if self._is_forked:
            forks.end(RuntimeError(forks.WAITED))
        kernel = self._kernel
        while kernel.instructions:
            batch, kernel.instructions = kernel.instructions, []
            for instruction in batch:
                match instruction:
                    case Run(worker, task):
                        self.runnable.append((worker, task))
                    case Tell(worker_id, object_id) if worker_id == DRIVER:
                        for callback in self._session.callbacks.pop(object_id, ()):
                            callback()
                    case Stop(worker):
                        self.bury(worker, is_graceful=True)
                    case Kill(worker):
                        self.bury(worker, is_graceful=False)
                    case End(worker, task_id):
                        self._end_task(worker, task_id)
                    case Cancel(worker, task_id):
                        self._cancel_runnable(worker, task_id)

    def end_worker(self, worker: WorkerRecord, *, is_graceful: bool) -> None:
        """Drop a worker's actor and its event loop; if `is_graceful`, call the actor's ``__ray_shutdown__`` first."""
        if self._is_forked:
            forks.end(None if is_graceful else sys.exception())
        instance = self._actors.instances.pop(worker.id, None)
        loop = self._actors.loops.pop(worker.id, None)
        hook = getattr(instance, "__ray_shutdown__", None) if is_graceful else None
        if hook is not None:
            farewell = hook()
            if inspect.isawaitable(farewell) and loop is not None:
                loop.complete(farewell)
        if loop is not None:
            loop.close()

    def bury(
        self, worker: WorkerRecord, *, is_graceful: bool, running: Collection[int] = (), exit_code: int | None = None
    ) -> None:
        """End a worker, and report its end to the kernel; as expected, unless there is an exit code."""
        self.end_worker(worker, is_graceful=is_graceful)
        death = exceptions.Death(pid=os.getpid(), exit_code=exit_code, expected=exit_code is None)
        self._kernel.lose(worker, death, running)

    def _end_task(self, worker: WorkerRecord, task_id: int) -> None:
        """End the worker if it runs this task; if the task waits, only cancel it."""
        if any(task.id == task_id for _, task in self.runnable):
            self._cancel_runnable(worker, task_id)
            return
        self._kernel.expect_end(worker)
        self.bury(worker, is_graceful=False, running={task_id})

    def _cancel_runnable(self, worker: WorkerRecord, task_id: int) -> None:
        loop = self._actors.loops.get(worker.id)
        if loop is not None:
            loop.cancel(task_id)
        for entry in list(self.runnable):
            if entry[1].id == task_id:
                self.runnable.remove(entry)
                error = exceptions.TaskCancelledError(
                    f"Task `{entry[1].options.name}` was cancelled before it started."
                )
                self._kernel.fail(
                    worker, task_id, payloads.encode_error(error), retryable=False, error_type=type(error).__name__
                )

    def cut_off(self) -> None:
        """From now on, end the process instead of carrying out instructions; for a task's fork."""
        self._is_forked = True
