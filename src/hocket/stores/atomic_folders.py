"""Folders of this machine that exist whole or not at all, also when they replace others.

A writer fills a folder ``N`` under the name ``.N.new``, syncs its files and folders, and renames it to ``N``. Just
before, it renames an earlier ``N`` to ``.N.old``, and removes that folder afterwards. A kill leaves:

================================  ====================================================================================
before the first rename           ``N`` as it was, and ``.N.new``, half or whole
between the two renames           no ``N``; ``.N.new`` and ``.N.old`` are whole; `AtomicFolder.find` returns the old
after the second rename           the new ``N``, and ``.N.old``
================================  ====================================================================================

The next write at that path sweeps the remains.

A symbolic link called ``N`` is replaced like a folder, also if it points nowhere: the new ``N`` is a folder, and the
link's target stays as it was. Nothing is removed through a link.
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
    """A path at which one process at a time writes a folder.

    Args:
        path: The folder's path; the folder need not exist.
        syncs: Whether to sync everything to the disk, so a crash of the machine loses nothing.
    """

    def __init__(self, path: Path, *, syncs: bool = True) -> None:
        if path.name in ("", ".."):
            raise ValueError(
                f"{str(path)!r} is an existing folder, which cannot be replaced as a whole. Give the path of a folder "
                f"in it, such as {str(path / 'checkpoint')!r}."
            )
        self.path = path
        self._syncs = syncs
        self._new, self._old = (path.with_name(f".{path.name}.{end}") for end in ("new", "old"))

    def find(self) -> Path:
        """Return the folder's present path: after a kill between the two renames, this is the old folder's."""
        is_between = _is_there(self._new) and _is_there(self._old) and not _is_there(self.path)
        return self._old if is_between else self.path

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """Yield an empty folder, and move it to the path at the end of the block. If the block fails, the earlier
        folder stays."""
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
            with contextlib.suppress(OSError):  # the caller needs the first error
                self.sweep()
            raise

    def take(self, folder: Path) -> None:
        """Move a folder of the same disk to the path. The caller has synced its files."""
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
        """Restore the old folder after an interrupted replacement, and remove the remains."""
        if self.find() == self._old:
            self._old.rename(self.path)
        for left in (self._new, self._old):
            _remove(left)


def remove(folder: Path, bin_folder: Path) -> None:
    """Remove a folder at once: a kill leaves no half-removed folder at its path.

    Args:
        folder: The folder.
        bin_folder: A free path on the same disk, to which the folder moves while its files are removed.
    """
    with contextlib.suppress(OSError):  # a folder that cannot move is removed where it is
        bin_folder.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(bin_folder)
        folder = bin_folder
    shutil.rmtree(folder, ignore_errors=True)


def _is_there(path: Path) -> bool:
    """Tell whether a path exists, even as a link that points nowhere."""
    return os.path.lexists(path)


def _remove(path: Path) -> None:
    """Remove a folder, or a link but not its target; anything else stays."""
    if path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _raise(error: OSError) -> None:
    """Raise the error of a folder, which a walk would otherwise skip with all that is below it."""
    raise error
