"""The kernel against the book of `simulation`, with Hypothesis choosing what happens next.

``HOCKET_TEST_EXAMPLES=5000 pytest tests/kernel/test_model.py`` tries more.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from hocket.kernel import records
from tests.kernel.simulation import FakeWorker, Simulation

PICK = st.integers(0, 10**6)


class KernelModel(stateful.RuleBasedStateMachine):
    """Rules are moves; what must hold is checked by the simulation after each."""

    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation(is_lazy=True)

    # --- choosing -----------------------------------------------------------------------------------------------------

    def list_values(self) -> list[int]:
        """The driver's references; an actor's own is not for users, so it is neither awaited nor cancelled."""
        return sorted(
            one for one in self.sim.handles if one not in self.sim.book or self.sim.book[one].task.actor_options is None
        )

    def pick_handles(self, pick: int, most: int = 2, *, with_actors: bool = False) -> tuple[int, ...]:
        """Some of the driver's references; often none."""
        handles = sorted(self.sim.handles) if with_actors else self.list_values()
        if not handles:
            return ()
        return tuple(dict.fromkeys(handles[(pick + 7 * number) % len(handles)] for number in range(pick % (most + 1))))

    def pick_held(self, worker: FakeWorker, pick: int, most: int = 2) -> tuple[int, ...]:
        held = sorted(worker.held)
        return tuple(dict.fromkeys(held[(pick + number) % len(held)] for number in range(pick % (most + 1)) if held))

    def list_workers(self, what: str) -> list[FakeWorker]:
        return [worker for worker in self.sim.workers.values() if getattr(worker, what)]

    def list_generators(self) -> list[FakeWorker]:
        running = [(worker, worker.running) for worker in self.list_workers("can_answer")]
        return [worker for worker, task in running if task is not None and task.options.num_returns < 0]

    def list_actors(self) -> list[int]:
        return [actor_id for actor_id in self.sim.handles if actor_id in self.sim.kernel.actors]

    # --- the driver ---------------------------------------------------------------------------------------------------

    @stateful.rule(
        cpus=st.sampled_from([0, 0.5, 1, 1, 2]),
        depends=PICK,
        borrows=PICK,
        max_retries=st.sampled_from([0, 0, 1, 2, -1]),
        retry_exceptions=st.booleans(),
        num_returns=st.sampled_from([1, 1, 1, 2, 0]),
        depth=st.sampled_from([1, 8]),
    )
    def submit(
        self,
        cpus: float,
        depends: int,
        borrows: int,
        max_retries: int,
        retry_exceptions: bool,
        num_returns: int,
        depth: int,
    ) -> None:
        self.sim.function.depth = depth
        self.sim.submit(
            cpus=cpus,
            dependencies=self.pick_handles(depends),
            borrowed=self.pick_handles(borrows, 1, with_actors=True),
            max_retries=max_retries,
            retry_exceptions=retry_exceptions,
            num_returns=num_returns,
        )

    @stateful.rule(max_retries=st.sampled_from([0, 1]), cpus=st.sampled_from([0.5, 1]))
    def submit_generator(self, max_retries: int, cpus: float) -> None:
        self.sim.submit(cpus=cpus, max_retries=max_retries, retry_exceptions=True, num_returns=records.STREAMING)

    @stateful.precondition(lambda self: any(map(self.sim.can_take, self.sim.kernel.streams)))
    @stateful.rule(pick=PICK)
    def take_item(self, pick: int) -> None:
        streams = sorted(filter(self.sim.can_take, self.sim.kernel.streams))
        self.sim.take_item(streams[pick % len(streams)])

    @stateful.precondition(lambda self: self.list_generators())
    @stateful.rule(pick=PICK, times=st.sampled_from([1, 3]))
    def yield_items(self, pick: int, times: int) -> None:
        workers = self.list_generators()
        for _ in range(times):
            self.sim.yield_item(workers[pick % len(workers)])

    @stateful.rule(contains=PICK)
    def put(self, contains: int) -> None:
        self.sim.put(self.pick_handles(contains, with_actors=True))

    @stateful.precondition(lambda self: self.sim.handles)
    @stateful.rule(pick=PICK)
    def drop(self, pick: int) -> None:
        handles = sorted(self.sim.handles)
        self.sim.drop(handles[pick % len(handles)])

    @stateful.precondition(lambda self: self.list_values())
    @stateful.rule(pick=PICK, force=st.booleans(), recursive=st.booleans())
    def cancel(self, pick: int, force: bool, recursive: bool) -> None:
        handles = self.list_values()
        self.sim.cancel(handles[pick % len(handles)], force=force, recursive=recursive)

    @stateful.precondition(lambda self: len(self.sim.kernel.actors) < 4)
    @stateful.rule(
        keeps=st.sampled_from([0, 0, 0.5]),
        name=st.booleans(),
        detached=st.booleans(),
        max_restarts=st.sampled_from([0, 1, 2, -1]),
    )
    def create_actor(self, keeps: float, name: bool, detached: bool, max_restarts: int) -> None:
        unique = f"actor {len(self.sim.book)}" if name or detached else ""
        self.sim.create_actor(keeps=keeps, name=unique, detached=detached, max_restarts=max_restarts)

    @stateful.precondition(lambda self: self.list_actors())
    @stateful.rule(
        pick=PICK, depends=PICK, times=st.sampled_from([1, 2, 3]), max_retries=st.sampled_from([0, 0, 1, -1])
    )
    def call(self, pick: int, depends: int, times: int, max_retries: int) -> None:
        actors = self.list_actors()
        for number in range(times):
            dependencies = self.pick_handles(depends + number, 1)
            borrowed = self.pick_handles(depends // 3 + number, 1, with_actors=True)
            self.sim.call(
                actors[pick % len(actors)], dependencies=dependencies, borrowed=borrowed, max_retries=max_retries
            )

    @stateful.precondition(lambda self: len(self.list_actors()) > 1)
    @stateful.rule(pick=PICK, other=PICK)
    def introduce(self, pick: int, other: int) -> None:
        """Give an actor a handle on another one, or on itself."""
        actors = self.list_actors()
        self.sim.call(actors[pick % len(actors)], borrowed=(actors[other % len(actors)],))

    @stateful.rule()
    def collect(self) -> None:
        self.sim.collect()

    @stateful.precondition(lambda self: self.list_actors())
    @stateful.rule(pick=PICK)
    def kill_actor(self, pick: int) -> None:
        actors = self.list_actors()
        self.sim.kill_actor(actors[pick % len(actors)])

    @stateful.precondition(lambda self: len(self.sim.groups) < 2)
    @stateful.rule(cpus=st.lists(st.sampled_from([0.5, 1]), min_size=1, max_size=2))
    def reserve(self, cpus: list[float]) -> None:
        self.sim.reserve(cpus)

    @stateful.precondition(lambda self: self.sim.groups)
    @stateful.rule(pick=PICK, bundle=st.sampled_from([-1, 0]))
    def submit_to_group(self, pick: int, bundle: int) -> None:
        groups = self.sim.groups
        self.sim.submit(cpus=0.5, group=(groups[pick % len(groups)], bundle), max_retries=1)

    @stateful.precondition(lambda self: self.sim.groups)
    @stateful.rule(pick=PICK)
    def remove_group(self, pick: int) -> None:
        self.sim.remove_group(self.sim.groups[pick % len(self.sim.groups)])

    # --- workers ------------------------------------------------------------------------------------------------------

    @stateful.precondition(lambda self: self.list_workers("inbox"))
    @stateful.rule(pick=PICK)
    def read(self, pick: int) -> None:
        workers = self.list_workers("inbox")
        self.sim.read(workers[pick % len(workers)])

    @stateful.precondition(lambda self: self.list_workers("can_start"))
    @stateful.rule(pick=PICK)
    def start(self, pick: int) -> None:
        workers = self.list_workers("can_start")
        self.sim.start(workers[pick % len(workers)])

    @stateful.precondition(lambda self: self.list_workers("inbox"))
    @stateful.rule(pick=PICK)
    def catch_up(self, pick: int) -> None:
        """A worker reads all that was sent and starts what it can: the usual course, which single moves seldom take."""
        workers = self.list_workers("inbox")
        worker = workers[pick % len(workers)]
        while worker.inbox:
            self.sim.read(worker)
        if worker.can_start:
            self.sim.start(worker)

    @stateful.precondition(lambda self: self.list_workers("can_answer"))
    @stateful.rule(pick=PICK, fails=st.booleans())
    def answer_and_start(self, pick: int, fails: bool) -> None:
        """A worker answers, reads on and starts the next."""
        workers = self.list_workers("can_answer")
        worker = workers[pick % len(workers)]
        (self.sim.fail if fails else self.sim.finish)(worker)
        while worker.inbox:
            self.sim.read(worker)
        if worker.can_start:
            self.sim.start(worker)

    @stateful.precondition(lambda self: self.list_workers("can_answer"))
    @stateful.rule(pick=PICK, contains=PICK, seconds=st.sampled_from([1e-6, 1.0]))
    def finish(self, pick: int, contains: int, seconds: float) -> None:
        workers = self.list_workers("can_answer")
        worker = workers[pick % len(workers)]
        self.sim.finish(worker, self.pick_held(worker, contains), seconds)

    @stateful.precondition(lambda self: self.list_workers("can_answer"))
    @stateful.rule(pick=PICK)
    def fail(self, pick: int) -> None:
        workers = self.list_workers("can_answer")
        self.sim.fail(workers[pick % len(workers)])

    @stateful.precondition(lambda self: self.list_workers("can_answer"))
    @stateful.rule(pick=PICK, depends=PICK, waits=st.booleans())
    def submit_from_task(self, pick: int, depends: int, waits: bool) -> None:
        workers = self.list_workers("can_answer")
        worker = workers[pick % len(workers)]
        # Only on what is there: a child that depends on its own parent is a deadlock of the user's making.
        there = [one for one in self.pick_held(worker, depends, 1) if one in self.sim.results]
        there = [one for one in there if one not in self.sim.kernel.actors]
        child = self.sim.submit(dependencies=tuple(there), caller=worker)
        if waits:
            self.sim.block(worker, child.id)

    @stateful.precondition(lambda self: self.list_workers("can_answer"))
    @stateful.rule(pick=PICK, contains=PICK)
    def put_from_task(self, pick: int, contains: int) -> None:
        workers = self.list_workers("can_answer")
        worker = workers[pick % len(workers)]
        self.sim.put(self.pick_held(worker, contains, 1), worker)

    @stateful.precondition(lambda self: self.list_workers("waits_for"))
    @stateful.rule(pick=PICK)
    def give_up(self, pick: int) -> None:
        workers = self.list_workers("waits_for")
        self.sim.give_up(workers[pick % len(workers)])

    @stateful.precondition(lambda self: self.list_workers("held"))
    @stateful.rule(pick=PICK, which=PICK)
    def drop_in_worker(self, pick: int, which: int) -> None:
        workers = [worker for worker in self.list_workers("held") if not worker.waits_for]
        if workers:
            worker = workers[pick % len(workers)]
            self.sim.drop(sorted(worker.held)[which % len(worker.held)], worker)

    @stateful.precondition(lambda self: self.sim.workers)
    @stateful.rule(pick=PICK)
    def die(self, pick: int) -> None:
        workers = list(self.sim.workers.values())
        self.sim.die(workers[pick % len(workers)])

    @stateful.precondition(lambda self: self.sim.kernel.find_stalled())
    @stateful.rule(pick=PICK)
    def withdraw(self, pick: int) -> None:
        stalled = self.sim.kernel.find_stalled()
        self.sim.withdraw(self.sim.workers[stalled[pick % len(stalled)].id])

    @stateful.precondition(lambda self: self.list_workers("can_claim"))
    @stateful.rule(pick=PICK)
    def claim(self, pick: int) -> None:
        workers = self.list_workers("can_claim")
        self.sim.claim(workers[pick % len(workers)])

    @stateful.precondition(lambda self: self.list_workers("journal"))
    @stateful.rule(pick=PICK)
    def hear(self, pick: int) -> None:
        workers = self.list_workers("journal")
        self.sim.hear(workers[pick % len(workers)])

    def teardown(self) -> None:
        self.sim.end()


TestKernelModel = KernelModel.TestCase
TestKernelModel.settings = hypothesis.settings(
    max_examples=int(os.environ.get("HOCKET_TEST_EXAMPLES", "300")), stateful_step_count=40, deadline=None
)
pytest.mark.slow(TestKernelModel)
