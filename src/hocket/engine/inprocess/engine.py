"""Everything runs in the caller's process, in the caller's thread, as soon as it can.

The kernel is the same as everywhere; only its instructions are carried out by a plain call. `.remote()` runs the task
before it returns, if its arguments and resources are there; otherwise whoever waits for it runs it. Values are encoded
and decoded as between processes, so a program that forgets to send something, or shares what it should not, fails here
too.

A coroutine that waits for time or for a socket goes on while somebody waits: in `get` and `wait`, in the event loop
that awaits a reference, or, for a `concurrent.futures` future, in a thread that lives for as long as one is open
(`turning`).

What cannot be had here: parallelism, time-outs while user code runs, cancelling a task that runs, deaths of workers,
and calls by other threads while a task runs (they go on when it is over). A wait that nothing can end raises
`DeadlockError` at once, where processes would wait for ever; only who awaits a reference or a future waits, because
others may still act.

The class is one object in layers, as the local engine in the driver is: `base`, `execution`, `carrier`, `submission`,
`access`, and here the whole. What only asks the kernel is `engine.kernel_engine`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, final

from hocket.engine import callers, contract, forks, rules
from hocket.engine.inprocess import access
from hocket.kernel import resources
from hocket.kernel.records import TaskRecord, WorkerRecord


@final
class InProcessEngine(access.ObjectAccess):
    """The engine of ``hocket.init(engine="inprocess")``."""

    name = "inprocess"
    limits: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "parallelism": (
                "A task runs in the thread that asks for it, so the driver cannot do something else while "
                "it runs or waits. A generator runs to its end, so one without an end does not return."
            ),
            "processes": (
                "There are no worker processes, which could be told apart, looked at, killed, or given what a "
                "process has."
            ),
        }
    )

    def get_context(self) -> contract.WorkContext:
        found = self._find_current()
        if found is None:
            return super().get_context()
        worker, task = found
        actor = worker.actor
        shape = task.options.shape if actor is None else actor.options.lifetime_shape
        return contract.WorkContext(
            job_id=self.job_id,
            node_id=self.node_id,
            worker_id=f"{worker.id:016x}",
            task_id=f"{task.id:016x}",
            task_name=task.options.name,
            function_name=self._name_function(worker, task),
            actor_name=actor.options.name if actor is not None else None,
            actor_attempt=actor.restarts if actor is not None else 0,
            is_canceled=bool(task.cancelled),
            environment=shape.environment,
            captures_children=shape.captures_children,
            actor_id=f"{actor.id:016x}" if actor is not None else None,
            resources={name: units / resources.UNIT for name, units in shape.demand},
            gpu_ids=worker.allocation.gpu_ids if worker.allocation is not None else (),
            placement_group_id=f"{shape.group_id:016x}" if shape.group_id else None,
            namespace=self.namespace if actor is None else actor.options.namespace,
            attempt=task.attempt,
        )

    def reserve(
        self,
        bundles: Sequence[resources.Demand],
        strategy: str,
        name: str,
        *,
        is_detached: bool = False,
        caller: int | None = None,
    ) -> contract.ObjectRef[None]:
        if caller is None and (found := self._find_current()) is not None:
            caller = found[0].id
        return super().reserve(bundles, strategy, name, is_detached=is_detached, caller=caller)

    def _name_function(self, worker: WorkerRecord, task: TaskRecord) -> str:
        if task.method:
            return callers.name_function(type(self._instances.get(worker.id)), task.method)
        return self._function_names.get(task.function.id, "") if task.function is not None else ""

    def cut_off(self) -> None:
        self.guard.remove()
        is_in_task = self._find_current() is not None
        forks.cut_off(self)
        if not is_in_task:
            return
        ends: dict[str, object] = {  # where there are processes, the child would end here too
            "_finish": lambda worker, task, result, started: forks.end(),
            "_fail": lambda worker, task, error, started: forks.end(error),
            "_yield_item": lambda worker, task, index, item: forks.end(RuntimeError(forks.YIELDED)),
            "_end_worker": lambda worker, is_graceful: forks.end(None if is_graceful else sys.exception()),
            "carry_out": lambda: forks.end(RuntimeError(forks.WAITED)),
        }
        for name, method in ends.items():
            setattr(self, name, method)

    def close(self) -> None:
        self.end = rules.build_ended_error()
        for callbacks in list(self._callbacks.values()):
            for callback in callbacks:
                callback()
        self._callbacks.clear()
        self._turner.join()
        for worker in list(self.kernel.workers.values()):
            self._end_worker(worker, is_graceful=True)
        self._instances.clear()
        self.pinned.clear()
        self.guard.remove()
        self.guard.check()
