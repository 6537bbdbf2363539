"""A rank: the work of a task in a barrier stage.

The task runs in one of Spark's Python workers, which serves other tasks later. So the rank is a fork of the worker: its
changes to modules, environment and memory end with it, and its parent sees how it ended. It dies with its parent, and
when the driver closes the connection, even in the middle of work: so it never outlives Spark's job or the run.

In the fork, the main thread does the driver's work, and another thread receives messages.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError, connection
from typing import Any, Final, NoReturn, final

from hocket import exceptions
from hocket.collective import host_group
from hocket.data.spark import access
from hocket.engine import descendants, node
from hocket.spark import messages
from hocket.train.checkpoints import cache, storage
from hocket.train.rank import questions, rank_placement, reports, usage, worker_session

CALLER: Final = "hocket.spark.run()"

_HUNG_UP: Final = 70
"""The exit code of a rank after the driver closed the connection. Python itself never uses it."""

_FAILED: Final = 1

_OURS: Final = (__file__, worker_session.__file__)


def take_part(address: tuple[str, int], key: bytes, partition: Iterator[object]) -> Iterator[int]:
    """Run a rank in a fork, and end as the rank ends. Called in a task."""
    context = access.load(CALLER, "pyspark").BarrierTaskContext.get()
    index: int = context.partitionId()
    host = context.getTaskInfos()[index].address.rpartition(":")[0]
    gpus = context.resources().get("gpu")
    gpu_ids = tuple(gpus.addresses) if gpus is not None else ()
    parent, told = os.getpid(), os.memfd_create("hocket-told")
    try:
        killed_before = descendants.count_oom_kills()
        descendants.allow_forks()
        child = os.fork()
        if child == 0:
            _live(parent, told, address, key, index, host, gpu_ids)
        _, status, used = os.wait4(child, 0)
        text = os.pread(told, os.fstat(told).st_size, 0).decode()
    finally:
        os.close(told)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        yield index
        return
    if code == _HUNG_UP:
        raise RuntimeError("The driver ended this rank because another rank failed or the run was over.")
    if not text:
        death = exceptions.Death(
            pid=child,
            signal_number=-code if code < 0 else None,
            exit_code=code if code >= 0 else None,
            peak_rss_bytes=used.ru_maxrss * 1024,
            out_of_memory=code == -9 and descendants.count_oom_kills() > killed_before,
        )
        text = f"The process of this rank {death.describe()}"
        _tell(address, key, messages.Died(index, death))
    raise RuntimeError(text)


def _tell(address: tuple[str, int], key: bytes, message: messages.FromRank) -> None:
    try:
        with connection.Client(address, authkey=key) as wire:
            wire.send_bytes(messages.encode(message))
    except (OSError, EOFError, AuthenticationError):
        pass  # the driver has closed the connection, and knows


def _live(
    parent: int,
    told: int,
    address: tuple[str, int],
    key: bytes,
    index: int,
    host: str,
    gpu_ids: tuple[str, ...],
) -> NoReturn:
    """Run the rank in the forked process, then exit."""
    code = _FAILED
    try:
        descendants.begin_child("hocket:rank", parent)
        descendants.draw_new_random_numbers()
        if gpu_ids:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_ids)
        found = rank_placement.Introduction(host, os.getpid(), gpu_ids, cache.find_temporary(), node.count_cpus())
        code = _Rank(connection.Client(address, authkey=key), told).live(messages.Hello(index, found))
    except (OSError, EOFError, AuthenticationError):
        code = _HUNG_UP
    finally:
        os._exit(code)


@final
class _Rank:
    """The fork's side of the connection."""

    def __init__(self, wire: connection.Connection, told: int) -> None:
        self._wire = wire
        self._told = told
        self._lock = threading.Lock()
        self._wanted: queue.SimpleQueue[messages.Call | messages.Begin | messages.Leave] = queue.SimpleQueue()
        self._inquiry = questions.Inquiry(self._send)
        self._session: worker_session.WorkerSession | None = None

    def live(self, hello: messages.Hello) -> int:
        """Serve the driver's messages until `Leave`, and return the exit code."""
        self._send(hello)
        threading.Thread(target=self._listen, name="hocket-spark", daemon=True).start()
        while True:
            message = self._wanted.get()
            if isinstance(message, messages.Leave):
                return 0
            try:
                self._obey(message)
            except BaseException as error:  # noqa: BLE001 (the driver, and Spark, are to hear of all)
                self._fail(error)
                return _FAILED

    def _obey(self, message: messages.Call | messages.Begin) -> None:
        if isinstance(message, messages.Call):
            self._send(messages.Reply(message.function(*message.args)))
            return
        info = message.info
        if not storage.sees_token(info.run_storage, info.token):
            raise RuntimeError(
                f"Rank {info.rank} on {os.uname().nodename} does not see the run's folder "
                f"{str(info.run_storage.path)!r}, or may not write there. Give RunConfig(storage_path=...) a folder "
                "that the driver and all of Spark's machines share."
            )
        session = worker_session.WorkerSession(info, self._send, self._inquiry, self._fail)
        self._session = session
        work: tuple[Callable[..., Any], tuple[Any, ...]] = pickle.loads(message.work)
        returned = session.run(*work)
        host_group.end_all()  # not after an error, which must be reported first
        self._send(messages.Ended(usage.wrap(returned, session) if info.rank == 0 else None))

    def _send(self, message: messages.FromRank | reports.Report) -> None:
        blob = messages.encode(message)
        with self._lock:
            self._wire.send_bytes(blob)

    def _fail(self, error: BaseException) -> None:
        failure = messages.describe_failure(error, "the training function", _OURS)
        os.pwrite(self._told, failure.traceback_str.encode("utf-8", "replace"), 0)
        self._send(messages.Failed(failure))

    def _listen(self) -> None:
        try:
            while True:
                self._take(pickle.loads(self._wire.recv_bytes()))
        except (EOFError, OSError):
            os._exit(_HUNG_UP)
        except BaseException as error:  # noqa: BLE001 (such as a module that is not here: nobody else would say it)
            self._fail(error)
            os._exit(_FAILED)

    def _take(self, message: messages.ToRank) -> None:
        match message:
            case questions.Answer():
                self._inquiry.take(message)
            case messages.Acknowledge():
                assert self._session is not None, "it has reported"
                self._session.acknowledge(message.index, message.committed)
            case messages.Ping():
                self._send(messages.Pong())
            case _:
                self._wanted.put(message)
