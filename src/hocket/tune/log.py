"""The log of a search: one file, to which one writer appends a line for each thing that happens.

What the log promises:

- **It is all there is.** A search that is resumed, the results, and programs that look on while it runs read this
  file. What the writer keeps besides can be made from it.
- **A kill at any byte loses nothing that was there before.** Lines are only appended, each by one write. A line without
  its end is what a killed writer left of its last one: readers pass over it, and the next writer cuts it off. A process
  that dies leaves what it wrote to the kernel; a machine that loses power may lose the last seconds.
- **One writer.** It holds a lock on the file, which the kernel gives back when the process ends, however it ends.

Each line is a JSON object (`hocket.tune.encoding`) whose ``event`` says what happened:

==========  ================================================================================================
event       what else the line has
==========  ================================================================================================
session     A search begins or goes on: ``time``, ``version``, ``seed``, ``prefix``, ``name``, ``metric``, ``mode``.
trial       A trial was proposed: ``id``, ``number``, ``config``, ``tag``, ``folder``.
start       It begins or goes on: ``id``, ``time``, ``attempt``, ``iteration`` and ``checkpoint`` that it goes on from.
process     Which process it runs in: ``id``, ``pid``, ``host``.
report      It has reported: ``id``, ``metrics``, ``time`` and ``seconds`` since its report before, ``checkpoint``,
            and what was decided then, about it and others: ``acts``.
save        It has saved a checkpoint that belongs to its last report: ``id``, ``checkpoint``.
pause       A scheduler has set it aside: ``id``.
exploit     It goes on from another one's state: ``id``, ``source``, ``config``, ``tag``, ``checkpoint``, ``iteration``.
retry       It failed, and will be tried again: ``id``, ``error``.
revive      It had ended, and goes on all the same: ``id``, ``restarts``.
end         It has ended: ``id``, ``status``, ``reason``, ``error`` (text), ``cause`` (what was raised).
==========  ================================================================================================
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, final

from hocket import showing
from hocket.stores import regular
from hocket.tune import encoding, errors

NAME: Final = "search.jsonl"
"""The file in the folder of a search."""

VERSION: Final = 1
"""What the first line says; a reader of an older version refuses a newer log."""


@final
class Writer:
    """Appends to the log of a search. Used by one thread.

    Args:
        folder: The search's folder, which exists.

    Raises:
        TuneError: Another process writes to it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise errors.TuneError(
                f"The search in {str(folder)!r} goes on already: another fit(), here or in another process, has not "
                "returned. Wait for it, or give RunConfig(name=...) another name."
            ) from None
        except OSError:  # file systems that cannot lock (NFS) keep nobody out
            pass
        self._cut()
        showing.note_log(self.path)

    def _cut(self) -> None:
        """Remove a line that a killed writer has not finished."""
        size = os.fstat(self._descriptor).st_size
        kept = size
        while kept > 0:
            begin = max(kept - 65_536, 0)
            end = os.pread(self._descriptor, kept - begin, begin).rfind(b"\n")
            kept = begin + end + 1
            if end >= 0:
                break
        if kept < size:
            os.ftruncate(self._descriptor, kept)

    def append(self, event: str, **record: Any) -> None:
        """Append a line.

        Raises:
            TuneError: It cannot be written, as on a disk that is full. What was written before is whole.
        """
        line = encoding.encode({"event": event, **record})
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
        except OSError as error:
            self._cut()
            raise errors.TuneError(
                f"The log of the search cannot be written: {str(self.path)!r}: {error.strerror or error}. All that "
                "happened before is in it. Make room, and go on with Tuner.restore(...)."
            ) from error

    def close(self) -> None:
        """Let others write."""
        os.close(self._descriptor)


def read(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Give the records of a search, from the first to the last that is whole; also while it is written.

    Raises:
        FileNotFoundError: There is no log.
        TuneError: A line in the middle is not one of ours, or the log is of a newer version.
    """
    path = Path(folder, NAME)
    with regular.open_regular(path) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = encoding.decode(line)
            except ValueError as error:
                raise errors.TuneError(
                    f"Line {number} of {str(path)!r} is damaged: {error}. Searches only append to it; has something "
                    "else written there?"
                ) from error
            if record.get("version", VERSION) > VERSION:
                raise errors.TuneError(
                    f"{str(path)!r} was written by a newer Hocket (its log's version is {record['version']}, this one "
                    f"reads {VERSION}). Read it with that version."
                )
            yield record


def has_records(folder: str | os.PathLike[str]) -> bool:
    """Tell whether there is a search in a folder."""
    try:
        return next(read(folder), None) is not None
    except OSError:
        return False


def check_folder(folder: str | os.PathLike[str], shown: str | None = None) -> Mapping[str, object]:
    """Return the first record of a search's log.

    Args:
        folder: Where the log is.
        shown: What the folder is called in the error. Default: as it is.

    Raises:
        TuneError: There is no log in the folder, or nothing in it.
    """
    try:
        return next(read(folder))
    except (OSError, StopIteration):
        raise errors.TuneError(
            f"There is no search in {shown or os.fspath(folder)!r}: it has no {NAME}. Pass the folder of a search: "
            "RunConfig.storage_path with RunConfig.name, or ResultGrid.experiment_path."
        ) from None
