"""A search in a store: it runs in a working folder here, and the store has all that it needs to go on elsewhere.

Trials see only the working folder, as in a search in a folder. The process that called `fit` sends changes to the store
after each report with a checkpoint, and otherwise every few seconds. It sends committed checkpoints first, each whole
or not at all (`hocket.stores.commits`), then the log, and then removes the checkpoints that the search no longer keeps.
So the log in the store never names a checkpoint that is missing. Files beside the checkpoints, such as the output of
trials, follow when the search ends.

The working folder is one of `hocket.train.checkpoints.replica`. A restored search first fetches all its files.
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
"""The greatest age of the log in the store, as long as trials report. A guess."""

_State = tuple[int, ...]


@final
class StoredSearch:
    """The writer of a search's folder in a store, in the process of `fit`. One thread uses it.

    Args:
        place: The search's folder in the store.
        folder: The working folder.
        clock: Returns seconds.
    """

    def __init__(self, place: places.Place, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._folder, self._clock = place, folder, clock
        self._shelf = replica.open_shelf(place)
        self._token = ""
        self._next = 0.0
        self._kept: dict[str, _State] = {}
        """The checkpoints in the store, by path relative to the search's folder, each with its manifest's state."""
        self._sent: dict[str, _State] = {}

    def open(self, *, is_new: bool) -> None:
        """Become the only writer of the store's folder, remove half-done work, and fetch the rest.

        Args:
            is_new: Whether a new search begins. Then fetch only the files to rename, and make the trials' folders.
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
        """Send changes, if a trial has just saved a checkpoint or the last sending was long ago."""
        if is_saved or self._clock() >= self._next:
            self._settle()
            self._next = self._clock() + _INTERVAL_SECONDS

    def close(self) -> None:
        """Send all remaining files, and let another writer in."""
        self._settle()
        for outer, inner, names in os.walk(self._folder):
            inner[:] = [name for name in inner if not name.startswith(".")]
            if os.path.relpath(outer, self._folder) in self._kept:
                inner.clear()
            else:  # a trial may have changed a copy of a checkpoint; without its manifest it is plain files
                self._send_files(outer, [name for name in names if name != storage.MANIFEST_NAME])
        self._shelf.release(self._token)

    def _settle(self) -> None:
        self._shelf.check_claim(self._token)
        here = self._find_kept()
        for path in [path for path, state in here.items() if self._kept.get(path) != state]:
            outer, name = os.path.split(path)
            shelf = replica.open_shelf(self._place.join(outer))
            if path in self._kept:  # another checkpoint of the same name
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
        """Return the state of a checkpoint's manifest; None for a copy under another name, which is plain files."""
        try:
            state = _read_state(folder / storage.MANIFEST_NAME)
        except FileNotFoundError:  # a trial has removed it meanwhile
            return None
        if self._kept.get(os.path.relpath(folder, self._folder)) == state:
            return state
        manifest = storage.get_optional_manifest(folder)
        return state if manifest is None or storage.is_own(folder.name, manifest) else None

    def _send_files(self, outer: str, names: list[str]) -> None:
        """Send the changed files of a folder, the log last."""
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
    """Make a search's working folder and fill it from the store; keep other searches out of it in the block; remove it.

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
                with contextlib.suppress(exceptions.StoreError, OSError):  # the store may be the part that failed
                    search.close()
                raise
            search.close()
    except train_errors.TrainingFailedError as error:
        raise errors.TuneError(str(error)) from error


@contextlib.contextmanager
def brought(place: places.Place, *names: str) -> Iterator[Path]:
    """Yield a temporary folder with those of the named files that the search's folder has."""
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                files.bring(place, name, Path(folder), 0)
        log.check_folder(folder, place.shown)
        yield Path(folder)


def list_committed(place: places.Place) -> set[str]:
    """Return the committed checkpoints of a search, by path relative to its folder."""
    return find_committed(files.list_sizes(place))


def find_committed(paths: dict[str, int]) -> set[str]:
    """Return the folders that have a manifest, from the paths of all files."""
    return {outer for outer, _, name in (path.rpartition("/") for path in paths) if name == storage.MANIFEST_NAME}


def _is_in(path: str, folders: dict[str, _State]) -> bool:
    return any(str(outer) in folders for outer in Path(path).parents)


def _read_state(file: Path) -> _State:
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino
