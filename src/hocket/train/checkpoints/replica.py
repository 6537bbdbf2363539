"""A run in a store: the run works in a folder of this machine, and the store has everything that is committed.

Ranks, staging, tokens and renaming work as for a run in a folder, because they see only the working folder. The driver
does the rest: it sends a checkpoint that is committed in the working folder to the store, and commits it there
(`hocket.stores.commits`), before the ranks get the acknowledgement. So a checkpoint that a rank knows is in the store,
even if this machine is lost. If the store fails, the run ends, with its earlier commits.

The working folder (`hocket.stores.working_folders`) is made anew for each `fit`, and removed at its end. So a run
always continues from the store, here or on another machine. The files of the newest checkpoint are downloaded at the
start; of the others only the manifests are read.

Files beside the checkpoints, such as those of loggers, are downloaded at the start. Changed files are sent with each
checkpoint and at the end. If a run is killed, files that it wrote after its last commit are lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

from hocket import exceptions
from hocket.stores import atomic_folders, commits, files, manifests, places, working_folders
from hocket.train import errors
from hocket.train.checkpoints import cache, kept, storage
from hocket.train.checkpoints import checkpoint as checkpoint_module


@final
class Replica:
    """The driver's side of a run's folder in a store. Used by one thread.

    Args:
        place: The run's folder in the store.
        run_storage: The run's working folder.
    """

    def __init__(self, place: places.Place, run_storage: storage.Storage) -> None:
        self.place = place
        self._folder = run_storage.path
        self._shelf = open_shelf(place)
        self._token = ""
        self._sent: dict[str, tuple[int, int]] = {}
        """Size and modification time of each file beside the checkpoints, as of its last transfer."""

    def open(self) -> None:
        """Claim the store's folder, remove half-done work, and download the files beside the checkpoints."""
        self._token = self._shelf.claim()
        self._shelf.sweep()
        for name, sizes in self._shelf.list_folders().items():
            if _is_beside(name) and storage.MANIFEST_NAME not in sizes:
                for inner, size in sizes.items():
                    path = f"{name}/{inner}" if name else inner
                    if not path.startswith("."):
                        files.bring(self.place, path, self._folder, size)
                        self._sent[path] = _read_state(self._folder / path)

    def close(self) -> None:
        """Send the files beside the checkpoints, and release the claim."""
        self._shelf.check_claim(self._token)
        self._send_files()
        self._shelf.release(self._token)

    def list_kept(self) -> Iterator[kept.Kept]:
        """Yield the checkpoints in the store."""
        return kept.list_stored(self._shelf)

    def get_handle(self, name: str) -> checkpoint_module.Checkpoint:
        """Return the handle on a checkpoint in the store."""
        place = self.place.join(name)
        return checkpoint_module.build(place.path, None, place)

    def commit(self, name: str) -> None:
        """Send a checkpoint that is committed in the working folder, and the files beside the checkpoints."""
        try:
            self._shelf.commit(name, self._folder / name, self._token)
        except commits.DamagedError as error:
            raise errors.TrainingFailedError(
                f"The checkpoint {str(self._folder / name)!r} was changed while it was sent to the store: {error}. "
                "Leave the run's folder alone."
            ) from None
        self._send_files()

    def bring(self, name: str) -> str | None:
        """Download a checkpoint's files to the working folder; return a description of damage, or None."""
        working = atomic_folders.AtomicFolder(self._folder / name, syncs=False)  # the store has the files
        try:
            with working.writing() as folder:
                commits.fetch(self.place.join(name), folder, storage.MANIFEST_NAME, checkpoint_module.LOOSE)
        except (FileNotFoundError, commits.DamagedError) as error:
            return str(error)
        return None

    def remove(self, name: str) -> None:
        """Remove a checkpoint."""
        self._shelf.remove(name)

    def move_aside(self, name: str, aside: str) -> None:
        """Rename the remains of a damaged checkpoint."""
        self._shelf.move_aside(name, aside)

    def read_manifest(self, name: str) -> dict[str, object] | None:
        """Return a checkpoint's manifest; None if there is none."""
        return self._shelf.read_manifest(name)

    def replace_manifest(self, name: str, manifest: Mapping[str, object]) -> None:
        """Replace a checkpoint's manifest."""
        self._shelf.check_claim(self._token)
        files.write(self.place.join(name, storage.MANIFEST_NAME), manifests.encode(manifest))

    def _send_files(self) -> None:
        for path in _list_beside(self._folder):
            state = _read_state(self._folder / path)
            if self._sent.get(path) != state:
                files.send(self._folder / path, self.place.join(path))
                self._sent[path] = state


def open_shelf(place: places.Place) -> commits.Shelf:
    """Return a run's folder in a store, as a shelf of checkpoints."""
    return commits.Shelf(place, storage.MANIFEST_NAME, checkpoint_module.LOOSE)


@contextlib.contextmanager
def hold(place: places.Place, name: str) -> Iterator[tuple[storage.Storage, Replica]]:
    """Make a run's working folder, keep other runs out of it during the block, and remove it afterwards.

    Args:
        place: The folder in a store that holds the runs.
        name: The run's name.
    """
    with hold_folder(place.join(name)) as folder:
        run_storage = storage.Storage(str(folder), name)
        storage.open_storage(run_storage)
        replica = Replica(place.join(name), run_storage)
        replica.open()
        try:
            yield run_storage, replica
        except BaseException:
            with contextlib.suppress(exceptions.StoreError, OSError):  # the store may be what has failed
                replica.close()
            raise
        replica.close()


@contextlib.contextmanager
def hold_folder(place: places.Place) -> Iterator[Path]:
    """Make a working folder for a place in a store, keep others out of it in the block, and remove it afterwards."""
    folder = working_folders.claim(f"{cache.FOLDER_PREFIX}{os.getuid()}-", _digest(place))
    if folder is None:
        raise errors.TrainingFailedError(
            f"The run {place.name!r} is already running in {place.shown!r}: another fit(), here or in another process, "
            "has not returned. Wait for it, or give RunConfig(name=...) another name."
        )
    try:
        yield Path(folder.path)
    finally:
        folder.remove()


def _digest(place: places.Place) -> str:
    """Return a short name for a place, the same in all processes of this machine."""
    try:
        blob = pickle.dumps(place.filesystem)
    except Exception:  # noqa: BLE001 (a file system of the user's that cannot be pickled: its kind must do)
        blob = place.filesystem.type_name.encode()
    return hashlib.sha256(json.dumps([blob.hex(), place.path]).encode()).hexdigest()[:16]


def _is_beside(name: str) -> bool:
    """Return whether a folder of this name in a run's folder has the user's files, and no checkpoint."""
    return not (name.startswith((".", "checkpoint_")) or name.endswith(kept.DAMAGED_SUFFIX))


def _list_beside(folder: Path) -> Iterator[str]:
    """Yield the files beside the checkpoints, by path relative to the run's folder."""
    for inner in sorted(folder.iterdir()) if folder.is_dir() else ():  # a failed run may remove it
        if inner.is_file() and not inner.name.startswith("."):
            yield inner.name
        elif inner.is_dir() and _is_beside(inner.name):
            manifest = storage.get_optional_manifest(inner)
            if manifest is None or not storage.is_own(inner.name, manifest):  # the latter is a user's copy
                paths = (path for path in files.list_local(inner) if path != storage.MANIFEST_NAME)
                yield from (f"{inner.name}/{path}" for path in paths)


def _read_state(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns
