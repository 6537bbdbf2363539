"""The ranks of a `Trainer`, which stay from run to run: a worker group, or a thread of this process."""

from __future__ import annotations

import abc
import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, final

from hocket.compat.classic import session
from hocket.core import session as core_session
from hocket.crew import wait_loop
from hocket.train import configs, errors
from hocket.train.checkpoints import storage
from hocket.train.rank import questions, rank_actor, rank_info, report_queue
from hocket.train.run import backend, failures, in_process, training_run, worker_group

Hook = Callable[[], Any]
"""The hook of `Trainer.start`, called in each rank."""

END_SECONDS = 0.3
"""Seconds that the end of a rank waits for a training function in a thread, as threads cannot be killed. A guess."""

_NAMES = {"value[1][2][0]": "config", "value[1][1]": "train_func"}


class AbandonedRun(BaseException):
    """The error that ends a training function after its run was given up.

    It is not an ``Exception``, so that the function does not handle it.
    """


class Ranks(abc.ABC):
    """Living ranks. Used by one thread; `shutdown` must be called.

    After an error of a run they are unusable, and others must be started.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._reset()

    def _reset(self) -> None:
        self._owed: dict[int, int] = {}
        """The question's number for each rank that waits for an answer. The next call brings the answer."""
        self._ended: set[int] = set()
        self._is_enough = False
        """Whether the driver takes no more reports. The answers pass this on."""

    def begin(
        self,
        task: session.Task,
        function: Callable[..., object],
        args: tuple[object, ...],
        run_storage: storage.Storage,
    ) -> None:
        """Start the training function in each rank."""
        self._reset()
        shared = rank_info.AttemptInfo(world_size=self._size, run_storage=run_storage, stays=True)
        self._begin((session.perform, (task, function, args)), shared)

    def take(self) -> list[questions.HandOver | None]:
        """Return the next report or checkpoint of each rank; None for a rank that has returned.

        The call also answers the last ones, which by then are processed.

        Raises:
            Exception: The training function's error; `WorkerGroupError` if a rank died.
        """
        taken: dict[int, questions.HandOver] = {}
        missing = set(range(self._size)) - self._ended
        for rank in missing:
            self._ask(rank)
        while missing:
            rank, batch, has_ended = self._receive()
            for item in batch:  # signals are ignored: the next SIGTERM ends the process
                if isinstance(item, questions.Question) and isinstance(item.about, questions.HandOver):
                    self._owed[rank] = item.number
                    taken[rank] = item.about
            if has_ended:
                self._ended.add(rank)
            if has_ended or (rank in taken and not self._is_enough):
                missing.remove(rank)
            else:
                self._ask(rank)
        return [taken.get(rank) for rank in range(self._size)]

    def finish_now(self) -> list[Any]:
        """Let the training function run to its end without taking its reports; return its values by rank.

        Raises:
            Exception: As in `take`.
        """
        self._is_enough = True
        self.take()
        return self.finish()

    def _pay(self, rank: int) -> tuple[questions.Answer, ...]:
        """Return the answer that a rank waits for, if any."""
        return (questions.Answer(self._owed.pop(rank), self._is_enough),) if rank in self._owed else ()

    @abc.abstractmethod
    def _begin(self, work: training_run.Work, shared: rank_info.AttemptInfo) -> None: ...

    @abc.abstractmethod
    def _ask(self, rank: int) -> None:
        """Request a rank's next items, and send the answers that it waits for, in one call."""

    @abc.abstractmethod
    def _receive(self) -> tuple[int, list[report_queue.Item], bool]:
        """Wait for items of any rank; return the rank, the items, and whether the rank has ended."""

    @abc.abstractmethod
    def finish(self) -> list[Any]:
        """Return the training function's values, by rank.

        Raises:
            Exception: As in `take`.
        """

    @abc.abstractmethod
    def shutdown(self, *, is_clean: bool) -> None:
        """End the ranks. Can be called more than once.

        Args:
            is_clean: Whether the last run is finished.
        """


