"""Folders for rows that do not fit into memory.

The process that makes a folder removes it. After a kill, the next process that needs a folder removes it.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator

from hocket.stores import working_folders

_PREFIX = "hocket-data-"


@contextlib.contextmanager
def make_folder() -> Iterator[str]:
    """Yield the path of a new folder, which is removed after the ``with`` block."""
    remove_left()
    folder = working_folders.WorkingFolder(_PREFIX)
    try:
        yield folder.path
    finally:
        folder.remove()


def remove_left() -> None:
    """Remove the folders of dead processes."""
    working_folders.sweep(_PREFIX)


def keep_folder() -> working_folders.WorkingFolder:
    """Return a new folder, which is removed when this process ends."""
    remove_left()
    folder = working_folders.WorkingFolder(_PREFIX)
    atexit.register(folder.remove)
    return folder
