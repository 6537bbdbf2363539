"""Leftovers of a session, which it must not have: processes, descriptors, threads, shared memory, files."""

from __future__ import annotations

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
"""How long leftovers may take to go. The promise for a killed driver; a clean shutdown leaves none at once."""


@dataclass(frozen=True)
class Leftovers:
    """A picture of this process, to be compared with a later one.

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
    """Spill files that have a name, among the system's temporary files."""

    @classmethod
    def look(cls) -> Leftovers:
        """Take the picture."""
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
        """Return what is there now and was not in this picture; waits a moment for it to go."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            new = self._compare(Leftovers.look())
            if not new or time.monotonic() > deadline:
                return new
            time.sleep(0.01)

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
    """Tell whether a socket is one of Ray's: where Ray is loaded, its threads connect to its processes when they like,
    and by IPv6. A session of ours has sockets without a network."""
    fd, _, target = name.partition(" -> ")
    if "ray._raylet" not in sys.modules or not target.startswith("socket:"):
        return False
    try:
        with socket.socket(fileno=os.dup(int(fd))) as found:
            return found.family == socket.AF_INET6 and found.type == socket.SOCK_STREAM
    except OSError:  # it is gone meanwhile
        return True


def _describe_socket(name: str) -> str:
    """Return of which kind a socket is, and who is at its other end, as far as this process can know."""
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
    except OSError:  # it is gone meanwhile
        return ""


def _is_spill_file(target: str) -> bool:
    """Tell whether a descriptor is of a file without a name, which takes space on the disk all the same."""
    return re.search(r"/(#\d+|hocket-spill-\w+) \(deleted\)$", target) is not None
