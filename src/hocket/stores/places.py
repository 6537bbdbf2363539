"""From a path or an address to a place in a store.

Every store is one of Arrow's file systems, or one of fsspec's in Arrow's wrapper. File systems can be sent to other
processes.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeAlias, final
from urllib import parse

from hocket import extras
from hocket._base import texts

FileSystem: TypeAlias = Any
"""One of pyarrow's file systems."""

_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://?(.*)", re.DOTALL)
"""One slash is enough, because ``pathlib.Path`` turns two slashes into one."""

_USER: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+://?)?[^/@]*@")
"""The part of an address before the bucket: a user, and perhaps a password."""

_OPTIONS: Final = {
    "s3": {
        *("endpoint_override", "region", "access_key", "secret_key", "session_token", "scheme", "anonymous"),
        *("allow_bucket_creation", "allow_bucket_deletion"),
    },
    "gs": {"endpoint_override", "scheme", "anonymous", "project_id", "default_bucket_location"},
}
"""The options of Arrow's clients, which may follow the question mark of an address."""

_MOST_BYTES: Final = 8192  # twice Linux's limit for a path, since an address has options

_FLAGS: Final = ("anonymous", "allow_bucket_creation", "allow_bucket_deletion")
_REMEDY: Final = "Run pip install 'hocket[data]'."


@final
@dataclass(frozen=True)
class Place:
    """A file or folder in a store."""

    filesystem: FileSystem
    path: str
    """The path in the file system's own form."""
    given: str = field(repr=False)
    """The path or address as the user wrote it, perhaps with a password."""

    @property
    def shown(self) -> str:
        """The path or address for messages, without the parts that may be a password."""
        return show_address(self.given)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def join(self, *names: str) -> Place:
        """Return the place of an entry below this folder."""
        inner = "/".join(names)
        return Place(self.filesystem, f"{self.path.rstrip('/')}/{inner}", f"{self.shown.rstrip('/')}/{inner}")

    def find_parent(self) -> Place | None:
        """Return the enclosing folder; None if the path has one part only, such as a bucket."""
        outer = self.path.rstrip("/").rpartition("/")[0]
        return Place(self.filesystem, outer, self.shown.rstrip("/").rpartition("/")[0]) if outer else None


def is_address(given: str | os.PathLike[str]) -> bool:
    """Tell whether a path begins with a scheme, such as ``s3://``."""
    return _ADDRESS.match(os.fspath(given)) is not None


def show_address(given: str) -> str:
    """Return a path or address for messages, without the parts before an ``@`` and after a question mark, which may be
    passwords."""
    return _USER.sub(r"\1", given.partition("?")[0]) if is_address(given) else given


def show_record(record: Any) -> str:
    """Return a dataclass's ``repr``, with its `storage_path` changed by `show_address`."""
    values = {one.name: getattr(record, one.name) for one in fields(record) if one.repr}
    if isinstance(values["storage_path"], str | os.PathLike):
        values["storage_path"] = show_address(os.fspath(values["storage_path"]))
    return f"{type(record).__qualname__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def strip_address(given: str) -> str:
    """Return the path in an address, without opening the address's file system."""
    found = _ADDRESS.match(given)
    if found is None:
        return given
    inner = _USER.sub("", found.group(2).partition("?")[0])
    return f"/{inner.lstrip('/')}" if found.group(1).lower() in ("file", "local") else inner


def is_local(filesystem: FileSystem) -> bool:
    """Tell whether a file system is this machine's, where renaming a file costs nothing."""
    return isinstance(filesystem, _load("A store", "pyarrow.fs").LocalFileSystem)


def find_place(given: str | os.PathLike[str], filesystem: object, caller: str) -> Place:
    """Return the place of a path.

    Args:
        given: A path of this machine, or an address such as ``s3://bucket/folder``. With a file system, a path on it.
        filesystem: A file system of pyarrow or fsspec. Default: the address determines it.
        caller: The call, for messages.

    Raises:
        ValueError: No file can have that path, or the address is malformed.
    """
    text = os.fspath(given)
    _check_text(text, caller)
    found = _ADDRESS.match(text)
    if filesystem is not None:
        path = _USER.sub("", found.group(2)) if found is not None else text
        return Place(read_filesystem(filesystem, caller), path.rstrip("/") or path, text)
    if found is None:
        return Place(_load(caller, "pyarrow.fs").LocalFileSystem(), str(Path(text).expanduser().absolute()), text)
    return _open_address(found.group(1).lower(), found.group(2), text, caller)


