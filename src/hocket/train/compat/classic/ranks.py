"""The ranks of a `Trainer`, which stay from one run to the next."""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from hocket.core import api
from hocket.core import session as core_session
from hocket.engine import contract
from hocket.train import configs, errors
from hocket.train.checkpoints import storage
from hocket.train.compat.classic import exchange, session
from hocket.train.rank import worker_session
from hocket.train.run import backend, failures, worker_group

Hook = Callable[[], Any]
"""What `Trainer.start` was given to call in each rank."""


class Ranks(abc.ABC):
    """Ranks that live. Used by one thread; `shutdown` must be called. An error of a run leaves them unusable: start others."""

    @abc.abstractmethod
    def begin(self, task: session.Task, run_storage: storage.Storage) -> None:
        """Start the training function in each."""

    @abc.abstractmethod
    def take(self) -> list[exchange.Event]:
        """Wait for the next thing of each rank; what was taken before is thereby dealt with.

        Raises:
            Exception: What the training function raised; `WorkerGroupError` if a rank died.
        """

    @abc.abstractmethod
    def ignore(self) -> None:
        """Let the training function run to its end: nothing will be taken any more."""

    @abc.abstractmethod
    def finish(self) -> list[Any]:
        """Return what the training function returned, by rank.

        Raises:
            Exception: As `take`.
        """

    @abc.abstractmethod
    def shutdown(self, *, is_clean: bool) -> None:
        """End them. Can be called again.

        Args:
            is_clean: Whether no run was left in the middle.
        """


@final
class WorkerRanks(Ranks):
    """Processes: a `WorkerGroup`."""

    def __init__(
        self, scaling: configs.ScalingConfig, backend_config: backend.BackendConfig, hook: Hook | None
    ) -> None:
        self._scaling = scaling
        self._backend = backend_config
        core_session.get_engine().expect_work(backend_config.list_modules(hook or session.begin))
        self._group = worker_group.start(scaling, {})
        self._runs: list[contract.ObjectRef[Any]] = []
        try:
            backend_config.on_start(self._group)
            if hook is not None:
                self._group.execute(hook, [()] * len(self._group))
        except BaseException:
            self.shutdown(is_clean=False)
            raise

    def begin(self, task: session.Task, run_storage: storage.Storage) -> None:
        """Start the training function in each."""
        self._group.execute(session.begin, [()] * len(self._group))
        self._backend.check_work(task)
        work = api.put(task)
        self._runs = [
            handle.execute.remote(session.run, work, self._build_info(rank, run_storage))
            for rank, handle in enumerate(self._group.actors)
        ]

    def _build_info(self, rank: int, run_storage: storage.Storage) -> worker_session.RankInfo:
        place = self._group.places[rank]
        return worker_session.RankInfo(
            rank=rank,
            world_size=len(self._group),
            local_rank=place.local_rank,
            local_world_size=place.local_world_size,
            node_rank=place.node_rank,
            attempt=0,
            run_storage=run_storage,
            use_gpu=self._scaling.use_gpu,
            num_cpus=self._scaling.bundle.get("CPU", 0.0),
            start_checkpoint=None,
        )

    def take(self) -> list[exchange.Event]:
        """Wait for the next thing of each rank. A rank that has ended with an error ends the wait."""
        asked = {handle.execute.remote(session.take): rank for rank, handle in enumerate(self._group.actors)}
        events: dict[int, exchange.Event] = {}
        while len(events) < len(asked):
            ready, _ = api.wait([ref for ref, rank in asked.items() if rank not in events], num_returns=1)
            rank = asked[ready[0]]
            events[rank] = self._get(rank, ready[0])
            if isinstance(events[rank], exchange.Ended):
                self._get(rank, self._runs[rank])
        return [events[rank] for rank in range(len(events))]

    def ignore(self) -> None:
        """Let the training function run to its end."""
        self._group.execute(session.ignore, [()] * len(self._group))

    def finish(self) -> list[Any]:
        """Return what the training function returned, by rank."""
        waiting = list(self._runs)
        while waiting:  # the first failure ends the wait
            ready, waiting = api.wait(waiting, num_returns=1)
            self._get(self._runs.index(ready[0]), ready[0])
        return [api.get(ref) for ref in self._runs]

    def _get(self, rank: int, ref: contract.ObjectRef[Any]) -> Any:
        try:
            return self._group.get(rank, ref)
        except errors.WorkerGroupError as error:
            if is_death(error):
                raise
            cause = error.worker_failures[rank]
            BaseException.add_note(cause, f"It was raised in rank {rank} of {len(self._group)}.")
            raise cause from cause.__cause__

    def shutdown(self, *, is_clean: bool) -> None:
        """End them; a backend is taken apart first if no run was left in the middle."""
        try:
            if is_clean and core_session.is_initialized():
                self._backend.on_shutdown(self._group)
        finally:
            self._group.shutdown()


