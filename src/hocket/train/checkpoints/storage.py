"""The files of a run, and commits that put a checkpoint there whole or not at all.

A rank that shares the run's folder with the driver copies its files into a folder of its own below ``.staging`` in the
run's folder, synced, with their sizes and digests (`stage`). When every rank has reported, the controller moves the
files together, adds a manifest, and renames the folder to its final name (`commit`). So a listing of the run's folder
shows only whole checkpoints. A kill in between leaves files below ``.staging``; the next run of that name removes them.

Two runs of one name would remove and overwrite each other's files, so a run holds its folder while it lasts
(`hold_storage`).

A rank detects by itself whether it shares the folder (`sees_token`): the driver leaves a file with a random name there,
and a rank that can read the file sees the same disk. This works over NFS, and where the same path is a different disk
on each machine, without configuration. Files of a rank that does not share the folder arrive through
`hocket.train.checkpoints.file_chunks`, and are committed in the same way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hocket.stores import atomic_folders, local_files, manifests, trust
from hocket.stores import names as names_module
from hocket.train import errors
from hocket.train.checkpoints import checkpoint as checkpoint_module

MANIFEST_NAME = checkpoint_module.MANIFEST_NAME


@dataclass(frozen=True)
class Storage:
    """The place of a run."""

    storage_path: str
    """The folder that holds the runs."""
    experiment_name: str
    """The run's name: its folder in `storage_path`."""

    @property
    def path(self) -> Path:
        """The run's folder."""
        return Path(self.storage_path, self.experiment_name)

    @property
    def staging_path(self) -> Path:
        """The folder of files that are not committed yet."""
        return self.path / ".staging"

    def build_checkpoint_path_from_name(self, checkpoint_name: str) -> str:
        """Return the path for a checkpoint of this name. The method's name is Ray's."""
        return str(self.path / checkpoint_name)


FileRecord = manifests.Record
"""The manifest's record of one file."""


@dataclass(frozen=True, slots=True)
class Offered:
    """One rank's part of a checkpoint, still on the rank's node; the driver is to fetch it."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """A checkpoint that the user has put into the run's folder; only its manifest is missing."""

    path: str
    """The checkpoint's folder."""


@dataclass(frozen=True, slots=True)
class Staged:
    """One rank's part of a checkpoint that is not committed."""

    path: str
    """The folder below ``.staging``."""
    files: Mapping[str, FileRecord]
    """The files' records, by path relative to the folder."""


def check_whole(expected: Iterable[str], found: Container[str]) -> None:
    """Raise if a file of a reported checkpoint has been removed since the report."""
    missing = next((name for name in expected if name not in found), None)
    if missing is not None:
        raise FileNotFoundError(
            f"The file {missing!r} of a reported checkpoint was removed before it was uploaded. With "
            "CheckpointUploadMode.ASYNC, do not change the folder after report(), which removes it when the checkpoint "
            "is committed."
        )


def open_storage(storage: Storage) -> None:
    """Make the run's folder."""
    try:
        storage.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"The run's folder cannot be created ({error.strerror}). Give RunConfig(storage_path=...) a folder that "
            "you may write to. The folder was",
            str(storage.path),
        ) from None
    trust.check_entered(storage.path, "Give RunConfig(name=...) another name, or storage_path= a folder of your own")


