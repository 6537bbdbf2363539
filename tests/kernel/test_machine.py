"""The kernel against a trivial model: random schedules, with its invariants checked after every step."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from hocket import exceptions
from hocket.kernel import machine, records, resources
from hocket.kernel.instructions import Cancel, Free, Kill, Run, Start, Stop
from hocket.kernel.records import TaskKind, TaskRecord

CPUS = 3


def make_kernel(cpus: int = CPUS) -> machine.Kernel:
    return machine.Kernel(
        resources.parse_demand({"CPU": cpus}),
        max_idle_workers=cpus,
        encode_error=lambda error: ("error", error),
        none_value=("value", None),
    )


def make_shape(cpus: float) -> resources.Shape:
    return resources.Shape(resources.parse_demand({"CPU": cpus}))


class KernelMachine(stateful.RuleBasedStateMachine):
    """Drives a kernel as an engine would, with workers that answer whenever the test likes."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = make_kernel()
        self.ids = iter(range(1, 1_000_000))
        self.function = records.FunctionRecord(b"f", b"")
        self.rows: dict[int, list[TaskRecord]] = {}
        self.stopped: set[int] = set()
        self.started: list[int] = []
        self.expected: dict[int, str] = {}
        self.handles: set[int] = set()

    def carry_out(self) -> None:
        while self.kernel.instructions:
            batch, self.kernel.instructions = self.kernel.instructions, []
            for instruction in batch:
                match instruction:
                    case Start(worker):
                        self.rows[worker.id] = []
                    case Run(worker, task):
                        self.rows[worker.id].append(task)
                    case Stop(worker) | Kill(worker):
                        self.stopped.add(worker.id)
                    case Cancel(worker, task_id):
                        self.answer_cancel(worker, task_id)
                    case Free():
                        pass
                    case _:
                        raise AssertionError(instruction)

    def answer_cancel(self, worker: records.WorkerRecord, task_id: int) -> None:
        self.rows[worker.id] = [task for task in self.rows[worker.id] if task.id != task_id]
        self.kernel.fail(worker, task_id, ("error", "cancelled"), retryable=False)

    def get_busy(self) -> list[int]:
        return [worker_id for worker_id, row in self.rows.items() if row and worker_id in self.kernel.workers]

    @stateful.rule(
        cpus=st.sampled_from([0, 0.5, 1, 2]), dependency=st.integers(0, 10**6), depth=st.sampled_from([1, 8])
    )
    def submit(self, cpus: float, dependency: int, depth: int) -> None:
        self.function.depth = depth
        pending = sorted(self.handles)
        dependencies = (pending[dependency % len(pending)],) if pending and dependency % 2 else ()
        options = records.TaskOptions(name="f", shape=make_shape(cpus), max_retries=1)
        task = TaskRecord(next(self.ids), self.function, None, dependencies, (), options)
        self.handles.add(task.id)
        self.kernel.submit(task)
        self.carry_out()

    @stateful.precondition(lambda self: self.get_busy())
    @stateful.rule(pick=st.integers(0, 10**6), fails=st.booleans(), seconds=st.sampled_from([1e-6, 1.0]))
    def answer(self, pick: int, fails: bool, seconds: float) -> None:
        busy = self.get_busy()
        worker_id = busy[pick % len(busy)]
        task = self.rows[worker_id].pop(0)
        worker = self.kernel.workers[worker_id]
        self.started.append(task.id)
        if fails:
            self.kernel.fail(worker, task.id, ("error", task.id), retryable=False)
        else:
            self.kernel.finish(worker, task.id, seconds, [(("value", task.id), ())])
        self.carry_out()

    @stateful.precondition(lambda self: self.get_busy())
    @stateful.rule(pick=st.integers(0, 10**6))
    def die(self, pick: int) -> None:
        busy = self.get_busy()
        worker_id = busy[pick % len(busy)]
        row = self.rows.pop(worker_id)
        death = exceptions.Death(pid=worker_id, signal_number=9)
        self.kernel.lose(self.kernel.workers[worker_id], death, {row[0].id})
        self.carry_out()

    @stateful.precondition(lambda self: self.get_busy())
    @stateful.rule(pick=st.integers(0, 10**6))
    def block_and_unblock(self, pick: int) -> None:
        busy = self.get_busy()
        worker = self.kernel.workers[busy[pick % len(busy)]]
        unstarted = self.rows[worker.id][1:]
        self.rows[worker.id] = self.rows[worker.id][:1]
        self.kernel.block(worker, [(task.id, task.number) for task in unstarted])
        self.carry_out()
        self.kernel.validate_state()
        self.kernel.unblock(worker)
        self.carry_out()

    @stateful.precondition(lambda self: self.get_busy())
    @stateful.rule(pick=st.integers(0, 10**6), has_started=st.booleans())
    def withdraw(self, pick: int, has_started: bool) -> None:
        busy = self.get_busy()
        worker = self.kernel.workers[busy[pick % len(busy)]]
        begun = self.rows[worker.id][0].number - (not has_started)
        self.rows[worker.id] = self.rows[worker.id][:has_started]
        self.kernel.withdraw(worker, begun)
        self.carry_out()

    @stateful.precondition(lambda self: self.handles)
    @stateful.rule(pick=st.integers(0, 10**6))
    def cancel(self, pick: int) -> None:
        handles = sorted(self.handles)
        self.kernel.cancel(handles[pick % len(handles)], force=False, recursive=True)
        self.carry_out()

    @stateful.precondition(lambda self: self.handles)
    @stateful.rule(pick=st.integers(0, 10**6))
    def drop(self, pick: int) -> None:
        handles = sorted(self.handles)
        object_id = handles[pick % len(handles)]
        self.handles.discard(object_id)
        self.kernel.release(object_id)
        self.carry_out()

    @stateful.invariant()
    def state_is_valid(self) -> None:
        self.kernel.validate_state()

    @stateful.invariant()
    def handles_have_objects(self) -> None:
        assert self.handles <= self.kernel.objects.keys()

    @stateful.invariant()
    def nothing_waits_while_it_could_run(self) -> None:
        for shape, queue in self.kernel.queues.items():
            if any(task.state == records.TaskState.READY for task in queue):
                assert not self.kernel.pool.fits(shape.demand), (shape, self.kernel.pool.free)

    def teardown(self) -> None:
        """Let every worker answer: everything must come to an end, and all resources must be back."""
        for _ in range(100_000):
            busy = self.get_busy()
            if not busy:
                break
            task = self.rows[busy[0]].pop(0)
            self.kernel.finish(self.kernel.workers[busy[0]], task.id, 0.0, [(("value", task.id), ())])
            self.carry_out()
        assert self.kernel.tasks == {}
        assert self.kernel.pool.free == self.kernel.pool.total
        for object_id in sorted(self.handles):
            assert self.kernel.objects[object_id].value is not None
            self.kernel.release(object_id)
        self.carry_out()
        assert self.kernel.objects == {}
        assert len(set(self.started)) == len(self.started), "a task that answered was run again"


