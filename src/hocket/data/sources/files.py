"""Files of any format, read as blocks: small files together, large files in parts, broken files named or left out."""

from __future__ import annotations

import logging
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from hocket.data import blocks, settings
from hocket.data.sources import choosing, filesystems

logger = logging.getLogger(__name__)

MOST_READS: Final = 256
"""The number of tasks that read many small files. A guess: several per CPU, and few compared with the files."""

_BROKEN: Final = (
    *(OSError, ValueError, TypeError, LookupError, EOFError, ArithmeticError, SyntaxError),
    *(struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error),
)
"""The errors of a file that cannot be read. They include Arrow's own errors, and Pillow's SyntaxError."""


class Format(Protocol):
    """The format of a file."""

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterable[blocks.Block]:
        """Yield the rows of a file, in blocks of about the size of `settings`; a small file is one block."""


@final
@dataclass(frozen=True, kw_only=True)
class FilesRead:
    """A read of several files in sequence. It yields several blocks if the files are large.

    Args:
        caller: The name of the reader, for messages.
        filesystem: The file system with the files.
        files: The files to read.
        format: Their format.
        include_paths: Whether to add the column ``path`` with the file of each row.
        on_error: ``"raise"``, or ``"skip"`` to leave out a file that cannot be read, with a warning. The rows before
            the fault in a large file stay.
        most_bytes: About how many bytes a block has at most.
        partitions: For each file, the values of the columns that its folders' names say.
    """

    caller: str
    filesystem: filesystems.FileSystem
    files: tuple[filesystems.File, ...]
    format: Format
    include_paths: bool = False
    on_error: str = "raise"
    most_bytes: int = 32 << 20
    partitions: tuple[Mapping[str, object], ...] = field(default=())

    num_rows: None = None

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Yield the rows, in blocks."""
        waiting: list[blocks.Block] = []
        num_bytes = 0
        for number, file in enumerate(self.files):
            for block in self._read(file, self.partitions[number] if self.partitions else {}):
                size = block.count_bytes()
                if waiting and (num_bytes + size > self.most_bytes or not _fit(waiting[0], block)):
                    yield _join(waiting)
                    waiting, num_bytes = [], 0
                waiting.append(block)
                num_bytes += size
        if waiting:
            yield _join(waiting)

    def __call__(self) -> blocks.Block:
        return _join(list(self.iter_blocks()) or [blocks.Block({}, 0)])

    def _read(self, file: filesystems.File, partitions: Mapping[str, object]) -> Iterator[blocks.Block]:
        num_rows = 0
        try:
            for block in self.format.read(self.filesystem, file):
                num_rows += block.num_rows
                added: dict[str, object] = {**partitions, **({"path": file.path} if self.include_paths else {})}
                yield block.add_constants(added) if added else block
        except _BROKEN as error:
            if self.on_error == "skip":
                settings.note_left_out(file.path)
                rest = f"everything after {num_rows} rows of " if num_rows else ""
                logger.warning("%s leaves out %s%r, which cannot be read: %s", self.caller, rest, file.path, error)
                return
            raise filesystems.explain(error, self.caller, file.path) from error


def _fit(block: blocks.Block, other: blocks.Block) -> bool:
    return block.columns.keys() == other.columns.keys()


def _join(waiting: Sequence[blocks.Block]) -> blocks.Block:
    return blocks.join(waiting) if len(waiting) > 1 else waiting[0]


def plan_files(
    caller: str,
    paths: object,
    form: Format,
    endings: Sequence[str],
    *,
    choice: choosing.Choice,
    include_paths: bool = False,
    on_error: str = "raise",
    override_num_blocks: int | None = None,
) -> list[FilesRead]:
    """Return the reads of the files at some paths."""
    choosing.check_on_error(on_error)
    return group_files(
        caller,
        choosing.choose(caller, paths, endings, choice),
        form,
        include_paths=include_paths,
        on_error=on_error,
        num_groups=override_num_blocks,
    )


def group_files(
    caller: str,
    chosen: choosing.Chosen,
    form: Format,
    *,
    include_paths: bool,
    on_error: str,
    num_groups: int | None,
) -> list[FilesRead]:
    """Return the reads of files that were found: many small files share one."""
    most = settings.DataContext.get_current().get_block_bytes()
    return [
        FilesRead(
            caller=caller,
            filesystem=chosen.filesystem,
            files=tuple(chosen.files[at] for at in group),
            format=form,
            include_paths=include_paths,
            on_error=on_error,
            most_bytes=most,
            partitions=tuple(chosen.values[at] for at in group) if any(chosen.values) else (),
        )
        for group in share_out([file.size for file in chosen.files], most, num_groups or MOST_READS)
    ]


def share_out(sizes: Sequence[int], most_bytes: int, count: int) -> Iterator[range]:
    """Yield groups of neighbouring files: a large file alone, and small files together in about `count` groups."""
    each = -(-len(sizes) // count)
    start = total = 0
    for at, size in enumerate(sizes):
        if at > start and (at - start >= each or total + size > most_bytes):
            yield range(start, at)
            start, total = at, 0
        total += size
    if sizes:
        yield range(start, len(sizes))