@contextlib.contextmanager
def hold_storage(storage: Storage) -> Iterator[None]:
    """Make the run's folder, remove the remains of a killed run, and keep other runs out during the block.

    The kernel releases the lock when this process ends, however it ends. File systems that cannot lock a folder (NFS)
    keep no run out.
    """
    open_storage(storage)
    descriptor = os.open(storage.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise errors.TrainingFailedError(
                f"The run {storage.experiment_name!r} in {storage.storage_path!r} is already running: another fit(), "
                "here or in another process, has not returned. Wait for it, or give RunConfig(name=...) another name."
            ) from None
        except OSError:  # a file system without locks
            pass
        try:
            close_storage(storage)
            yield
        finally:
            # Closing is not enough, because processes that were forked meanwhile hold the descriptor.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def close_storage(storage: Storage) -> None:
    """Remove files that were staged and never committed."""
    shutil.rmtree(storage.staging_path, ignore_errors=True)


def remove(storage: Storage, folder: Path) -> None:
    """Remove a committed checkpoint atomically: a kill leaves no half checkpoint in the run's folder."""
    atomic_folders.remove(folder, storage.staging_path / f"removed-{secrets.token_hex(8)}")


def discard_empty(storage: Storage) -> None:
    """Remove the folder of a run that failed before it had anything to keep."""
    close_storage(storage)
    with contextlib.suppress(OSError):  # the folder is not empty
        storage.path.rmdir()


def leave_token(storage: Storage) -> str:
    """Leave a file by which ranks recognise the run's folder; return the token for `sees_token`."""
    token = secrets.token_hex(16)
    with explained_if_full(storage.staging_path):
        storage.staging_path.mkdir(parents=True, exist_ok=True)
        (storage.staging_path / f".token-{token}").write_text(token)
    return token


def sees_token(storage: Storage, token: str) -> bool:
    """Return whether this process sees the folder where the token was left, and may write there."""
    try:
        found = (storage.staging_path / f".token-{token}").read_text()
    except (OSError, ValueError):
        return False
    return found == token and os.access(storage.staging_path, os.W_OK | os.X_OK)


def stage(storage: Storage, label: str, source: str) -> Staged:
    """Copy a folder's files beside the run's checkpoints.

    Args:
        storage: The run's place.
        label: The name of the copy, unique in the attempt.
        source: The folder to copy.
    """
    check_source(source)
    target = storage.staging_path / label
    folders, names = list_contents(source)
    try:
        with explained_if_full(target):
            for inner in folders:
                (target / inner).mkdir(parents=True, exist_ok=True)
            return Staged(str(target), {name: manifests.copy(Path(source, name), target / name) for name in names})
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)  # the rank may report another folder under the same label
        raise


class NoSpaceError(OSError):
    """A disk is full."""


