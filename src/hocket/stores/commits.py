"""Folders in a store that exist whole or not at all, also in stores that cannot rename.

On a disk, a folder is written beside its place and renamed. An object store has no folders and no renaming: it has
keys, and each object exists whole or not at all. So one object commits a folder: its manifest, which lists all others
with sizes and digests and is written last. For readers, a folder without a manifest does not exist.

A writer commits a folder N on a shelf in this order:

1. Write ``.pending/N``, the mark that N is being changed.
2. Write N's files, several at a time.
3. Check that this writer still holds the shelf.
4. Write N's manifest: from now on N exists.
5. Remove ``.pending/N``.

A kill before step 4 leaves files that no reader sees, and a kill after it a mark. `Shelf.sweep`, which the next writer
calls, removes the files of each marked N that has no manifest, and the marks. It touches nothing without a mark, which
may be another program's. A removal goes the other way round: mark, manifest, files, mark.

Stores have no locks, and a writer that was taken for dead may go on while its files are swept. So each writer leaves a
token in ``.writer`` when it begins, and checks the token in step 3. If the token is another writer's, the folder is not
committed and the writer ends: the later writer holds the shelf. A gap of one request remains between steps 3 and 4. A
writer that loses the shelf in that gap commits a manifest of files that were swept. Readers notice, as they compare
names and sizes (`manifests.find_gap`) and digests (`fetch`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from hocket import exceptions
from hocket.stores import calls, files, manifests, places

PENDING: Final = ".pending"
WRITER: Final = ".writer"

_AT_ONCE: Final = 8
"""The files in transit at a time; a guess: a store's answer takes tens of milliseconds, and more files gain little."""


@final
class DamagedError(Exception):
    """A committed folder has changed since its commit. The text names the file."""


@final
@dataclass(frozen=True)
class Shelf:
    """A folder of a store in which folders are committed.

    Args:
        place: The shelf's place.
        manifest: The name of the file that commits a folder; see `manifests`.
        loose: The names of files in folders that may change after the commit, and have no digests.
    """

    place: places.Place
    manifest: str
    loose: Collection[str] = ()

    def claim(self) -> str:
        """Become the shelf's writer, in place of any other; return the token for `check_claim`."""
        token = secrets.token_hex(16)
        files.write(self.place.join(WRITER), token.encode())
        return token

    def check_claim(self, token: str) -> None:
        """Raise if another writer has claimed the shelf since."""
        if files.read_optional(self.place.join(WRITER)) != token.encode():
            raise exceptions.StoreError(
                f"Another process has begun to write to {self.place.shown!r} since this process did, and holds the "
                "folder now. Let one process at a time write there, or give each process a name of its own."
            )

    def release(self, token: str) -> None:
        """Sweep the shelf, as a store that failed may be back, and stop being its writer."""
        if files.read_optional(self.place.join(WRITER)) == token.encode():
            self.sweep()
            files.remove(self.place.join(WRITER))
            files.remove_folder(self.place.join(PENDING))  # in some stores, even an empty folder is an object

    def commit(self, name: str, folder: Path, token: str = "") -> None:
        """Commit a folder of this machine that has a manifest: afterwards the shelf has the whole folder.

        Args:
            name: The folder's name on the shelf.
            folder: The folder to send.
            token: The result of `claim`. Default: no other process writes under the name.
        """
        mark, target = self.place.join(PENDING, name), self.place.join(name)
        files.write(mark, b"")
        manifest = (folder / self.manifest).read_bytes()
        found = manifests.parse(manifest)
        if found is None:
            raise DamagedError(f"{self.manifest!r} is damaged")
        expected = manifests.read_records(found, self.loose)
        sent = [inner for inner in files.list_local(folder) if inner != self.manifest]
        for inner, record in _do_all(lambda inner: files.send(folder / inner, target.join(inner)), sent):
            if expected.get(inner, record) != record:
                raise DamagedError(f"{inner!r} has changed since it was saved")
        if token:
            self.check_claim(token)
        files.write(target.join(self.manifest), manifest)
        files.remove(mark)

    def remove(self, name: str) -> None:
        """Remove a folder, which exists for readers until its manifest is gone."""
        mark, target = self.place.join(PENDING, name), self.place.join(name)
        files.write(mark, b"")
        files.remove(target.join(self.manifest))
        files.remove_folder(target)
        files.remove(mark)

    def move_aside(self, name: str, aside: str) -> None:
        """Move the files of a folder that is not whole to another name, and replace the folder of that name."""
        files.remove_folder(self.place.join(aside))
        for inner in files.list_sizes(self.place.join(name)):
            if inner != self.manifest:
                files.move(self.place.join(name, inner), self.place.join(aside, inner))
        files.remove_folder(self.place.join(name))

    def sweep(self) -> None:
        """Remove the marked folders without a manifest, which killed writers have left, and the marks."""
        for name in files.list_sizes(self.place.join(PENDING)):
            if files.read_optional(self.place.join(name, self.manifest)) is None:
                files.remove_folder(self.place.join(name))
            files.remove(self.place.join(PENDING, name))

    def list_folders(self) -> dict[str, dict[str, int]]:
        """Return the files in each of the shelf's folders with their sizes in bytes. Files in the shelf itself are
        under ``""``."""
        found: dict[str, dict[str, int]] = {}
        for path, size in files.list_sizes(self.place).items():
            name, _, inner = path.partition("/") if "/" in path else ("", "", path)
            found.setdefault(name, {})[inner] = size
        return found

    def read_manifest(self, name: str) -> dict[str, object] | None:
        """Return a committed folder's manifest; None if it is missing or damaged."""
        return read_manifest(self.place.join(name), self.manifest)