def is_death(error: errors.WorkerGroupError) -> bool:
    """Tell whether ranks died, and did not only raise."""
    return any(failures.is_death(failure) for failure in error.worker_failures.values())


@final
class ThreadRank(Ranks):
    """One rank, in a thread of this process: for the in-process engine."""

    def __init__(self, scaling: configs.ScalingConfig, hook: Hook | None) -> None:
        self._scaling = scaling
        self._exchange = exchange.Exchange()
        self._thread: threading.Thread | None = None
        self._returned: Any = None
        self._error: BaseException | None = None
        if hook is not None:
            hook()

    def begin(self, task: session.Task, run_storage: storage.Storage) -> None:
        """Start the training function."""
        self._exchange, self._returned, self._error = exchange.Exchange(), None, None
        info = worker_session.RankInfo(
            rank=0,
            world_size=1,
            attempt=0,
            run_storage=run_storage,
            use_gpu=self._scaling.use_gpu,
            num_cpus=self._scaling.bundle.get("CPU", 0.0),
            start_checkpoint=None,
        )
        self._thread = threading.Thread(target=self._run, args=(task, info), name="hocket-rank", daemon=True)
        self._thread.start()

    def _run(self, task: session.Task, info: worker_session.RankInfo) -> None:
        try:
            self._returned = session.perform(task, info, self._exchange)
        except BaseException as error:  # noqa: BLE001 (the thread that waits raises it)
            self._error = error

    def take(self) -> list[exchange.Event]:
        """Wait for the next thing."""
        event = self._exchange.take()
        if isinstance(event, exchange.Ended):
            self.finish()
        return [event]

    def ignore(self) -> None:
        """Let the training function run to its end."""
        self._exchange.ignore()

    def finish(self) -> list[Any]:
        """Return what the training function returned."""
        assert self._thread is not None, "begin comes first"
        self._thread.join()
        if self._error is not None:
            raise self._error
        return [self._returned]

    def shutdown(self, *, is_clean: bool) -> None:
        """End the training function at its next report, if it runs."""
        if self._thread is not None:
            self._exchange.abandon()
            self._thread.join()


def start(scaling: configs.ScalingConfig, backend_config: backend.BackendConfig, hook: Hook | None) -> Ranks:
    """Start ranks on the session's engine.

    Raises:
        ValueError: The in-process engine is asked for several.
    """
    if "processes" not in core_session.get_engine().limits:
        return WorkerRanks(scaling, backend_config, hook)
    if scaling.num_workers != 1:
        raise ValueError(
            f"The in-process engine runs one rank, but num_workers is {scaling.num_workers}. Use Trainer(num_workers=1), or open the "
            "session with hocket.init(engine='local')."
        )
    return ThreadRank(scaling, hook)


def asks_for_details() -> bool:
    """Tell whether the environment of the driver asks for what only a few want in each report."""
    return os.environ.get("TRAIN_RESULT_ENABLE_DETAILED_AUTOFILLED_METRICS", "0") == "1"


def build_storage(run_dir: Path) -> storage.Storage:
    """Return a run's folder as the adapters of frameworks know it."""
    return storage.Storage(str(run_dir.parent), run_dir.name)