@contextlib.contextmanager
def explained_if_full(target: Path) -> Iterator[None]:
    """Explain a lack of space for a folder that the block writes, and remove the incomplete folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        shutil.rmtree(target, ignore_errors=True)
        free = shutil.disk_usage(target.parent).free
        raise NoSpaceError(
            error.errno,
            f"A checkpoint could not be saved: the disk of {str(target.parent)!r} has too little space for it "
            f"({free:,} bytes are free without it). Earlier checkpoints are intact. Free some space, choose another "
            "RunConfig(storage_path=...), or keep fewer checkpoints: CheckpointConfig(num_to_keep=...). fit() with the "
            "same name goes on from the last checkpoint",
        ) from error


def check_source(source: str) -> None:
    """Raise if the folder of a reported checkpoint does not exist."""
    if Path(source).is_dir():
        return
    if Path(source).exists():
        raise NotADirectoryError(
            f"report() received a checkpoint of {source!r}, which is a file. A checkpoint is a folder: put the file "
            "into one, and write Checkpoint(folder)."
        )
    raise FileNotFoundError(
        f"report() received a checkpoint whose folder {source!r} does not exist. Call report() before the temporary "
        "folder is closed. With CheckpointUploadMode.ASYNC the folder must stay until it is uploaded: leave it to "
        "report(), which removes it then."
    )


def list_contents(source: str) -> tuple[list[str], list[str]]:
    """Return the folders, outer ones first, and the files of a checkpoint, as paths relative to its folder.

    Links are followed. An existing manifest is left out, because a committed checkpoint may be reported again."""
    folders: list[str] = []
    files: list[str] = []
    outer: dict[str, frozenset[tuple[int, int]]] = {}
    """The device and inode numbers of each folder and of all folders around it, by path."""
    for folder, inner_folders, names in os.walk(source, onerror=_raise, followlinks=True):
        inner_folders.sort()  # the walk takes them in this order
        outer[folder] = _enter(folder, source, outer.get(str(Path(folder).parent), frozenset()))
        inner = os.path.relpath(folder, source)
        for name in names:
            _check_kind(Path(folder, name))
            names_module.check(os.path.normpath(f"{inner}/{name}"), f"The checkpoint {source!r}")
        folders.append(inner)
        files += [
            str(Path(inner, name))
            for name in sorted(names)
            if name not in (MANIFEST_NAME, MANIFEST_NAME + local_files.BESIDE)
        ]
    return folders, files


def _raise(error: OSError) -> None:
    """Raise the error of a folder that a walk would skip without an error handler."""
    raise error


def _enter(folder: str, source: str, outer: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    found = Path(folder).stat()
    number = (found.st_dev, found.st_ino)
    if number in outer:
        raise ValueError(
            f"The checkpoint {source!r} has a link, {folder!r}, to a folder that contains the link, so it would be "
            "copied without end. Remove the link."
        )
    return outer | {number}


_KINDS: Final = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def _check_kind(file: Path) -> None:
    """Raise if a file of a checkpoint is not an ordinary file."""
    try:
        kind = _KINDS.get(stat.S_IFMT(file.stat().st_mode))
    except OSError as error:
        if not file.is_symlink():
            raise
        kind = f"a link that leads nowhere ({error.strerror}: {str(file.readlink())!r})"
    if kind is not None:
        raise ValueError(
            f"A checkpoint holds files and folders, but {str(file)!r} is {kind}. Remove it from the folder before "
            "report()."
        )


def commit(storage: Storage, name: str, parts: list[Staged], extra: Mapping[str, object]) -> list[str]:
    """Make one checkpoint of the ranks' parts, whole and under its final name.

    Args:
        storage: The run's place.
        name: The name of the checkpoint's folder in the run's folder.
        parts: The ranks' staged parts, by rank. If several parts have the same file, the first one's is kept.
        extra: More entries of the manifest.

    Returns:
        The files that several ranks had with different contents.
    """
    final = storage.path / name
    if final.exists():
        raise FileExistsError(
            f"The checkpoint folder {str(final)!r} exists already. Give each report() another checkpoint_dir_name, or "
            "leave it out."
        )
    whole = Path(parts[0].path)
    files = dict(parts[0].files)
    disputed: list[str] = []
    for part in parts[1:]:
        for relative, record in part.files.items():
            if relative in files:
                if files[relative] != record:
                    disputed.append(relative)
                continue
            (whole / relative).parent.mkdir(parents=True, exist_ok=True)
            Path(part.path, relative).replace(whole / relative)
            files[relative] = record
        shutil.rmtree(part.path, ignore_errors=True)
    with explained_if_full(whole):
        _write_manifest(whole, name, files, extra)
    atomic_folders.AtomicFolder(final).take(whole)
    return disputed


def adopt(folder: Path, extra: Mapping[str, object]) -> None:
    """Make a folder in the run's folder a committed checkpoint.

    Raises:
        FileExistsError: The folder already is a committed checkpoint.
    """
    if get_optional_manifest(folder) is not None:
        raise FileExistsError(
            f"The checkpoint {str(folder)!r} is committed already. Give each report() a folder of its own."
        )
    files: dict[str, FileRecord] = {}
    for name in list_contents(str(folder))[1]:
        with (folder / name).open("rb") as file:
            files[name] = manifests.read_open(file)
            os.fsync(file.fileno())
    for inner, _, _ in os.walk(folder, onerror=_raise):
        local_files.sync(Path(inner))
    _write_manifest(folder, folder.name, files, extra)
    local_files.sync(folder.parent)


def _write_manifest(folder: Path, name: str, files: Mapping[str, FileRecord], extra: Mapping[str, object]) -> None:
    replace_manifest(folder, {"name": name, **extra, "files": manifests.describe(files)})


def replace_manifest(folder: Path, manifest: Mapping[str, object]) -> None:
    """Write a checkpoint's manifest, or replace it atomically: a reader finds the old or the new one, whole."""
    local_files.write_synced(folder / MANIFEST_NAME, manifests.encode(manifest))
    local_files.sync(folder)


def get_optional_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a committed checkpoint; None if the folder is not one."""
    return manifests.read_optional(folder / MANIFEST_NAME)


def is_own(name: str, manifest: Mapping[str, object]) -> bool:
    """Return whether a folder was committed under its name, and is not a copy that a user made under another name.

    Args:
        name: The folder's name.
        manifest: The folder's manifest. Earlier versions wrote no name into it.
    """
    return manifest.get("name", name) == name


def read_records(manifest: Mapping[str, object]) -> dict[str, FileRecord]:
    """Return a manifest's records of the files that do not change after the commit."""
    return manifests.read_records(manifest, checkpoint_module.LOOSE)


def find_damage(folder: Path, manifest: Mapping[str, object]) -> str | None:
    """Compare a checkpoint's files with its manifest; return a description of the damage, or None."""
    damage = manifests.find_damage(folder, read_records(manifest))
    return None if damage is None else str(damage)
