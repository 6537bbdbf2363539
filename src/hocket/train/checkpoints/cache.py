"""Copies of the run's checkpoints on a node that does not share the run's folder: the rank's side.

A rank that uses such a checkpoint sends the driver a request, among its reports, and waits. The driver sends the chunks
to the first rank of a node that requests them, and sends the other ranks of that node the path of the copy. All copies
of a node lie in one folder among its temporary files, with a name from the driver. A task on the node removes the
folder after the ranks have ended, however they ended. The folder remains only if SIGKILL ends the driver, or the node's
engine ends. Then the next run that copies to that node finds the folder's lock free, and removes the folder.
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
"""The beginning of the names of nodes' folders."""

_END_SECONDS = 10.0  # for killed ranks to be gone: milliseconds, except on a machine that swaps. A guess


@dataclass(frozen=True, slots=True)
class Request:
    """A rank's request for the files of a committed checkpoint."""

    number: int
    """The number of the rank's earlier requests. By it, a late answer is not taken for that to a later request."""
    origin: str
    """The checkpoint's folder where the run is kept."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A rank's answer to a chunk."""

    error: Exception | None = None
    """The error, if there was one. It is wrapped, because an engine would raise an error that is a call's value."""


class _Copy:
    """One checkpoint on its way to this rank."""

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
        """Return the path of the copy on this node; wait for the copy if need be."""
        with self._lock:
            copy = self._copies.get(origin)
            if copy is None or copy.error is not None:  # a failure may pass: ask again
                copy = self._copies[origin] = _Copy()
                self._requests.append(copy)
                self._ask(Request(len(self._requests) - 1, origin))
        copy.is_settled.wait()
        if copy.error is not None:
            raise copy.error
        return copy.path

    def take(self, request: Request, folder: str, chunk: file_chunks.FileChunk) -> Receipt:
        """Write a chunk of the checkpoint below the node's folder. The receipt has the error, and `fetch` raises it."""
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
        if copy.is_settled.is_set():  # this rank knew the outcome first
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
        """Make the node's folder, if it is missing, and hold its lock until this process ends."""
        if self._node_lock is None:
            working_folders.sweep(FOLDER_PREFIX, Path(folder).parent)
            self._node_lock = working_folders.join(folder)


def remove_folder(folder: str, pids: Sequence[int]) -> None:
    """Remove a node's folder when the processes that write there are gone. Runs on the node."""
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
    """Return the path of a node's folder among its temporary files, which may be on a disk that other nodes share."""
    return str(Path(temporary, f"{FOLDER_PREFIX}{token}-{node_rank}"))


def find_temporary() -> str:
    """Return the folder of this node's temporary files."""
    return tempfile.gettempdir()
