"""Working folders: folders of this user among files of others, as below ``/tmp``.

*Problem.* Any user may create any name there. A link in place of this user's folder would lead a removal to other
files, and another user's folder would receive this user's pickles. Two containers may share ``/tmp``; a process id
means another process there, or none, and does not show which processes live.

*How.* A new folder has a name that cannot be guessed, and mode 0700. Its process keeps a lock on a file in it: the
Linux kernel holds that lock by inode, for all namespaces, and releases it when the process ends. A folder without a
holder of its lock is left over, and `sweep` removes it. A removal opens descriptors without following links, and
requires that the folder is this user's and that no other user may write to it.

*Limits.* A fork that outlives its process keeps the lock. On a file system without locks, left-over folders stay.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Final, final

_LOCK_NAME: Final = ".lock"
_LOCK_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_REMOVE_SECONDS: Final = 10.0  # how long a process that is being killed may still write there; a guess
_LOOKS: Final = 4  # tries of `claim`: two processes that begin at the same moment see each other, and both give way
_MOST_LABEL: Final = 1000  # bytes


@final
class WorkingFolder:
    """A new folder with a random name, held until `remove`, or until this process ends.

    Args:
        prefix: The beginning of its name.
        parent: The folder to make it in. Default: the folder for temporary files.
        label: A text that other processes get from `sweep` while the folder is held.

    Raises:
        OSError: The folder cannot be made.
    """

    def __init__(self, prefix: str, parent: str | None = None, label: str = "") -> None:
        self._pid = os.getpid()
        lock = None
        while lock is None:  # another process may sweep the folder before it is locked
            self.path = str(Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).absolute())  # as in `sweep`
            lock = _take(self.path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._lock = lock
        self._made = os.lstat(self.path)
        os.write(lock, label.encode())

    def remove(self) -> None:
        """Remove the folder, once. A fork, which does not own the folder, removes nothing."""
        if self._pid == os.getpid():
            remove(self.path, self._made)
            os.close(self._lock)
            self._pid = 0


def claim(prefix: str, label: str) -> WorkingFolder | None:
    """Return a new folder with a label of its own; None if a living process holds a folder with that label.

    Left-over folders are removed.
    """
    for look in range(_LOOKS):
        time.sleep(random.uniform(0, 0.01 * look))  # noqa: S311 (two that have met must not meet again)
        folder = WorkingFolder(prefix, label=label)
        if all(found != label or path == folder.path for path, found in sweep(prefix).items()):
            return folder
        folder.remove()
    return None


def join(path: str) -> int:
    """Hold a folder together with other processes of this user that know its name; make it if it is missing.

    Returns:
        The lock's descriptor. The folder is held until all these processes have closed theirs.
    """
    lock = None
    while lock is None:  # another process may sweep the folder before it is locked
        with contextlib.suppress(FileExistsError):
            Path(path).mkdir(0o700)
        with contextlib.suppress(FileNotFoundError):
            _check_private(os.lstat(path), path)
            lock = _take(path, fcntl.LOCK_SH)
    return lock


def _check_private(found: os.stat_result, path: str) -> None:
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise PermissionError(
            errno.EPERM,
            "Nothing is written to the working folder, because it is a link, belongs to another user, or is open to "
            "other users. Set TMPDIR to a folder of your own, or remove the working folder",
            path,
        )


def sweep(prefix: str, parent: str | Path | None = None) -> dict[str, str]:
    """Remove this user's folders that no living process holds; return the labels of the held folders, by path."""
    held: dict[str, str] = {}
    for path in Path(tempfile.gettempdir() if parent is None else parent).absolute().glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another user's folder, a link, or removed by another process
            label = _sweep_one(path)
            if label is not None:
                held[str(path)] = label
    return held


def _sweep_one(path: Path) -> str | None:
    folder = _open_own(path)
    try:
        lock = os.open(_LOCK_NAME, _LOCK_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        path.rmdir()  # only if empty: its process ended before it locked the folder, or makes another
        return None
    finally:
        os.close(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _empty(path)
        return None
    except BlockingIOError:
        return os.pread(lock, _MOST_LABEL, 0).decode("utf-8", "replace")
    finally:
        os.close(lock)


def remove(path: str, made: os.stat_result | None = None) -> None:
    """Remove a folder of this user; try again while a process that is being killed still writes there.

    Args:
        path: The folder. A link, or a folder that another user may write to, stays.
        made: The folder's status when this process made it, since some file systems show every folder as everybody's.
    """
    deadline = time.monotonic() + _REMOVE_SECONDS
    while True:
        try:
            return _empty(Path(path), made)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or time.monotonic() > deadline:
                return None
        time.sleep(0.005)


def _empty(path: Path, made: os.stat_result | None = None) -> None:
    """Remove a folder, its lock last: a folder that cannot be removed now is left over for `sweep`."""
    folder = _open_own(path, made)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.name, ignore_errors=True, dir_fd=folder)
                elif entry.name != _LOCK_NAME:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry.name, dir_fd=folder)
        if os.listdir(folder) == [_LOCK_NAME]:  # noqa: PTH208 (by descriptor)
            os.unlink(_LOCK_NAME, dir_fd=folder)
        path.rmdir()
    finally:
        os.close(folder)


def _open_own(path: Path, made: os.stat_result | None = None) -> int:
    """Return the descriptor of a folder that only this user may write to, or that this process has made."""
    folder = os.open(path, _FOLDER_FLAGS)
    found = os.fstat(folder)
    is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o022
    if is_own or (made is not None and os.path.samestat(found, made)):
        return folder
    os.close(folder)
    raise PermissionError(errno.EPERM, "another user may write there", str(path))


def _take(path: str, kind: int) -> int | None:
    """Lock a folder and return the lock's descriptor; None if another process sweeps the folder."""
    try:
        folder = os.open(path, _FOLDER_FLAGS)
        try:
            lock = os.open(_LOCK_NAME, _LOCK_FLAGS | os.O_CREAT, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, kind)
        is_swept = not os.fstat(lock).st_nlink
    except OSError as error:  # a file system without locks, or a process that sweeps
        is_swept = isinstance(error, BlockingIOError)
    if not is_swept:
        return lock
    os.close(lock)
    return None
