"""Working folders: folders of this user among files of others, as below ``/tmp``.

*Problem.* Anybody may make anything there under any name: a link at the name of a folder of ours leads to files that we
would remove, and a folder of his receives our pickles. Processes of two containers may share the place; there a process
id names another process, or none, and says nothing of who is alive.

*How.* A new folder has a name that nobody can guess, and is made with mode 0700. A file in it is locked as long as its
process lives: the kernel keeps that lock by inode, for all namespaces, and lets go of it with the process. A folder of
ours whose lock nobody holds is left over, and `sweep` removes it, through descriptors that were opened without
following links, and only if it is this user's and nobody else may write to it.

*Limits.* A fork that outlives its process holds the lock on. A file system without locks keeps what is left there.
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

_REMOVE_SECONDS: Final = 10.0  # how long a process that is being killed may go on to write there. A guess
_LOOKS: Final = 4  # of `claim`, since two that begin at the same moment see each other
_MOST_LABEL: Final = 1000  # bytes


@final
class WorkingFolder:
    """A new folder of a random name, held until `remove`, or until this process ends.

    Args:
        prefix: How its name begins.
        parent: Where it is made. Default: among the temporary files.
        label: What others learn from `sweep` as long as it is held.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, prefix: str, parent: str | None = None, label: str = "") -> None:
        self._pid = os.getpid()
        lock = None
        while lock is None:  # another process may sweep it before it is locked
            self.path = str(Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).absolute())  # as `sweep` has it
            lock = _take(self.path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._lock = lock
        self._made = os.lstat(self.path)
        os.write(lock, label.encode())

    def remove(self) -> None:
        """Remove it, once. A fork, which the folder is not of, does nothing."""
        if self._pid == os.getpid():
            remove(self.path, self._made)
            os.close(self._lock)
            self._pid = 0


def claim(prefix: str, label: str) -> WorkingFolder | None:
    """Return a new folder with a label that no other folder has; None if a living process has one. What is left over
    there is removed."""
    for look in range(_LOOKS):
        time.sleep(random.uniform(0, 0.01 * look))  # noqa: S311 (two that have met shall not meet again)
        folder = WorkingFolder(prefix, label=label)
        if all(found != label or path == folder.path for path, found in sweep(prefix).items()):
            return folder
        folder.remove()
    return None


def join(path: str) -> int:
    """Make a folder whose name only processes of ours know, unless one of them has made it; hold it together.

    Returns:
        The lock's descriptor. The folder is held until it is closed everywhere.
    """
    lock = None
    while lock is None:  # as above
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
            "The working folder is there already, and it is a link, another user's, or open to others: nothing of "
            "yours is written there. Remove it, or set TMPDIR to a folder of your own; it is",
            path,
        )


def sweep(prefix: str, parent: str | Path | None = None) -> dict[str, str]:
    """Remove the folders of this user that no living process holds; return the labels of the others, by path."""
    held: dict[str, str] = {}
    for path in Path(tempfile.gettempdir() if parent is None else parent).absolute().glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another user's, a link, removed by another process
            label = _sweep_one(path)
            if label is not None:
                held[str(path)] = label
    return held


def _sweep_one(path: Path) -> str | None:
    folder = _open_own(path)
    try:
        lock = os.open(_LOCK_NAME, _LOCK_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        path.rmdir()  # if it is empty: its process ended before it had the lock, or makes another one
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
    """Remove a folder of this user, and wait for a process that is being killed and still writes there.

    Args:
        path: The folder's. A link, and what another user may write to, stays.
        made: What the folder was when this process made it: some file systems give all that they have to everybody.
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
    """Remove a folder, its lock last: what cannot be removed now is left over for `sweep`."""
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
    """Return the descriptor of a folder that is this user's alone to write to, or that this process has made."""
    folder = os.open(path, _FOLDER_FLAGS)
    found = os.fstat(folder)
    is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o022
    if is_own or (made is not None and os.path.samestat(found, made)):
        return folder
    os.close(folder)
    raise PermissionError(errno.EPERM, "another user may write there", str(path))


def _take(path: str, kind: int) -> int | None:
    """Return the descriptor of a folder's lock, which is held; None if another process sweeps the folder."""
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
    except OSError as error:  # a file system without locks, or somebody who sweeps
        is_swept = isinstance(error, BlockingIOError)
    if not is_swept:
        return lock
    os.close(lock)
    return None
