"""The folder of a Ray that we start: its logs, sockets and spilled values, and the process that clears it away."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hocket.engine.ray import sweeper

_LONGEST = 42
"""How long its path may be: Ray puts sockets below it, in a folder whose name has 41 bytes, under names of 21, and the
path of a socket ends at 107 bytes."""


class Folder:
    """A new folder below the system's for temporary files.

    It is cleared away with `clear`, or when this process dies.
    """

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="hocket-ray-")
        if len(self.path) > _LONGEST:
            Path(self.path).rmdir()
            self.path = tempfile.mkdtemp(prefix="hocket-ray-", dir="/tmp")
        #: Variables that mark a process: one started with them belongs to the folder, and ends with it.
        self.environment = {sweeper.VARIABLE: self.path}
        self._sweeper = subprocess.Popen(
            [sys.executable, "-I", "-S", sweeper.__file__, self.path, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver
        )

    def clear(self) -> None:
        """End what belongs to the folder, and remove it."""
        assert self._sweeper.stdin is not None
        self._sweeper.stdin.close()
        self._sweeper.wait()
