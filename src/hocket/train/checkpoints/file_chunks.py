"""A folder's files on their way to another disk: cut into chunks, put together again, and compared with their digests.

If a rank and the driver share no folder, a checkpoint travels through the engine like any other value: `pack` yields
chunks of a few MiB, and `Unpacker` writes them. So neither side ever holds more than a few chunks. The sender's digest
is of the bytes that it read, or from the commit. The receiver computes its own of the bytes that it wrote. If digests
differ, or the last chunk never comes, there is a `TransferError`. Many small files share a chunk, because each chunk
costs a message.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hocket.engine import faults
from hocket.stores import local_files, names
from hocket.train import errors
from hocket.train.checkpoints import storage

CHUNK_BYTES = 8 << 20
"""The most bytes of files in a chunk. A guess: large against the cost of a message, small against memory."""

CHUNKS_AHEAD = 2
"""The most chunks that a rank may be ahead of the driver. One is under way while the next one is read."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one file. They follow the bytes of the file's last piece."""

    file: str
    """The file's path, relative to the folder."""
    data: bytes
    end: storage.FileRecord | None
    """The record that the whole file must match, if these are its last bytes; else None."""


@dataclass(frozen=True, slots=True)
class FileChunk:
    """A chunk of files that travel in one message."""

    pieces: tuple[Piece, ...]
    folders: tuple[str, ...] = ()
    """Folders inside the folder, outer ones first. Only in the first chunk."""
    file_count: int | None = None
    """The number of all files. Only in the last chunk."""


def pack(
    source: str,
    folders: Sequence[str],
    names: Sequence[str],
    records: Mapping[str, storage.FileRecord],
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[FileChunk]:
    """Yield a folder's files in chunks.

    Args:
        source: The folder.
        folders: The folders inside it.
        names: The files inside it.
        records: Records of files from their commit. The digests of other files are computed from the bytes read.
        chunk_bytes: The most bytes in a chunk.
    """
    pieces: list[Piece] = []
    room = chunk_bytes
    ahead = tuple(folders)
    for name in names:
        known = records.get(name)
        for data, end in _read(Path(source, name), known, chunk_bytes):
            if len(data) > room:
                yield FileChunk(tuple(pieces), ahead)
                pieces, room, ahead = [], chunk_bytes, ()
            pieces.append(Piece(name, data, end))
            room -= len(data)
    yield FileChunk(tuple(pieces), ahead, len(names))


def _read(path: Path, known: storage.FileRecord | None, most: int) -> Iterator[tuple[bytes, storage.FileRecord | None]]:
    """Yield a file's bytes, with its record beside the last of them."""
    digest, size = hashlib.sha256(), 0
    with local_files.open_regular(path) as file:
        data = file.read(most)
        while True:
            following = file.read(most) if data else b""
            size += len(data)
            if known is None:
                digest.update(data)
            if not following:
                yield data, known or storage.FileRecord(size, digest.hexdigest())
                return
            yield data, None
            data = following


def pass_point(point: str, chunk: FileChunk) -> FileChunk:
    """Pass a chunk through a named fault point, and return it; it is damaged if a test has armed a fault there."""
    plan = faults.plan
    if plan is None:
        return chunk
    pieces = [Piece(p.file, plan.pass_bytes(point, p.data) if p.data else p.data, p.end) for p in chunk.pieces]
    return FileChunk(tuple(pieces), chunk.folders, chunk.file_count)


class Unpacker:
    """The receiver that puts a folder together from its chunks, in order.

    Args:
        target: The folder; made if need be.
        what: The name of the files in messages, such as ``"rank 1's checkpoint"``.
        is_durable: Whether each file must be on the disk when it is complete.
    """

    def __init__(self, target: Path, what: str, *, is_durable: bool) -> None:
        self.target = target
        self.files: dict[str, storage.FileRecord] = {}
        """The records of files that are complete and correct."""
        self._what = what
        self._is_durable = is_durable
        self._is_whole = False
        self._name = ""
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._size = 0
        target.mkdir(parents=True, exist_ok=True)

    def take(self, chunk: FileChunk) -> None:
        """Write the contents of a chunk."""
        with storage.explained_if_full(self.target):
            for folder in chunk.folders:
                if folder != ".":  # the folder itself
                    names.join(self.target, folder, self._what).mkdir(parents=True, exist_ok=True)
            try:
                for piece in chunk.pieces:
                    self._write(piece)
            except OSError:
                with contextlib.suppress(OSError):  # a full disk fails again at the rest of the buffer
                    self.close()
                raise
        if chunk.file_count is not None:
            if self._file is not None or len(self.files) != chunk.file_count:
                raise self._tear(f"only {len(self.files)} of {chunk.file_count} files are complete")
            self._is_whole = True

    def _write(self, piece: Piece) -> None:
        if self._file is None:
            path = names.join(self.target, piece.file, self._what)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
            self._name, self._digest, self._size = piece.file, hashlib.sha256(), 0
        elif piece.file != self._name:
            raise self._tear(f"file {piece.file!r} began before the end of {self._name!r}")
        self._file.write(piece.data)
        self._digest.update(piece.data)
        self._size += len(piece.data)
        if piece.end is not None:
            if self._is_durable:
                local_files.sync_file(self._file)
            self.close()
            self._compare(piece.end, storage.FileRecord(self._size, self._digest.hexdigest()))

    def _compare(self, sent: storage.FileRecord, arrived: storage.FileRecord) -> None:
        if sent != arrived:
            raise errors.TransferError(
                f"File {self._name!r} of {self._what} was damaged on its way: {sent.size_bytes} bytes with sha256 "
                f"{sent.sha256} were sent, but {arrived.size_bytes} bytes with sha256 {arrived.sha256} arrived. It is "
                "not used. Look for a faulty disk, memory or network, and start again from the last committed "
                "checkpoint, as FailureConfig(max_failures=1) does."
            )
        self.files[self._name] = arrived

    def _tear(self, why: str) -> errors.TransferError:
        return errors.TransferError(
            f"{self._what[0].upper()}{self._what[1:]} did not arrive whole: {why}. It is not used. Start again from "
            "the last committed checkpoint, as FailureConfig(max_failures=1) does."
        )

    def finish(self) -> storage.Staged:
        """Return the files that have arrived.

        Raises:
            TransferError: The last chunk has not come.
        """
        if not self._is_whole:
            inside = f", and file {self._name!r} ended after {self._size} bytes" if self._file is not None else ""
            raise self._tear(f"the stream ended after {len(self.files)} complete files{inside}")
        return storage.Staged(str(self.target), self.files)

    def close(self) -> None:
        """Close the open file, if there is one."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
