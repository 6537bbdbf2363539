"""The log of a search: one file, to which one writer appends a line for each event.

The log guarantees:

- **The log is complete.** Resumed searches, results and programs that watch a running search read this file alone. All
  other files of the writer can be made from it.
- **A kill at any byte loses no earlier line.** The writer only appends, one write a line. A line without its end is the
  rest of a killed writer: readers skip it, and the next writer cuts it off. A dying process leaves its written lines to
  the operating system; a machine that loses power may lose the last seconds.
- **One writer.** It holds a lock on the file, which the operating system releases however the process ends.

Each line is a JSON object (`hocket.tune.encoding`). Its ``event`` names the event:

==========  ================================================================================================
event       meaning: other keys of the line
==========  ================================================================================================
session     A search begins or goes on: ``time``, ``version``, ``seed``, ``prefix``, ``name``, ``metric``, ``mode``.
trial       A trial was proposed: ``id``, ``number``, ``config``, ``tag``, ``folder``.
start       The trial begins or goes on: ``id``, ``time``, ``attempt``; it goes on from ``iteration``, ``checkpoint``.
process     The trial runs in a process: ``id``, ``pid``, ``host``.
report      The trial has reported: ``id``, ``metrics``, ``time``, ``seconds`` since its last report, ``checkpoint``,
            and the decisions at that report, about any trial: ``acts``.
save        The trial has saved a checkpoint that belongs to its last report: ``id``, ``checkpoint``.
pause       A scheduler has paused the trial: ``id``.
exploit     It takes over another trial's state: ``id``, ``source``, ``config``, ``tag``, ``checkpoint``, ``iteration``.
retry       The trial failed, and will be tried again: ``id``, ``error``.
revive      The trial had ended, and goes on all the same: ``id``, ``restarts``.
end         The trial has ended: ``id``, ``status``, ``reason``, ``error`` (text), ``cause`` (the exception).
==========  ================================================================================================
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, final

from hocket._base import showing, texts
from hocket.observe.runs import log as run_log
from hocket.stores import local_files, names, trust
from hocket.tune import encoding, errors

NAME: Final = "search.jsonl"
"""The log's name in the folder of a search."""

VERSION: Final = 1
"""The format's version, in the first line. A reader of an older version refuses a newer log."""


@final
class Writer:
    """The writer of a search's log. One thread uses it.

    Args:
        folder: The search's folder, which exists.

    Raises:
        TuneError: Another process writes to it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._descriptor = _open_locked(self.path)
        self._cut()
        showing.note_log(self.path)

    def _cut(self) -> None:
        """Remove the unfinished line of a killed writer."""
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
        """Append a line."""
        line = encoding.encode({"event": event, **record})
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
        except OSError as error:
            self._cut()
            raise errors.TuneError(
                f"The log of the search cannot be written: {str(self.path)!r}: {error.strerror or error}. It holds "
                "everything up to this point. Free disk space, and go on with Tuner.restore(...)."
            ) from error

    def close(self) -> None:
        """Release the lock, so that another writer may open the log."""
        os.close(self._descriptor)


def _open_locked(path: Path) -> int:
    """Open a log for one writer; create the file if needed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise errors.TuneError(
            f"The search in {str(path.parent)!r} is still running: another fit(), here or in another process, has not "
            "returned. Wait for it, or give RunConfig(name=...) another name."
        ) from None
    except OSError:  # file systems without locks (NFS) keep no writer out
        pass
    return descriptor


def name_earlier(prefix: str) -> str:
    """Return the name of an earlier search's log that was set aside, from the prefix of its trials' ids."""
    return f"search-{prefix}.jsonl"


def choose(folder: str | os.PathLike[str], prefix: str) -> str:
    """Return the name of the log that holds the search with a prefix: a log that was set aside, or the latest."""
    earlier = name_earlier(prefix)
    return earlier if names.join(folder, earlier, "A search's prefix").exists() else NAME


def set_aside(folder: Path, setup: str) -> str:
    """Rename the log of an earlier search, and its tuner's `setup` file, to make room for a new search in the folder.

    Return the earlier search's prefix; empty if there is none. Unpickle nothing, as a new search trusts no file.
    """
    path = folder / NAME
    try:
        with local_files.open_regular(path) as file:
            first = file.readline(local_files.MOST_BYTES)
    except FileNotFoundError:
        return ""
    if not first.endswith(b"\n"):
        return ""
    found = re.search(rb'"prefix": ?"([0-9a-f]{6})"', first)
    prefix = found[1].decode() if found else ""
    if not prefix or (folder / name_earlier(prefix)).exists():
        prefix = secrets.token_hex(3)
    descriptor = _open_locked(path)
    try:
        with contextlib.suppress(FileNotFoundError):  # first: a log alone is set aside the next time
            (folder / setup).rename(folder / setup.replace(".", f"-{prefix}.", 1))
        path.rename(folder / name_earlier(prefix))
    finally:
        os.close(descriptor)
    return prefix


