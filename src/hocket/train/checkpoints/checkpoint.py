"""A folder that holds the state of a training run.

A handle names a folder of the machine where it was made. One that `hocket.train.get_checkpoint` gives names the run's
folder, which a rank on another machine may not see. There the handle has a `Fetch`: the first use of its path brings
the files.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from hocket import addresses

METADATA_NAME = ".metadata.json"
"""The file in the folder that holds what `Checkpoint.set_metadata` was given."""

Fetch = Callable[[str], str]
"""Brings the files of a folder of the driver's to this node; returns the path of the copy."""


@final
class Checkpoint:
    """A handle on a folder of files. It owns nothing: the folder stays when the handle goes.

    Two handles are equal if they name the same folder of the same run, wherever they are; a copy on another node does
    not count.

    Args:
        path: The folder. It need not exist yet.

    Example:
        >>> import tempfile
        >>> from hocket.train import Checkpoint
        >>> checkpoint = Checkpoint.from_directory(tempfile.mkdtemp())
        >>> checkpoint.set_metadata({"epoch": 3})
        >>> checkpoint.get_metadata()
        {'epoch': 3}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(
                f"A checkpoint's path must be a str or a Path, but received {path!r}. Pass a folder's path."
            )
        addresses.refuse(path, "A checkpoint's path")
        self._origin = str(Path(path).resolve())
        self._fetch: Fetch | None = None

    @property
    def path(self) -> str:
        """The folder, as an absolute path that can be read here.

        In a rank that does not share the run's folder, what `get_checkpoint` returned is copied to the rank's node when
        this is first asked for, once for all ranks of the node, and compared with the digests of the commit. The copy
        is removed when the training function has ended or failed in all ranks.

        Raises:
            TransferError: The files did not arrive as they were committed.
        """
        return self._origin if self._fetch is None else self._fetch(self._origin)

    @property
    def origin(self) -> str:
        """The folder's path where the run is kept; the same in all ranks, and not readable in each."""
        return self._origin

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return a handle on the folder, which is not copied."""
        return cls(path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to a folder, and return its path.

        Args:
            path: The folder; made if need be. Default: a new one in the system's temporary folder, which the caller
                removes.
        """
        source = self._find()
        target = str(Path(path).resolve()) if path is not None else tempfile.mkdtemp(prefix="checkpoint-")
        shutil.copytree(source, target, dirs_exist_ok=True)
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Give the path of a folder with the files, to read from: the folder itself where it can be seen, else the
        node's copy."""
        yield self._find()

    def get_metadata(self) -> dict[str, Any]:
        """Return what `set_metadata` stored; an empty dict if nothing."""
        try:
            metadata: dict[str, object] = json.loads(self._metadata_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return metadata

    def set_metadata(self, metadata: Mapping[str, object]) -> None:
        """Store a dict with the files, in place of what was stored.

        Raises:
            TypeError: It holds something that JSON cannot hold.
            RuntimeError: The files are kept on another machine, and only a copy is here.
        """
        if self._fetch is not None:
            raise RuntimeError(
                f"set_metadata() was called in a rank that has only a copy of {self._origin!r}, so it would be lost. "
                "Call it before report(), on the checkpoint that is reported, or in the driver."
            )
        self._find()
        beside = self._metadata_path.with_suffix(".tmp")
        beside.write_text(json.dumps(dict(metadata)), encoding="utf-8")
        beside.replace(self._metadata_path)

    def update_metadata(self, metadata: Mapping[str, object]) -> None:
        """Add keys to the stored dict."""
        self.set_metadata({**self.get_metadata(), **metadata})

    @property
    def _metadata_path(self) -> Path:
        return Path(self.path, METADATA_NAME)

    def _find(self) -> str:
        """Return the path; raise if there is nothing."""
        path = self.path
        if not Path(path).is_dir():
            raise FileNotFoundError(
                f"The checkpoint's folder {path!r} does not exist. Was it removed (CheckpointConfig.num_to_keep), was "
                "its temporary folder closed, or is it on another machine? In a training function, get_checkpoint() "
                "fetches the run's."
            )
        return path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self._origin == other._origin

    def __hash__(self) -> int:
        return hash(self._origin)

    def __repr__(self) -> str:
        return f"Checkpoint({self._origin!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return build, (self._origin,)


def build(origin: str, fetch: Fetch | None = None) -> Checkpoint:
    """Return a handle on a folder that may be another machine's: nothing is looked at.

    Args:
        origin: The folder's absolute path there.
        fetch: Brings the files, if they cannot be read here.
    """
    checkpoint = object.__new__(Checkpoint)
    checkpoint._origin = origin
    checkpoint._fetch = fetch
    return checkpoint