def put(place: places.Place, folder: Path, manifest: str) -> None:
    """Commit a folder of this machine at a place that only this process writes.

    An earlier folder is removed first: a kill in between leaves no folder.

    Args:
        place: The place to write.
        folder: The folder to send.
        manifest: See `Shelf`.

    Raises:
        FileExistsError: The place has files and no manifest of that name.
        ValueError: The place is a bucket, not a folder in a bucket.
        StoreError: The store fails.
    """
    outer = place.find_parent()
    if outer is None:
        raise ValueError(f"{place.shown!r} is a bucket. Write the path of a folder in it.")
    sizes, shelf = files.list_sizes(place), Shelf(outer, manifest)
    if sizes and manifest not in sizes and not is_pending(place):
        raise FileExistsError(
            f"{place.shown!r} exists but has no {manifest}, so it is not replaced. Choose a path that does not exist."
        )
    if sizes:
        shelf.remove(place.name)
    shelf.commit(place.name, folder)


def read_manifest(place: places.Place, name: str) -> dict[str, Any] | None:
    """Return a folder's manifest of that name; None if it is missing or damaged."""
    blob = files.read_optional(place.join(name))
    return None if blob is None else manifests.parse(blob)


def fetch(place: places.Place, target: Path, manifest_name: str, loose: Collection[str] = ()) -> None:
    """Copy a folder of a store to this machine, and compare it with its manifest, if it has one.

    Args:
        place: The folder.
        target: The folder on this machine; made if it is missing.
        manifest_name: See `Shelf`.
        loose: See `Shelf`.

    Raises:
        FileNotFoundError: There is no such folder, or it was not committed.
        DamagedError: A file is missing, or differs from the manifest.
        StoreError: The store fails.
    """
    try:
        sizes = files.list_sizes(place)
    except exceptions.UnsafeNameError as error:
        raise DamagedError(str(error)) from error
    manifest = read_manifest(place, manifest_name) if manifest_name in sizes else None
    if manifest is None and manifest_name in sizes:
        raise DamagedError(f"{manifest_name!r} is damaged")
    if not sizes or (manifest is None and is_pending(place)):
        raise FileNotFoundError(f"There is no folder {place.shown!r} in the store, or it was not written completely.")
    records = manifests.read_records(manifest, loose) if manifest is not None else {}
    missing = sorted(records.keys() - sizes.keys())
    if missing:
        raise DamagedError(f"{missing[0]!r} is missing")
    target.mkdir(parents=True, exist_ok=True)
    for inner, found in _do_all(lambda inner: files.bring(place, inner, target, sizes[inner]), list(sizes)):
        damage = manifests.compare(inner, found, records.get(inner, found))
        if damage is not None:
            raise DamagedError(str(damage))


def is_pending(place: places.Place) -> bool:
    """Tell whether a folder has the mark of a writer, alive or not, that has not finished."""
    shelf = place.find_parent()
    return shelf is not None and files.read_optional(shelf.join(PENDING, place.name)) is not None


def _do_all(action: Callable[[str], manifests.Record], names: list[str]) -> Iterator[tuple[str, manifests.Record]]:
    """Yield each file's name with the action's record, for several files at a time."""
    yield from zip(names, calls.do_all(action, names, _AT_ONCE, "hocket-store-files"), strict=True)
