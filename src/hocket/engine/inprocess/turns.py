"""Turns: a waiting thread runs the tasks that can run, and lets coroutines go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from hocket.engine import contract, kernel_parts
from hocket.engine.inprocess import base, courier, runner, turning
from hocket.kernel.records import WorkerRecord


@final
class Turns:
    """Runs the tasks in the courier's queue, and turns event loops. Every method is called with the lock held.

    It is the `kernel_parts.Floor` of this engine.

    Args:
        engine: The engine to which the handles belong.
        session: The session, with the kernel.
        lock: The engine's lock, opened while loops turn.
        running: The running tasks.
        actors: The living actors.
        carrier: The courier, which carries out the kernel's instructions.
        doer: The runner of tasks.
    """

    def __init__(
        self,
        engine: contract.Engine,
        session: kernel_parts.Session,
        lock: base.Entrance,
        running: base.Running,
        actors: base.Actors,
        carrier: courier.Courier,
        doer: runner.Runner,
    ) -> None:
        self._engine, self._session, self._kernel, self._lock = engine, session, session.kernel, lock
        self._running, self._actors, self._courier, self._runner = running, actors, carrier, doer
        self.carry_out = carrier.carry_out
        #: The workers of tasks that wait in the user's code, by thread.
        self._parked: dict[int, WorkerRecord] = {}

    def park(self, thread: int) -> None:
        """Free the CPU of this thread's task, which waits in the user's code, as if it waited in `get`."""
        work = self._running.find_last(thread)
        if work is not None:
            self._kernel.block(work[0], [])
            self._parked[thread] = work[0]

    def unpark(self, thread: int) -> None:
        """Take the CPU back for this thread's task, which goes on."""
        worker = self._parked.pop(thread, None)
        if worker is not None:
            self._kernel.unblock(worker)

    def finish_change(self) -> None:
        self.carry_out()
        self.run_all()

    def drain_dropped(self) -> None:
        handles = self._engine.handles
        self._kernel.release_dropped(self._engine.dropped, handles.interned, handles.forget)
        self.carry_out()

    def read_arrived(self) -> None:
        """Return at once: there are no workers that send messages."""

    def run_all(self) -> None:
        """Run all tasks that can run. Such a task may submit others, which run in the inner call or the outer one."""
        while (work := self._take_runnable()) is not None:
            worker, task = work
            if worker.id in self._kernel.workers and task.id in worker.inflight:
                self._runner.run(work)
            self.drain_dropped()
            if not self._courier.runnable:
                self._spin()

    def _take_runnable(self) -> base.Work | None:
        """Take the next task or call that can run in this thread; not a call on an actor that is busy in another."""
        row = self._courier.runnable
        if not row:
            return None
        busy = self._running.list_busy_actors()
        if not busy:
            return row.popleft()
        found = next((work for work in row if work[0].id not in busy), None)
        if found is not None:
            row.remove(found)
        return found

    def _spin(self) -> None:
        """Let coroutines run until each waits."""
        for worker_id, loop in list(self._actors.loops.items()):
            with self._lock.open():
                loop.spin()
            worker = self._kernel.workers.get(worker_id)
            if worker is not None and worker.actor is None:  # the actor ended itself
                self._courier.bury(worker, is_graceful=True)
        self.carry_out()

    def turn(self) -> bool:
        """Run coroutines and tasks as far as possible; return whether callbacks outside of the engine still wait."""
        if self._session.end is None:
            self._spin()
            self.run_all()
        return bool(self._session.callbacks)

    def turn_until(self, is_enough: Callable[[], bool], timeout_s: float | None) -> None:
        """Run tasks until `is_enough` returns True, the time is over, or nothing can make progress any more. Meanwhile
        wait for the timers, sockets and threads of coroutines, and for threads that run tasks."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        found = self._running.find_own()
        if found is not None:
            self._kernel.block(found[0], [])
        try:
            self.carry_out()
            self.run_all()
            while not is_enough():
                left = turning.PAUSE_S if deadline is None else min(turning.PAUSE_S, deadline - time.monotonic())
                if left <= 0:
                    return
                loops = [loop for loop in self._actors.loops.values() if loop.can_go_on()]
                if not (loops or self._lock.wait_for_others(self._running.list_threads(), left)):
                    return
                for loop in loops:
                    with self._lock.open():
                        loop.spin(wait_s=left / len(loops))
                self._spin()
                self.run_all()
        finally:
            if found is not None:
                self._kernel.unblock(found[0])
