"""Growing logs, read from another process: whole lines, each once; and the processes that write them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, final

from hocket.stores import local_files

_CHUNK_BYTES: Final = 1 << 22


@final
class Lines:
    """The lines of a growing file.

    Args:
        path: The file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: BinaryIO | None = None
        self._offset = 0
        self._identity = 0, 0

    def close(self) -> None:
        """Close the file. The next `read` opens it again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def read(self, forget: Callable[[], None]) -> Iterator[bytes]:
        """Yield the new whole lines, also of a file that was removed in the meantime.

        Args:
            forget: Called first if the file was replaced or cut. All lines then come again.
        """
        file = self._open(forget)
        if file is None:
            return
        file.seek(self._offset)
        while chunk := file.read(_CHUNK_BYTES):
            whole = chunk[: chunk.rfind(b"\n") + 1]  # the last line may be unfinished
            if not whole:
                whole = chunk + file.readline(local_files.MOST_BYTES)
                if not whole.endswith(b"\n"):
                    return
            self._offset += len(whole)
            file.seek(self._offset)
            yield from whole.splitlines()

    def _open(self, forget: Callable[[], None]) -> BinaryIO | None:
        """Return the open file, or the file that now has its name."""
        with contextlib.suppress(OSError):
            status = self._path.stat()
            if (status.st_dev, status.st_ino) != self._identity or status.st_size < self._offset:
                if self._offset:
                    forget()
                self.close()
                self._offset, self._identity = 0, (status.st_dev, status.st_ino)
            if self._opened is None:
                self._opened = local_files.open_regular(self._path)
        return self._opened


def find_logs(folder: str | os.PathLike[str], name: str) -> list[Path]:
    """Return a folder's log of a given name or, if it has none, those of its subfolders, sorted."""
    own = Path(folder, name)
    return [own] if own.is_file() else sorted(path for path in Path(folder).glob(f"*/{name}") if path.is_file())


def list_open(pid: int, name: str) -> list[Path]:
    """Return the logs of a given name that a process is writing. Empty if the process is another user's."""
    found = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed in the meantime
                target = entry.readlink()
                if target.name == name and _is_written(pid, entry.name):
                    found.append(target)
    return found


def _is_written(pid: int, descriptor: str) -> bool:
    facts = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().split()
    return int(facts[facts.index("flags:") + 1], 8) & os.O_ACCMODE != os.O_RDONLY


def is_locked(path: Path) -> bool:
    """Return whether a process of this machine holds a `flock` lock on a file, without taking the lock."""
    with contextlib.suppress(OSError):
        number = f":{path.stat().st_ino}"
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return any(len(one) > 5 and one[1] == "FLOCK" and one[5].endswith(number) for one in held)
    return False
