"""The scheduler: it takes events, and returns instructions.

An engine calls one method for each event (a program submits a task, a worker answers, a process dies), and then carries
out `Kernel.instructions`. The kernel never waits, reads no clock and draws no random number, so a log of its calls
replays to the same state.

`state` and `records` hold the kernel's data. The modules that `state` lists hold its functions, one module for each
part. This module gathers the functions in one class.
"""

from __future__ import annotations

from typing import final

from hocket.kernel import actors, direct_calls, groups, leases, losses, objects, placing, reach, streams, tasks
from hocket.kernel.records import TaskState, WorkerState
from hocket.kernel.state import State


@final
class Kernel(State):
    """All state of a session, and the transitions on it. Not thread-safe: the engine holds a lock.

    Each name below is a function of a part's module, and a method of this class.
    """

    # Objects.
    put = objects.put
    retain = objects.retain
    retain_all = objects.retain_all
    release = objects.release
    release_dropped = objects.release_dropped
    drop_values = objects.drop_values
    watch = objects.watch

    # Tasks. The last three are for the other parts.
    submit = tasks.submit
    finish = tasks.finish
    fail = tasks.fail
    cancel = tasks.cancel
    cancel_children = tasks.cancel_children
    note_direct_call = tasks.note_direct_call
    make_ready = tasks.make_ready
    fail_with = tasks.fail_with
    fail_exception = tasks.fail_exception

    # Workers.
    block = leases.block
    unblock = leases.unblock
    hand_back = leases.hand_back
    find_stalled = leases.find_stalled
    withdraw = leases.withdraw
    expect_end = leases.expect_end
    trim_idle = leases.trim_idle
    lose = losses.lose
    fail_unfinished = losses.fail_unfinished
    dispatch = placing.dispatch
    could_ever_fit = placing.could_ever_fit

    # Actors.
    claim_name = actors.claim_name
    release_name = actors.release_name
    is_claimed = actors.is_claimed
    find_actor = actors.find_actor
    kill_actor = actors.kill_actor
    exit_actor = actors.exit_actor
    forget_actor = actors.forget_actor
    find_unreachable = reach.find_unreachable
    end_unreachable = reach.end_unreachable

    # Direct calls.
    introduce = direct_calls.introduce
    promise = direct_calls.promise
    fulfil = direct_calls.fulfil
    deliver = direct_calls.deliver
    fail_orphaned = direct_calls.fail_orphaned

    # Streams.
    yield_item = streams.yield_item
    take_item = streams.take_item
    pause = streams.pause
    lift_bound = streams.lift_bound
    abandon = tasks.abandon

    # Placement groups.
    reserve = groups.reserve
    remove_group = groups.remove_group

    def validate_state(self) -> None:
        """Check the invariants; tests call this after every step. It takes time in proportion to the state."""
        for name, units in self.pool.free.items():
            assert units <= self.pool.total[name], (name, units, self.pool.total)
        for worker in self.workers.values():
            assert worker.state != WorkerState.LEASED or worker.inflight, (
                f"worker {worker.id} holds resources for nothing"
            )
            for task in worker.inflight.values():
                assert task.state == TaskState.RUNNING, (task.id, task.state)
                assert task.worker is worker, (task.id, worker.id)
        for worker in self.idle:
            assert worker.state == WorkerState.IDLE, (worker.id, worker.state)
            assert not worker.inflight, worker.id
            assert worker.allocation is None, worker.id
        for task in self.tasks.values():
            assert task.state != TaskState.DONE, task.id
            assert (task.state == TaskState.WAITING) == bool(task.unresolved), task.id
        for record in self.objects.values():
            assert record.count > 0, record.id
            assert sum((record.holders or {}).values()) <= record.count, record.id
