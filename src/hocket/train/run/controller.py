"""The controller of a run: it starts the group of ranks, follows it, and starts it again after a failure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, final

from hocket import exceptions
from hocket.train import errors, user_callback
from hocket.train.rank import preemption_signals, rank_placement
from hocket.train.run import attempt as attempt_module
from hocket.train.run import (
    attempt_monitor,
    budget,
    elasticity,
    training_run,
    validation_queue,
    worker_group,
)

_log = logging.getLogger("hocket.train")

LASTING = (
    exceptions.InfeasibleResourcesError,
    exceptions.LocalEngineDiedError,
    exceptions.SessionClosedError,
)
"""Errors that another try to start the group would only meet again."""

_NAMES = {"value[1][0]": "train_loop_config", "value[0]": "the training function"}


@final
class Controller:
    """The driver's part that runs the training function in a group of processes."""

    def __init__(self, run: training_run.Run) -> None:
        self._run = run
        self._validations = validation_queue.ValidationQueue(run.validation, run.manager) if run.validation else None
        self._budget = budget.Budget(vars(run.config.failure_config))
        self._attempts = 0
        self._size_before = 0
        self._is_starting = False
        self._is_ending = False

    def train(self) -> Any:
        """Return the training function's value in rank 0, after all validations have ended."""
        if self._validations is None:
            return self._train()
        try:
            returned = self._train()
            self._validations.finish()
        except user_callback.Enough:  # the result of an ended run includes the validations' metrics
            self._validations.finish()
            raise
        finally:
            self._validations.abandon()
        return returned

    def _train(self) -> object:
        self._work = self._put_work(self._run.function)
        failure: errors.TrainingFailedError | None = None
        while True:
            try:
                return self._attempt()
            except elasticity.ResizeWanted as wanted:
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
                may_pass = self._is_starting and not isinstance(error, LASTING)
                if not (may_pass and self._budget.spend("controller_failure_limit", error)):
                    told = self._budget.explain(error) if may_pass else error
                    if told is error and failure is None:
                        raise
                    raise told from (
                        failure if told is error else error
                    )  # the failure may be why too few nodes are left
            self._attempts += 1

    def _tell_callbacks(self, error: errors.WorkerGroupError) -> None:
        self._run.book.log.fail(error.worker_failures)
        with user_callback.hearing():
            for callback in self._run.config.callbacks:
                callback.after_exception(self._run.book.run_context, error.worker_failures)

    def _put_work(self, function: Callable[..., object]) -> worker_group.Ref:
        return training_run.put_work((function, self._run.args), self._run.backend_config, _NAMES)

    def _attempt(self) -> object:
        run = self._run
        self._is_starting = True
        if self._attempts:
            run.manager.pass_over_damaged()
            function = run.renew()
            if function is not None:
                self._work = self._put_work(function)
        ranks_roles = run.backend_config.list_roles(run.scaling)
        group = worker_group.start(run.scaling, run.config.worker_runtime_env, self._size_before, ranks_roles)
        self._is_starting, self._size_before = False, len(group)
        if not (self._attempts or group.roles or run.scaling.use_gpu):
            crowd = rank_placement.describe_crowd(group.places)
            if crowd:
                _log.warning("%s", crowd)
        try:
            run.backend_config.on_start(group)
            returned = self._follow(attempt_module.Attempt(run, self._attempts, group, self._work, self._validations))
            run.backend_config.on_shutdown(group)
            return returned
        finally:
            group.shutdown()

    def _follow(self, attempt: attempt_module.Attempt) -> object:
        """Start the training function in the ranks, and follow them; SIGTERM is a notice meanwhile."""

        def tell_ranks() -> None:
            attempt.preemption.note_driver()
            for handle in attempt.group.actors:
                handle.notify.remote(is_drivers=True)

        try:
            # Before the ranks begin: a quick rank may report, and a SIGTERM then must be a notice already.
            with preemption_signals.passed_on(tell_ranks, attempt.preemption.most_seconds):
                runs = [attempt.begin(rank) for rank in range(len(attempt.group))]
                return attempt_monitor.AttemptMonitor(attempt, runs).follow()
        except errors.WorkerGroupError as error:
            judged = attempt.preemption.judge(error)
            if judged is error:
                raise
            raise judged from error
        finally:
            self._is_ending = attempt.preemption.is_drivers
