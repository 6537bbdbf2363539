"""Folders for what does not fit into memory. Who makes one removes it; what a killed process has left, the next one."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

_NAME = re.compile(r"hocket-data-(\d+)-.*")


@contextlib.contextmanager
def make_folder() -> Iterator[str]:
    """Give a folder, which is removed after the block."""
    remove_left()
    with tempfile.TemporaryDirectory(prefix=f"hocket-data-{os.getpid()}-") as folder:
        yield folder


def remove_left() -> None:
    """Remove the folders of processes that are dead."""
    for path in Path(tempfile.gettempdir()).glob("hocket-data-*"):
        found = _NAME.fullmatch(path.name)
        if found is not None and not psutil.pid_exists(int(found.group(1))):
            shutil.rmtree(path, ignore_errors=True)  # another user's stays


def keep_folder() -> str:
    """Return a new folder, which is removed when this process ends; after a kill, by the next that needs one."""
    remove_left()
    folder = tempfile.mkdtemp(prefix=f"hocket-data-{os.getpid()}-")
    atexit.register(_remove_own, folder, os.getpid())
    return folder


def _remove_own(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # and not in a fork, which the folder is not of
        shutil.rmtree(folder, ignore_errors=True)
