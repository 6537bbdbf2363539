"""A folder that holds the state of a training run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

METADATA_NAME = ".metadata.json"
"""The file in the folder that holds what `Checkpoint.set_metadata` was given."""


@final
class Checkpoint:
    """A handle on a folder of files. It owns nothing: the folder stays when the handle goes.

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
        self.path: str = str(Path(path).resolve())
        """The folder, as an absolute path."""

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return a handle on the folder, which is not copied."""
        return cls(path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files to a folder, and return its path.

        Args:
            path: The folder; made if need be. Default: a new one in the system's temporary folder, which the caller removes.
        """
        self._raise_if_missing()
        target = str(Path(path).resolve()) if path is not None else tempfile.mkdtemp(prefix="checkpoint-")
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Give the path of a folder with the files, to read from. On this machine that is the folder itself, not a copy."""
        self._raise_if_missing()
        yield self.path

    def get_metadata(self) -> dict[str, Any]:
        """Return what `set_metadata` stored; an empty dict if nothing."""
        try:
            metadata: dict[str, Any] = json.loads(self._metadata_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return metadata

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Store a dict with the files, in place of what was stored.

        Raises:
            TypeError: It holds something that JSON cannot hold.
        """
        self._raise_if_missing()
        beside = self._metadata_path.with_suffix(".tmp")
        beside.write_text(json.dumps(metadata), encoding="utf-8")
        beside.replace(self._metadata_path)

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add keys to the stored dict."""
        self.set_metadata({**self.get_metadata(), **metadata})

    @property
    def _metadata_path(self) -> Path:
        return Path(self.path, METADATA_NAME)

    def _raise_if_missing(self) -> None:
        if not Path(self.path).is_dir():
            raise FileNotFoundError(
                f"The checkpoint's folder {self.path!r} does not exist. Was it removed (CheckpointConfig.num_to_keep), or was its "
                "temporary folder closed?"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r})"
