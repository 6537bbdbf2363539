"""The transfer of committed checkpoints to nodes without the run's folder: the driver's side of `checkpoints.cache`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import final

from hocket.crew import wait_loop
from hocket.train.checkpoints import cache, file_chunks, storage
from hocket.train.run import attempt as attempt_module


class _Delivery:
    """A committed checkpoint on its way to a node, or there."""

    def __init__(self, origin: str, folder: str, chunks_left: Iterator[file_chunks.FileChunk]) -> None:
        self.origin = origin
        self.folder = folder
        self.is_there = False
        self.waiting: list[tuple[int, cache.Request]] = []
        """Requests of the node's ranks that have no answer yet. The first of these ranks receives the files."""
        self._chunks_left = chunks_left

    @property
    def target(self) -> str:
        """The path of the copy on the node."""
        return str(Path(self.folder, Path(self.origin).name))

    def read(self) -> file_chunks.FileChunk | Exception | None:
        """Return the next chunk, or None after the last, or the error of reading it."""
        try:
            return next(self._chunks_left, None)
        except OSError as error:
            return error


@final
class CheckpointSender:
    """The sender of the checkpoints that an attempt's ranks request. It sends each to a node once."""

    def __init__(self, attempt: attempt_module.Attempt, loop: wait_loop.WaitLoop) -> None:
        self._attempt = attempt
        self._group = attempt.group
        self._storage = attempt.run.run_storage
        self._loop = loop
        self._deliveries: dict[tuple[str, str, str], _Delivery] = {}

    def take(self, rank: int, request: cache.Request) -> None:
        """Send a rank the path of a copy on its node, after sending the copy if need be."""
        folder = self._group.claim_folder(rank)
        key = (request.origin, folder, self._group.places[rank].node_id)
        delivery = self._deliveries.get(key)
        if delivery is None:
            delivery = self._deliveries[key] = _Delivery(request.origin, folder, self._pack(request.origin))
            delivery.waiting.append((rank, request))
            self._send(delivery, delivery.read())
        elif delivery.is_there:
            self._group.actors[rank].settle.remote(request, delivery.target)
        else:
            delivery.waiting.append((rank, request))

    def _pack(self, origin: str) -> Iterator[file_chunks.FileChunk]:
        """Yield the files of a committed checkpoint in chunks, with their records from its manifest."""
        path = Path(origin)
        manifest = storage.get_optional_manifest(path) if path.parent == self._storage.path else None
        if manifest is None:
            raise FileNotFoundError(
                f"The checkpoint {origin!r} no longer exists, so it cannot be sent to a rank that needs it. Read it "
                "before report() commits newer ones, or keep more checkpoints: CheckpointConfig(num_to_keep=...)."
            )
        records = storage.read_records(manifest)
        folders, names = storage.list_contents(origin)
        missing = sorted(records.keys() - set(names))
        if missing:
            raise FileNotFoundError(f"The checkpoint {origin!r} has lost files since its commit: {missing}.")
        yield from file_chunks.pack(origin, folders, [*names, storage.MANIFEST_NAME], records)

    def _send(self, delivery: _Delivery, chunk: file_chunks.FileChunk | Exception | None) -> None:
        """Send a chunk, and read the next chunk meanwhile. End the delivery after the last chunk or at an error."""
        if isinstance(chunk, file_chunks.FileChunk):
            rank, request = delivery.waiting[0]
            ref = self._group.actors[rank].receive.remote(request, delivery.folder, chunk)
            following = delivery.read()
            self._loop.add(ref, lambda ref: self._send(delivery, self._group.get(rank, ref).error or following))
        elif chunk is None:
            delivery.is_there = True
            for rank, request in delivery.waiting:
                self._group.actors[rank].settle.remote(request, delivery.target)
        else:
            self._fail(delivery, chunk)

    def _fail(self, delivery: _Delivery, error: Exception) -> None:
        """End a failed delivery. The receiving rank gets the error; each other request gets a delivery of its own.

        The first of the others may be the same rank: it had the error before the driver, and has asked again.
        """
        self._deliveries = {key: other for key, other in self._deliveries.items() if other is not delivery}
        (rank, request), *others = delivery.waiting
        self._group.actors[rank].settle.remote(request, error)
        for other, asked in others:
            self.take(other, asked)
