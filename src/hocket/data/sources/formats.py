"""The formats of single files: tables of text, lines, pictures, arrays, records. `archives` has the others."""

from __future__ import annotations

import codecs
import contextlib
import copy
import io
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from hocket import extras
from hocket.data import arrow, blocks, settings
from hocket.data.sources import filesystems

_ABOVE_INT64: Final = 2.0**63

_PACKED: Final = (".gz", ".bz2", ".zst", ".lz4")

_NULL_LINE: Final = re.compile(rb"\n[ \t]*null[ \t]*\r?(?:\n|\Z)")
"""A line of JSON that is only null. The pattern starts with a newline because a search finds that fast."""


def open_packed(filesystem: filesystems.FileSystem, file: filesystems.File) -> Any:
    """Return a stream of a file's bytes, unpacked if its name or the user says that they are packed."""
    return filesystem.open_input_stream(file.path, **{"compression": "detect", **(file.opening or {})})


def _read_all(filesystem: filesystems.FileSystem, file: filesystems.File) -> bytes:
    with open_packed(filesystem, file) as stream:
        found: bytes = stream.read()
    return found


def _is_large(file: filesystems.File) -> bool:
    factor = 4 if file.path.endswith(_PACKED) else 1
    return file.size * factor > settings.DataContext.get_current().get_block_bytes()


def _table(table: Any) -> blocks.Block:
    arrow.check_texts(table)
    return blocks.Block(arrow.read_table(table), table.num_rows)


def _cut_lines(stream: Any, size: int) -> Iterator[bytes]:
    """Yield the bytes of a stream in parts of about a size; each part has whole lines."""
    left = b""
    while chunk := stream.read(size):
        whole, newline, rest = (left + chunk).rpartition(b"\n")
        if newline:
            yield whole + newline
            left = rest
        else:
            left = rest  # the line is longer than a part
    if left:
        yield left


@final
class _WholeEnds:
    """A stream in which no part ends with a carriage return. If a part ends so within a text in quotes, Arrow's CSV
    reader (25.0) drops a line feed that comes next.

    Args:
        stream: The stream.
    """

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = b""

    def read(self, size: int) -> bytes:
        """Return about `size` more bytes."""
        found: bytes = self._left + self._stream.read(size)
        self._left = b"\r" if found.endswith(b"\r") and len(found) > 1 else b""
        return found[:-1] if self._left else found

    def close(self) -> None:
        """Do nothing: the function that opened the stream closes it."""


_PARSING: Final = (
    *("delimiter", "quote_char", "double_quote", "escape_char"),
    *("ignore_empty_lines", "invalid_row_handler"),
)
"""The options of ``pyarrow.csv.ParseOptions``, except ``newlines_in_values``."""


