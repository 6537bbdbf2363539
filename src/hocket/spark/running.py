"""A trainer's ranks in a barrier stage of Spark's. All tasks of the stage start together, and each is a rank. They
report to the driver, which commits checkpoints as in any other run."""

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
    """Train as `fit` does, with the ranks in Spark's tasks, and return when all ranks have returned.

    Args:
        trainer: Any trainer of Hocket's: `TorchTrainer`, `JaxTrainer`, `DataParallelTrainer` and others. The driver and
            all of Spark's machines must share the run's folder.
        spark: The ``SparkSession``. Default: the active one.

    Returns:
        The result, as of `fit`: metrics, checkpoints, and the training function's result in rank 0.

    Raises:
        WorkerGroupError: Ranks raised or died more often than `FailureConfig` allows. The error names them and the
            reasons.
        TrainingFailedError: Spark has ended the stage, or the ranks' reports do not fit together.
        InfeasibleResourcesError: Spark has fewer slots than there are ranks. Raised before any rank starts.
        ValueError: There is no Spark session, or only one over Connect; or the trainer needs processes beside the
            ranks, as with ``ParameterServer``.
        TypeError: `trainer` is no trainer.
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
            f"{CALLER} needs a session in Spark's driver, but received a Spark Connect session, which cannot run "
            "barrier stages of Python functions. Run the program as Spark's driver, with spark-submit."
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
            f"{CALLER}: num_workers={scaling.num_workers} needs one task slot for each worker at the same time, but "
            f"Spark (master {spark_context.master}) has {slots}. Use fewer workers, give Spark more cores or "
            "executors, or lower spark.task.cpus."
        )
    return min(slots, scaling.max_workers)


def _check(
    spark_context: object,
    function: Callable[..., object],
    config: backend.BackendConfig,
    scaling: configs.ScalingConfig,
) -> None:
    """Raise if Spark cannot run the training, before the run begins."""
    _choose_size(spark_context, scaling)
    strategy = getattr(function, "strategy", None)
    if getattr(strategy, "hosted_by", "") or config.list_roles(scaling):
        what = type(strategy).__name__ if strategy is not None else type(config).__name__
        raise ValueError(
            f"{CALLER}: {what} needs other processes besides the ranks, but a barrier stage has only ranks. Use "
            "another strategy, such as AllReduce() or LocalSGD(8), or call fit() in a Hocket session."
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
    """Write the rows of the run's datasets to files, and return datasets over these. The run removes them later."""
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
            f"{texts.describe(error)}. Create objects that belong to one process, such as files, locks and sessions, "
            "inside the function."
        ) from error
    return blob
