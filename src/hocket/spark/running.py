"""A trainer's ranks in a barrier stage of Spark's: all of its tasks begin together, each is a rank, and what they
report comes to the driver, which commits checkpoints as for any other run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import cloudpickle

from hocket import exceptions, train
from hocket._base import texts
from hocket._base.internals import spark as spark_internals
from hocket.data import execution
from hocket.data.spark import access
from hocket.spark import attempt, rank
from hocket.train import configs, errors, user_callback
from hocket.train.run import backend, budget, runner, training_run

CALLER = rank.CALLER


def run(trainer: train.DataParallelTrainer, *, spark: object = None) -> train.Result:
    """Train as `fit` does, with the ranks in tasks of Spark's, and return when all have returned.

    Args:
        trainer: Any of Hocket's trainers: `TorchTrainer`, `JaxTrainer`, `DataParallelTrainer` and others. The folder of
            its run must be one that the driver and all of Spark's machines share.
        spark: The ``SparkSession``. Default: the active one.

    Returns:
        What `fit` returns: metrics, checkpoints, and what the training function returned in rank 0.

    Raises:
        WorkerGroupError: A rank raised or died, more often than `FailureConfig` allows. It says which and why.
        TrainingFailedError: Spark has ended the stage, or the ranks' reports do not fit together.
        InfeasibleResourcesError: Spark has fewer slots than there are ranks. Raised before anything is started.
        ValueError: There is no session of Spark's, or only one over Connect; or the trainer needs more than ranks,
            as one with ``ParameterServer`` does.
        TypeError: It is no trainer.
        MissingExtraError: PySpark is not installed.
    """
    given: object = trainer
    if not isinstance(given, train.DataParallelTrainer):
        raise TypeError(
            f"{CALLER} takes a trainer, but received {given!r:.80}. Write "
            f"hocket.spark.run(TorchTrainer(function, scaling_config=ScalingConfig(num_workers=2)))."
        )
    context = _find_context(spark)
    return trainer.fit_with(
        runner.Runner(
            prepare=functools.partial(_check, context), train=functools.partial(_train, context), stays_here=True
        )
    )


def _find_context(spark: object) -> object:
    """Return Spark's context."""
    found = spark if spark is not None else access.load(CALLER).SparkSession.getActiveSession()
    if found is None:
        raise ValueError(
            f"{CALLER} needs a SparkSession, and none is active. Write SparkSession.builder.getOrCreate(), and pass it "
            "as spark=."
        )
    session = access.check_session(CALLER, found)
    if access.is_connected(session):
        raise ValueError(
            f"{CALLER} needs Spark's own session, but received one over Spark Connect, which has no barrier stages of "
            "Python functions. Run the program as Spark's driver, with spark-submit."
        )
    return session.sparkContext


def _choose_size(spark_context: Any, scaling: configs.ScalingConfig) -> int:
    slots = spark_internals.count_slots(spark_context)
    if scaling.min_workers < 1:
        raise ValueError(
            f"{CALLER}: num_workers={scaling.num_workers} runs the training function in the driver. Call fit() for "
            "that, or write ScalingConfig(num_workers=1) or more."
        )
    if slots < scaling.min_workers:
        raise exceptions.InfeasibleResourcesError(
            f"{CALLER}: num_workers={scaling.num_workers} needs as many slots for tasks at once, but Spark "
            f"(master {spark_context.master}) has {slots}. Use fewer workers, give Spark more cores or executors, or "
            "lower spark.task.cpus."
        )
    return min(slots, scaling.max_workers)


def _check(
    spark_context: object,
    function: Callable[..., object],
    config: backend.BackendConfig,
    scaling: configs.ScalingConfig,
) -> None:
    """Refuse what cannot be, before anything is begun."""
    _choose_size(spark_context, scaling)
    strategy = getattr(function, "strategy", None)
    if getattr(strategy, "hosted_by", "") or config.list_roles(scaling):
        what = type(strategy).__name__ if strategy is not None else type(config).__name__
        raise ValueError(
            f"{CALLER}: {what} needs other processes beside the ranks, and a barrier stage has ranks only. Use another "
            "strategy, such as AllReduce() or LocalSGD(8), or call fit() in a session of Hocket's."
        )


def _train(spark_context: object, run: training_run.Run) -> object:
    work = _pickle_work(run)
    run = dataclasses.replace(run, supplies=_file_rows(run))
    failures = budget.Budget(vars(run.config.failure_config))
    number = 0
    while True:
        size = _choose_size(spark_context, run.scaling)
        try:
            return attempt.run_attempt(spark_context, run, work, number, size)
        except errors.WorkerGroupError as error:
            with user_callback.hearing():
                for callback in run.config.callbacks:
                    callback.after_exception(run.book.run_context, error.worker_failures)
            if not failures.spend("max_failures", error):
                raise
        number += 1
        run.manager.pass_over_damaged()


def _file_rows(run: training_run.Run) -> dict[str, Any]:
    """Return the rows of the run's datasets as the ranks get them: in files of its folder, removed when it is over."""
    found = {}
    for number, (name, supply) in enumerate(run.supplies.items()):
        folder = run.run_storage.staging_path / f"rows-{number}"
        folder.mkdir(parents=True)
        found[name] = dataclasses.replace(supply, source=execution.file_source(supply.source, str(folder)))
    return found


def _pickle_work(run: training_run.Run) -> bytes:
    work = (run.function, run.args)
    run.backend_config.check_work(work)
    try:
        blob: bytes = cloudpickle.dumps(work, 5)
    except Exception as error:
        raise exceptions.SerializationError(
            f"{CALLER}: the training function, or its configuration, cannot be sent to Spark's tasks: "
            f"{texts.describe(error)}. Make in the function what belongs to a process, such as files, locks and "
            "sessions."
        ) from error
    return blob
