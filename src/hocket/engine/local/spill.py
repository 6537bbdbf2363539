"""Spill files: files without a name, for objects that memory has no room for.

A spill file is made with ``O_TMPFILE``: it has an inode and no entry in any folder. The system frees it with its last
descriptor and mapping, however the processes of the session end, exactly as it does with a memfd. So nothing has to be
cleaned up, now or at the next start, and no other user can open it. On a file system that cannot do this (NFS, some
overlays), the file is made under a random name and unlinked at once, before anything is written.

The price: ``du`` does not see the space. ``df`` does, and so does ``statistics()["spilled_bytes"]``.
"""

from __future__ import annotations

import os

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems in memory: spilling to them would free nothing."""

SECOND_CHOICE = "/var/tmp"  # noqa: S108 (a folder that tempfile.gettempdir would also return; files in it have no name)


def choose_folder() -> str:
    """Return the folder for spill files: the one for temporary files, or ``/var/tmp`` if only that is on a disk."""
    import tempfile  # imported here: with its own imports, it would slow down every worker's start

    folder = tempfile.gettempdir()
    if _find_file_system(folder) in MEMORY_FILE_SYSTEMS and _find_file_system(SECOND_CHOICE) not in MEMORY_FILE_SYSTEMS:
        return SECOND_CHOICE if os.access(SECOND_CHOICE, os.W_OK | os.X_OK) else folder
    return folder


def _find_file_system(path: str) -> str:
    """Return the type of the file system that holds the path; empty if unknown."""
    path = os.path.realpath(path)
    best, kind = "", ""
    try:
        with open("/proc/self/mounts") as mounts:
            lines = mounts.readlines()
    except OSError:
        return ""
    for line in lines:
        _, point, found, *_ = line.split(" ")
        if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
            best, kind = point, found
    return kind


def open_file(folder: str) -> int:
    """Return the descriptor of a new file without a name, for reading and writing, of this user only."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        path = os.path.join(folder, f"hocket-spill-{os.urandom(8).hex()}")
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.unlink(path)
        return fd


def copy_segment(fd: int, size: int, folder: str) -> int:
    """Copy a segment to a new file; return its descriptor, for reading only."""
    target = open_file(folder)
    try:
        done = 0
        while done < size:
            count = os.sendfile(target, fd, done, size - done)
            if not count:
                raise OSError(f"the segment ended after {done} of {size} bytes")
            done += count
        return reopen_read_only(target)
    finally:
        os.close(target)


def reopen_read_only(fd: int) -> int:
    """Return a descriptor for reading only: a private mapping needs no more, and no reader can harm the others."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def find_free_bytes(folder: str) -> int:
    """Return the free bytes for spill files; 0 if the folder cannot be read."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
