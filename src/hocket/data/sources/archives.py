"""Samples in tar archives, in the layout of WebDataset."""

from __future__ import annotations

import fnmatch
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np

from hocket import extras
from hocket.data import blocks, settings
from hocket.data.sources import filesystems, formats

Names: TypeAlias = Sequence[str] | Callable[[str], bool]
"""A choice of names: whole names, with or without a leading dot; patterns such as ``"*.jpg"``; or a function that
returns whether a name is chosen."""

Renaming: TypeAlias = Sequence[tuple[str, str]] | Callable[[str], str]
"""New names of files: pairs of an old text and its replacement, or a function from old to new name."""


@final
@dataclass(frozen=True, kw_only=True)
class WebDataset:
    """Samples of a tar archive. Files with the same name up to the first dot are a row, with a column for each ending,
    the name as ``__key__``, and the archive's path as ``__url__``. A file belongs to no sample if its name begins with
    a dot, as macOS adds them, or has no ending, such as ``README``.

    Args:
        decoder: Whether to decode texts, numbers, JSON, arrays and pictures; False leaves all as bytes. Or a function
            that takes a sample of bytes and returns the decoded sample.
        rename: New names of the files, which apply before anything else.
        select: The files of the archive to read; None: all.
        suffixes: The columns to read; None: all.
        expands_json: Whether each key of a sample's ``json`` becomes a column.
    """

    decoder: bool | Callable[[dict[str, Any]], Mapping[str, Any]]
    select: Names | None = None
    rename: Renaming | None = None
    suffixes: Names | None = None
    expands_json: bool = False

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        most = settings.DataContext.get_current().get_block_bytes()
        rows: list[dict[str, Any]] = []
        num_bytes = 0
        with formats.open_packed(filesystem, file) as stream:
            tail: Any = _Tail(stream)
            archive = tarfile.open(fileobj=tail, mode="r|")  # noqa: SIM115 (it holds nothing but the stream)
            for name, content in self._list_members(archive):
                key, ending = find_key(name)
                if not ending or not key.rpartition("/")[2]:
                    continue
                if not rows or rows[-1]["__key__"] != key:
                    if num_bytes > most:
                        yield self._build(rows)
                        rows, num_bytes = [], 0
                    rows.append({"__key__": key, "__url__": file.path})
                if self.suffixes is None or _is_meant(ending, self.suffixes):
                    encoded = content.read()
                    num_bytes += len(encoded)
                    rows[-1][ending] = _decode(ending, encoded) if self.decoder is True else encoded
            tail.check_end(archive.offset)
        if rows:
            yield self._build(rows)

    def _list_members(self, archive: tarfile.TarFile) -> Iterator[tuple[str, Any]]:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            name = _rename(member.name, self.rename)
            if content is not None and (self.select is None or _is_meant(name, self.select)):
                yield name, content

    def _build(self, rows: Sequence[dict[str, object]]) -> blocks.Block:
        made = [self._finish(row) for row in rows]
        names = list(dict.fromkeys(name for row in made for name in row))
        return blocks.build({name: [row.get(name) for row in made] for name in names}, "read_webdataset()")

    def _finish(self, row: dict[str, object]) -> Mapping[str, object]:
        found: Any = self.decoder(row) if callable(self.decoder) else row
        if not isinstance(found, Mapping):
            raise TypeError(f"decoder must return a sample as a dict, but returned {found!r:.80}")
        if not self.expands_json or "json" not in found:
            return found
        inner = found["json"]
        inner = json.loads(inner) if isinstance(inner, bytes | str) else inner
        if not isinstance(inner, Mapping):
            raise TypeError(f"expand_json needs an object in each sample's json, but found {inner!r:.80}")
        return {**found, **inner}


def find_key(name: str) -> tuple[str, str]:
    """Return the key of a file's sample and the name of its column, both from the file's name."""
    folder, _, inner = name.rpartition("/")
    stem, _, ending = inner.partition(".")
    return f"{folder}/{stem}" if folder else stem, ending


def _is_meant(name: str, names: Names) -> bool:
    if callable(names):
        return bool(names(name))
    return any(one in (name, f".{name}") or fnmatch.fnmatch(f".{name}", one) for one in names)


def _rename(name: str, renaming: Renaming | None) -> str:
    if callable(renaming):
        return renaming(name)
    for old, new in renaming or ():
        name = name.replace(old, new)
    return name


@final
class _Tail:
    """A stream of a tar archive that keeps the last bytes it returned.

    Python's tarfile takes a damaged header, or the end of the file, for the end of the archive. With these bytes
    `check_end` finds out whether the archive's end mark is really there.
    Args:
        stream: The stream.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._last = b""
        self._end = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        found: bytes = self._stream.read(size)
        self._last = (self._last + found)[-4 * tarfile.RECORDSIZE :]
        self._end += len(found)
        return found

    def check_end(self, offset: int) -> None:
        """Raise if the archive has no end mark at an offset."""
        at = offset - self._end + len(self._last)
        mark = self._last[at : at + tarfile.BLOCKSIZE]
        if at < 0 or len(mark) < tarfile.BLOCKSIZE or any(mark):
            raise ValueError("the archive is damaged or incomplete: it has no end mark")


NUMBERS: Final = ("cls", "cls2", "index", "inx", "id")
JSON: Final = ("json", "jsn")
PICTURES: Final = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "webp")
"""Endings of names in an archive, by the kind of content."""


def load_msgpack(caller: str) -> Any:
    """Return msgpack.

    Raises:
        MissingExtraError: It is not installed.
    """
    return extras.load("msgpack", caller, "msgpack", "Run pip install msgpack.")


def _decode(ending: str, encoded: bytes) -> object:
    match ending.rpartition(".")[2].lower():
        case "txt" | "text":
            return encoded.decode()
        case "npy":
            return np.load(io.BytesIO(encoded), allow_pickle=False)
        case "mp" | "msgpack":
            return load_msgpack("read_webdataset()").unpackb(encoded)
        case kind if kind in NUMBERS:
            return int(encoded)
        case kind if kind in JSON:
            return json.loads(encoded)
        case kind if kind in PICTURES:
            return formats.Image(None, None).decode(encoded)
    return encoded
