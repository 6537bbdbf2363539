"""Takes a run from its start to its end: starts the group, follows it, starts it again after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hocket.core import api
from hocket.engine import contract
from hocket.train import (
    backend,
    callbacks,
    checkpoint_manager,
    configs,
    errors,
    report_book,
    storage,
    worker_group,
    worker_session,
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything about a run that does not change while it runs."""

    function: Callable[..., Any]
    """The training function."""
    args: tuple[Any, ...]
    """Its arguments: the configuration, if it takes one."""
    scaling: configs.ScalingConfig
    config: configs.RunConfig
    run_storage: storage.Storage
    context: callbacks.TrainRunContext
    backend_config: backend.BackendConfig


class Controller:
    """Runs the training function in a gang of processes.

    Args:
        run: What to run.
        manager: Its checkpoints.
        book: Its reports.
    """

    def __init__(self, run: Run, manager: checkpoint_manager.CheckpointManager, book: report_book.ReportBook) -> None:
        self._run = run
        self._manager = manager
        self._book = book

    def train(self) -> Any:
        """Return what the training function returned in rank 0.

        Raises:
            WorkerGroupError: Ranks failed more often than the failure policy allows.
            TrainingFailedError: The ranks' reports do not fit together.
            InfeasibleResourcesError: The group can never start.
        """
        work = api.put((self._run.function, self._run.args))  # pickled once, and before anything is started
        most = self._run.config.failure_config.max_failures
        attempt = 0
        while True:
            try:
                return self._attempt(work, attempt)
            except errors.WorkerGroupError as error:
                for callback in self._run.config.callbacks:
                    callback.after_exception(self._run.context, error.worker_failures)
                if most != -1 and attempt >= most:
                    raise
            attempt += 1

    def _attempt(self, work: contract.ObjectRef[Any], attempt: int) -> Any:
        run = self._run
        group = worker_group.start(run.scaling)
        try:
            run.backend_config.on_start(group)
            self._book.begin_attempt(len(group))
            returned = self._follow(
                group,
                [handle.run.remote(work, self._build_info(rank, attempt)) for rank, handle in enumerate(group.actors)],
            )
            run.backend_config.on_shutdown(group)
            return returned
        finally:
            group.shutdown()

    def _build_info(self, rank: int, attempt: int) -> worker_session.RankInfo:
        scaling = self._run.scaling
        return worker_session.RankInfo(
            rank=rank,
            world_size=scaling.num_workers,
            attempt=attempt,
            run_storage=self._run.run_storage,
            use_gpu=scaling.use_gpu,
            num_cpus=scaling.bundle.get("CPU", 0.0),
            start_checkpoint=self._manager.latest,
        )

    def _follow(self, group: worker_group.WorkerGroup, runs: list[contract.ObjectRef[Any]]) -> Any:
        """Take reports until the training function has returned in all ranks.

        A rank's last reports come just before its function's end. If that end is an error, it is the error to raise, and
        not what is missing among the reports because of it; so the function's value is taken first.
        """
        waiting = set(runs)
        polls = {handle.take_reports.remote(): rank for rank, handle in enumerate(group.actors)}
        while waiting or polls:
            ref = api.wait([*waiting, *polls], num_returns=1)[0][0]
            if ref in waiting:
                waiting.remove(ref)
                group.get(runs.index(ref), ref)
                continue
            rank = polls.pop(ref)
            batch, has_ended = group.get(rank, ref)
            if has_ended:
                group.get(rank, runs[rank])
            else:
                polls[group.actors[rank].take_reports.remote()] = rank
            for done in self._book.add(rank, batch, has_ended=has_ended):
                for handle in group.actors:
                    handle.acknowledge.remote(done.index, done.checkpoint)
        return group.get(0, runs[0])
