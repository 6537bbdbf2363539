"""Columns in the names of folders: ``year=2026/month=01/``, or ``2026/01/`` with names that the user gives."""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final
from urllib import parse

from hocket.data.sources import filesystems
from hocket.stores import places


def quote(text: str, *, is_alone: bool = False) -> str:
    """Return a text as the name of a folder, or as a part of a name. `Partitioning.read` recovers the text from it.

    Args:
        text: The text.
        is_alone: Whether the text is the whole name. Readers skip a name with a leading dot or underscore.
    """
    found = "".join(f"%{ord(letter):02X}" if letter in '/%=\\:*?"<>|\x00' else letter for letter in text)
    is_hidden = text == filesystems.GONE or (is_alone and text.startswith((".", "_")))
    return f"%{ord(text[0]):02X}{found[1:]}" if is_hidden else found


class PartitionStyle(enum.StrEnum):
    """The styles of folder names."""

    HIVE = "hive"
    """``year=2026/month=01/``."""
    DIRECTORY = "dir"
    """``2026/01/``."""


@final
@dataclass(frozen=True)
class Partitioning:
    """How the names of folders become columns.

    Args:
        style: ``"hive"`` or ``"dir"``.
        base_dir: The folder below which names count. Default: the folder that is read.
        field_names: The columns; for the style ``"dir"``, one for each folder. Default: the columns in the names.
        field_types: The types of the values, by column: ``int``, ``float``, ``str`` or ``bool``. Default: texts.
        filesystem: For programs written for Ray: has no effect.

    Raises:
        ValueError: The style is unknown, a type is not supported, or the style is ``"dir"`` without `field_names`.

    Example:
        >>> from hocket.data.datasource import Partitioning
        >>> Partitioning("dir", field_names=["year", "month"], field_types={"year": int}).read("/d/2026/01/a.csv", "/d")
        {'year': 2026, 'month': '01'}
    """

    style: PartitionStyle | str
    base_dir: str | None = None
    field_names: Sequence[str] | None = None
    field_types: Mapping[str, type] | None = None
    filesystem: object = None

    def __post_init__(self) -> None:
        if self.style not in tuple(PartitionStyle):
            raise ValueError(f"style must be 'hive' or 'dir', but received {self.style!r}. Write Partitioning('hive').")
        if self.style == PartitionStyle.DIRECTORY and not self.field_names:
            raise ValueError("Partitioning('dir') needs the names of the columns. Write field_names=['year', 'month'].")
        strange = [kind for kind in (self.field_types or {}).values() if kind not in (int, float, str, bool)]
        if strange:
            raise ValueError(f"field_types may be int, float, str or bool, but received {strange[0]!r}.")

    def read(self, path: str, root: str) -> dict[str, Any]:
        """Return the columns in the path of a file, below a root folder.

        Raises:
            ValueError: The path has the wrong folders, or a value does not have its column's type.
        """
        base = next((base for base in self._list_bases(path, root) if path.startswith(base)), None)
        if base is None:
            return {}
        inner = path[len(base) :].split("/")[:-1]
        found = self._read_hive(inner, path) if self.style == PartitionStyle.HIVE else self._read_folders(inner, path)
        return {name: self._convert(name, value, path) for name, value in found.items()}

    def _list_bases(self, path: str, root: str) -> list[str]:
        """Return the candidates for the base folder, each with a slash at its end. On this machine there are two: the
        path from the root, and the path from the working directory."""
        given = places.strip_address(
            self.base_dir or (_leave_pairs(root) if self.style == PartitionStyle.HIVE else root)
        )
        found = [posixpath.join("/", given), posixpath.abspath(given)] if path.startswith("/") else [given]
        return [f"{base.rstrip('/')}/" for base in found]

    def _read_hive(self, inner: Sequence[str], path: str) -> dict[str, str]:
        pairs = (part.partition("=") for part in inner if "=" in part)
        found = {parse.unquote(key): value for key, _, value in pairs}
        if self.field_names is not None and found and sorted(found) != sorted(self.field_names):
            raise ValueError(
                f"{path!r} has the folders {sorted(found)}, but field_names are {list(self.field_names)}. Change "
                "field_names."
            )
        return found

    def _read_folders(self, inner: Sequence[str], path: str) -> dict[str, str]:
        names = list(self.field_names or ())
        if inner and len(inner) != len(names):
            raise ValueError(
                f"{path!r} lies in the folders {list(inner)}, but field_names are {names}. Give one name for each "
                "folder."
            )
        return dict(zip(names, inner, strict=False))

    def _convert(self, name: str, value: str, path: str) -> object:
        kind = (self.field_types or {}).get(name, str)
        if value == filesystems.GONE:
            return None
        value = parse.unquote(value)
        if kind is bool:
            if value.lower() not in ("true", "false"):
                raise ValueError(f"{path!r} has {name}={value}, which is neither true nor false. Change field_types.")
            return value.lower() == "true"
        try:
            return kind(value)
        except ValueError:
            raise ValueError(
                f"{path!r} has {name}={value}, which cannot be read as {kind.__name__}. Change field_types."
            ) from None


@final
@dataclass(frozen=True)
class PathPartitionFilter:
    """A choice of files by the values in the names of their folders. Made by `of`.

    Args:
        partitioning: How names become values.
        filter_fn: Takes the values by name (texts, without `field_types`), and returns whether to read the file.
    """

    partitioning: Partitioning
    filter_fn: Callable[[dict[str, Any]], bool]

    @classmethod
    def of(
        cls,
        filter_fn: Callable[[dict[str, Any]], bool],
        style: PartitionStyle | str = PartitionStyle.HIVE,
        base_dir: str | None = None,
        field_names: Sequence[str] | None = None,
        field_types: Mapping[str, type] | None = None,
        filesystem: object = None,
    ) -> PathPartitionFilter:
        """Return a filter; see `Partitioning` for the arguments.

        Example:
            >>> from hocket.data.datasource import PathPartitionFilter
            >>> recent = PathPartitionFilter.of(lambda found: int(found["year"]) >= 2025)
        """
        return cls(Partitioning(style, base_dir, field_names, field_types, filesystem), filter_fn)


DEFAULT: Final = Partitioning(PartitionStyle.HIVE)
"""The partitioning that readers of tables use by default."""


def _leave_pairs(root: str) -> str:
    """Return a folder's path without the ``name=value`` parts at its end: these become columns, too."""
    parts = root.rstrip("/").split("/")
    while parts and "=" in parts[-1]:
        parts.pop()
    return "/".join(parts) or ("/" if root.startswith("/") else "")


def list_values(found: Sequence[filesystems.File], partitioning: Partitioning | None) -> list[dict[str, object]]:
    """Return the columns in the names of each file's folders. All files have the same columns."""
    if partitioning is None:
        return [{} for _ in found]
    folders = [(file.path.rpartition("/")[0], file.root) for file in found]
    read: dict[tuple[str, str], dict[str, Any]] = {}  # once for each folder, which may have a hundred thousand files
    for folder, file in zip(folders, found, strict=True):
        if folder not in read:
            read[folder] = partitioning.read(file.path, file.root)
    names = list(dict.fromkeys(name for one in read.values() for name in one))
    return [{name: read[folder].get(name) for name in names} for folder in folders]
