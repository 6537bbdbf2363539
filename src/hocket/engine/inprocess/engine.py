"""The in-process engine: all tasks run in the caller's process, in the caller's thread, as soon as possible.

The kernel is the same as on the local engine, but plain function calls carry out its instructions. `.remote()` runs a
task before it returns, if the task's arguments and resources are there. Otherwise the thread that waits for the task
runs it. Values are encoded and decoded as between processes: a program that forgets to send a value, or shares one that
it should not, fails here, too.

A coroutine that waits for time or for a socket goes on while a caller waits: in `get` and `wait`, in the event loop
that awaits a reference, or, for a `concurrent.futures` future, in a thread that lives while a future is open
(`turning`).

This engine has no parallelism, no time-outs while user code runs, no cancellation of running tasks, and no deaths of
workers. If a thread calls the engine while another runs a task, its call waits until the task is over, or waits itself
(`base.Entrance`). A wait that nothing can end raises `DeadlockError` at once, where processes would wait for ever. A
program that awaits a reference or a future, or waits beside tasks of other threads, does wait, because others may act.

The parts, each of which uses only parts before it: `base`, `courier`, `outcomes`, `runner`, `turns`, `tasks`,
`objects`. `engine.kernel_parts` has the methods that only call the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, final

from hocket import exceptions
from hocket.engine import contract, forks, kernel_parts, node, rules
from hocket.engine.inprocess import base, courier, objects, outcomes, payloads, processes, runner, tasks, turns
from hocket.kernel import machine, resources


@final
class InProcessEngine(contract.Engine):
    """The engine of ``hocket.init(engine="inprocess")``."""

    name = "inprocess"
    limits: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "parallelism": (
                "A task runs in the thread that calls it or waits for it, so the driver can do nothing else while it "
                "runs or waits. A generator runs to its end at once, so an endless generator never returns."
            ),
            "processes": (
                "There are no worker processes: none can be told apart, inspected, killed, or given settings of "
                "its own."
            ),
        }
    )

    def __init__(
        self, node_demand: resources.Demand, *, namespace: str, labels: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__()
        kernel = machine.Kernel(
            node_demand,
            max_idle_workers=1 << 30,
            gpu_ids=node.name_gpus(node_demand),
            encode_error=payloads.encode_error,
            error_mark=True,
            none_value=payloads.encode(None)[0],
            end_value=payloads.encode_error(exceptions.ObjectRefStreamEndOfStreamError("The generator has ended.")),
        )

        def check() -> None:
            session.guard.check()

        def park(thread: int) -> None:
            mover.park(thread)

        def unpark(thread: int) -> None:
            mover.unpark(thread)

        lock = self._entrance = base.Entrance(check, park, unpark)
        session = self.session = kernel_parts.Session(lock, kernel, namespace=namespace, labels=labels)
        session.guard.install()
        self.handles = kernel_parts.KernelHandles(self, session)
        self.metrics = contract.Metrics()
        self._running = base.Running()
        self._living = base.Actors()
        self._courier = courier.Courier(session, self._living)
        told = outcomes.KernelOutcomes(session, self._courier.carry_out)
        self._runner = runner.Runner(self, session, lock, self._running, self._living, self._courier, told)
        mover = turns.Turns(self, session, lock, self._running, self._living, self._courier, self._runner)
        unfetched = self.unfetched = kernel_parts.Unfetched(kernel, mover.read_arrived)
        feasibility = kernel_parts.Feasibility(kernel)
        self.tasks = tasks.InProcessTasks(self, session, self._running, mover, self._runner, feasibility)
        self.actors = kernel_parts.KernelActors(session, mover, self.handles, self._exit_current)
        self._values = self.objects = objects.InProcessObjects(
            self, session, lock, self._running, self._living, mover, unfetched
        )
        self.resources = kernel_parts.KernelResources(session, mover, self.handles, feasibility, self._find_caller)
        known = processes.NoProcesses(self._running)
        self.view = kernel_parts.KernelView(self, session, mover, known, self._build_context)

    def _exit_current(self) -> None:
        found = self._running.find_current()
        if found is not None:
            with self.session.lock:
                self.session.kernel.exit_actor(found[0])

    def _find_caller(self) -> int | None:
        found = self._running.find_current()
        return None if found is None else found[0].id

    def _build_context(self) -> contract.WorkContext | None:
        """Return the context of the task or call that runs the calling code; None for the main program."""
        found = self._running.find_current()
        if found is None:
            return None
        worker, task = found
        actor = worker.actor
        shape = task.options.shape if actor is None else actor.options.lifetime_shape
        return contract.WorkContext(
            job_id=self.session.job_id,
            node_id=self.session.node_id,
            worker_id=f"{worker.id:016x}",
            task_id=f"{task.id:016x}",
            task_name=task.options.name,
            function_name=self._runner.name_function(found),
            actor_name=actor.options.name if actor is not None else None,
            actor_attempt=actor.restarts if actor is not None else 0,
            is_canceled=bool(task.cancelled),
            environment=shape.environment,
            captures_children=shape.captures_children,
            actor_id=f"{actor.id:016x}" if actor is not None else None,
            resources={name: units / resources.UNIT for name, units in shape.demand},
            gpu_ids=worker.allocation.gpu_ids if worker.allocation is not None else (),
            placement_group_id=f"{shape.group_id:016x}" if shape.group_id else None,
            namespace=self.session.namespace if actor is None else actor.options.namespace,
            attempt=task.attempt,
        )

    def cut_off(self) -> None:
        self._entrance.cut_off()
        self.session.guard.remove()
        forks.cut_off(self)
        if self._running.find_current() is not None:  # on engines with worker processes, the child ends with its task
            self._runner.cut_off()
            self._courier.cut_off()

    def close(self) -> None:
        if self.is_severed:
            return
        session = self.session
        session.finish(rules.build_ended_error())
        for callback in session.take_callbacks():
            callback()
        self._values.turner.join()
        for worker in list(session.kernel.workers.values()):
            self._courier.end_worker(worker, is_graceful=True)
        self._living.instances.clear()
        self.handles.clear()
        session.guard.remove()
        session.guard.check()
