"""Takes a run from its start to its end: starts the group, follows it, starts it again after a failure."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hocket import exceptions
from hocket.core import api
from hocket.engine import contract
from hocket.train import configs, errors, user_callback
from hocket.train.checkpoints import storage
from hocket.train.rank import datasets, preemption_signals, rank_placement, worker_session
from hocket.train.run import (
    attempt_monitor,
    backend,
    budget,
    checkpoint_manager,
    preemption_policy,
    question_resolver,
    report_book,
    roles,
    validation_queue,
    worker_group,
)

_log = logging.getLogger("hocket.train")

ALWAYS_SENDS = os.environ.get("HOCKET_TRAIN_SEND_FILES", "0") == "1"
"""Whether files travel through the driver even between ranks and a folder that they see: for file systems that many nodes see but that are
slower, or less to be trusted, than the way to the driver. Default: no."""

LASTING = (
    exceptions.InfeasibleResourcesError,
    exceptions.LocalEngineDiedError,
    exceptions.SessionClosedError,
)
"""What another try to start the group would only meet again."""


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
    context: user_callback.TrainRunContext
    backend_config: backend.BackendConfig
    supplies: Mapping[str, datasets.Supply] = field(default_factory=dict)
    """The rows that are trained on. They are there until the run is over."""


class Controller:
    """Runs the training function in a gang of processes.

    Args:
        run: What to run.
        manager: Its checkpoints.
        book: Its reports.
        validations: Its validations; None if the trainer was not told how to validate.
    """

    def __init__(
        self,
        run: Run,
        manager: checkpoint_manager.CheckpointManager,
        book: report_book.ReportBook,
        validations: validation_queue.ValidationQueue | None,
    ) -> None:
        self._run = run
        self._manager = manager
        self._book = book
        self._validations = validations
        self._budget = budget.Budget(run.config.failure_config)
        self._attempts = 0
        self._size_before = 0
        self._is_starting = False
        self._is_ending = False

    def train(self) -> Any:
        """Return what the training function returned in rank 0, when what was saved is validated too.

        Raises:
            WorkerGroupError: Ranks failed more often than the failure policy allows.
            PreemptionError: Ranks were told to end more often than it allows, or this process was.
            TrainingFailedError: The ranks' reports do not fit together.
            InfeasibleResourcesError: The group can never start.
        """
        if self._validations is None:
            return self._train()
        try:
            returned = self._train()
            self._validations.finish()
        finally:
            self._validations.abandon()
        return returned

    def _train(self) -> Any:
        work = self._send_work()
        failure: errors.TrainingFailedError | None = None
        while True:
            try:
                return self._attempt(work)
            except attempt_monitor.ResizeWanted as wanted:
                _log.info("Training is started again with more workers: there are resources for %d.", wanted.size)
            except errors.PreemptionError as error:
                if isinstance(error.__cause__, errors.WorkerGroupError):
                    self._tell_callbacks(error.__cause__)
                if self._is_ending or not self._budget.spend("max_preemption_failures", error):
                    raise
                failure = error
            except errors.WorkerGroupError as error:
                self._tell_callbacks(error)
                if self._is_ending or not self._budget.spend("max_failures", error):
                    raise
                failure = error
            except exceptions.HocketError as error:
                if self._is_starting and not isinstance(error, LASTING):
                    if self._budget.spend("controller_failure_limit", error):
                        self._attempts += 1
                        continue
                    error = self._budget.explain(error)
                if failure is None or isinstance(error, errors.ControllerError):  # that one has a cause
                    raise error  # noqa: TRY201 (it may be another one by now)
                raise error from failure  # there may be too few nodes left because of it
            self._attempts += 1

    def _send_work(self) -> contract.ObjectRef[Any]:
        """Pickle function and configuration, once, and before anything is started."""
        work = (self._run.function, self._run.args)
        self._run.backend_config.check_work(work)
        try:
            return api.put(work)
        except exceptions.SerializationError as error:
            message = (
                str(error).replace("value[1][0]", "train_loop_config").replace("value[0]", "the training function")
            )
            raise exceptions.SerializationError(message) from error.__cause__

    def _tell_callbacks(self, error: errors.WorkerGroupError) -> None:
        for callback in self._run.config.callbacks:
            callback.after_exception(self._book.run_context, error.worker_failures)

    def _attempt(self, work: contract.ObjectRef[Any]) -> Any:
        run, attempt = self._run, self._attempts
        if attempt:
            self._manager.pass_over_damaged()
        self._is_starting = True
        ranks_roles = run.backend_config.list_roles(run.scaling)
        group = worker_group.start(run.scaling, run.config.worker_runtime_env, self._size_before, ranks_roles)
        self._is_starting, self._size_before = False, len(group)
        if (
            not attempt
            and not group.roles
            and not run.scaling.use_gpu
            and (crowd := rank_placement.describe_crowd(group.places))
        ):
            _log.warning("%s", crowd)
        try:
            run.backend_config.on_start(group)
            num_reporting = roles.count_reporting(group.roles, len(group))
            self._book.begin_attempt(num_reporting)
            token = storage.leave_token(run.run_storage)

            def begin(rank: int) -> contract.ObjectRef[Any] | None:
                return self._begin(group, rank, work, token)

            held = roles.sum_bundles([role.bundle for role in group.roles]) or run.scaling.multiply(len(group))
            obstacle = self._validations.find_obstacle(held) if self._validations else ""
            told = preemption_policy.PreemptionPolicy(
                self._book, group.places, run.config.failure_config.preemption_grace_s
            )
            front = question_resolver.QuestionResolver(self._manager, self._book, num_reporting, obstacle, told)

            def replace(rank: int) -> contract.ObjectRef[Any] | None:
                group.replace(rank)
                run.backend_config.on_replace(group, rank)
                return begin(rank)

            def begin_all() -> attempt_monitor.AttemptMonitor:
                runs = [begin(rank) for rank in range(len(group))]
                return attempt_monitor.AttemptMonitor(
                    group, runs, self._book, front, told, self._validations, run.run_storage, attempt, token, replace
                )

            returned = self._follow(group, begin_all, told)
            run.backend_config.on_shutdown(group)
            return returned
        finally:
            group.shutdown()

    def _follow(
        self,
        group: worker_group.WorkerGroup,
        begin_all: Callable[[], attempt_monitor.AttemptMonitor],
        told: preemption_policy.PreemptionPolicy,
    ) -> Any:
        """Have the ranks begin, and follow them, with SIGTERM as a notice: not later than they, who may be quick."""

        def tell_ranks() -> None:
            told.note_driver()
            for handle in group.actors:
                handle.notify.remote(is_drivers=True)

        try:
            with preemption_signals.passed_on(tell_ranks):
                return begin_all().follow()
        except errors.WorkerGroupError as error:
            judged = told.judge(error)
            if judged is error:
                raise
            raise judged from error
        finally:
            self._is_ending = told.is_drivers

    def _begin(
        self, group: worker_group.WorkerGroup, rank: int, work: contract.ObjectRef[Any], token: str
    ) -> contract.ObjectRef[Any] | None:
        """Call the training function in a rank; return None if it does not run there."""
        if group.roles and not group.roles[rank].runs:
            return None
        info = self._build_info(group, rank, group.places[rank], "" if ALWAYS_SENDS else token, token)
        ref: contract.ObjectRef[Any] = group.actors[rank].run.remote(work, info)
        return ref

    def _build_info(
        self, group: worker_group.WorkerGroup, rank: int, place: rank_placement.RankPlacement, shown: str, token: str
    ) -> worker_session.RankInfo:
        scaling = self._run.scaling
        role = group.roles[rank] if group.roles else None
        bundle = scaling.bundle if role is None else role.bundle
        return worker_session.RankInfo(
            rank=rank,
            world_size=roles.count_reporting(group.roles, len(group)),
            bystander="" if role is None or role.reports else role.name,
            local_rank=place.local_rank,
            local_world_size=place.local_world_size,
            node_rank=place.node_rank,
            attempt=self._attempts,
            token=shown,
            run_storage=self._run.run_storage,
            use_gpu=scaling.use_gpu and bundle.get("GPU", 0.0) > 0,
            num_cpus=bundle.get("CPU", 0.0),
            start_checkpoint=self._manager.latest,
            start_positions=self._manager.latest_positions,
            name_prefix=f"checkpoint_{self._manager.next_number:06d}_{token[:6]}",
            validates=self._validations is not None,
            datasets=self._run.supplies,
        )
