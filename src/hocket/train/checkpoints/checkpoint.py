"""Handles on checkpoints: folders that hold the state of a training run.

A handle names a folder of the machine where it was made, or a folder in a store such as S3, which all machines see. A
handle from `hocket.train.get_checkpoint` names a folder of the driver, which a rank on another machine may not see.
There the handle has a `Fetch`: the first use of its path copies the files.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, final

from hocket._base import missing
from hocket.stores import commits, files, local_files, places
from hocket.train import errors

METADATA_NAME: Final = ".metadata.json"
"""The file in the folder that holds the dict of `Checkpoint.set_metadata`."""

MANIFEST_NAME: Final = ".hocket-manifest.json"
"""The file that makes a folder a committed checkpoint: a list of its files with sizes and digests."""

LOOSE: Final = frozenset({METADATA_NAME})
"""The files that may change after the commit."""

Fetch = Callable[[str], str]
"""Copies the files of a folder of the driver to this node, and returns the path of the copy."""


@missing.explain_attributes
@final
class Checkpoint(metaclass=missing.Explaining):
    """A handle on a folder of files. The handle owns nothing: the folder stays when the handle goes.

    Two handles are equal if they name the same folder of the same run. The paths of copies on other nodes do not count.

    Args:
        path: The folder, or an address such as ``s3://bucket/folder``. It need not exist yet.
        filesystem: The file system of the path, of pyarrow or fsspec. Default: this machine, unless the path is an
            address.

    Raises:
        TypeError: `path` is not a path, or `filesystem` is not a file system.
        ValueError: The scheme of the address is unknown.
        MissingExtraError: The file system needs a library that is not installed.

    Example:
        >>> import tempfile
        >>> from hocket.train import Checkpoint
        >>> checkpoint = Checkpoint.from_directory(tempfile.mkdtemp())
        >>> checkpoint.set_metadata({"epoch": 3})
        >>> checkpoint.get_metadata()
        {'epoch': 3}
    """

    def __init__(self, path: str | os.PathLike[str], filesystem: object = None) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(
                f"A checkpoint's path must be a str or a Path, but received {path!r}. Pass a folder's path."
            )
        found = places.locate(path, filesystem, "Checkpoint()")
        self._place = found if isinstance(found, places.Place) else None
        self._origin = found.path if isinstance(found, places.Place) else str(Path(found).resolve())
        self._fetch: Fetch | None = None

    @property
    def path(self) -> str:
        """The folder in `filesystem`: an absolute path that is readable here, or ``"bucket/folder"`` in a store.

        In a rank that does not share the run's folder, the first access copies a checkpoint of `get_checkpoint` to the
        rank's node, once for all ranks there. The copy is compared with the digests of the commit. It is removed when
        the training function has ended or failed in all ranks.

        Raises:
            TransferError: The files did not arrive as they were committed.
        """
        return self._origin if self._fetch is None else self._fetch(self._origin)

    @property
    def filesystem(self) -> Any:
        """The file system of `path`, as an object of pyarrow.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        return (
            places.find_place(self.path, None, "Checkpoint.filesystem").filesystem
            if self._place is None
            else (self._place.filesystem)
        )

    @property
    def place(self) -> places.Place | None:
        """The folder's place in a store; None for a folder of a machine."""
        return self._place

    @property
    def origin(self) -> str:
        """The folder's path where the run is kept. It is the same in all ranks, but not readable in each."""
        return self._origin

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return a handle on a folder. The folder is not copied."""
        return cls(path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to a folder, and return its path.

        Files from a store are compared with the digests of the commit.

        Args:
            path: The folder; made if need be. Default: a new folder in the system's temporary folder, which the caller
                removes.

        Raises:
            FileNotFoundError: There is no such checkpoint.
            TransferError: The files differ from those that were committed.
            StoreError: The store does not return the files.
        """
        source = self._find() if self._place is None else None
        target = str(Path(path).resolve()) if path is not None else tempfile.mkdtemp(prefix="checkpoint-")
        if source is not None:
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif self._place is not None:
            try:
                bring(self._place, Path(target))
            except BaseException:
                if path is None:
                    shutil.rmtree(target, ignore_errors=True)
                raise
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield the path of a folder with the files, to read: the folder itself if this machine sees it, else a copy.

        Files in a store are copied for the duration of the block.

        Raises:
            FileNotFoundError: There is no such checkpoint.
            TransferError: The files differ from those that were committed.
            StoreError: The store does not return the files.
        """
        if self._place is None:
            yield self._find()
            return
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
            bring(self._place, Path(folder))
            yield folder

    def get_metadata(self) -> dict[str, Any]:
        """Return the dict that `set_metadata` stored; an empty dict if there is none.

        Raises:
            ValueError: The file with the dict is damaged.
        """
        try:
            if self._place is None:
                text: str | bytes | None = local_files.read_text(self._metadata_path)
            else:
                text = files.read_optional(self._place.join(METADATA_NAME))
            found: object = {} if text is None else json.loads(text)
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            found = error
        if not isinstance(found, dict):
            raise ValueError(
                f"{METADATA_NAME} of {self!r} is damaged: it should hold a dict, but reading it gave {found!r:.200}. "
                "Write it again with set_metadata()."
            )
        return found

    def set_metadata(self, metadata: Mapping[str, object]) -> None:
        """Store a dict with the files, in place of an earlier dict.

        Raises:
            TypeError: The dict holds a value that JSON cannot hold.
            RuntimeError: The files are kept on another machine, and only a copy is here.
        """
        if self._fetch is not None:
            raise RuntimeError(
                f"set_metadata() was called in a rank that has only a copy of {self._origin!r}, so the metadata would "
                "be lost. Call it in the driver, or before report() on the checkpoint that you report."
            )
        text = json.dumps(dict(metadata))
        if self._place is not None:
            if not files.list_sizes(self._place):
                raise FileNotFoundError(f"There is no checkpoint {self._place.shown!r} in the store. Check the path.")
            files.write(self._place.join(METADATA_NAME), text.encode())
            return
        self._find()
        with local_files.replaced(self._metadata_path) as written:
            written.write(text.encode())

    def update_metadata(self, metadata: Mapping[str, object]) -> None:
        """Add keys to the stored dict."""
        self.set_metadata({**self.get_metadata(), **metadata})

    @property
    def _metadata_path(self) -> Path:
        return Path(self.path, METADATA_NAME)

    def _find(self) -> str:
        """Return the path; raise if there is no folder."""
        path = self.path
        if not Path(path).is_dir():
            raise FileNotFoundError(
                f"The checkpoint's folder {path!r} does not exist. Was it removed (CheckpointConfig.num_to_keep), was "
                "its temporary folder closed, or is it on another machine? In a training function, call "
                "get_checkpoint(), which fetches the run's checkpoint."
            )
        return path

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint) or self._origin != other._origin:
            return False
        here, there = self._place, other._place
        return here is there or (
            here is not None and there is not None and bool(here.filesystem.equals(there.filesystem))
        )

    def __hash__(self) -> int:
        return hash(self._origin)

    def __repr__(self) -> str:
        return f"Checkpoint({self._origin if self._place is None else self._place.shown!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return build, (self._origin, None, self._place)


def build(origin: str, fetch: Fetch | None = None, place: places.Place | None = None) -> Checkpoint:
    """Return a handle on a folder, which may be on another machine, without accessing it.

    Args:
        origin: The folder's absolute path where the run is kept.
        fetch: Copies the files to this node, if they cannot be read here.
        place: The folder's place in a store, if it is in one.
    """
    checkpoint = object.__new__(Checkpoint)
    checkpoint._origin = origin
    checkpoint._fetch = fetch
    checkpoint._place = place
    return checkpoint


def bring(place: places.Place, target: Path) -> None:
    """Download a checkpoint's files from a store to a folder, and compare them with its manifest."""
    try:
        commits.fetch(place, target, MANIFEST_NAME, LOOSE)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"There is no checkpoint {place.shown!r} in the store, or it was not committed. Was it removed "
            "(CheckpointConfig.num_to_keep)? Check the path."
        ) from error
    except commits.DamagedError as error:
        raise errors.TransferError(
            f"The checkpoint {place.shown!r} is damaged in the store: {error}. Use another checkpoint of the run."
        ) from None
