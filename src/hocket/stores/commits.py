"""Folders that are in a store whole or not at all, also in stores that cannot rename.

On a disk a folder is written beside its place and renamed. A store of objects has no folders and no renaming: there are
keys, and each object is there whole or not. So a folder is committed by one object, its manifest, which names all
others with sizes and digests, and is written last. What has no manifest does not exist for readers.

The order of what is written for a folder of name N on a shelf:

1. ``.pending/N``: something is being done to N.
2. N's files, several at a time.
3. It is looked whether this writer still holds the shelf.
4. N's manifest: from now on N is there.
5. ``.pending/N`` is removed.

A kill before 4 leaves files that nobody sees, and a kill after it a pending mark. `Shelf.sweep`, which the next writer
calls, removes the files of each pending N that has no manifest, and the marks. Nothing that has no mark is touched: it
may be somebody else's. A folder is removed the other way round: mark, manifest, files, mark.

Stores have no locks, and a writer that was taken for dead may go on: its files may be swept away under it. So each
writer leaves a token in ``.writer`` when it begins, and looks at it in step 3. If another one is there, the folder is
not committed and the writer ends: the later one holds the shelf. Between 3 and 4 there is a gap of one request; who
falls into it commits a manifest whose files were swept, which readers see, as they compare names and sizes
(`manifests.find_gap`) and digests (`fetch`).
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
"""How many files travel at a time; a guess: a store's answer takes tens of milliseconds, and more gain little."""


@final
class DamagedError(Exception):
    """A committed folder is not what was committed. The text says in which file."""


@final
@dataclass(frozen=True)
class Shelf:
    """A folder of a store in which folders are committed.

    Args:
        place: Where it is.
        manifest: The name of the file that makes a folder committed; see `manifests`.
        loose: The names of files in folders that may change after the commit, and have no digests.
    """

    place: places.Place
    manifest: str
    loose: Collection[str] = ()

    def claim(self) -> str:
        """Become the writer of the shelf, in place of any other; return the token to give to `check_claim`."""
        token = secrets.token_hex(16)
        files.write(self.place.join(WRITER), token.encode())
        return token

    def check_claim(self, token: str) -> None:
        """Raise if another writer has come since."""
        if files.read_optional(self.place.join(WRITER)) != token.encode():
            raise exceptions.StoreError(
                f"Another process has begun to write to {self.place.shown!r} since this one did, and holds it now. "
                "Have one at a time write there, or give each another name."
            )

    def release(self, token: str) -> None:
        """Remove what this writer has left half done, as a store that failed may be back, and stop to be the writer."""
        if files.read_optional(self.place.join(WRITER)) == token.encode():
            self.sweep()
            files.remove(self.place.join(WRITER))
            files.remove_folder(self.place.join(PENDING))  # an object, in some stores

    def commit(self, name: str, folder: Path, token: str = "") -> None:
        """Send a folder of this machine that has its manifest: afterwards it is there, whole, under its name.

        Args:
            name: Its name on the shelf.
            folder: What is sent.
            token: What `claim` returned. Default: nobody else writes under the name.
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
        """Remove a folder: it is there until its manifest is gone."""
        mark, target = self.place.join(PENDING, name), self.place.join(name)
        files.write(mark, b"")
        files.remove(target.join(self.manifest))
        files.remove_folder(target)
        files.remove(mark)

    def move_aside(self, name: str, aside: str) -> None:
        """Give the files of a folder that is not whole another name, in place of what is there."""
        files.remove_folder(self.place.join(aside))
        for inner in files.list_sizes(self.place.join(name)):
            if inner != self.manifest:
                files.move(self.place.join(name, inner), self.place.join(aside, inner))
        files.remove_folder(self.place.join(name))

    def sweep(self) -> None:
        """Remove what writers that were killed have left half done."""
        for name in files.list_sizes(self.place.join(PENDING)):
            if files.read_optional(self.place.join(name, self.manifest)) is None:
                files.remove_folder(self.place.join(name))
            files.remove(self.place.join(PENDING, name))

    def list_folders(self) -> dict[str, dict[str, int]]:
        """Return what is in the shelf's folders, by folder: their files with sizes in bytes. Files of the shelf itself
        are those of the folder ``""``."""
        found: dict[str, dict[str, int]] = {}
        for path, size in files.list_sizes(self.place).items():
            name, _, inner = path.partition("/") if "/" in path else ("", "", path)
            found.setdefault(name, {})[inner] = size
        return found

    def read_manifest(self, name: str) -> dict[str, object] | None:
        """Return a committed folder's manifest; None if there is none that can be read."""
        return read_manifest(self.place.join(name), self.manifest)


def put(place: places.Place, folder: Path, manifest: str) -> None:
    """Commit a folder of this machine at a place that only this process writes.

    What is there is removed first: a kill in between leaves nothing there.

    Args:
        place: Where.
        folder: What.
        manifest: See `Shelf`.

    Raises:
        FileExistsError: There is something else.
        ValueError: The place is no folder's in a folder or bucket.
        StoreError: The store fails.
    """
    outer = place.find_parent()
    if outer is None:
        raise ValueError(f"{place.shown!r} is a bucket. Write the path of a folder in it.")
    sizes, shelf = files.list_sizes(place), Shelf(outer, manifest)
    if sizes and manifest not in sizes and not is_pending(place):
        raise FileExistsError(f"{place.shown!r} exists, and has no {manifest}. Choose a path that does not exist.")
    if sizes:
        shelf.remove(place.name)
    shelf.commit(place.name, folder)


def read_manifest(place: places.Place, name: str) -> dict[str, Any] | None:
    """Return what the manifest of that name says in a folder; None if there is none that can be read."""
    blob = files.read_optional(place.join(name))
    return None if blob is None else manifests.parse(blob)


def fetch(place: places.Place, target: Path, manifest_name: str, loose: Collection[str] = ()) -> None:
    """Bring a folder of a store to this machine, and compare it with its manifest, if it has one.

    Args:
        place: The folder.
        target: Where to; made if need be.
        manifest_name: See `Shelf`, as the next.
        loose: See `manifest_name`.

    Raises:
        FileNotFoundError: There is no such folder, or it was not committed.
        DamagedError: A file is not what was committed.
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
        raise FileNotFoundError(f"There is no folder {place.shown!r} in the store, or it was not written to its end.")
    records = manifests.read_records(manifest, loose) if manifest is not None else {}
    missing = sorted(records.keys() - sizes.keys())
    if missing:
        raise DamagedError(f"{missing[0]!r} is not there")
    target.mkdir(parents=True, exist_ok=True)
    for inner, found in _do_all(lambda inner: files.bring(place, inner, target, sizes[inner]), list(sizes)):
        damage = manifests.compare(inner, found, records.get(inner, found))
        if damage is not None:
            raise DamagedError(str(damage))


def is_pending(place: places.Place) -> bool:
    """Tell whether a writer has begun to write a folder and not ended, be it alive or not."""
    shelf = place.find_parent()
    return shelf is not None and files.read_optional(shelf.join(PENDING, place.name)) is not None


def _do_all(action: Callable[[str], manifests.Record], names: list[str]) -> Iterator[tuple[str, manifests.Record]]:
    """Do something with each file, several at a time."""
    yield from zip(names, calls.do_all(action, names, _AT_ONCE, "hocket-store-files"), strict=True)
