"""The remote functions that some process can still call: their code, and the objects that the code refers to.

A program that makes a remote function for each round of its work would fill the driver with their code, and pin the
objects in their closures. So the driver forgets a function when no process can call it and no task needs its code:

- The driver can call a function as long as it has a `RemoteFunction`, and a finalizer notes the end of that. A later
  `RemoteFunction` with the same code is registered anew.
- A worker that has sent the code (`EXPORT`) can call the function as long as the worker lives.
- A task holds the `FunctionRecord`, also while it may be tried again. An actor that may be built again holds the record
  of its class.

The record holds a `Kept`, and the finalizer of the `Kept` notes the record's end. Then the driver sends `FORGET` to the
workers that have the code. Each function has one record at a time, so no worker can be about to run the function.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import final

from hocket.engine import contract
from hocket.engine.local import payloads
from hocket.kernel.records import FunctionRecord


@final
class Kept:
    """An object that lives as long as a function's record."""

    __slots__ = ("function_id", "payload", "refs", "unused")

    def __init__(
        self,
        function_id: bytes,
        payload: payloads.Payload,
        refs: list[contract.ObjectRef[object]],
        unused: deque[bytes],
    ) -> None:
        self.function_id = function_id
        #: The code.
        self.payload = payload
        #: The references of its closure, and the segment of its large arrays.
        self.refs = refs
        self.unused = unused

    def __del__(self) -> None:
        self.unused.append(self.function_id)  # without a lock: a finalizer runs in any thread at any moment


@final
class Functions:
    """The driver's table of functions. Called with the driver's lock held.

    Args:
        table: The kernel's table of functions that can be called.
    """

    def __init__(self, table: dict[bytes, FunctionRecord]) -> None:
        self._table = table
        self._alive: weakref.WeakValueDictionary[bytes, FunctionRecord] = weakref.WeakValueDictionary()
        #: Functions that the driver can no longer call; finalizers append.
        self.dropped: deque[bytes] = deque()
        #: Functions whose record is gone.
        self.unused: deque[bytes] = deque()
        self._exporters: dict[bytes, set[int]] = {}

    def find(self, function_id: bytes) -> FunctionRecord | None:
        """Return the record of a function that is about to be called; None if there is no record."""
        record = self._table.get(function_id) or self._alive.get(function_id)
        if record is not None:
            self._table[function_id] = record
        return record

    def add(
        self, function_id: bytes, payload: payloads.Payload, refs: list[contract.ObjectRef[object]]
    ) -> FunctionRecord:
        """Register a new function, and return its record."""
        record = self._table[function_id] = self._alive[function_id] = FunctionRecord(function_id, payload[1])
        record.keeps = Kept(function_id, payload, refs, self.unused)
        return record

    def watch(self, function: contract.RemoteFunction) -> None:
        """Note in `dropped` when the driver can no longer call a function."""
        weakref.finalize(function, self.dropped.append, function.id).atexit = False

    def note_export(self, function_id: bytes, worker_id: int) -> None:
        """Note that a worker has sent the code, and may call the function as long as the worker lives."""
        self._exporters.setdefault(function_id, set()).add(worker_id)

    def lose_worker(self, exported: Iterable[bytes], worker_id: int) -> None:
        """Forget a dead worker's exports. A function that the driver can still call is registered again later."""
        for function_id in exported:
            exporters = self._exporters.get(function_id, set())
            exporters.discard(worker_id)
            if not exporters:
                self._exporters.pop(function_id, None)
                self._table.pop(function_id, None)

    def drain(self) -> list[bytes]:
        """Forget the functions that no process can call; return the functions that no task needs any more."""
        while self.dropped:
            function_id = self.dropped.popleft()
            if function_id not in self._exporters:
                self._table.pop(function_id, None)
        unused = []
        while self.unused:
            function_id = self.unused.popleft()
            if function_id not in self._alive:
                unused.append(function_id)
        return unused


def get_payload(record: FunctionRecord) -> payloads.Payload:
    """Return the payload of a function's code."""
    assert isinstance(record.keeps, Kept)
    return record.keeps.payload