@final
class WorkerRanks(Ranks):
    """Ranks that are processes: a `WorkerGroup`."""

    def __init__(
        self, scaling: configs.ScalingConfig, backend_config: backend.BackendConfig, hook: Hook | None
    ) -> None:
        super().__init__(scaling.max_workers)
        self._backend = backend_config
        core_session.get_engine().tasks.expect_work(backend_config.list_modules(hook or session.perform))
        self._group = worker_group.start(scaling, {})
        self._runs: list[worker_group.Ref] = []
        self._loop = wait_loop.WaitLoop()
        self._received: deque[tuple[int, list[report_queue.Item], bool]] = deque()
        try:
            backend_config.on_start(self._group)
            if hook is not None:
                self._group.execute(hook, [()] * len(self._group))
        except BaseException:
            self.shutdown(is_clean=False)
            raise

    def _begin(self, work: training_run.Work, shared: rank_info.AttemptInfo) -> None:
        ref = training_run.put_work(work, self._backend, _NAMES)
        group, use_gpu = self._group, self._group.scaling.use_gpu
        infos = [rank_info.build(shared, rank, place, use_gpu=use_gpu) for rank, place in enumerate(group.places)]
        self._runs = [handle.run.remote(ref, info) for handle, info in zip(group.actors, infos, strict=True)]
        self._loop = wait_loop.WaitLoop()
        for rank, run in enumerate(self._runs):  # a rank may fail before its first report
            self._loop.add(run, functools.partial(group.get, rank), owner=rank)

    def _ask(self, rank: int) -> None:
        ref = self._group.actors[rank].take_reports.remote(self._pay(rank))
        self._loop.add(ref, functools.partial(self._take_batch, rank))

    def _take_batch(self, rank: int, ref: worker_group.Ref) -> None:
        self._loop.forget(rank)
        batch, has_ended = self._group.get(rank, ref)
        if has_ended:
            self._group.get(rank, self._runs[rank])
        self._received.append((rank, batch, has_ended))

    def _receive(self) -> tuple[int, list[report_queue.Item], bool]:
        with self._as_raised():
            while not self._received:
                self._loop.wait(None)
        return self._received.popleft()

    def finish(self) -> list[object]:
        """Return the training function's values, by rank."""
        with self._as_raised():
            return self._group.gather(self._runs)

    @contextlib.contextmanager
    def _as_raised(self) -> Iterator[None]:
        """Raise the training function's error as it was, with a note that names the rank."""
        try:
            yield
        except errors.WorkerGroupError as error:
            if is_death(error):
                raise
            rank, cause = list(error.worker_failures.items())[-1]  # silent ranks come before it
            BaseException.add_note(cause, f"It was raised in rank {rank} of {self._size}.")
            raise cause from cause.__cause__

    def shutdown(self, *, is_clean: bool) -> None:
        """End the ranks. Shut the backend down first if the last run is finished."""
        try:
            if is_clean and core_session.is_initialized():
                self._backend.on_shutdown(self._group)
        finally:
            self._group.shutdown()


def is_death(error: errors.WorkerGroupError) -> bool:
    """Return whether ranks died, and did not only raise errors."""
    return any(failures.is_death(failure) for failure in error.worker_failures.values())


@final
class ThreadRank(Ranks):
    """One rank, in a thread of this process: for an engine without processes."""

    def __init__(self, scaling: configs.ScalingConfig, hook: Hook | None) -> None:
        super().__init__(1)
        self._use_gpu = scaling.use_gpu
        self._actor = rank_actor.RankActor(is_process=False)
        self._thread: threading.Thread | None = None
        self._returned: object = None
        self._error: BaseException | None = None
        if hook is not None:
            hook()

    def _begin(self, work: training_run.Work, shared: rank_info.AttemptInfo) -> None:
        self._actor, self._returned, self._error = rank_actor.RankActor(is_process=False), None, None
        info = rank_info.build(shared, 0, in_process.list_places(1)[0], use_gpu=self._use_gpu)
        self._thread = threading.Thread(target=self._run, args=(work, info), name="hocket-rank", daemon=True)
        self._thread.start()

    def _run(self, work: training_run.Work, info: rank_info.RankInfo) -> None:
        try:
            self._returned = self._actor.run(work, info)
        except BaseException as error:  # noqa: BLE001 (the thread that waits raises it)
            self._error = error

    def _ask(self, rank: int) -> None:
        """Do nothing, because `_receive` makes the call."""

    def _receive(self) -> tuple[int, list[report_queue.Item], bool]:
        batch, has_ended = self._actor.take_reports(self._pay(0))
        if has_ended:
            self.finish()
        return 0, batch, has_ended

    def finish(self) -> list[Any]:
        """Return the training function's value."""
        assert self._thread is not None, "begin comes first"
        self._thread.join()
        if self._error is not None:
            raise self._error
        return [self._returned]

    def shutdown(self, *, is_clean: bool) -> None:
        """End the training function at its next report, if it runs, and wait a moment for that."""
        if self._thread is not None:
            self._actor.abandon(AbandonedRun())
            self._thread.join(END_SECONDS)


def start(scaling: configs.ScalingConfig, backend_config: backend.BackendConfig, hook: Hook | None) -> Ranks:
    """Start ranks on the session's engine."""
    if "processes" not in core_session.get_engine().limits:
        return WorkerRanks(scaling, backend_config, hook)
    if scaling.num_workers != 1:
        raise ValueError(
            f"The in-process engine runs one rank, but num_workers is {scaling.num_workers}. Use "
            "Trainer(num_workers=1), or open the session with hocket.init(engine='local')."
        )
    return ThreadRank(scaling, hook)
