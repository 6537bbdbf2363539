"""The folder of a Ray that we start, for its logs, sockets and spilled values, and the process that removes it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hocket.engine.ray import sweeper

_LONGEST = 42
"""The most bytes of the folder's path. Ray puts sockets below it, in a folder with a name of 41 bytes, under names of
21 bytes, and a socket's path has 107 bytes at most."""


class Folder:
    """A new folder below the system's folder for temporary files. `clear` or the death of this process removes it."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="hocket-ray-")
        if len(self.path) > _LONGEST:
            Path(self.path).rmdir()
            self.path = tempfile.mkdtemp(prefix="hocket-ray-", dir="/tmp")
        #: Environment variables that mark a process as part of the folder: it ends with the folder.
        self.environment = {sweeper.VARIABLE: self.path}
        self._sweeper = subprocess.Popen(
            [sys.executable, "-I", "-S", sweeper.__file__, self.path, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must reach only the driver
        )

    def clear(self) -> None:
        """End the processes of the folder, and remove it."""
        assert self._sweeper.stdin is not None
        self._sweeper.stdin.close()
        self._sweeper.wait()
