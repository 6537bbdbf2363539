"""A rank's session while it runs the training function, with the path of its reports.

A process has at most one open session. It belongs to the process and not to a thread, so threads that the training
function starts can report too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

from hocket import exceptions
from hocket._base import spending, texts
from hocket.collective import turns
from hocket.data import cursor as cursor_module
from hocket.engine import events
from hocket.train import validation
from hocket.train.checkpoints import cache, file_chunks, kept, reported, storage, uploads
from hocket.train.checkpoints import checkpoint as checkpoint_module
from hocket.train.rank import equality, questions, rank_info, reports

MOST_BYTES = 1 << 20
"""The most bytes that `broadcast_from_rank_zero` takes. Ray warns above a kilobyte; a megabyte still goes through the
driver in milliseconds. A guess."""


@final
class WorkerSession:
    """The state behind `report` and `get_checkpoint` in one rank.

    Args:
        info: The rank's place.
        deliver: Sends a report to the controller; returns when it is on its way.
        inquiry: Sends questions to the controller, and waits for the answers.
        fail: Takes an error in the background, which ends the training.
        checkpoint_cache: Fetches checkpoints if the rank does not share the run's folder; else None.
    """

    def __init__(
        self,
        info: rank_info.RankInfo,
        deliver: Callable[[reports.Report | equality.Item], None],
        inquiry: questions.Inquiry,
        fail: Callable[[Exception], None],
        checkpoint_cache: cache.CheckpointCache | None = None,
    ) -> None:
        self.info = info
        self.batch_part = info.rank, info.world_size
        """The index of this rank's part of each step's rows, and the number of parts. A strategy may change them."""
        self._pid = os.getpid()
        self._cache = checkpoint_cache
        start = info.start_checkpoint
        self.checkpoint = None if start is None else self._adapt(start)
        """The latest committed checkpoint that this rank knows of."""
        self._deliver = deliver
        self._inquiry = inquiry
        self._offers: dict[int, tuple[str, list[str]]] = {}
        """The folder and the expected files of each report with files that the driver fetches, by report."""
        self._to_delete: dict[int, str] = {}
        self.notes: dict[str, object] = {}
        """Values that travel to the driver with the training function's return value; see `usage`."""
        self.shards: dict[str, Any] = {}
        """This rank's parts of the trainer's datasets that it has opened, by name."""
        self.watch = equality.Watch(info.compares_every, deliver if info.compares and not info.bystander else None)
        """The comparison of this rank's model with those of the others."""
        self._trackers: dict[str, Callable[[], Mapping[str, object]]] = {}
        self._count = 0
        self._last_saved = -1
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._acknowledged = -1
        self._failure: Exception | None = None
        self._outbox = uploads.Outbox(self._fail)
        self.before_waiting: list[Callable[[], None]] = []
        """Functions to call before this rank waits for other ranks here, in the thread that waits."""
        self._stretch = spending.Stretch()
        self._step_began = time.perf_counter()
        self._pass_failure = fail
        self.outer: WorkerSession | None = None
        """The process's session at the time when this session was opened."""
        self.is_closed = False

    def run(self, function: Callable[..., object], args: tuple[object, ...]) -> Any:
        """Run the training function as this rank, wait until its reports are committed, and return its value."""
        with open_session(self):
            try:
                returned = function(*args)
            except Exception:
                if not self._is_fork:
                    self._outbox.close()  # earlier reports are uploaded, because they belong to the run
                raise
            self.finish()
        return returned

    def report(
        self,
        metrics: object,
        checkpoint: checkpoint_module.Checkpoint | None,
        checkpoint_dir_name: str | None,
        upload: uploads.Upload,
        asked: bool | validation.ValidationTaskConfig = False,
    ) -> None:
        """Check a report, stage its files, deliver it, and wait until synchronous files are committed.

        While the upload thread still stages files of earlier reports, that thread delivers this report after them.
        """
        begun = time.perf_counter()
        events.note(events.Kind.STEP, "step", self._step_began, begun - self._step_began)
        try:
            self._report(metrics, checkpoint, checkpoint_dir_name, upload, asked)
        finally:
            self._step_began = time.perf_counter()
            spending.OWN.report += self._step_began - begun
            events.note(events.Kind.REPORT, "report", begun, self._step_began - begun)

    def _report(
        self,
        metrics: object,
        checkpoint: checkpoint_module.Checkpoint | None,
        checkpoint_dir_name: str | None,
        upload: uploads.Upload,
        asked: bool | validation.ValidationTaskConfig,
    ) -> None:
        self._refuse_fork("report")
        self.refuse_bystander("report")
        blob = reports.encode_metrics(metrics)
        _check_checkpoint(checkpoint, checkpoint_dir_name)
        self._check_validation(checkpoint, asked)
        if checkpoint is not None:
            self._check_upload(checkpoint, upload)
        waits = checkpoint is not None and not upload.is_asynchronous
        with self._lock:  # numbers of reports from several threads follow the order of delivery
            self._raise_failure()
            index, made_at = self._count, time.time()
            is_now = self._outbox.is_idle and (checkpoint is None or waits)
            takes_look = is_now and checkpoint is None
            if not takes_look:  # the report may come late, or never
                self.watch.look("report", index + 1)
            spent = self._stretch.end() if turns.get_optional_turns() is None else None
            positions = self._read_positions() if checkpoint is not None else {}  # now, not after the upload
            names = _list_expected(checkpoint, upload) if checkpoint is not None else []

            def send(look: equality.Look | None = None) -> None:
                staged = None if checkpoint is None else self._stage(index, checkpoint, checkpoint_dir_name, upload)
                if isinstance(staged, storage.Staged):
                    storage.check_whole(names, staged.files)
                elif isinstance(staged, storage.Offered) and checkpoint is not None:
                    self._offers[index] = checkpoint.path, names
                given = checkpoint_dir_name, positions, asked, waits
                self._deliver(reports.Report(index, blob, staged, *given, made_at, spent, look))

            if takes_look:
                with self.watch.take_look("report", index + 1) as look:
                    send(look)
            elif is_now:
                send()
            else:
                self._outbox.put(send)
            self._count += 1  # after `send`: a report that could not be staged must leave no gap
            if checkpoint is not None:
                self._last_saved = index
        if waits:
            self._prepare_to_wait()
            self._wait_acknowledged(index)

    @contextlib.contextmanager
    def open_folder(self) -> Iterator[str]:
        """Make a folder for files that this rank is about to report; yield its path, and remove it after the block."""
        # A rank may be killed in `report`, and always is when the group starts again after a commit. So the folder lies
        # where the driver removes uncommitted files, unless this rank does not see the run's folder.
        staging = self.info.run_storage.staging_path
        place = staging if self._cache is None and staging.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="made-", dir=place) as folder:
            yield folder

    def _stage(
        self, index: int, checkpoint: checkpoint_module.Checkpoint, dir_name: str | None, upload: uploads.Upload
    ) -> storage.Staged | storage.Offered | storage.Adopted:
        """Bring a checkpoint's files into the run's folder, or offer them for the driver to fetch."""
        info = self.info
        staged: storage.Staged | storage.Offered | storage.Adopted
        if upload.stays:
            staged = upload.call(info.run_storage, checkpoint, dir_name or f"{info.name_prefix}_{index:06d}")
            storage.list_contents(staged.path)  # for its checks: an error here is the rank's own
        elif self._cache is None:
            staged = storage.stage(info.run_storage, name_part(info.attempt, index, info.rank), checkpoint.path)
        else:
            storage.check_source(checkpoint.path)
            storage.list_contents(checkpoint.path)  # for its checks: an error here is the rank's own
            staged = storage.Offered()
        if upload.deletes_afterwards:
            self._to_delete[index] = checkpoint.path
        return staged

    def _wait_acknowledged(self, index: int) -> None:
        with self._changed:
            turns.wait_for(
                self._changed,
                lambda: self._acknowledged >= index or self._failure is not None,
                "waits in report() for the others' reports",
                needs_rank=self._outbox.is_idle,
            )
        if self._acknowledged < index:
            self._raise_failure()

    def finish(self) -> None:
        """Wait until all reports are committed. Called when the training function has returned."""
        if self._is_fork:
            return  # a fork gets no answers; the rank itself waits for its reports
        self._outbox.close()
        self._wait_acknowledged(self._last_saved)
        self._raise_failure()

    def abandon(self) -> None:
        """End the upload thread. Called when the training function has failed, and this process goes on."""
        self._outbox.close(discard=True)

    def _fail(self, error: Exception) -> None:
        """Note that an upload has failed."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()
        self._inquiry.fail(error)
        self._pass_failure(error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _check_validation(
        self,
        checkpoint: checkpoint_module.Checkpoint | None,
        asked: bool | validation.ValidationTaskConfig,
    ) -> None:
        if not isinstance(asked, bool | validation.ValidationTaskConfig):
            raise TypeError(
                f"validation must be True, False or a ValidationTaskConfig, but received {asked!r}. Write "
                "validation=True."
            )
        if not asked:
            return
        if checkpoint is None:
            raise ValueError(
                "report() received validation=... without a checkpoint. Pass a checkpoint too, or leave validation out."
            )
        if not self.info.validates:
            raise ValueError(
                "report() received validation=..., but the trainer has no validation function. Pass "
                "validation_config=ValidationConfig(fn=...) to the trainer."
            )

    def _check_upload(self, checkpoint: checkpoint_module.Checkpoint, upload: uploads.Upload) -> None:
        for folder in {checkpoint.origin, checkpoint.path}:  # other ranks may share a copy
            upload.check(self.info.run_storage, folder)
        if upload.stays and self._cache is not None:
            raise RuntimeError(
                "CheckpointUploadMode.NO_UPLOAD and checkpoint_upload_fn need the run's folder, "
                f"{str(self.info.run_storage.path)!r}, but rank {self.info.rank} does not see it. Leave both out: "
                "report() then sends the files."
            )

    def list_checkpoints(
        self, mode: reported.CheckpointConsistencyMode, timeout_s: float | None
    ) -> list[reported.ReportedCheckpoint]:
        """Return the run's checkpoints, oldest first."""
        self._refuse_fork("get_all_reported_checkpoints")
        with self._lock:
            count = self._count
        try:
            found = self._ask(questions.ListCheckpoints(mode), count, timeout_s)
        except TimeoutError:  # return the checkpoints as they are now
            found = self._ask(questions.ListCheckpoints(None), count)
        return [reported.ReportedCheckpoint(self._adapt(one.checkpoint), one.metrics, one.status) for one in found]

    def meet(self, call: str, data: object) -> Any:
        """Wait until all ranks have made the same call, and return rank 0's value."""
        self._refuse_fork(call)
        self.refuse_bystander(call)
        blob = _encode(call, data) if self.info.rank == 0 else None
        with self._lock:
            count = self._count
        self._prepare_to_wait()
        begun = time.perf_counter()
        try:
            return pickle.loads(self._ask(questions.Meeting(call, blob), count))
        finally:
            spending.OWN.add_wait(time.perf_counter() - begun)

    def hand_over(self, call: str, blob: bytes | None, score: float | None) -> bool:
        """Send something to the driver of 2022, and wait until it is processed; return whether the driver wants no
        more."""
        self._refuse_fork(call)
        is_enough: bool = self._ask(questions.HandOver(call, blob, score), 0)
        return is_enough

    def _prepare_to_wait(self) -> None:
        for function in self.before_waiting:
            function()

    def _ask(self, about: questions.About, report_count: int, timeout_s: float | None = None) -> Any:
        self._raise_failure()
        return self._inquiry.ask(about, report_count, timeout_s)

    @property
    def _is_fork(self) -> bool:
        return os.getpid() != self._pid

    def _refuse_fork(self, call: str) -> None:
        """Raise in a process that the training function forked. No process reads its reports and questions, and a lock
        that another thread held at the fork is never released."""
        if self._is_fork:
            raise exceptions.SessionClosedError(
                f"hocket.train.{call}() was called in a fork of rank {self.info.rank}, but only the rank itself (pid "
                f"{self._pid}) can reach the other ranks. Call it there, and send the fork's results back through a "
                "pipe or a file."
            )

    def refuse_bystander(self, call: str) -> None:
        """Raise in a rank that does not take part in the joint work of the ranks."""
        if self.info.bystander:
            raise RuntimeError(
                f"{call}() is for the ranks that train, but was called in rank {self.info.rank}, which is "
                f"{self.info.bystander}: no rank waits for it, and its numbers reach no result. Call it in the chief "
                "only; write a file into get_context().get_storage().path from here."
            )

    def track(self, name: str | None, get_state: Callable[[], Mapping[str, object]]) -> Mapping[str, object] | None:
        """Save a loader's state with each checkpoint from now on; return its state at the attempt's start, if known.

        Args:
            name: The loader's name. None: a number, in the order of loaders without names.
            get_state: Returns the state. Called in `report`, in the thread that reports.
        """
        if name is None:
            name = f"#{sum(other.startswith('#') for other in self._trackers)}"
        elif not name or name.startswith("#"):
            raise ValueError(
                "A loader's name must be a string that does not begin with '#' and is not empty, but received "
                f"{name!r}. Pass name='train', for example."
            )
        if name in self._trackers:
            raise ValueError(
                f"This rank has prepared a loader with name={name!r} before. Give each loader its own name, by which "
                "it finds its position in a checkpoint, and prepare each loader once, not in every epoch."
            )
        self._trackers[name] = get_state
        return self.info.start_positions.get(name)

    def keep_positions(self, positions: reports.Positions) -> None:
        """Save these positions of loaders with each checkpoint from now on. The loaders are another run's."""
        self._trackers.update({name: functools.partial(dict, position) for name, position in positions.items()})

    def follow(self, cursor: cursor_module.Cursor, name: str | None, caller: str) -> None:
        """Save a loader's position with each checkpoint, and restore its position at the attempt's start.

        Args:
            cursor: The position.
            name: The loader's name, as in `track`.
            caller: The name of the function that makes the loader, for messages.
        """
        state = self.track(name, cursor.state_dict)
        if state is None:
            return
        try:
            cursor.load_state_dict(state)
        except ValueError as error:
            order = "no name, so loaders are matched by the order in which they are prepared"
            raise ValueError(
                f"The checkpoint's position for this loader ({order if name is None else f'name={name!r}'}) does not "
                f"fit it: {error} If the position is another loader's, give each loader a name; to begin the data "
                f"anew, pass resume=False to {caller}()."
            ) from error

    def _read_positions(self) -> reports.Positions:
        found = {name: dict(get_state()) for name, get_state in self._trackers.items()}
        return {**self.info.start_positions, **found}  # a loader may not have been prepared again yet

    def acknowledge(self, index: int, checkpoint: checkpoint_module.Checkpoint) -> None:
        """Note that a checkpoint was committed with the report of this index.

        Several threads call this, so a later commit's call may come first."""
        with self._changed:
            for done in [other for other in self._to_delete if other <= index]:
                shutil.rmtree(self._to_delete.pop(done), ignore_errors=True)
            self._offers.pop(index, None)
            if index > self._acknowledged:
                self.checkpoint = self._adapt(checkpoint)
                self._acknowledged = index
                self._changed.notify_all()

    def pack_offer(self, index: int) -> Iterator[file_chunks.FileChunk]:
        """Yield the files of the report of this index in chunks, for the driver. `report` waits for their commit."""
        source, names = self._offers[index]
        folders, files = storage.list_contents(source)
        storage.check_whole(names, files)
        for chunk in file_chunks.pack(source, folders, files, {}):
            yield file_chunks.pass_point("train.in_upload", chunk)

    def _adapt(self, checkpoint: checkpoint_module.Checkpoint) -> checkpoint_module.Checkpoint:
        """Return the handle with which this rank reads a committed checkpoint."""
        if self._cache is None or checkpoint.place is not None:
            return checkpoint
        return checkpoint_module.build(checkpoint.origin, self._cache.fetch)