def _check_text(text: str, caller: str) -> None:
    try:
        fault = "it contains a NUL character" if "\0" in text else f"it has more than {_MOST_BYTES:,} bytes"
        if "\0" not in text and len(text.encode()) <= _MOST_BYTES:
            return
    except UnicodeEncodeError:
        fault = "it is not valid UTF-8, which Arrow's paths must be"
    raise ValueError(
        f"{caller}: no file can have the path {texts.safe_repr(text, 200)}: {fault}. Rename the file or folder, or "
        "pass a link to it."
    )


def locate(given: str | os.PathLike[str], filesystem: object, caller: str) -> str | os.PathLike[str] | Place:
    """Return the place of a path in a store, or a path on this machine; see `find_place`.

    A plain path is returned as given, and needs no library.
    """
    if filesystem is None and not is_address(given):
        return given
    place = find_place(given, filesystem, caller)
    return place.path if is_local(place.filesystem) else place


def read_filesystem(given: object, caller: str) -> FileSystem:
    """Return a file system of pyarrow for a file system of pyarrow or fsspec."""
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
    shown = show_address(text)
    if scheme in ("file", "local"):
        return Place(fs.LocalFileSystem(), parse.unquote(f"/{rest.lstrip('/')}"), text)
    if scheme in ("s3", "s3a"):
        path, options = _read_address("s3", rest, shown, caller)
        return Place(fs.S3FileSystem(**{**_find_endpoint(), **options}), path, text)
    if scheme in ("gs", "gcs"):
        path, options = _read_address("gs", rest, shown, caller)
        return Place(fs.GcsFileSystem(**options), path, text)
    fsspec = extras.load("fsspec", caller, "fsspec", _REMEDY)
    remedy = f"Run pip install with the package that fsspec names for {scheme}://, or pass filesystem=."
    try:
        with extras.explain(f"{caller}: the address {shown!r}", "its library", remedy):
            made, path = fsspec.core.url_to_fs(f"{scheme}://{rest}")
    except ValueError as error:
        if "rotocol not known" not in str(error):
            raise
        raise ValueError(
            f"{caller}: the address {shown!r} has the unknown scheme {scheme!r}. Write a path of this machine, s3://, "
            "gs:// or another scheme of fsspec's, or pass filesystem=."
        ) from None
    return Place(fs.PyFileSystem(fs.FSSpecHandler(made)), path, text)


def _read_address(kind: str, rest: str, shown: str, caller: str) -> tuple[str, dict[str, object]]:
    """Return an address's path in its store, and the options for the store's client."""
    whole, _, query = rest.partition("?")
    outer, slash, inner = whole.partition("/")
    user, _, bucket = outer.rpartition("@")
    parts = inner.rstrip("/").split("/") if inner.strip("/") else []
    strange = [part for part in parts if part in ("", ".", "..")] or [*{*"\n\r\t"} & {*whole}]
    if strange:
        raise ValueError(
            f"{caller}: {shown!r} has {strange[0]!r} in its path, which is not a valid name in a store. Leave it out."
        )
    try:
        options: dict[str, Any] = dict(parse.parse_qsl(query, strict_parsing=True)) if query else {}
    except ValueError:
        raise ValueError(
            f"{caller}: the address {shown!r} has a question mark, which options must follow: name=value&name=value. "
            "If the question mark belongs to a name, pass filesystem= and the path in it."
        ) from None
    unknown = sorted(set(options) - _OPTIONS[kind])
    if unknown:
        known = sorted(_OPTIONS[kind])
        raise ValueError(
            f"{caller}: the address {shown!r} has the unknown option {unknown[0]!r}. Write one of {known}."
        )
    options |= {name: options[name].lower() in ("1", "true", "yes") for name in _FLAGS if name in options}
    key, is_pair, secret = user.partition(":")
    if user == "anonymous":
        options["anonymous"] = True
    elif is_pair and kind == "s3":
        options |= {"access_key": parse.unquote(key), "secret_key": parse.unquote(secret)}
    elif user:
        pair = " or key:secret@" if kind == "s3" else ""
        raise ValueError(
            f"{caller}: in the address {shown!r} only anonymous@{pair} may stand before the bucket, but there is other "
            "text. Leave that text out, or pass filesystem=."
        )
    return f"{bucket}{slash}{inner}".rstrip("/"), options


def _find_endpoint() -> dict[str, object]:
    """Return the options for the S3 endpoint that the environment names, as Amazon's own tools read it."""
    found = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not found:
        return {}
    address = parse.urlsplit(found)
    return {"endpoint_override": address.netloc, "scheme": address.scheme} if address.netloc else {}


def _load(caller: str, module: str) -> Any:
    return extras.load(module, caller, "pyarrow", _REMEDY)