TestKernelMachine = KernelMachine.TestCase
TestKernelMachine.settings = hypothesis.settings(max_examples=40, stateful_step_count=30, deadline=None)
pytest.mark.slow(TestKernelMachine)


def submit(kernel: machine.Kernel, task_id: int, **given: Any) -> TaskRecord:
    options = records.TaskOptions(name=f"task {task_id}", **given)
    task = TaskRecord(task_id, records.FunctionRecord(b"f", b""), None, (), (), options)
    kernel.submit(task)
    return task


def is_there(kernel: machine.Kernel, object_id: int) -> bool:
    return kernel.objects[object_id].value is not None


def test_lost_task_is_tried_again_and_then_explained() -> None:
    kernel = make_kernel(1)
    task = submit(kernel, 1, max_retries=1)
    death = exceptions.Death(pid=5, signal_number=9)
    for _ in range(2):
        assert task.worker is not None
        kernel.lose(task.worker, death, {1})
    value = kernel.objects[1].value
    assert value is not None
    assert isinstance(value[1], exceptions.WorkerCrashedError)
    assert "killed by signal 9 (SIGKILL)" in str(value[1])
    assert "tried 2 times" in str(value[1])


def test_only_the_started_task_of_a_dead_worker_is_charged() -> None:
    kernel = make_kernel(1)
    first = submit(kernel, 1)
    assert first.function is not None
    first.function.depth = 8
    worker = first.worker
    assert worker is not None
    second = TaskRecord(2, first.function, None, (), (), records.TaskOptions(name="second"))
    kernel.submit(second)
    assert second.worker is worker
    kernel.lose(worker, exceptions.Death(pid=5, exit_code=3), {1})
    assert kernel.objects[1].failed
    assert second.state == records.TaskState.RUNNING
    assert second.worker is not worker