def _encode(call: str, data: object) -> bytes:
    try:
        blob = pickle.dumps(data, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ValueError(
            f"{call}() takes values that can be pickled, but received {texts.safe_repr(data)}: "
            f"{texts.safe_text(error)}. Pass plain values."
        ) from error
    if len(blob) > MOST_BYTES:
        raise ValueError(
            f"{call}() takes up to {MOST_BYTES} bytes, because values go through the driver, but received {len(blob)}. "
            "Use hocket.collective for arrays, and a checkpoint or the run's folder for files."
        )
    return blob


def name_part(attempt: int, index: int, rank: int) -> str:
    """Return the name under which a rank's part of a checkpoint is staged."""
    return f"{attempt}-{index}-{rank}"


_current: WorkerSession | None = None


def _set_current(session: WorkerSession | None) -> None:
    global _current  # noqa: PLW0603 (see the module's docstring)
    _current = session


LOCAL: Final = turns.Local(lambda: _current, _set_current)
"""The session, for ranks that take turns in one process."""


class _Own(threading.local):
    """The session that the calling thread has opened. A session of another thread may outlast its run."""

    session: WorkerSession | None = None


_own: Final = _Own()


@contextlib.contextmanager
def open_session(session: WorkerSession) -> Iterator[None]:
    """Make a session the process's session during the block. Each session is opened once."""
    session.outer, own_before = _current, _own.session
    _set_current(session)
    _own.session = session
    in_turns = turns.get_optional_turns() is not None
    try:
        with turns.follow_threads(get_optional_session) if in_turns else contextlib.nullcontext():
            yield
    finally:
        session.is_closed, _own.session = True, own_before
        open_now = _current
        while open_now is not None and open_now.is_closed:  # sessions of several threads may close in any order
            open_now = open_now.outer
        _set_current(open_now)


def get_optional_session() -> WorkerSession | None:
    """Return the open session, or that of the rank that started the calling thread; None if none is open."""
    owner = None if turns.get_optional_turns() is not None else turns.find_owner()
    return owner if isinstance(owner, WorkerSession) else _own.session or _current


def get_session(caller: str) -> WorkerSession:
    """Return the open session."""
    session = get_optional_session()
    if session is None:
        raise RuntimeError(
            f"hocket.train.{caller}() was called outside a training function. Call it in the function that is given "
            "to a trainer (TorchTrainer, DataParallelTrainer), which runs it in its workers."
        )
    return session


def _check_checkpoint(checkpoint: object, dir_name: str | None) -> None:
    """Raise if `report` cannot take the checkpoint, or its folder cannot have this name."""
    if checkpoint is not None and not isinstance(checkpoint, checkpoint_module.Checkpoint):
        raise TypeError(
            f"report() takes a Checkpoint, but received {checkpoint!r}. Write Checkpoint.from_directory(path) for a "
            "folder."
        )
    if checkpoint is not None and checkpoint.place is not None:
        raise ValueError(
            f"report() takes a checkpoint in a folder on this machine, but received {checkpoint!r}, which is in a "
            "store. Write `with checkpoint.as_directory() as folder: report(metrics, checkpoint=Checkpoint(folder))`; "
            "report() sends it to the run's own store, RunConfig(storage_path=...)."
        )
    if dir_name is not None and not kept.is_name(dir_name):
        raise ValueError(
            f"checkpoint_dir_name must be {kept.NAME_RULE}, but received {texts.safe_repr(dir_name)}. Leave it out for "
            "a numbered one."
        )


def _list_expected(checkpoint: checkpoint_module.Checkpoint, upload: uploads.Upload) -> list[str]:
    """Return the files that must still exist when an asynchronous upload reaches them."""
    if upload.stays or not upload.is_asynchronous:
        return []
    storage.check_source(checkpoint.path)
    return storage.list_contents(checkpoint.path)[1]
