"""Forbidden leftovers of a session: processes, descriptors, threads, shared memory, files."""

from __future__ import annotations

import gc
import os
import re
import socket
import struct
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

import psutil

SETTLE_SECONDS = 2.0
"""Seconds that leftovers may take to vanish: the promise for a killed driver. A clean shutdown leaves none at once."""


@dataclass(frozen=True)
class Leftovers:
    """A snapshot of this process's resources, for comparison with a later one.

    Example:
        >>> from hocket.testing import Leftovers
        >>> before = Leftovers.look()
        >>> before.list_new()
        []
    """

    processes: frozenset[int]
    descriptors: frozenset[str]
    threads: frozenset[str]
    shared_memory: frozenset[str]
    files: frozenset[str] = frozenset()
    """Spill files with names, among the system's temporary files."""

    @classmethod
    def look(cls) -> Leftovers:
        """Take a snapshot."""
        descriptors = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if target.startswith(("socket:", "pipe:", "anon_inode:", "/memfd:hocket")) or _is_spill_file(target):
                descriptors.add(f"{name} -> {target}")
        temporary = tempfile.gettempdir()
        return cls(
            files=frozenset(
                os.path.join(temporary, name) for name in os.listdir(temporary) if name.startswith("hocket-spill-")
            ),
            processes=frozenset(child.pid for child in psutil.Process().children(recursive=True)),
            descriptors=frozenset(descriptors),
            threads=frozenset(thread.name for thread in threading.enumerate() if thread.name.startswith("hocket")),
            shared_memory=frozenset(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else frozenset(),
        )

    def list_new(self) -> list[str]:
        """Return the resources that were not in this snapshot, after waiting a moment for them to vanish."""
        new = self._compare(Leftovers.look())
        if new:
            gc.collect()  # JAX also lets go of memory that it was lent then, or when it is next used
        deadline = time.monotonic() + SETTLE_SECONDS
        while new and time.monotonic() <= deadline:
            time.sleep(0.01)
            new = self._compare(Leftovers.look())
        return new

    def _compare(self, now: Leftovers) -> list[str]:
        opened = sorted(name for name in now.descriptors - self.descriptors if not _is_of_ray(name))
        return [
            *(f"process {pid}" for pid in sorted(now.processes - self.processes)),
            *(f"descriptor {name}{_describe_socket(name)}" for name in opened),
            *(f"thread {name}" for name in sorted(now.threads - self.threads)),
            *(f"shared memory {name}" for name in sorted(now.shared_memory - self.shared_memory)),
            *(f"file {name}" for name in sorted(now.files - self.files)),
        ]


def _is_of_ray(name: str) -> bool:
    """Return whether a socket is one of Ray's, by IPv6. Hocket's own sessions use no network sockets.

    If Ray is loaded, its threads connect to its processes at any time."""
    fd, _, target = name.partition(" -> ")
    if "ray._raylet" not in sys.modules or not target.startswith("socket:"):
        return False
    try:
        with socket.socket(fileno=os.dup(int(fd))) as found:
            return found.family == socket.AF_INET6 and found.type == socket.SOCK_STREAM
    except OSError:  # the socket is gone meanwhile
        return True


def _describe_socket(name: str) -> str:
    """Return a socket's kind and the process at its other end, as far as they are known."""
    fd, _, target = name.partition(" -> ")
    if not target.startswith("socket:"):
        return ""
    try:
        with socket.socket(fileno=os.dup(int(fd))) as found:
            peer = ""
            if found.family == socket.AF_UNIX:
                pid, _, _ = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                peer = f", made by pid {pid}"
            return f" ({found.family.name} {found.type.name}, at {found.getsockname()!r}{peer})"
    except OSError:  # the socket is gone meanwhile
        return ""


def _is_spill_file(target: str) -> bool:
    """Return whether a descriptor's target is a spill file without a name, which still takes space on the disk."""
    return re.search(r"/(#\d+|hocket-spill-\w+) \(deleted\)$", target) is not None
