"""Copies of the run's checkpoints on a node that does not share the run's folder: the rank's side.

A rank that uses such a checkpoint asks the driver for it, among its reports, and waits. The driver sends the chunks to
the first rank of a node that asks, and tells the others of that node where the copy is. All copies of a node lie in one
folder among its temporary files, whose name the driver gives. It is removed by a task on the node after the ranks have
ended, however they ended. Only the end of the driver itself by SIGKILL, or of the node's engine, leaves it; then the
next run that copies something on that node finds that nobody holds its lock, and removes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.stores import working_folders
from hocket.train.checkpoints import file_chunks

FOLDER_PREFIX = "hocket-train-"
"""How the names of nodes' folders begin."""

_END_SECONDS = 10.0  # how long killed ranks may take to be gone; milliseconds, but on a machine that swaps. A guess


@dataclass(frozen=True, slots=True)
class Request:
    """A rank asks for the files of a committed checkpoint."""

    number: int
    """How many requests the rank had made before: what is answered late is not taken for the answer to a later one."""
    origin: str
    """The checkpoint's folder, where the run is kept."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A rank's answer to a chunk."""

    error: Exception | None = None
    """What went wrong, if anything did. Not the answer itself, because an engine raises an error that is a call's
    value."""


class _Copy:
    """One checkpoint's way to this rank."""

    def __init__(self) -> None:
        self.is_settled = threading.Event()
        self.path = ""
        self.error: Exception | None = None
        self.unpacker: file_chunks.Unpacker | None = None


class CheckpointCache:
    """The files that a rank has fetched. Safe to use from several threads."""

    def __init__(self, ask: Callable[[Request], None]) -> None:
        self._ask = ask
        self._copies: dict[str, _Copy] = {}
        self._requests: list[_Copy] = []
        self._lock = threading.Lock()
        self._node_lock: int | None = None

    def fetch(self, origin: str) -> str:
        """Return the path of the copy on this node; wait for it if need be."""
        with self._lock:
            copy = self._copies.get(origin)
            if copy is None or copy.error is not None:  # a failure is not for ever: ask again
                copy = self._copies[origin] = _Copy()
                self._requests.append(copy)
                self._ask(Request(len(self._requests) - 1, origin))
        copy.is_settled.wait()
        if copy.error is not None:
            raise copy.error
        return copy.path

    def take(self, request: Request, folder: str, chunk: file_chunks.FileChunk) -> Receipt:
        """Write a chunk of the checkpoint below the node's folder. What goes wrong is in the receipt, and `fetch`
        raises it."""
        copy = self._requests[request.number]
        try:
            chunk = file_chunks.pass_point("train.in_download", chunk)
            if copy.unpacker is None:
                self._hold(folder)
                name = Path(request.origin).name
                copy.unpacker = file_chunks.Unpacker(Path(folder, name), f"checkpoint {name!r}", is_durable=False)
            copy.unpacker.take(chunk)
            if chunk.file_count is not None:
                self.settle(request, copy.unpacker.finish().path)
        except Exception as error:  # noqa: BLE001 (the thread that waits raises it)
            self.settle(request, error)
            return Receipt(error)
        return Receipt()

    def settle(self, request: Request, outcome: str | Exception) -> None:
        """End the wait for a checkpoint with the path of the node's copy, or with an error."""
        copy = self._requests[request.number]
        if copy.is_settled.is_set():  # this rank knew it first
            return
        if isinstance(outcome, str):
            copy.path = outcome
        else:
            copy.error = outcome
            if copy.unpacker is not None:
                copy.unpacker.close()
                shutil.rmtree(copy.unpacker.target, ignore_errors=True)
        copy.is_settled.set()

    def _hold(self, folder: str) -> None:
        """Make the node's folder, if it is not there, and hold its lock until this process ends."""
        if self._node_lock is None:
            working_folders.sweep(FOLDER_PREFIX, Path(folder).parent)
            self._node_lock = working_folders.join(folder)


def remove_folder(folder: str, pids: Sequence[int]) -> None:
    """Remove a node's folder, when the processes that write there are gone. Runs on the node."""
    deadline = time.monotonic() + _END_SECONDS
    while any(_is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.005)
    working_folders.remove(folder)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def name_folder(temporary: str, token: str, node_rank: int) -> str:
    """Return the path of a node's folder, from that of its temporary files, which may be on a disk that other nodes
    see too."""
    return str(Path(temporary, f"{FOLDER_PREFIX}{token}-{node_rank}"))


def find_temporary() -> str:
    """Return where temporary files of this node lie."""
    return tempfile.gettempdir()
