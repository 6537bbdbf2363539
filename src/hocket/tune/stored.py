"""A search that is kept in a store: it goes on in a working folder of this machine, and the store has what is needed to
go on elsewhere.

Trials see the working folder only, as those of a search in a folder. The process that called `fit` sends: after each
report with a checkpoint, and else now and then, first what trials have committed, each whole or not at all
(`hocket.stores.commits`), then the log, and then it removes what the search no longer keeps. So the log in the store
never speaks of a checkpoint that is not there. Files beside the checkpoints, such as what trials print, are sent when
the search ends.

The working folder is one of `hocket.train.checkpoints.replica`. When a search is restored, all that it has is brought.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, final

from hocket import exceptions
from hocket.stores import commits, files, places
from hocket.train import errors as train_errors
from hocket.train.checkpoints import checkpoint as checkpoints
from hocket.train.checkpoints import replica, storage
from hocket.tune import errors, log

_INTERVAL_SECONDS: Final = 10.0
"""How old the log in the store may be, as long as trials report. A guess."""

_State = tuple[int, ...]


@final
class StoredSearch:
    """The side of `fit` of a search's folder in a store. Used by one thread.

    Args:
        place: The search's folder there.
        folder: The working folder.
        clock: Returns seconds.
    """

    def __init__(self, place: places.Place, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._folder, self._clock = place, folder, clock
        self._shelf = replica.open_shelf(place)
        self._token = ""
        self._next = 0.0
        self._kept: dict[str, _State] = {}
        """The checkpoints that are there, by path relative to the search's folder, each with its manifest's state."""
        self._sent: dict[str, _State] = {}

    def open(self, *, is_new: bool) -> None:
        """Become the one that writes there, remove what was left half done, and bring the rest.

        Args:
            is_new: Whether a new search begins: of an earlier one in the folder come only the files that are renamed,
                and the names of its trials' folders.
        """
        self._token = self._shelf.claim()
        marks = [path for path in files.list_sizes(self._place) if f"/{commits.PENDING}/" in path]
        for outer in {path.partition(f"/{commits.PENDING}/")[0] for path in marks}:
            replica.open_shelf(self._place.join(outer)).sweep()
        names = files.list_sizes(self._place)
        if is_new:
            for outer in {path.partition("/")[0] for path in names if "/" in path and not path.startswith(".")}:
                (self._folder / outer).mkdir()
            names = {path: size for path, size in names.items() if "/" not in path}
        for inner in find_committed(names):
            checkpoints.bring(self._place.join(inner), self._folder / inner)
        self._kept = self._find_kept()
        for path, size in names.items():
            if not (_is_in(path, self._kept) or path.startswith(".")):
                files.bring(self._place, path, self._folder, size)
                self._sent[path] = _read_state(self._folder / path)

    def follow(self, is_saved: bool) -> None:
        """Send what is new, if a trial has just saved something, or the last time was long ago."""
        if is_saved or self._clock() >= self._next:
            self._settle()
            self._next = self._clock() + _INTERVAL_SECONDS

    def close(self) -> None:
        """Send all that is left, and let others write."""
        self._settle()
        for outer, inner, names in os.walk(self._folder):
            inner[:] = [name for name in inner if not name.startswith(".")]
            if os.path.relpath(outer, self._folder) in self._kept:
                inner.clear()
            else:  # a copy of a checkpoint may have been changed since, and is none any more without its manifest
                self._send_files(outer, [name for name in names if name != storage.MANIFEST_NAME])
        self._shelf.release(self._token)

    def _settle(self) -> None:
        self._shelf.check_claim(self._token)
        here = self._find_kept()
        for path in [path for path, state in here.items() if self._kept.get(path) != state]:
            outer, name = os.path.split(path)
            shelf = replica.open_shelf(self._place.join(outer))
            if path in self._kept:  # another one of that name
                shelf.remove(name)
            try:
                shelf.commit(name, self._folder / path)
            except (FileNotFoundError, commits.DamagedError):
                if (self._folder / path).is_dir():
                    raise
                del here[path]  # a trial has removed it meanwhile
                shelf.remove(name)
        _, _, names = next(os.walk(self._folder))
        self._send_files(str(self._folder), names)
        for path in self._kept.keys() - here.keys():
            outer, name = os.path.split(path)
            replica.open_shelf(self._place.join(outer)).remove(name)
        self._kept = here

    def _find_kept(self) -> dict[str, _State]:
        """Return the checkpoints in the working folder."""
        found: dict[str, _State] = {}
        for outer, inner, names in os.walk(self._folder):
            inner[:] = [name for name in inner if not name.startswith(".")]
            state = self._find_state(Path(outer)) if storage.MANIFEST_NAME in names else None
            if state is not None:
                inner.clear()
                found[os.path.relpath(outer, self._folder)] = state
        return found

    def _find_state(self, folder: Path) -> _State | None:
        """Return the state of a checkpoint's manifest; None for a copy of a checkpoint under another name, which is
        files like others."""
        try:
            state = _read_state(folder / storage.MANIFEST_NAME)
        except FileNotFoundError:  # a trial has removed it meanwhile
            return None
        if self._kept.get(os.path.relpath(folder, self._folder)) == state:
            return state
        manifest = storage.get_optional_manifest(folder)
        return state if manifest is None or storage.is_own(folder.name, manifest) else None

    def _send_files(self, outer: str, names: list[str]) -> None:
        """Send the files of a folder that have changed; the log last."""
        for name in sorted(names, key=lambda name: (name == log.NAME, name)):
            file = Path(outer, name)
            path = os.path.relpath(file, self._folder)
            with contextlib.suppress(FileNotFoundError):  # a trial has removed it meanwhile
                state = _read_state(file)
                if self._sent.get(path) != state:
                    files.send(file, self._place.join(path))
                    self._sent[path] = state


@contextlib.contextmanager
def hold(place: places.Place, *, is_new: bool) -> Iterator[tuple[Path, StoredSearch]]:
    """Make a search's working folder, with what the store has; keep other searches out of it in the block, and then
    remove it.

    Args:
        place: The search's folder in a store.
        is_new: See `StoredSearch.open`.
    """
    try:
        with replica.hold_folder(place) as outer:
            folder = outer / place.name
            folder.mkdir()
            search = StoredSearch(place, folder)
            search.open(is_new=is_new)
            try:
                yield folder, search
            except BaseException:
                with contextlib.suppress(exceptions.StoreError, OSError):  # it may be what has failed
                    search.close()
                raise
            search.close()
    except train_errors.TrainingFailedError as error:
        raise errors.TuneError(str(error)) from error


@contextlib.contextmanager
def brought(place: places.Place, *names: str) -> Iterator[Path]:
    """Give a folder with some files of a search's own for the duration of a block: those of them that are there."""
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                files.bring(place, name, Path(folder), 0)
        log.check_folder(folder, place.shown)
        yield Path(folder)


def list_committed(place: places.Place) -> set[str]:
    """Return the checkpoints of a search, by path relative to its folder."""
    return find_committed(files.list_sizes(place))


def find_committed(paths: dict[str, int]) -> set[str]:
    """Return which folders have a manifest, by the paths of all files."""
    return {outer for outer, _, name in (path.rpartition("/") for path in paths) if name == storage.MANIFEST_NAME}


def _is_in(path: str, folders: dict[str, _State]) -> bool:
    return any(str(outer) in folders for outer in Path(path).parents)


def _read_state(file: Path) -> _State:
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino
