"""Training without workers: the training function runs in the caller's own process.

For debugging (breakpoints work) and for tests. There is nothing to restart, so the failure policy does not apply, and what the
training function raises comes out of `fit` as it is. Validations run here too, each as soon as its checkpoint is committed.

One rank runs in the caller's thread. Several have a thread each and take turns (`hocket.collective.turns`), so that what they do is the same from run to
run, and the weights are those of ranks that are processes.
"""

from __future__ import annotations

import functools
import os
import random
import secrets
import threading
from typing import Any, Final

import numpy as np

from hocket.collective import turns
from hocket.core import api
from hocket.train import validation
from hocket.train.checkpoints import cache
from hocket.train.rank import questions, rank_placement, reports, worker_session, world
from hocket.train.run import (
    checkpoint_manager,
    controller,
    question_resolver,
    report_book,
    turn_group,
    validation_queue,
)


def train(
    run: controller.Run,
    manager: checkpoint_manager.CheckpointManager,
    book: report_book.ReportBook,
    validation_config: validation.ValidationConfig | None,
    size: int = 1,
) -> Any:
    """Run the training function in so many ranks, and return what it returns in rank 0."""
    if ranks_roles := run.backend_config.list_roles(run.scaling):
        raise ValueError(
            f"{', '.join(role.name for role in ranks_roles)} are processes, each with a task of its own, but the in-process engine has one process. Open "
            "the session with hocket.init(engine='local'), and use ScalingConfig(num_workers=1) or more."
        )
    ranks = _Ranks(run, manager, book, validation_config, size)
    if size == 1:
        return ranks.call(0)
    if api.get_runtime_context().get_task_id() is not None:
        raise ValueError(
            f"On the in-process engine a task cannot train with num_workers={size}: its other threads would wait for its end. Call fit() outside of "
            "tasks, use ScalingConfig(num_workers=1), or open the session with hocket.init(engine='local')."
        )
    with run.backend_config.share_process() as framework_locals:
        group = turn_group.TurnGroup(run.scaling, _list_places(size), [*_LOCALS, *framework_locals])
        try:
            run.backend_config.on_start(group)
            return group.run([functools.partial(ranks.call, rank) for rank in range(size)])[0]
        finally:  # also after a failure: nobody is killed here who would take everything along
            run.backend_config.on_shutdown(group)
            group.shutdown()


class _Ranks:
    """The sessions of all ranks, and the controller's side of them."""

    def __init__(
        self,
        run: controller.Run,
        manager: checkpoint_manager.CheckpointManager,
        book: report_book.ReportBook,
        validation_config: validation.ValidationConfig | None,
        size: int,
    ) -> None:
        self._run = run
        self._manager = manager
        self._book = book
        self._validation = validation_config
        self._front = question_resolver.QuestionResolver(manager, book, size)
        self._lock = threading.RLock()  # an asynchronous upload delivers its report from its own thread
        book.begin_attempt(size)
        prefix = f"checkpoint_{manager.next_number:06d}_{secrets.token_hex(3)}"
        self._inquiries = [questions.Inquiry(functools.partial(self._ask, rank)) for rank in range(size)]
        self._sessions = [
            worker_session.WorkerSession(
                self._build_info(rank, size, prefix),
                functools.partial(self._deliver, rank),
                inquiry,
                lambda _: None,
            )
            for rank, inquiry in enumerate(self._inquiries)
        ]
        if validation_config is not None:
            validation_queue.run_here(validation_config, manager)

    def call(self, rank: int) -> Any:
        """Run the training function as a rank."""
        mine = self._sessions[rank]
        with worker_session.open_session(mine):
            try:
                returned = self._run.function(*self._run.args)
                mine.finish()
            finally:
                mine.abandon()
        with self._lock:
            self._book.add(rank, [], has_ended=True)
            self._front.end(rank)
            self._reply()
        return returned

    def _build_info(self, rank: int, size: int, prefix: str) -> worker_session.RankInfo:
        scaling = self._run.scaling
        return worker_session.RankInfo(
            rank=rank,
            world_size=size,
            local_rank=rank,
            local_world_size=size,
            attempt=0,
            run_storage=self._run.run_storage,
            use_gpu=scaling.use_gpu,
            num_cpus=scaling.bundle.get("CPU", 1.0),
            start_checkpoint=self._manager.latest,
            start_positions=self._manager.latest_positions,
            name_prefix=prefix,
            validates=self._validation is not None,
            datasets=self._run.supplies,
        )

    def _deliver(self, rank: int, report: reports.Report) -> None:
        with self._lock:
            for done in self._book.add(rank, [report]):
                if self._validation is not None:
                    validation_queue.run_here(self._validation, self._manager)
                for session in self._sessions:
                    session.acknowledge(done.index, done.checkpoint)
            self._reply()

    def _ask(self, rank: int, question: questions.Question) -> None:
        with self._lock:
            self._front.take(rank, question)
            self._reply()

    def _reply(self) -> None:
        for rank, answer in self._front.settle():
            self._inquiries[rank].take(answer)


# --- several ranks ---------------------------------------------------------------------------------------------------


def _list_places(size: int) -> tuple[rank_placement.RankPlacement, ...]:
    node_id = api.get_runtime_context().get_node_id()
    return rank_placement.assign([rank_placement.Introduction(node_id, os.getpid(), (), cache.find_temporary())] * size)


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
"""What a Python process has once, and a rank for itself."""