@final
@dataclass(frozen=True)
class Csv:
    """A table with column names in its first line. The first part of a large file determines the types of the rest.

    Args:
        options: Keywords of ``pyarrow.csv.read_csv``.
    """

    options: Mapping[str, Any]

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        try:
            yield from map(_table, self._read_exactly(filesystem, file))
        except ValueError as error:
            if _is_large(file) and "conversion error" in str(error):
                size = settings.DataContext.get_current().get_block_bytes()
                raise ValueError(
                    f"{error}. A large file's types are taken from its first {size >> 20} MiB; pass "
                    "convert_options=pyarrow.csv.ConvertOptions(column_types={...})"
                ) from error
            raise

    def _read_exactly(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[Any]:
        """Yield the tables of a file. Arrow reads a column with a whole number above int64 as floats; here the column
        becomes unsigned if all of its texts are whole numbers."""
        pa = arrow.load("read_csv()")
        parts = self._read_parts(filesystem, file, self.options)
        first = next(parts, None)
        if first is None:
            return
        convert = self.options.get("convert_options")
        rounded = _list_rounded(first, () if convert is None else convert.column_types)
        if rounded:
            texts = next(self._read_parts(filesystem, file, self._give_type(rounded, pa.string())))
            whole = [name for name in rounded if _is_whole(texts.column(name))]
            if whole:
                parts = self._read_parts(filesystem, file, self._give_type(whole, pa.uint64()))
                first = next(parts)
        yield first
        yield from parts

    @staticmethod
    def _read_parts(
        filesystem: filesystems.FileSystem, file: filesystems.File, options: Mapping[str, Any]
    ) -> Iterator[Any]:
        csv = arrow.load("read_csv()", "pyarrow.csv")
        given = options.get("parse_options") or csv.ParseOptions()
        how = {name: getattr(given, name) for name in _PARSING}  # copying calls a handler, even None
        # Without newlines_in_values, Arrow cuts texts of several lines in two at each MiB.
        options = {**options, "parse_options": csv.ParseOptions(newlines_in_values=True, **how)}
        with open_packed(filesystem, file) as packed:
            stream = arrow.load("read_csv()").PythonFile(_WholeEnds(packed), "r")
            if not _is_large(file):
                yield csv.read_csv(stream, **options)
                return
            read = copy.copy(options.get("read_options") or csv.ReadOptions())
            read.block_size = settings.DataContext.get_current().get_block_bytes()
            yield from csv.open_csv(stream, **{**options, "read_options": read})

    def _give_type(self, names: Sequence[str], kind: Any) -> dict[str, Any]:
        """Return the user's keywords with one type for some columns."""
        csv = arrow.load("read_csv()", "pyarrow.csv")
        convert = copy.copy(self.options.get("convert_options") or csv.ConvertOptions())
        convert.column_types = {**convert.column_types, **dict.fromkeys(names, kind)}
        convert.strings_can_be_null |= kind == arrow.load("read_csv()").string()
        return {**self.options, "convert_options": convert}


def _list_rounded(table: Any, given: Collection[str]) -> list[str]:
    """Return the float columns that may hold whole numbers above int64: Arrow has cut off their last digits.

    Args:
        table: A table as Arrow has read it.
        given: The columns with a type that the user gave.
    """
    pa, compute = arrow.load("A table"), arrow.load("A table", "pyarrow.compute")
    found = []
    for at, name in enumerate(table.column_names):  # by number, because names may come twice: `read_table` reports that
        if table.schema.field(at).type == pa.float64() and name not in given:
            bounds = compute.min_max(table.column(at))
            least, most = bounds["min"].as_py(), bounds["max"].as_py()
            if most is not None and least >= 0 and most >= _ABOVE_INT64:
                found.append(name)
    return found


def _is_whole(texts: Any) -> bool:
    """Return whether the texts of a column are all whole numbers that fit uint64."""
    pa, compute = arrow.load("A table"), arrow.load("A table", "pyarrow.compute")
    try:
        compute.utf8_trim_whitespace(texts).cast(pa.uint64())
    except pa.ArrowInvalid:
        return False
    return True


@final
@dataclass(frozen=True)
class Orc:
    """An ORC table, read stripe by stripe.

    Args:
        columns: The columns to read; None: all.
    """

    columns: tuple[str, ...] | None

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        orc = arrow.load("read_orc()", "pyarrow.orc")
        with filesystem.open_input_file(file.path) as stream:
            opened = orc.ORCFile(stream)
            names = opened.schema.names
            blocks.check_columns(self.columns or (), names)
            if not opened.nstripes:
                yield _table(opened.read(columns=self.columns and list(self.columns)))
            for stripe in range(opened.nstripes):
                yield _table(opened.read_stripe(stripe, columns=self.columns and list(self.columns)))


@final
@dataclass(frozen=True)
class Json:
    """A JSON object in each line, or an array of objects. An array is read as a whole, however large it is.

    Args:
        options: Keywords of ``pyarrow.json.read_json``.
    """

    options: Mapping[str, Any]

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        with open_packed(filesystem, file) as stream:
            if not _is_large(file):
                yield self._read_whole(stream.read().removeprefix(codecs.BOM_UTF8))
                return
            parts = _cut_lines(stream, settings.DataContext.get_current().get_block_bytes())
            first = next(parts, b"").removeprefix(codecs.BOM_UTF8)
            if _opens_array(first):  # then no line is a row
                yield self._read_whole(first + b"".join(parts))
                return
            yield from map(self._read_lines, itertools.chain([first], parts) if first else ())

    def _read_whole(self, content: bytes) -> blocks.Block:
        if not content.strip():  # the file of a data set without rows
            return blocks.Block({}, 0)
        array = _read_array(content) if content.lstrip()[:1] == b"[" else None
        return self._read_lines(content) if array is None else array

    def _read_lines(self, content: bytes) -> blocks.Block:
        """Return the rows of lines, as values of Python if Arrow has no type for them and the user gave no options. A
        line that is a list is a row with the columns ``"0"``, ``"1"``, ..."""
        read = arrow.load("read_json()", "pyarrow.json").read_json
        content = _fill_lines(content)
        try:
            return _table(self._read_exactly(content, read))
        except arrow.load("read_json()").ArrowInvalid:
            try:
                rows = [json.loads(line) for line in content.splitlines() if line.strip()]
            except ValueError:
                rows = [None]
            if self.options or not all(isinstance(row, dict | list) for row in rows):
                raise
        found = [row if isinstance(row, dict) else {str(at): value for at, value in enumerate(row)} for row in rows]
        return blocks.build_from_rows(found, "read_json()")

    def _read_exactly(self, content: bytes, read: Callable[..., Any]) -> Any:
        """Return a table in which columns with whole numbers above int64 are unsigned: Arrow would make them floats."""
        pa, parsing = arrow.load("read_json()"), arrow.load("read_json()", "pyarrow.json")
        table = read(io.BytesIO(content), **self.options)
        parse = copy.copy(self.options.get("parse_options") or parsing.ParseOptions())
        given = {} if parse.explicit_schema is None else {one.name: one.type for one in parse.explicit_schema}
        rounded = _list_rounded(table, given)
        first: Any = None
        with contextlib.suppress(ValueError):  # a row may span several lines
            first = json.loads(content.lstrip().partition(b"\n")[0]) if rounded else None
        for name in rounded:
            if isinstance(first, dict) and isinstance(first.get(name), float):  # its text is no whole number
                continue
            parse.explicit_schema = pa.schema({**given, name: pa.uint64()})
            with contextlib.suppress(ValueError):  # fails if another value of the column has a fraction
                table = read(io.BytesIO(content), **{**self.options, "parse_options": parse})
                given[name] = pa.uint64()
        return table


def _fill_lines(content: bytes) -> bytes:
    """Return lines with an empty object in the place of each null. Arrow's reader (25.0) can crash the whole process if
    one of its blocks begins with null. Rows of several lines stay unchanged."""
    if not (_NULL_LINE.search(content) or _NULL_LINE.match(b"\n" + content.lstrip()[:5])):
        return content
    lines = content.splitlines()
    try:
        return b"\n".join(b"{}" if line.strip() and json.loads(line) is None else line for line in lines)
    except ValueError:
        return content


def _opens_array(content: bytes) -> bool:
    """Return whether a file starts with an array of objects, and not with a list in each line."""
    line = content.lstrip().partition(b"\n")[0]
    if line[:1] != b"[":
        return False
    try:
        return all(isinstance(one, dict) for one in json.loads(line))
    except ValueError:  # the array continues in the next line
        return True


def _read_array(content: bytes) -> blocks.Block | None:
    """Return the objects of one JSON array; None if the content has a list in each line instead."""
    try:
        rows = json.loads(content)
    except ValueError:
        return None
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError('it is a JSON array, but not an array of objects, such as [{"x": 1}]')
    names = list(dict.fromkeys(name for row in rows for name in row))
    return blocks.build({name: [row.get(name) for row in rows] for name in names}, "read_json()")


@final
@dataclass(frozen=True)
class Text:
    """A row for each line, as the column ``text``.

    Args:
        encoding: The encoding of the text.
        drop_empty_lines: Whether to leave out lines without a character.
    """

    encoding: str
    drop_empty_lines: bool

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        is_wide = "\n".encode(self.encoding) != b"\n"  # for example UTF-16, which cannot be cut at a newline byte
        size = settings.DataContext.get_current().get_block_bytes()
        with open_packed(filesystem, file) as stream:
            for part in [stream.read()] if is_wide else _cut_lines(stream, size):
                text = part.decode(self.encoding).removeprefix("\ufeff")
                lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
                yield blocks.build(
                    {"text": [line for line in lines if line or not self.drop_empty_lines]}, "read_text()"
                )


@final
@dataclass(frozen=True)
class Binary:
    """A row for each file, as the column ``bytes``."""

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        yield blocks.build({"bytes": [_read_all(filesystem, file)]}, "read_binary_files()")


@final
@dataclass(frozen=True)
class Image:
    """A picture for each file, as the column ``image``: an array of height, width and colours.

    Args:
        size: The height and width of the result; None: unchanged.
        mode: Pillow's name of the colour mode; None: unchanged.
        transform: Takes the array and returns another array; None: no change.
    """

    size: tuple[int, int] | None
    mode: str | None
    transform: Callable[[Any], object] | None = None

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        yield blocks.build({"image": [self.decode(_read_all(filesystem, file))]}, "read_images()")

    def decode(self, encoded: bytes) -> Any:
        """Return the picture in a file's bytes, as an array."""
        pillow = extras.load("PIL.Image", "read_images()", "Pillow", "Run pip install pillow.")
        with pillow.open(io.BytesIO(encoded)) as picture:
            if self.size is not None:
                picture.draft(self.mode or "RGB", (self.size[1], self.size[0]))  # an eighth of the time for a JPEG
            if self.mode is not None:
                picture = picture.convert(self.mode)  # noqa: PLW2901 (the same picture)
            if self.size is not None:
                picture = picture.resize((self.size[1], self.size[0]), resample=pillow.Resampling.BILINEAR)  # noqa: PLW2901
            array = np.array(picture)
        return array if self.transform is None else self.transform(array)


@final
@dataclass(frozen=True)
class Numpy:
    """The first axis of a file's array, as the column ``data``; an ``.npz`` file has a column for each array."""

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        found = np.load(io.BytesIO(_read_all(filesystem, file)), allow_pickle=False)
        columns = {"data": found} if isinstance(found, np.ndarray) else dict(found)
        yield blocks.build(columns, f"read_numpy({file.path!r})")


@final
@dataclass(frozen=True)
class TfRecord:
    """Records of TensorFlow's ``Example`` messages: a column for each feature. A feature of one value is a scalar."""

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        with open_packed(filesystem, file) as stream:
            rows: list[dict[str, object]] = []
            num_bytes = 0
            for record in read_records(stream):
                rows.append(_read_example(record))
                num_bytes += len(record)
                if num_bytes > settings.DataContext.get_current().get_block_bytes():
                    yield _build_examples(rows)
                    rows, num_bytes = [], 0
        if rows:
            yield _build_examples(rows)


def read_records(stream: Any) -> Iterator[bytes]:
    """Yield the records of a TFRecord file. Each has a length, its checksum, the bytes, and their checksum.

    The format is in TensorFlow's guide "TFRecord and tf.train.Example". The reader compares only the checksums of
    lengths: comparing those of the bytes would take longer than reading the bytes.
    """
    while head := stream.read(12):
        if len(head) < 12 or _find_checksum(head[:8]) != int.from_bytes(head[8:], "little"):
            raise ValueError("it is not a TFRecord file, is damaged, or ends within a record")
        size = int.from_bytes(head[:8], "little")
        body = stream.read(size + 4)
        if len(body) < size + 4:
            raise ValueError("it ends within a record")
        yield body[:size]


def _build_checksums() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901 (the division, bit by bit)
        table.append(value)
    return table


_CHECKSUMS: Final = _build_checksums()


def _find_checksum(content: bytes) -> int:
    """Return the masked CRC-32C (Castagnoli) of a few bytes, as in TFRecord files: rotated, plus a constant."""
    found = 0xFFFFFFFF
    for byte in content:
        found = found >> 8 ^ _CHECKSUMS[(found ^ byte) & 0xFF]
    found ^= 0xFFFFFFFF
    return ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _read_example(record: bytes) -> dict[str, object]:
    tensorflow = extras.load("tensorflow", "read_tfrecords()", "TensorFlow", "Run pip install 'hocket[tensorflow]'.")
    try:
        example = tensorflow.train.Example.FromString(record)
    except Exception as error:  # protobuf has its own error classes
        raise ValueError(f"a record is not an Example: {error}") from error
    row = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        row[name] = values[0] if len(values) == 1 else values or None
    return row


def _build_examples(rows: list[dict[str, object]]) -> blocks.Block:
    names = sorted({name for row in rows for name in row})
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if any(isinstance(value, list) for value in values):
            values = [value if isinstance(value, list) or value is None else [value] for value in values]
        columns[name] = values
    return blocks.build(columns, "read_tfrecords()")
