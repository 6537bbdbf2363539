"""A record of the files that Spark has written, and a reader that checks the files against it.

The record is the folder's ``_MANIFEST``, as for files of this package, with the rows, bytes and digest of each file.
Only files in the record are read. A missing file, or one with another length, is an error before the first row is read;
other content is an error when its file is read.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, final

from hocket.data import arrow, blocks, settings
from hocket.data.sources import files, filesystems, parquet, writing
from hocket.stores import calls, places

CHUNK_BYTES: Final = 4 << 20
"""How many bytes to digest at a time. A guess: large enough for few requests to a store."""

AT_ONCE: Final = 8
"""How many files to digest at once, since a store answers slowly but several requests at a time. A guess."""

DIGEST_BYTES: Final = 16


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """The record of a file."""

    path: str
    """The path within the folder."""
    rows: int
    bytes: int
    blake2b: str
    """The digest of the file's content, of 16 bytes."""


def compute_digest(filesystem: filesystems.FileSystem, path: str) -> tuple[int, str]:
    """Return the number of bytes in a file, and their digest."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    count = 0
    with filesystem.open_input_stream(path, compression=None) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            count += len(chunk)
    return count, digest.hexdigest()


def note(caller: str, place: places.Place) -> list[Record]:
    """Return the records of the files in a folder."""
    filesystem, found = filesystems.list_files(caller, place.path, place.filesystem, (".parquet",))

    def look(file: filesystems.File) -> Record:
        with arrow.load(caller, "pyarrow.parquet").ParquetFile(file.path, filesystem=filesystem) as opened:
            rows: int = opened.metadata.num_rows
        count, digest = compute_digest(filesystem, file.path)
        return Record(path=file.path[len(place.path) + 1 :], rows=rows, bytes=count, blake2b=digest)

    return list(calls.do_all(look, found, AT_ONCE, "hocket-data"))


def write(place: places.Place, records: Sequence[Record]) -> None:
    """Write the records to the manifest, which completes the folder."""
    writing.finish(
        "from_spark()", writing.Folder(place, (), ()), secrets.token_hex(6), [asdict(record) for record in records]
    )


def read(caller: str, place: places.Place) -> list[Record]:
    """Return the records of a folder's files.

    Raises:
        FileNotFoundError: The folder has no manifest.
        ValueError: The manifest cannot be read, or `from_spark` did not write it.
    """
    path = f"{place.path}/{writing.MANIFEST}"
    try:
        with place.filesystem.open_input_stream(path, compression=None) as stream:
            blob = stream.read()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{caller}: the folder {place.shown!r} has no {writing.MANIFEST}, so hocket.data.from_spark() did not "
            "write it, or did not finish. Read its files as they are with hocket.data.read_parquet()."
        ) from error
    except (OSError, ValueError) as error:
        raise filesystems.explain(error, caller, path) from error
    try:
        return [Record(**one) for one in writing.parse_manifest(blob, caller, place.shown)]
    except TypeError:
        raise ValueError(
            f"{caller}: {path!r} has no digests, so hocket.data.from_spark() did not write it. Read its files with "
            "hocket.data.read_parquet()."
        ) from None


def plan_reads(caller: str, place: places.Place, records: Sequence[Record]) -> list[CheckedRead]:
    """Return the reads of the files in the records: small files share one."""
    paths = [f"{place.path}/{record.path}" for record in records]
    for record, info in zip(records, place.filesystem.get_file_info(paths), strict=True):
        if info.size is None:
            raise FileNotFoundError(_describe_gone(caller, info.path, record))
        if info.size != record.bytes:
            raise ValueError(_describe_change(caller, info.path, record, f"{info.size} bytes"))
    filled = [record for record in records if record.rows] or list(records[:1])  # the first for its columns
    most = settings.DataContext.get_current().get_block_bytes()
    return [
        CheckedRead(caller=caller, place=place, records=tuple(filled[at] for at in group))
        for group in files.share_out([record.bytes for record in filled], most, files.MOST_READS)
    ]


def _describe_gone(caller: str, path: str, record: Record) -> str:
    return (
        f"{caller}: the file {path!r}, which Spark wrote with {record.rows} rows, is gone. Write the data frame again, "
        "into another folder."
    )


def _describe_change(caller: str, path: str, record: Record, found: str) -> str:
    return (
        f"{caller}: the file {path!r} has changed since Spark wrote it: it had {record.bytes} bytes, {record.rows} "
        f"rows and the digest {record.blake2b}, and now has {found}. Write the data frame again, into another folder."
    )


@final
@dataclass(frozen=True, kw_only=True)
class CheckedRead:
    """A read of files in sequence, each checked against its record.

    Args:
        caller: The name of the caller, for messages.
        place: The folder.
        records: The records of the files.
    """

    caller: str
    place: places.Place
    records: tuple[Record, ...]

    @property
    def num_rows(self) -> int:
        return sum(record.rows for record in self.records)

    @property
    def num_bytes(self) -> int:
        return sum(record.bytes for record in self.records)

    @property
    def files(self) -> tuple[filesystems.File, ...]:
        """The files to read."""
        return tuple(
            filesystems.File(f"{self.place.path}/{record.path}", record.bytes, self.place.path)
            for record in self.records
        )

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Yield the rows, in blocks."""
        for record, file in zip(self.records, self.files, strict=True):
            yield from self._read(record, file)

    def __call__(self) -> blocks.Block:
        return blocks.join(list(self.iter_blocks()))

    def _read(self, record: Record, file: filesystems.File) -> Iterator[blocks.Block]:
        filesystem = self.place.filesystem
        everything = parquet.Selection(columns=None, filter=None)
        try:
            count, digest = compute_digest(filesystem, file.path)
        except FileNotFoundError as error:
            raise FileNotFoundError(_describe_gone(self.caller, file.path, record)) from error
        except OSError as error:
            raise filesystems.explain(error, self.caller, file.path) from error
        if (count, digest) != (record.bytes, record.blake2b):
            found = f"{count} bytes and the digest {digest}"
            raise ValueError(_describe_change(self.caller, file.path, record, found))
        try:
            if not record.rows:
                yield everything.read(filesystem, file.path, (), {}, ())
                return
            yield from parquet.Parquet(selection=everything).read(filesystem, file)
        except (OSError, ValueError) as error:
            raise filesystems.explain(error, self.caller, file.path) from error
