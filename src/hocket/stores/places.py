"""From a path or an address to a place in a store.

Everything goes through Arrow's file systems; one of fsspec's is wrapped. They can be sent to other processes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, final
from urllib import parse

from hocket import extras

FileSystem: TypeAlias = Any
"""One of pyarrow's file systems."""

_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://?(.*)", re.DOTALL)
"""One slash is enough: `pathlib.Path` makes one of two."""

_S3_OPTIONS: Final = {"endpoint_override", "region", "access_key", "secret_key", "session_token", "scheme", "anonymous"}
_REMEDY: Final = "Run pip install 'hocket[data]'."


@final
@dataclass(frozen=True)
class Place:
    """A file or folder in a store."""

    filesystem: FileSystem
    path: str
    """As the file system has it."""
    given: str
    """As the user wrote it."""

    @property
    def shown(self) -> str:
        """As messages have it: without what follows the question mark of an address, which may be a password."""
        return self.given.partition("?")[0] if is_address(self.given) else self.given

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def join(self, *names: str) -> Place:
        """Return the place of something in this folder."""
        inner = "/".join(names)
        return Place(self.filesystem, f"{self.path.rstrip('/')}/{inner}", f"{self.shown.rstrip('/')}/{inner}")

    def find_parent(self) -> Place | None:
        """Return the folder that it is in; None if it has no name of one."""
        outer = self.path.rstrip("/").rpartition("/")[0]
        return Place(self.filesystem, outer, self.shown.rstrip("/").rpartition("/")[0]) if outer else None


def is_address(given: str | os.PathLike[str]) -> bool:
    """Tell whether a path begins with a scheme, such as ``s3://``."""
    return _ADDRESS.match(os.fspath(given)) is not None


def is_local(filesystem: FileSystem) -> bool:
    """Tell whether a file system is this machine's, where files are renamed at no cost."""
    return isinstance(filesystem, _load("A store", "pyarrow.fs").LocalFileSystem)


def find_place(given: str | os.PathLike[str], filesystem: object, caller: str) -> Place:
    """Return where a path is.

    Args:
        given: A path of this machine, or an address such as ``s3://bucket/folder``. With a file system, a path on it.
        filesystem: One of pyarrow's or fsspec's. Default: the address says it.
        caller: For messages.

    Raises:
        TypeError: The file system is none.
        ValueError: Nobody knows the scheme of the address.
        MissingExtraError: It needs a library that is not installed.
    """
    text = os.fspath(given)
    found = _ADDRESS.match(text)
    if filesystem is not None:
        path = f"{found.group(2)}" if found is not None else text
        return Place(read_filesystem(filesystem, caller), path.rstrip("/") or path, text)
    if found is None:
        return Place(_load(caller, "pyarrow.fs").LocalFileSystem(), str(Path(text).expanduser().absolute()), text)
    return _open_address(found.group(1).lower(), found.group(2), text, caller)


def locate(given: str | os.PathLike[str], filesystem: object, caller: str) -> str | os.PathLike[str] | Place:
    """Return where a path is in a store; or the path on this machine, as it was given if it was no address.

    A plain path needs no library. See `find_place`.
    """
    if filesystem is None and not is_address(given):
        return given
    place = find_place(given, filesystem, caller)
    return place.path if is_local(place.filesystem) else place


def read_filesystem(given: Any, caller: str) -> FileSystem:
    """Return one of pyarrow's file systems from one of its or of fsspec's.

    Raises:
        TypeError: It is neither.
    """
    fs = _load(caller, "pyarrow.fs")
    if isinstance(given, fs.FileSystem):
        return given
    if hasattr(given, "protocol") and hasattr(given, "open") and hasattr(given, "ls"):
        kinds = (given.protocol,) if isinstance(given.protocol, str) else given.protocol
        return fs.LocalFileSystem() if "file" in kinds else fs.PyFileSystem(fs.FSSpecHandler(given))
    raise TypeError(
        f"{caller}: filesystem must be one of pyarrow's or fsspec's, but received {given!r:.80}. Write "
        "filesystem=fsspec.filesystem('s3', ...), or leave it out and pass an address."
    )


def _open_address(scheme: str, rest: str, text: str, caller: str) -> Place:
    fs = _load(caller, "pyarrow.fs")
    shown = text.partition("?")[0]  # what follows may be a password
    if scheme in ("file", "local"):
        return Place(fs.LocalFileSystem(), parse.unquote(f"/{rest.lstrip('/')}"), text)
    address = parse.urlsplit(f"{scheme}://{rest}")
    path = (address.netloc + address.path).rstrip("/")
    options: dict[str, Any] = dict(parse.parse_qsl(address.query))
    if scheme in ("s3", "s3a"):
        unknown = sorted(set(options) - _S3_OPTIONS)
        if unknown:
            raise ValueError(
                f"{caller}: the address {shown!r} has {unknown[0]!r}, which is none of {sorted(_S3_OPTIONS)}."
            )
        if "anonymous" in options:
            options["anonymous"] = options["anonymous"].lower() in ("1", "true", "yes")
        return Place(fs.S3FileSystem(**options), path, text)
    if scheme in ("gs", "gcs"):
        return Place(fs.GcsFileSystem(**options), path, text)
    fsspec = extras.load("fsspec", caller, "fsspec", _REMEDY)
    try:
        made = fsspec.filesystem(scheme)
    except ValueError:
        raise ValueError(
            f"{caller}: nothing is known of {scheme!r} in the address {shown!r}. Write a path of this machine, s3://, "
            "gs://, or what fsspec knows; or pass filesystem=."
        ) from None
    except ImportError as error:
        raise ImportError(f"{caller}: the address {shown!r} needs a library that is not installed: {error}") from error
    return Place(fs.PyFileSystem(fs.FSSpecHandler(made)), made._strip_protocol(f"{scheme}://{rest}"), text)


def _load(caller: str, module: str) -> Any:
    return extras.load(module, caller, "pyarrow", _REMEDY)