def test_a_process_that_is_about_to_be_ended_gets_nothing_more() -> None:
    kernel = make_kernel(1)
    first = submit(kernel, 1)
    assert first.function is not None
    first.function.depth = 8
    worker = first.worker
    assert worker is not None
    kernel.expect_end(worker)
    second = TaskRecord(2, first.function, None, (), (), records.TaskOptions(name="second"))
    kernel.submit(second)
    assert second.state.name == "READY"
    kernel.finish(worker, 1, 0.0, [(("value", 1), ())])
    assert second.worker not in (None, worker)
    kernel.lose(worker, exceptions.Death(pid=5, signal_number=9), None)
    assert second.state == records.TaskState.RUNNING


def test_placement_group_waits_until_all_bundles_fit() -> None:
    kernel = make_kernel(2)
    task = submit(kernel, 1)
    bundle = resources.parse_demand({"CPU": 1})
    kernel.reserve(records.GroupRecord(10, (bundle, bundle), "PACK"))
    assert not is_there(kernel, 10)
    assert task.worker is not None
    kernel.finish(task.worker, 1, 0.0, [(("value", 1), ())])
    assert is_there(kernel, 10)
    assert kernel.pool.free["CPU"] == 0
    kernel.remove_group(10)
    assert kernel.pool.free == kernel.pool.total


def test_shapes_take_turns() -> None:
    kernel = make_kernel(1)
    for task_id in range(1, 21):
        submit(kernel, task_id, shape=make_shape(1 if task_id < 20 else 0.5))
    order = []
    while kernel.tasks:
        running = next(task for task in kernel.tasks.values() if task.worker is not None)
        order.append(running.id)
        assert running.worker is not None
        kernel.finish(running.worker, running.id, 1.0, [(("value", 0), ())])
        kernel.validate_state()
    assert order.index(20) < 5


@pytest.mark.parametrize(
    ("amounts", "shown"), [({"CPU": 1}, "{CPU: 1}"), ({"GPU": 0.5, "CPU": 0}, "{GPU: 0.5}"), ({"x": 0.1}, "{x: 0.1}")]
)
def test_demands_are_exact_and_readable(amounts: dict[str, float], shown: str) -> None:
    assert resources.format_demand(resources.parse_demand(amounts)) == shown


def test_ten_tenths_make_one() -> None:
    pool = resources.Pool.build(resources.parse_demand({"CPU": 1}))
    tenth = resources.parse_demand({"CPU": 0.1})
    taken = [pool.take(tenth) for _ in range(10) if pool.fits(tenth)]
    assert len(taken) == 10
    assert not pool.fits(tenth)


def test_gpus_are_handed_out_whole_or_packed() -> None:
    pool = resources.Pool.build(resources.parse_demand({"GPU": 2}))
    half, whole = resources.parse_demand({"GPU": 0.5}), resources.parse_demand({"GPU": 1})
    first, second, third = pool.take(half), pool.take(half), pool.take(whole)
    assert (first.gpu_ids, second.gpu_ids, third.gpu_ids) == ((0,), (0,), (1,))
    assert not pool.fits(half)
    first.give_back()
    assert pool.fits(half)
    assert not pool.fits(whole)


def test_constructor_failure_buries_the_actor() -> None:
    kernel = make_kernel(1)
    options = records.ActorOptions(
        class_name="Thing", creation=records.TaskOptions(name="Thing.__init__"), lifetime_shape=resources.Shape(())
    )
    task = TaskRecord(1, records.FunctionRecord(b"c", b""), None, (), (), options.creation, kind=TaskKind.CREATION)
    task.actor_options = options
    kernel.submit(task)
    assert task.worker is not None
    kernel.fail(task.worker, 1, ("error", "boom"), retryable=False)
    assert kernel.objects[1].failed
    assert kernel.pool.free == kernel.pool.total
    call = TaskRecord(2, None, None, (), (), records.TaskOptions(name="Thing.use"), kind=TaskKind.CALL)
    call.actor = kernel.actors[1]
    kernel.submit(call)
    value = kernel.objects[2].value
    assert value is not None
    assert isinstance(value[1], exceptions.ActorDiedError)
    assert value[1].actor_init_failed
