"""Folders of this machine that are there whole or not at all, also when they take the place of others.

A folder called ``N`` is filled under the name ``.N.new``. Then its files and folders are synced, and one rename makes
it ``N``. An earlier ``N`` is called ``.N.old`` just before, and is removed after that. A kill leaves:

================================  ====================================================================================
before the first rename           ``N`` as it was, and ``.N.new``, half or whole
between the two                   no ``N``; ``.N.new`` and ``.N.old`` are whole, and `AtomicFolder.find` gives the old
                                  one
after the second                  the new ``N``, and ``.N.old``
================================  ====================================================================================

The next one that is written there, or removed, sweeps what was left.

A symbolic link called ``N`` is replaced as a folder would be, also if it points nowhere: the new ``N`` is a folder, and
what the link pointed to stays as it was. Nothing is removed through a link.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import final

from hocket.stores import local_files


@final
class AtomicFolder:
    """A place for a folder that is written by one process at a time.

    Args:
        path: Where it is, or will be.
        syncs: Whether a crash of the machine may lose nothing.
    """

    def __init__(self, path: Path, *, syncs: bool = True) -> None:
        if path.name in ("", ".."):
            raise ValueError(
                f"{str(path)!r} is a folder that is there, and cannot be replaced as a whole. Give the path of a "
                f"folder in it, such as {str(path / 'checkpoint')!r}."
            )
        self.path = path
        self._syncs = syncs
        self._new, self._old = (path.with_name(f".{path.name}.{end}") for end in ("new", "old"))

    def find(self) -> Path:
        """Return where the folder is: at its path, or, if a process was killed while it was replaced, beside that."""
        is_between = _is_there(self._new) and _is_there(self._old) and not _is_there(self.path)
        return self._old if is_between else self.path

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """Give an empty folder, which is put in the place at the end of the block. If the block fails, what was there
        stays."""
        self.sweep()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._new.mkdir()
            yield self._new
            if self._syncs:
                for found in self._new.rglob("*"):
                    if not found.is_dir():
                        local_files.sync(found)
            self.take(self._new)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one
                self.sweep()
            raise

    def take(self, folder: Path) -> None:
        """Put a folder of the same disk in the place. Its files are synced already."""
        if self._syncs:
            for inner, _, _ in os.walk(folder, onerror=_raise):
                local_files.sync(Path(inner))
        if _is_there(self.path):
            _remove(self._old)
            self.path.rename(self._old)
        folder.rename(self.path)
        if self._syncs:
            local_files.sync(self.path.parent)
        _remove(self._old)

    def sweep(self) -> None:
        """Put an interrupted replacement right, and remove what it has left."""
        if self.find() == self._old:
            self._old.rename(self.path)
        for left in (self._new, self._old):
            _remove(left)


def remove(folder: Path, bin_folder: Path) -> None:
    """Remove a folder at one moment: a kill leaves no half of it where folders are looked for.

    Args:
        folder: What is removed.
        bin_folder: Where the folder is until all its files are gone, on the same disk; the name is free.
    """
    with contextlib.suppress(OSError):  # then it is removed where it is
        bin_folder.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(bin_folder)
        folder = bin_folder
    shutil.rmtree(folder, ignore_errors=True)


def _is_there(path: Path) -> bool:
    """Tell whether there is something of that name, be it a link that points nowhere."""
    return os.path.lexists(path)


def _remove(path: Path) -> None:
    """Remove a folder, or a link and not what it points to; whatever else has the name stays."""
    if path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _raise(error: OSError) -> None:
    """Raise what a walk would leave out with all that is below it."""
    raise error
