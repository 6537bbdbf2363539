"""Working folders: folders of this user among files of others, as below ``/tmp``.

*Problem.* Anybody may make anything there under any name: a link at the name of a folder of ours leads to files that we
would remove, and a folder of his receives our pickles. Processes of two containers may share the place; there a process
id names another process, or none, and says nothing of who is alive.

*How.* A new folder has a name that nobody can guess, and is made with mode 0700. A file in it is locked as long as its
process lives: the kernel keeps that lock by inode, for all namespaces, and lets go of it with the process. A folder of
ours whose lock nobody holds is left over, and `sweep` removes it. It is looked at and emptied through descriptors that
were opened without following links, and only if it is this user's and nobody else may write to it.

*Limits.* A fork that outlives its process holds the lock on. A file system without locks keeps what is left there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final, final

LOCK_NAME: Final = ".lock"

_REMOVE_SECONDS: Final = 10.0  # how long a process that is being killed may go on to write there. A guess
_MOST_TRIES: Final = 100  # at a folder that is removed while it is made; one does, unless somebody is after us
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
        for left in reversed(range(_MOST_TRIES)):
            self.path = str(Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).absolute())  # as `sweep` has it
            try:
                self._lock = _take(self.path, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, FileNotFoundError):  # another process has swept it
                if not left:
                    raise
        self._made = os.lstat(self.path)
        os.write(self._lock, label.encode())

    def remove(self) -> None:
        """Remove it. In a fork, which the folder is not of, do nothing."""
        if self._pid == os.getpid():
            remove(self.path, self._made)
            with contextlib.suppress(OSError):
                os.close(self._lock)
            self._pid = 0


def claim(prefix: str, label: str, parent: str | None = None) -> WorkingFolder | None:
    """Return a new folder with a label that no other folder has; None if a living process has one.

    What is left over there is removed.
    """
    for look in range(_LOOKS):
        time.sleep(random.uniform(0, 0.01 * look))  # noqa: S311 (two that have met shall not meet again)
        folder = WorkingFolder(prefix, parent, label)
        held = sweep(prefix, parent)
        if all(found != label or path == folder.path for path, found in held.items()):
            return folder
        folder.remove()
    return None


def join(path: str) -> int:
    """Make a folder whose name only processes of ours know, unless one of them has made it; hold it together.

    Returns:
        The lock's descriptor. The folder is held until it is closed everywhere.

    Raises:
        PermissionError: Somebody else has made it.
        OSError: It cannot be made.
    """
    for left in reversed(range(_MOST_TRIES)):
        with contextlib.suppress(FileExistsError):
            Path(path).mkdir(0o700)
        try:
            _check_private(path)
            return _take(path, fcntl.LOCK_SH)
        except FileNotFoundError:  # as above
            if not left:
                raise
    raise AssertionError


def sweep(prefix: str, parent: str | Path | None = None) -> dict[str, str]:
    """Remove the folders of this user that no living process holds; return the labels of the others, by path."""
    held: dict[str, str] = {}
    parent = Path(tempfile.gettempdir() if parent is None else parent).absolute()
    with contextlib.suppress(OSError):  # it cannot be listed
        for path in map(str, Path(parent).glob(f"{prefix}*")):
            with contextlib.suppress(OSError):  # another user's, a link, removed by another process
                label = _sweep_one(path)
                if label is not None:
                    held[path] = label
    return held


def _sweep_one(path: str) -> str | None:
    folder = _open_own(path)
    try:
        lock = os.open(LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        Path(path).rmdir()  # if it is empty: its process ended before it had the lock, or makes another one
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
    with contextlib.suppress(FileNotFoundError):
        while True:
            try:
                return _empty(path, made)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or time.monotonic() > deadline:
                    return None
            time.sleep(0.005)


def _empty(path: str, made: os.stat_result | None = None) -> None:
    """Remove a folder, its lock last: what cannot be removed now is left over for `sweep`."""
    folder = _open_own(path, made)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.name, ignore_errors=True, dir_fd=folder)
                elif entry.name != LOCK_NAME:
                    os.unlink(entry.name, dir_fd=folder)
        with contextlib.suppress(FileNotFoundError):
            if os.listdir(folder) == [LOCK_NAME]:  # noqa: PTH208 (by descriptor)
                os.unlink(LOCK_NAME, dir_fd=folder)
        Path(path).rmdir()
    finally:
        os.close(folder)


def _open_own(path: str, made: os.stat_result | None = None) -> int:
    """Return the descriptor of a folder that is this user's alone to write to, or that this process has made.

    Raises:
        OSError: It is not, or a link.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(folder)
    is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o022
    if is_own or (made is not None and os.path.samestat(found, made)):
        return folder
    os.close(folder)
    raise PermissionError(errno.EPERM, "another user may write there", path)


def _check_private(path: str) -> None:
    """Raise if a folder is not one that only this user may enter."""
    try:
        os.close(_open_own(path))
        if not os.lstat(path).st_mode & 0o077:
            return
    except FileNotFoundError:
        raise
    except OSError:
        pass
    raise PermissionError(
        errno.EPERM,
        "The working folder is there already, and it is a link, another user's, or open to others: nothing of yours is "
        "written there. Remove it, or set TMPDIR to a folder of your own; it is",
        path,
    )


def _take(path: str, kind: int) -> int:
    """Return the descriptor of a folder's lock, which is held.

    Raises:
        BlockingIOError: Another process holds it.
        FileNotFoundError: The folder was removed meanwhile.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(LOCK_NAME, flags, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        fcntl.flock(lock, kind)
    except BlockingIOError:
        os.close(lock)
        raise
    except OSError:  # a file system without locks
        return lock
    if not os.fstat(lock).st_nlink:
        os.close(lock)
        raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile", path)
    return lock
