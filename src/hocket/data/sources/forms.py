"""Formats of written files, beside those of `writing`: ORC, pictures, archives of samples, a user's own."""

from __future__ import annotations

import functools
import io
import json
import pickle
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hocket import extras
from hocket._base import texts
from hocket.data import arrow, blocks
from hocket.data.sources import archives, writing


@final
@dataclass(frozen=True)
class Orc:
    """ORC, written with the keywords that `options` returns for ``pyarrow.orc.write_table``."""

    options: Callable[[], Mapping[str, Any]]
    ending: str = ".orc"

    def write(self, stream: Any, block: blocks.Block) -> None:
        whole = io.BytesIO()  # Arrow's ORC writer would end the process if the stream raised
        write = arrow.load("write_orc()", "pyarrow.orc").write_table
        writing.write_table(functools.partial(write, **self.options()), block.to_batch("pyarrow"), whole)
        stream.write(whole.getbuffer())


@final
@dataclass(frozen=True)
class Picture:
    """The picture of one row.

    Args:
        column: The column with the picture's array.
        kind: Pillow's name of the format, such as ``"png"``.
    """

    column: str
    kind: str

    @property
    def ending(self) -> str:
        return f".{self.kind}"

    def write(self, stream: Any, block: blocks.Block) -> None:
        (row,) = block.select([self.column]).list_rows()
        stream.write(encode_picture(row[self.column], self.kind, f"write_images(): column {self.column!r}"))


def encode_picture(array: object, kind: str, what: str) -> bytes:
    """Return an array as the bytes of a picture."""
    pillow = extras.load("PIL.Image", "write_images()", "Pillow", "Run pip install pillow.")
    found = pillow.registered_extensions().get(f".{kind.lower()}")
    if found is None:
        raise ValueError(f"{what}: Pillow has no format {kind!r} for pictures. Write file_format='png'.")
    try:
        picture = pillow.fromarray(np.asarray(array))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} does not hold a picture, which must be an array of uint8: {error}") from error
    stream = io.BytesIO()
    picture.save(stream, format=found)
    return stream.getvalue()


@final
@dataclass(frozen=True)
class Archive:
    """A tar archive of samples. Each column without a leading ``__`` is a file, named by ``__key__`` and the column.

    Args:
        encoders: Functions that take a row and return a row, called one after the other. True stands for the standard
            encoder, which turns texts, numbers, JSON, arrays and pictures into bytes, by the columns' names.
    """

    encoders: tuple[Any, ...]
    ending: str = ".tar"

    def write(self, stream: Any, block: blocks.Block) -> None:
        before = None
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            for number, row in enumerate(block.list_rows()):
                for encoder in self.encoders:
                    row = _encode_sample(row) if encoder is True else encoder(row)  # noqa: PLW2901 (as it becomes)
                key = row.get("__key__") or f"{number:06}"
                sample = archives.find_key(f"{key}.")[0]
                if not sample.rpartition("/")[2]:
                    raise ValueError(
                        f"a row has the __key__ {key!r}, whose name begins with a dot, so readers would leave it out. "
                        "Give it another __key__"
                    )
                if sample == before:
                    raise ValueError(
                        f"two consecutive rows belong to the sample {sample!r}, which is their __key__ up to its "
                        "first dot, so readers would join them into one row. Give each a different __key__"
                    )
                before = sample
                for name, value in row.items():
                    if value is not None and not name.startswith("__"):
                        _add(archive, f"{key}.{name}", value)


def _add(archive: tarfile.TarFile, name: str, value: object) -> None:
    encoded = value.encode() if isinstance(value, str) else value
    if not isinstance(encoded, bytes):
        raise TypeError(
            f"the file {name!r} must be bytes or text, but would be {texts.name_kind(value)}: {value!r:.40}"
        )
    member = tarfile.TarInfo(name)
    member.size = len(encoded)
    archive.addfile(member, io.BytesIO(encoded))


def _encode_sample(row: Mapping[str, object]) -> dict[str, object]:
    return {name: value if name.startswith("__") else _encode_member(name, value) for name, value in row.items()}


def _encode_member(name: str, value: object) -> object:
    if value is None or isinstance(value, str | bytes):
        return value
    ending = name.rpartition(".")[2].lower()
    if ending in archives.NUMBERS:
        return str(value)
    if ending in archives.PICTURES:
        return encode_picture(value, ending, f"write_webdataset(): column {name!r}")
    if ending in archives.JSON:
        return json.dumps(value.tolist() if isinstance(value, np.ndarray) else value)
    if ending in {"mp", "msgpack"}:
        return archives.load_msgpack("write_webdataset()").packb(value)
    if ending in {"npy", "pickle", "pkl"}:
        stream = io.BytesIO()
        _DUMP[ending](value, stream)
        return stream.getvalue()
    return value


def _save(value: Any, stream: io.BytesIO) -> None:
    np.save(stream, value, allow_pickle=False)


_DUMP: Mapping[str, Callable[[Any, io.BytesIO], None]] = {"npy": _save, "pickle": pickle.dump, "pkl": pickle.dump}


def read_encoders(given: object) -> tuple[object, ...]:
    """Return the encoders of samples that a user gave, as a tuple."""
    found = () if given is None or given is False else tuple(given) if isinstance(given, list | tuple) else (given,)
    for one in found:
        if one is not True and not callable(one):
            raise TypeError(f"encoder must be True, a function or a list of these, but received {one!r:.80}.")
    return found


@final
@dataclass(frozen=True)
class Own:
    """A file that a user's function writes.

    Args:
        function: Takes a block and an open file.
        ending: The ending of the file's name.
    """

    function: Callable[[blocks.Block, Any], None]
    ending: str

    def write(self, stream: object, block: blocks.Block) -> None:
        self.function(block, stream)


def check_endings(endings: Sequence[str]) -> None:
    """Raise if a file's name cannot have one of the endings."""
    for ending in endings:
        if "/" in ending:
            raise ValueError(f"A file's name cannot end in {ending!r}. Leave the slash out.")
