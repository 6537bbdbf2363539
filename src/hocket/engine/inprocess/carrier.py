"""What the kernel decides, carried out: what can run is run, one after the other."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection

from hocket import exceptions
from hocket.engine.inprocess import execution, payloads
from hocket.kernel.instructions import Op
from hocket.kernel.records import TaskRecord, WorkerRecord


class Carrier(execution.Execution):
    """Carries instructions out."""

    def carry_out(self) -> None:
        kernel = self.kernel
        while kernel.instructions:
            batch, kernel.instructions = kernel.instructions, []
            for instruction in batch:
                match instruction:
                    case (Op.RUN, WorkerRecord() as worker, TaskRecord() as task):
                        self._runnable.append((worker, task))
                    case (Op.TELL, 0, int(object_id)):
                        for callback in self._callbacks.pop(object_id, ()):
                            callback()
                    case (Op.STOP | Op.KILL as op, WorkerRecord() as worker):
                        self._bury(worker, is_graceful=op == Op.STOP)
                    case (Op.END, WorkerRecord() as worker, int(task_id)):
                        self._end_task(worker, task_id)
                    case (Op.CANCEL, WorkerRecord() as worker, int(task_id), _):
                        self._cancel_runnable(worker, task_id)

    def _end_worker(self, worker: WorkerRecord, is_graceful: bool) -> None:
        instance = self._instances.pop(worker.id, None)
        loop = self._loops.pop(worker.id, None)
        hook = getattr(instance, "__ray_shutdown__", None) if is_graceful else None
        if hook is not None:
            farewell = hook()
            if inspect.isawaitable(farewell) and loop is not None:
                loop.complete(farewell)
        if loop is not None:
            loop.close()

    def _bury(
        self, worker: WorkerRecord, *, is_graceful: bool, running: Collection[int] = (), exit_code: int | None = None
    ) -> None:
        self._end_worker(worker, is_graceful)
        death = exceptions.Death(pid=os.getpid(), exit_code=exit_code, expected=exit_code is None)
        self.kernel.lose(worker, death, running)

    def _end_task(self, worker: WorkerRecord, task_id: int) -> None:
        """End the worker if this is what it runs; else see to it that the task is not started."""
        if any(task.id == task_id for _, task in self._runnable):
            self._cancel_runnable(worker, task_id)
            return
        self.kernel.expect_end(worker)
        self._bury(worker, is_graceful=False, running={task_id})

    def _cancel_runnable(self, worker: WorkerRecord, task_id: int) -> None:
        loop = self._loops.get(worker.id)
        if loop is not None:
            loop.cancel(task_id)
        for entry in list(self._runnable):
            if entry[1].id == task_id:
                self._runnable.remove(entry)
                error = exceptions.TaskCancelledError(
                    f"Task `{entry[1].options.name}` was cancelled before it started."
                )
                self.kernel.fail(
                    worker, task_id, payloads.encode_error(error), retryable=False, error_type=type(error).__name__
                )

    def _run_all(self) -> None:
        """Run what can run. A task in here may submit more, which runs in the inner call or the outer one."""
        while self._runnable:
            worker, task = self._runnable.popleft()
            if worker.id in self.kernel.workers and task.id in worker.inflight:
                self._run(worker, task)
            self._drain_dropped()
            self.carry_out()
            if not self._runnable:
                self._spin()

    def _spin(self) -> None:
        """Let coroutines run as far as they come."""
        for worker_id, loop in list(self._loops.items()):
            with self.lock.open():
                loop.spin()
            worker = self.kernel.workers.get(worker_id)
            if worker is not None and worker.actor is None:  # it ended itself
                self._bury(worker, is_graceful=True)
        self.carry_out()

    def _drain_dropped(self) -> None:
        self.kernel.release_dropped(self.dropped, self.interned, self.forget)
        self.carry_out()

    def _finish_change(self) -> None:
        self.carry_out()
        self._run_all()

    def _finish_cancel(self) -> None:
        self.carry_out()  # what has become free is run by whoever waits for it