def read(
    folder: str | os.PathLike[str], opener: trust.Opener | None = None, name: str = NAME
) -> Iterator[dict[str, Any]]:
    """Yield the records of a search, from the first to the last whole one, also while a writer appends.

    Args:
        folder: The log's folder.
        opener: See `encoding.decode`.

    Raises:
        FileNotFoundError: There is no log.
        TuneError: A line in the middle is damaged, or a newer version wrote the log.
        UntrustedFolderError: The opener refuses.
    """
    path = Path(folder, name)
    with local_files.open_regular(path) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = encoding.decode(line, opener)
                version = record.get("version") if record["event"] == "session" else None
                if type(version) is int and version > VERSION:
                    raise errors.TuneError(
                        f"{str(path)!r} was written by a newer Hocket (its log's version is {version}, this one reads "
                        f"{VERSION}). Read it with that version."
                    )
                if number == 1 and record["event"] != "session":
                    raise ValueError("a log must begin with a session")
                _check(record, path)
            except (ValueError, RecursionError) as error:
                raise errors.TuneError(
                    f"Line {number} of {str(path)!r} is damaged: {error}. Searches only append to this file. Has "
                    "another program written to it?"
                ) from error
            yield record


def _check(record: dict[str, Any], path: Path) -> None:
    """Raise ValueError if a record's values do not fit its event, or if its names lead out of the search's folder."""
    event = record["event"]
    for rule in _RULES.get(event, "id:?text").split():
        key, _, kind = rule.partition(":")
        value = record.setdefault(key, None)
        if not ((value is None and kind[0] == "?") or _KINDS[kind.lstrip("?")](value)):
            raise ValueError(f"{key!r} of a {event!r} record cannot be {texts.safe_repr(value)}")
        if kind.endswith("name") and value is not None:
            names.check(value, f"The log {str(path)!r}", is_single=True)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "text": lambda value: isinstance(value, str),
    "name": lambda value: isinstance(value, str),
    "flag": lambda value: isinstance(value, bool),
    "dict": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "count": _is_count,
    "seconds": lambda value: type(value) in (int, float) and 0 <= value <= run_log.MOST_TIME,
    "status": lambda value: value in ("TERMINATED", "ERROR"),
    "acts": lambda value: isinstance(value, list) and all(map(_is_act, value)),
    "keeps": lambda value: isinstance(value, list) and len(value) == 3 and value[1] in ("min", "max"),
    "any": lambda _: True,
}


def _is_act(value: object) -> bool:
    parts = {"stop": 3, "pause": 2, "exploit": 5}  # see `hocket.tune.run.controls`
    is_list = isinstance(value, list) and len(value) > 1 and isinstance(value[0], str) and isinstance(value[1], str)
    return is_list and len(value) == parts.get(value[0])  # type: ignore[arg-type, index]


_RULES: Final[Mapping[str, str]] = {
    "session": "time:seconds seed:?count version:?count prefix:?text metric:?text mode:?text keeps:?keeps",
    "trial": "id:text number:count config:dict tag:text folder:name",
    "start": "id:text attempt:count iteration:count checkpoint:?name",
    "process": "id:text pid:count host:text",
    "report": "id:text metrics:dict time:seconds seconds:seconds checkpoint:?name acts:?acts",
    "save": "id:text checkpoint:name",
    "pause": "id:text",
    "exploit": "id:text source:text config:dict tag:text checkpoint:name iteration:count seconds:?seconds",
    "retry": "id:text",
    "revive": "id:text restarts:flag",
    "end": "id:text status:status reason:?text error:?text cause:any",
    "callbacks": "states:list",
}
"""The values of each event's record, by key and kind. ``?`` marks a value that may be missing or null."""


def check_folder(folder: str | os.PathLike[str], shown: str | None = None) -> Mapping[str, object]:
    """Return the first record of a search's log.

    Args:
        folder: The log's folder.
        shown: The folder's name in the error. Default: `folder`.

    Raises:
        TuneError: The folder has no log, or the log is empty.
    """
    try:
        return next(read(folder))
    except (OSError, StopIteration):
        raise errors.TuneError(
            f"There is no search in {shown or os.fspath(folder)!r}: it has no {NAME}. Pass the folder of a search: "
            "RunConfig.storage_path with RunConfig.name, or ResultGrid.experiment_path."
        ) from None
