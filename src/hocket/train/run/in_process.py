"""Training without workers: the training function runs in the caller's own process.

This is for debugging (breakpoints work) and for tests. There is nothing to restart, so the failure policy does not
apply: `fit` raises the training function's own error. Validations run here too, each as soon as its checkpoint is
committed.

One rank runs in the caller's thread. Several ranks have a thread each and take turns (`hocket.collective.turns`). So a
run can be repeated exactly, and its weights equal the weights from ranks that are processes.
"""

from __future__ import annotations

import functools
import os
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np

from hocket.collective import turns
from hocket.core import api, placement
from hocket.train import configs, user_callback
from hocket.train.checkpoints import cache
from hocket.train.rank import equality, questions, rank_info, rank_placement, reports, usage, worker_session, world
from hocket.train.run import divergence, question_resolver, training_run, validation_queue, worker_group


def train(run: training_run.Run) -> Any:
    """Run the training function in one or more ranks, and return its value in rank 0."""
    size = max(run.scaling.min_workers, 1)
    if ranks_roles := run.backend_config.list_roles(run.scaling):
        raise ValueError(
            f"{', '.join(role.name for role in ranks_roles)} need a process each, but the in-process engine has one "
            "process. Open the session with hocket.init(engine='local'), and use ScalingConfig(num_workers=1) or more."
        )
    ranks = _Ranks(run, list_places(size))
    if size == 1:
        return ranks.call(0)
    if api.get_runtime_context().get_task_id() is not None:
        raise ValueError(
            f"On the in-process engine a task cannot train with num_workers={size}, because the ranks' threads would "
            "wait for the end of the task. Call fit() outside of tasks, use ScalingConfig(num_workers=1), or open the "
            "session with hocket.init(engine='local')."
        )
    with run.backend_config.share_process() as framework_locals:
        group = TurnGroup(run.scaling, ranks.places, [*_LOCALS, *framework_locals])
        try:
            run.backend_config.on_start(group)
            return group.run([functools.partial(ranks.call, rank) for rank in range(size)])[0]
        finally:  # also after a failure: no process is killed here that would take the backend's state along
            run.backend_config.on_shutdown(group)
            group.shutdown()


def list_places(size: int) -> tuple[rank_placement.RankPlacement, ...]:
    """Return the places of ranks of this process. A single rank needs no session, and has no node."""
    node_id = api.get_runtime_context().get_node_id() if size > 1 else ""
    return rank_placement.assign([rank_placement.Introduction(node_id, os.getpid(), (), cache.find_temporary())] * size)


class _Ranks:
    """The sessions of all ranks, and the controller's side of them."""

    def __init__(self, run: training_run.Run, ranks_places: tuple[rank_placement.RankPlacement, ...]) -> None:
        self._run = run
        self.places = ranks_places
        size = len(ranks_places)
        self._resolver = question_resolver.QuestionResolver(run.manager, run.book, size)
        self._divergence = divergence.DivergenceWatch(run.config.divergence_config, size)
        self._lock = threading.RLock()  # an asynchronous upload delivers its report from its own thread
        run.book.begin_attempt(size)
        shared = run.describe_attempt(size)
        self._inquiries = [questions.Inquiry(functools.partial(self._ask, rank)) for rank in range(size)]
        self._sessions = [
            worker_session.WorkerSession(
                rank_info.build(shared, rank, place, use_gpu=run.scaling.use_gpu),
                functools.partial(self._deliver, rank),
                self._inquiries[rank],
                lambda _: None,
            )
            for rank, place in enumerate(ranks_places)
        ]
        self._validate()

    def call(self, rank: int) -> Any:
        """Run the training function as a rank."""
        mine = self._sessions[rank]
        try:
            returned = usage.wrap(mine.run(self._run.function, self._run.args), mine)
        finally:
            mine.abandon()
        with self._lock:
            self._run.book.add(rank, [], has_ended=True)
            self._resolver.end(rank)
            self._divergence.end(rank)
            self._reply()
        return returned

    def _validate(self) -> None:
        if self._run.validation is not None:
            validation_queue.run_here(self._run.validation, self._run.manager)

    def _deliver(self, rank: int, report: reports.Report | equality.Item) -> None:
        with self._lock:
            if isinstance(report, equality.Item):
                self._divergence.take(rank, report)
                return
            self._divergence.take(rank, report.look)
            try:
                committed = self._run.book.add(rank, [report])
            except user_callback.Enough:
                self._validate()  # the result of an ended run includes the validations' metrics
                raise
            for done in committed:
                self._validate()
                for session in self._sessions:
                    session.acknowledge(done.index, done.checkpoint)
            self._reply()

    def _ask(self, rank: int, question: questions.Question) -> None:
        with self._lock:
            self._resolver.take(rank, question)
            self._reply()

    def _reply(self) -> None:
        for rank, answer in self._resolver.settle():
            self._inquiries[rank].take(answer)


def _put_environment(wanted: dict[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


_LOCALS: Final = (
    worker_session.LOCAL,
    world.LOCAL,
    turns.Local(lambda: dict(os.environ), _put_environment),
    turns.Local(random.getstate, random.setstate),
    turns.Local(lambda: np.random.get_state(legacy=False), np.random.set_state),  # noqa: NPY002 (whose users mean the global one)
)
"""State that a Python process has once, but that each rank must have for itself."""


@final
class TurnGroup(worker_group.WorkerGroup):
    """Ranks of this process, with the interface of a `WorkerGroup` for backends. `shutdown` must be called."""

    def __init__(
        self,
        scaling: configs.ScalingConfig,
        ranks_places: Sequence[rank_placement.RankPlacement],
        process_locals: Sequence[turns.Local],
    ) -> None:
        super().__init__(placement.PlacementGroup.empty(), (), ranks_places, scaling)
        self._turns = turns.Turns(len(ranks_places), process_locals)

    shares_process = True

    def __len__(self) -> int:
        return self._turns.size

    def run(self, bodies: Sequence[Callable[[], object]]) -> list[Any]:
        """Call a function of its own in each rank, and return their values by rank."""
        return self._turns.run(bodies)

    def execute(self, function: Callable[..., object], args_by_rank: Sequence[tuple[object, ...]]) -> list[Any]:
        """Call a function in all ranks, and return its values by rank."""
        return self.run([functools.partial(function, *args) for args in args_by_rank])

    def call(self, rank: int, function: Callable[..., object], *args: object) -> Any:
        """Call a function in one rank, and return its value."""
        bodies: list[Callable[[], object]] = [object] * len(self)
        bodies[rank] = functools.partial(function, *args)
        return self.run(bodies)[rank]

    def shutdown(self) -> None:
        """End the threads."""
        with self.resources:
            self._turns.close()
