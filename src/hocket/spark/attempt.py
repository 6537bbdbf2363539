"""One attempt of a run: a Spark job from its start to its end, and the reports of its ranks."""

from __future__ import annotations

import contextlib
import queue
import secrets
import time
from collections.abc import Collection, Iterator
from typing import Any, Final, final

from hocket._base.internals import spark as spark_internals
from hocket.data.spark import access
from hocket.spark import group as groups
from hocket.spark import hub as hubs
from hocket.spark import messages, rank
from hocket.train import errors
from hocket.train.checkpoints import storage
from hocket.train.rank import equality, questions, rank_info, reports
from hocket.train.run import attempt_monitor, divergence, question_resolver, training_run, validation_queue

LEAVE_SECONDS: Final = 60.0
"""How long Spark may take to end the job after all ranks are done. A guess; it takes milliseconds."""


def run_attempt(spark_context: object, run: training_run.Run, work: bytes, number: int, size: int) -> object:
    """Run the training function in the tasks of a barrier stage, and return its result in rank 0.

    No rank runs any more when this function returns or raises.

    Args:
        spark_context: Spark's context.
        run: The run.
        work: The training function and its arguments, pickled.
        number: How many attempts came before.
        size: The number of ranks.
    """
    with _open_job(spark_context, size) as hub:
        group = groups.SparkGroup(hub, run.scaling, size)
        try:
            group.wait_ranks()
            run.backend_config.on_start(group)
            returned = _Follower(run, group, work, number).follow()
            run.backend_config.on_shutdown(group)
            _part(hub, group)
        finally:
            group.shutdown()
    return returned


@contextlib.contextmanager
def _open_job(spark_context: Any, size: int) -> Iterator[hubs.Hub]:
    """Have Spark start the stage, for the duration of a block. A stage that still runs at its end is cancelled."""
    hub = hubs.Hub(_find_host(spark_context))
    name = f"hocket-{secrets.token_hex(6)}"
    address, key = hub.address, hub.key

    def run_stage() -> None:
        found: BaseException | None = None
        try:
            spark_context.setJobGroup(name, f"hocket: {size} ranks", interruptOnCancel=True)
            tasks = spark_context.parallelize(range(size), size).barrier()
            tasks.mapPartitions(lambda part: rank.take_part(address, key, part)).collect()
        except BaseException as error:  # noqa: BLE001 (the run's thread is to hear of it)
            found = (
                error if spark_internals.is_running(spark_context) else RuntimeError("the SparkContext was shut down")
            )
        hub.events.put((hubs.JOB, hubs.JobEnded(found)))

    thread = access.load(rank.CALLER, "pyspark").InheritableThread(target=run_stage, name="hocket-spark-job")
    thread.daemon = True
    thread.start()
    try:
        yield hub
    finally:
        if thread.is_alive():
            spark_context.cancelJobGroup(name)
        hub.close()
        thread.join()


def _find_host(spark_context: Any) -> str:
    """Return this machine's address for Spark's machines: loopback if Spark runs on this machine alone."""
    if str(spark_context.master).split("[")[0] == "local":
        return "127.0.0.1"
    return str(spark_context.getConf().get("spark.driver.host"))


def _part(hub: hubs.Hub, group: groups.SparkGroup) -> None:
    """Have the ranks leave, and wait until Spark's job has ended."""
    for number in range(len(group)):
        group.send(number, messages.Leave())
    event: object = None
    with contextlib.suppress(queue.Empty):  # on a time-out, the job is cancelled: its work is done
        while not isinstance(event, hubs.JobEnded):
            _, event = hub.events.get(timeout=LEAVE_SECONDS)


@final
class _Follower:
    """Starts the training function in the ranks, and serves their reports and questions."""

    def __init__(self, run: training_run.Run, group: groups.SparkGroup, work: bytes, number: int) -> None:
        self._run = run
        self._group = group
        size = len(group)
        run.book.begin_attempt(size)
        self._resolver = question_resolver.QuestionResolver(run.manager, run.book, size)
        self._divergence = divergence.DivergenceWatch(run.config.divergence_config, size)
        token = storage.leave_token(run.run_storage)
        shared = run.describe_attempt(size, attempt=number, token=token, mark=token)
        self._validate()
        for at, place in enumerate(group.places):
            info = rank_info.build(shared, at, place, use_gpu=run.scaling.use_gpu)
            group.send(at, messages.Begin(work, info))

    def follow(self) -> object:
        """Return the training function's result in rank 0, when all ranks have returned."""
        try:
            return self._follow()
        except errors.WorkerGroupError as error:
            with contextlib.suppress(queue.Empty, errors.TrainingFailedError):  # the first error is the one to raise
                self._take_last(set(error.worker_failures))
            raise

    def _follow(self) -> object:
        returned: dict[int, object] = {}
        while len(returned) < len(self._group):
            number, event = self._group.take_good()
            match event:
                case reports.Report():
                    self._divergence.take(number, event.look)
                    self._add(number, [event])
                case equality.Look() | equality.Rows():
                    self._divergence.take(number, event)
                case questions.Question():
                    self._resolver.take(number, event)
                case messages.Ended():
                    returned[number] = event.value
                    self._add(number, [], has_ended=True)
                    self._resolver.end(number)
                    self._divergence.end(number)
            for asking, answer in self._resolver.settle():
                self._group.send(asking, answer)
        return returned[0]

    def _take_last(self, failed: set[int]) -> None:
        """Take the last reports after a failure, as `AttemptMonitor` does: the failed rank may rely on its report."""
        alive = set(range(len(self._group))) - failed
        silent = set(alive)
        for number in alive:
            self._group.send(number, messages.Ping())
        deadline = time.monotonic() + attempt_monitor.LAST_SECONDS
        while silent or self._are_behind(alive, failed):
            number, event = self._group.take(max(0.0, deadline - time.monotonic()))
            match event:
                case reports.Report():
                    self._add(number, [event])
                case messages.Pong():
                    silent.discard(number)
                case messages.Ended() | messages.Failed() | messages.Died() | hubs.Lost():
                    silent.discard(number)
                    alive.discard(number)

    def _are_behind(self, alive: Collection[int], failed: Collection[int]) -> bool:
        """Return whether a living rank has made fewer reports than a failed one."""
        made = self._run.book.counts
        return any(made[number] < made[other] for number in alive for other in failed)

    def _add(self, number: int, batch: list[reports.Report], *, has_ended: bool = False) -> None:
        for done in self._run.book.add(number, batch, has_ended=has_ended):
            self._validate()
            for other in range(len(self._group)):
                self._group.send(other, messages.Acknowledge(done.index, done.checkpoint))

    def _validate(self) -> None:
        if self._run.validation is not None:
            validation_queue.run_here(self._run.validation, self._run.manager)
