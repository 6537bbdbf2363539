"""Notes on the files that Spark has written, and a reader that compares the files with the notes.

The notes are in the folder's ``_MANIFEST``, as for files of our own, and say more: each file's rows, bytes and digest.
Only files that are named there are read. One that is gone, or of another length, is named before the first row is
read; one of another content when its turn comes.
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
"""How much is digested at a time. A guess: enough for a store to be asked rarely."""

AT_ONCE: Final = 8
"""How many files are digested at once: a store answers slowly, and several at a time. A guess."""

DIGEST_BYTES: Final = 16


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """The notes on a file."""

    path: str
    """Within the folder."""
    rows: int
    bytes: int
    blake2b: str
    """The digest of all that is in it, of 16 bytes."""


def compute_digest(filesystem: filesystems.FileSystem, path: str) -> tuple[int, str]:
    """Return how many bytes a file has, and their digest."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    count = 0
    with filesystem.open_input_stream(path, compression=None) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            count += len(chunk)
    return count, digest.hexdigest()


def note(caller: str, place: places.Place) -> list[Record]:
    """Return what there is to note of the files in a folder."""
    filesystem, found = filesystems.list_files(caller, place.path, place.filesystem, (".parquet",))

    def look(file: filesystems.File) -> Record:
        with arrow.load(caller, "pyarrow.parquet").ParquetFile(file.path, filesystem=filesystem) as opened:
            rows: int = opened.metadata.num_rows
        count, digest = compute_digest(filesystem, file.path)
        return Record(path=file.path[len(place.path) + 1 :], rows=rows, bytes=count, blake2b=digest)

    return list(calls.do_all(look, found, AT_ONCE, "hocket-data"))


def write(place: places.Place, records: Sequence[Record]) -> None:
    """Write the notes: with them, the folder is whole."""
    writing.finish(
        "from_spark()", writing.Folder(place, (), ()), secrets.token_hex(6), [asdict(record) for record in records]
    )


def read(caller: str, place: places.Place) -> list[Record]:
    """Return what is noted of a folder's files.

    Raises:
        FileNotFoundError: Nothing is.
        ValueError: It cannot be read, or is of files that others than Spark have written.
    """
    path = f"{place.path}/{writing.MANIFEST}"
    try:
        with place.filesystem.open_input_stream(path, compression=None) as stream:
            blob = stream.read()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{caller}: the folder {place.shown!r} has no {writing.MANIFEST}, so it was never finished, or "
            "hocket.data.from_spark() has not written it. Read its files as they are with hocket.data.read_parquet()."
        ) from error
    except (OSError, ValueError) as error:
        raise filesystems.explain(error, caller, path) from error
    try:
        return [Record(**one) for one in writing.parse_manifest(blob, caller, place.shown)]
    except TypeError:
        raise ValueError(
            f"{caller}: {path!r} notes no digests, so others than hocket.data.from_spark() have written it. Read its "
            "files with hocket.data.read_parquet()."
        ) from None


def plan_reads(caller: str, place: places.Place, records: Sequence[Record]) -> list[CheckedRead]:
    """Return what reads the files that are noted, small ones together."""
    paths = [f"{place.path}/{record.path}" for record in records]
    for record, info in zip(records, place.filesystem.get_file_info(paths), strict=True):
        if info.size is None:
            raise FileNotFoundError(_describe_gone(caller, info.path, record))
        if info.size != record.bytes:
            raise ValueError(_describe_change(caller, info.path, record, f"{info.size} bytes"))
    filled = [record for record in records if record.rows] or list(records[:1])  # the first one for its columns
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
    """Files of which is noted what is in them, one behind the other.

    Args:
        caller: For messages.
        place: The folder.
        records: What is noted.
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
        """Which files they are."""
        return tuple(
            filesystems.File(f"{self.place.path}/{record.path}", record.bytes, self.place.path)
            for record in self.records
        )

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Give the rows, in blocks."""
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
