"""What a rank knows while it runs the training function, and how its reports leave it.

One session at most is open in a process. It belongs to the process and not to a thread, so that threads which the training
function starts can report too.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hocket.train import checkpoint as checkpoint_module
from hocket.train import copies, parcels, reports, storage


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """A rank's place in its group."""

    rank: int
    world_size: int
    attempt: int
    """How often the group had been started before."""
    local_rank: int = 0
    """Its index among the ranks of its node."""
    local_world_size: int = 1
    """How many ranks there are on its node."""
    node_rank: int = 0
    """The index of its node among those of the group."""
    run_storage: storage.Storage
    token: str = ""
    """What `storage.sees_token` looks for; empty if the rank is the process that keeps the run."""
    use_gpu: bool
    num_cpus: float
    start_checkpoint: checkpoint_module.Checkpoint | None
    """What the attempt starts from."""
    start_positions: reports.Positions = field(default_factory=dict)
    """Where the loaders were when that checkpoint was reported."""


class WorkerSession:
    """The state behind `report` and `get_checkpoint` in one rank.

    Args:
        info: The rank's place.
        deliver: Takes each report to the controller; returns when it is on its way.
        checkpoint_copies: Fetches checkpoints, in a rank that does not share the run's folder; None in one that does.
    """

    def __init__(
        self,
        info: RankInfo,
        deliver: Callable[[reports.Report], None],
        checkpoint_copies: copies.Copies | None = None,
    ) -> None:
        self.info = info
        self._copies = checkpoint_copies
        self.checkpoint = self._adapt(info.start_checkpoint)
        """The latest committed checkpoint that this rank knows of."""
        self._deliver = deliver
        self._offers: dict[int, str] = {}
        self._trackers: dict[str, Callable[[], Mapping[str, Any]]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._acknowledged = -1

    def report(
        self, metrics: object, checkpoint: checkpoint_module.Checkpoint | None, checkpoint_dir_name: str | None
    ) -> None:
        """Check a report, stage its files, deliver it; with files, wait until they are committed."""
        blob = reports.encode_metrics(metrics)
        _check_checkpoint(checkpoint, checkpoint_dir_name)
        with self._lock:  # reports of several threads are numbered in the order in which they are delivered
            index, info = self._count, self.info
            staged: storage.Staged | storage.Offered | None = None
            if checkpoint is not None and self._copies is None:
                staged = storage.stage(info.run_storage, name_part(info.attempt, index, info.rank), checkpoint.path)
            elif checkpoint is not None:
                storage.check_source(checkpoint.path)
                self._offers[index], staged = checkpoint.path, storage.Offered()
            positions = self._read_positions() if checkpoint is not None else {}
            self._deliver(reports.Report(index, blob, staged, checkpoint_dir_name, positions))
            self._count += 1
        if staged is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._acknowledged >= index)

    def track(self, name: str | None, get_state: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Have the state of a loader travel with checkpoints from now on; return its state at the one that the attempt starts from.

        Args:
            name: The loader's. None: a number, in the order in which loaders without a name come.
            get_state: Called in `report`, in the thread that reports.

        Raises:
            ValueError: Another loader of this rank has the name, or it is no name.
        """
        if name is None:
            name = f"#{sum(other.startswith('#') for other in self._trackers)}"
        elif not name or name.startswith("#"):
            raise ValueError(
                f"A loader's name must be a text that does not begin with '#', but received {name!r}. Pass name='train', for example."
            )
        if name in self._trackers:
            raise ValueError(
                f"This rank has prepared a loader with name={name!r} before. Give each another name, because it is how a loader finds its "
                "position in a checkpoint; and prepare each once, not in every epoch."
            )
        self._trackers[name] = get_state
        return self.info.start_positions.get(name)

    def _read_positions(self) -> reports.Positions:
        found = {name: dict(get_state()) for name, get_state in self._trackers.items()}
        return {**self.info.start_positions, **found}  # a loader may not have been prepared again yet

    def acknowledge(self, index: int, checkpoint: checkpoint_module.Checkpoint) -> None:
        """Note that a checkpoint was committed with the report of that index."""
        with self._changed:
            self._offers.pop(index, None)
            self.checkpoint = self._adapt(checkpoint)
            self._acknowledged = index
            self._changed.notify_all()

    def pack_offer(self, index: int) -> Iterator[parcels.Parcel]:
        """Give the files of the report of that index, which the driver asks for. `report` waits until they are committed."""
        source = self._offers[index]
        for parcel in parcels.pack(source, *storage.list_contents(source), {}):
            yield parcels.pass_point("train.in_upload", parcel)

    def _adapt(self, checkpoint: checkpoint_module.Checkpoint | None) -> checkpoint_module.Checkpoint | None:
        """Return the handle with which this rank reads a committed checkpoint."""
        if checkpoint is None or self._copies is None:
            return checkpoint
        return checkpoint_module.build(checkpoint.origin, self._copies.fetch)


def name_part(attempt: int, index: int, rank: int) -> str:
    """Return the name under which a rank's part of a checkpoint is staged."""
    return f"{attempt}-{index}-{rank}"


def _check_checkpoint(checkpoint: object, dir_name: str | None) -> None:
    if checkpoint is not None and not isinstance(checkpoint, checkpoint_module.Checkpoint):
        raise TypeError(
            f"report() takes a Checkpoint, but received {checkpoint!r}. Write Checkpoint.from_directory(path) for a folder."
        )
    if dir_name is not None and (not dir_name or "/" in dir_name or dir_name.startswith(".")):
        raise ValueError(
            f"checkpoint_dir_name must be the name of one folder that does not start with '.', but received {dir_name!r}. Leave it "
            "out for a numbered one."
        )


class ReportQueue:
    """Reports and requests of a rank on their way to the controller, which takes them in batches from another thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[reports.Report | copies.Request | None] = queue.SimpleQueue()
        self.put = self._queue.put

    def end(self) -> None:
        """Say that no more will come."""
        self._queue.put(None)

    def take_batch(self) -> tuple[list[reports.Report | copies.Request], bool]:
        """Wait for the next one; return all that are there, and whether there will be no more."""
        batch: list[reports.Report | copies.Request] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True


_current: WorkerSession | None = None


@contextlib.contextmanager
def open_session(session: WorkerSession) -> Iterator[None]:
    """Make it the process's session for the duration of a block."""
    global _current  # noqa: PLW0603 (see the module's docstring)
    before, _current = _current, session
    try:
        yield
    finally:
        _current = before


def get_session(caller: str) -> WorkerSession:
    """Return the open session.

    Raises:
        RuntimeError: None is open.
    """
    if _current is None:
        raise RuntimeError(
            f"hocket.train.{caller}() was called outside a training function. Call it in the function that is given to a trainer "
            "(TorchTrainer, DataParallelTrainer), which runs it in its workers."
        )
    return _current
