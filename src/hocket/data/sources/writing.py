"""Blocks written to files: each block becomes a file, whole or not at all.

On this machine a file is written under another name and then renamed; a store such as S3 shows only whole objects. A
repeated task overwrites its first attempt's files. When all files exist, ``_MANIFEST`` lists them with their numbers of
rows. Until then a mark (`filesystems.MARK`) makes readers warn. A failed write removes its mark and files.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import io
import json
import math
import os
import posixpath
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, final

import numpy as np

from hocket import extras
from hocket._base import texts
from hocket.data import arrow, blocks
from hocket.data.sources import filesystems, naming, partitions
from hocket.stores import files as store_files
from hocket.stores import names, places

MANIFEST: Final = "_MANIFEST"


class SaveMode(enum.StrEnum):
    """The ways to treat a folder that has files."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    ERROR = "error"
    IGNORE = "ignore"
    CREATE = "create"
    """Ray's other word for ``"error"``."""


class FolderExistsError(FileExistsError, ValueError):
    """The folder for a new data set exists already. Also a ValueError, as in Ray."""


MODES: Final = tuple(mode.value for mode in SaveMode)


class Form(Protocol):
    """A format of written files."""

    @property
    def ending(self) -> str:
        """The ending of the file's name."""

    def write(self, stream: Any, block: blocks.Block) -> None:
        """Write a block to an open file."""


@final
@dataclass(frozen=True)
class Parquet:
    """Parquet, written with the keywords that `options` returns for ``pyarrow.parquet.write_table``. The columns have
    the types in `schema`; None: their own types."""

    options: Callable[[], Mapping[str, Any]]
    schema: Any = None
    ending: str = ".parquet"

    def write(self, stream: object, block: blocks.Block) -> None:
        table = arrow.refine_arrays(block.to_batch("pyarrow"))
        if self.schema is not None:
            table = _cast_table(table, self.schema)
        write = arrow.load("write_parquet()", "pyarrow.parquet").write_table
        write_table(functools.partial(write, **self.options()), table, stream)


def _cast_table(table: Any, schema: Any) -> object:
    """Return a table with the columns and types of a schema. A column that only the schema has gets missing values."""
    pa = arrow.load("write_parquet()")
    lacking = [name for name in table.column_names if name not in schema.names]
    if lacking:
        raise ValueError(f"the schema lacks the column {', '.join(map(repr, lacking))}, which the rows have. Add it")
    found = []
    for field in schema:
        is_there = field.name in table.column_names
        try:
            found.append(table.column(field.name).cast(field.type) if is_there else pa.nulls(len(table), field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"column {field.name!r} cannot be {field.type}, as the schema says: {error}") from error
    return pa.table(found, schema=schema)


def write_table(write: Callable[[Any, Any], object], table: Any, stream: object) -> None:
    """Write a table with a function of Arrow's. If it cannot write a column's type, name the column in the error."""
    pa = arrow.load("A writer")
    kinds = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
    try:
        write(table, stream)
    except kinds as error:
        for name in table.column_names:
            try:
                write(table.select([name]), io.BytesIO())
            except kinds as own:
                raise TypeError(
                    f"column {name!r} is {table.schema.field(name).type}, which this kind of file cannot hold "
                    f"({own}). Convert it to numbers or texts with map_batches(), or leave it out with "
                    f"drop_columns([{name!r}])"
                ) from error
        raise


@final
@dataclass(frozen=True)
class Csv:
    """CSV, written with the keywords that `options` returns for ``pyarrow.csv.write_csv``."""

    options: Callable[[], Mapping[str, Any]]
    ending: str = ".csv"

    def write(self, stream: Any, block: blocks.Block) -> None:
        write = functools.partial(arrow.load("write_csv()", "pyarrow.csv").write_csv, **self.options())
        table = block.to_batch("pyarrow")
        if len(block.columns) != 1 or not table.column(0).null_count:
            write_table(write, table, stream)
            return
        whole = io.BytesIO()  # one missing value alone makes an empty line, which readers skip
        values = arrow.decode_dictionary(arrow.flatten(table.column(0)))
        if arrow.is_text(values.type) or arrow.is_bytes(values.type):
            write_table(write, table.set_column(0, table.column_names[0], values.fill_null("")), whole)
            stream.write(whole.getbuffer())
        else:
            write_table(write, table, whole)
            stream.write(_EMPTY_LINE.sub(b'""\n', whole.getvalue()))  # only texts contain ends of lines


_EMPTY_LINE: Final = re.compile(rb"^\n", re.MULTILINE)


@final
@dataclass(frozen=True)
class Json:
    """A JSON object in each line."""

    ending: str = ".json"

    def write(self, stream: Any, block: blocks.Block) -> None:
        for row in block.list_rows():
            stream.write(json.dumps(row, default=_simplify, ensure_ascii=False).encode() + b"\n")


def _simplify(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(
        f"{texts.name_kind(value)}, {value!r:.40}, cannot be written as JSON: leave it out, or convert it to a text"
    )


@final
@dataclass(frozen=True)
class Numpy:
    """One column, written as an array.

    Args:
        column: The name of the column.
    """

    column: str
    ending: str = ".npy"

    def write(self, stream: Any, block: blocks.Block) -> None:
        array = block.select([self.column]).to_batch("numpy")[self.column]
        if array.dtype.hasobject:
            raise ValueError(
                f"write_numpy(): column {self.column!r} holds {array.dtype}, which is not an array of numbers"
            )
        np.lib.format.write_array(stream, array, allow_pickle=False)


@final
@dataclass(frozen=True)
class TfRecord:
    """TensorFlow's records, with an ``Example`` message in each."""

    ending: str = ".tfrecords"

    def write(self, stream: Any, block: blocks.Block) -> None:
        tensorflow = extras.load(
            "tensorflow", "write_tfrecords()", "TensorFlow", "Run pip install 'hocket[tensorflow]'."
        )
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/records"
            with tensorflow.io.TFRecordWriter(path) as writer:
                for row in block.list_rows():
                    features = {name: _build_feature(tensorflow, name, value) for name, value in row.items()}
                    example = tensorflow.train.Example(features=tensorflow.train.Features(feature=features))
                    writer.write(example.SerializeToString())
            with Path(path).open("rb") as written:
                shutil.copyfileobj(written, stream, 1 << 20)


def _build_feature(tensorflow: Any, name: str, value: object) -> object:
    train = tensorflow.train
    given = value.ravel().tolist() if isinstance(value, np.ndarray) else value if isinstance(value, list) else [value]
    values: list[Any] = [] if value is None else [one.encode() if isinstance(one, str) else one for one in given]
    if not values:
        return train.Feature()
    if all(isinstance(one, bytes) for one in values):
        return train.Feature(bytes_list=train.BytesList(value=values))
    if all(isinstance(one, int) for one in values):  # True and False become 1 and 0, as in TensorFlow's own
        return train.Feature(int64_list=train.Int64List(value=[int(one) for one in values]))
    if all(isinstance(one, int | float) for one in values):
        return train.Feature(float_list=train.FloatList(value=values))
    raise TypeError(
        f"write_tfrecords(): column {name!r} has {value!r:.40}, but a feature must be numbers, texts or bytes"
    )


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """A folder for blocks, and how to write them.

    Args:
        caller: The name of the writer, for messages.
        place: The folder.
        form: The format of the files.
        run: A part of the files' names that is different for each write.
        partition_cols: Columns to write as folders' names instead.
        most_rows: How many rows a file has at most.
        names: The provider of the files' names, in place of `run`.
        names_columns: Whether folders' names include the names of `partition_cols`.
        needs_run: Whether the names from `names` must contain `run`.
    """

    caller: str
    place: places.Place
    form: Form
    run: str
    partition_cols: tuple[str, ...] = ()
    most_rows: int | None = None
    names: naming.FilenameProvider | None = None
    names_columns: bool = True
    needs_run: bool = False

    def write(self, block: blocks.Block, number: int) -> blocks.Block:
        """Write a block, and return a row for each file. Runs in a task. A block without rows is not written: its row
        has an empty path and holds the block, and `list_files` writes it if there are no other files."""
        if not block.num_rows:
            return _describe([("", 0)], block) if block.columns else blocks.Block({}, 0)
        most = self.most_rows or block.num_rows
        found = []
        for folder, part in self._split(block):
            for at, start in enumerate(range(0, part.num_rows, most)):
                piece = part.cut(start, start + most)
                found.append(self.write_file(folder + self._name(piece, number, at), piece))
        return _describe(found)

    def _name(self, part: blocks.Block, number: int, at: int) -> str:
        if self.names is not None:
            name = self.names.choose(part, self.run, number, at, is_row=self.most_rows == 1)
            if self.needs_run and self.run not in name:
                raise ValueError(
                    f"{self.caller} appends to a folder, but the filename_provider returned the name {name!r}, which "
                    "a later write would overwrite. Include write_uuid in the name, or write mode='overwrite'."
                )
            return name
        # Readers sort files by name, so all numbers have equally many digits. The numbers of reads are 1 << 20 apart.
        place = f"{number:012}" if self.most_rows is None else f"{number:012}_{at:06}"
        return f"{self.run}_{place}{self.form.ending}"

    def _split(self, block: blocks.Block) -> Iterator[tuple[str, blocks.Block]]:
        if not self.partition_cols:
            yield "", block
            return
        blocks.check_columns(self.partition_cols, list(block.columns))
        values = [[row[name] for row in block.select([name]).list_rows()] for name in self.partition_cols]
        folders = ["".join(map(self._name_folder, self.partition_cols, found)) for found in zip(*values, strict=True)]
        rest = [name for name in block.columns if name not in self.partition_cols]
        if not rest:
            raise ValueError(
                f"partition_cols={list(self.partition_cols)} leaves no column to write. Leave one of them out."
            )
        rows: dict[str, list[int]] = {}
        for at, folder in enumerate(folders):
            rows.setdefault(folder, []).append(at)
        for folder, found in rows.items():
            yield folder, block.select(rest).pick(np.array(found))

    def _name_folder(self, column: str, value: object) -> str:
        """Return the name of the folder for rows with a value, with a slash at its end."""
        is_gone = value is None or (isinstance(value, float) and math.isnan(value))
        if self.names_columns:
            return f"{partitions.quote(column)}={filesystems.GONE if is_gone else partitions.quote(str(value))}/"
        if value == "":
            raise ValueError(
                f"{self.caller}: column {column!r} has an empty text, which cannot name a folder. Leave "
                "partitioning_flavor=None out: then the name of the folder also has the name of the column."
            )
        return f"{filesystems.GONE if is_gone else partitions.quote(str(value), is_alone=True)}/"

    def write_file(self, name: str, block: blocks.Block) -> tuple[str, int]:
        """Write a block into a file, and return the file's name and its number of rows. A name chosen by `names` may
        belong to an older file, so the file has another name until `finish` renames it."""
        staged = name if self.names is None else _stage(name, self.run)
        filesystem, path = self.place.filesystem, f"{self.place.path}/{staged}"
        if "/" in name:
            filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        renames = places.is_local(filesystem)
        temporary = f"{path}.{secrets.token_hex(4)}.tmp" if renames else path
        try:
            whole = io.BytesIO()  # closing a store's stream commits it, even after an error
            if not renames:
                self.form.write(whole, block)
            with filesystem.open_output_stream(temporary, compression=None) as stream:
                if renames:
                    self.form.write(stream, block)
                else:
                    stream.write(whole.getbuffer())
            if renames:
                filesystem.move(temporary, path)
        except BaseException as error:
            if renames and filesystem.get_file_info(temporary).size is not None:
                filesystem.delete_file(temporary)
            if isinstance(error, OSError | ValueError | TypeError):
                raise explain(error, self.caller, path) from error
            raise
        return name, block.num_rows


def _describe(found: Sequence[tuple[str, int]], empty: blocks.Block | None = None) -> blocks.Block:
    held = np.full(len(found), None, object)
    if empty is not None:
        held[0] = empty
    rows = np.array([rows for _, rows in found])
    return blocks.Block(
        {"path": np.array([path for path, _ in found], object), "rows": rows, "empty": held}, len(found)
    )


def list_files(target: Target, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """List the written files from the rows of `Target.write`. If there is none, write an empty block with the
    columns."""
    found = [(row["path"], row["rows"]) for row in rows if row["path"]]
    if not found and rows and target.most_rows != 1:
        found = [target.write_file(f"{target.run}_{0:012}{target.form.ending}", rows[0]["empty"])]
    return [{"path": path, "rows": count} for path, count in found]


def explain(error: Exception, caller: str, path: str) -> Exception:
    """Return an error that names the file that could not be written."""
    if isinstance(error, OSError):
        kind = PermissionError if "ACCESS_DENIED" in str(error) else type(error)
        found = kind(
            f"{caller} cannot write {path!r}: {error}. The files of this write are removed. Free some space, or check "
            "the permissions of the folder."
        )
        found.errno = error.errno
        return found
    return type(error)(f"{caller} cannot write {path!r}: {error}.")


@final
@dataclass(frozen=True)
class Folder:
    """A folder to write into.

    Args:
        place: Its path and file system.
        old: Its files that `finish` removes.
        kept: The manifest's entries for files that stay.
    """

    place: places.Place
    old: tuple[str, ...]
    kept: tuple[Mapping[str, object], ...]
    before: bytes | None = None
    """The bytes of its manifest before the write."""
    mark: str = ""
    """The name of this write's mark; empty if it has none."""


def open_folder(caller: str, path: object, filesystem: object, mode: str, ending: str) -> Folder | None:
    """Create and return a folder to write into; None if it exists and `mode` says to leave it. The folder loses its
    manifest and gets a mark, because it is unfinished until all new files exist."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, but received {mode!r}.")
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ValueError(f"{caller} takes the path of a folder, but received {path!r}. Write {caller[:-1]}'folder').")
    place = places.find_place(path, filesystem, caller)
    filesystems.check_shared(place.filesystem, caller)
    try:
        inside = store_files.list_entries(place)
        is_unfinished = any(filesystems.is_mark(place, one) for one in inside)
        if inside and mode == "ignore" and not is_unfinished:
            return None
        is_there = bool(inside) or place.filesystem.get_file_info(place.path).type.name == "Directory"
        if (is_there and mode in ("error", "create")) or (inside and mode == "ignore"):
            how = "holds an unfinished write" if is_unfinished else "has files" if inside else "exists already"
            raise FolderExistsError(
                f"{caller}: the folder {place.shown!r} {how}. Choose another folder, or write "
                f"mode='{'overwrite' if is_unfinished else 'append'}'."
            )
        before, manifest = None, f"{place.path}/{MANIFEST}"
        mark = f"{filesystems.MARK}-{secrets.token_hex(6)}"  # unique: the mark of a killed write stays
        found = next((one for one in inside if one.path == manifest), None)
        if found is not None and not found.is_file:
            raise FileExistsError(f"{caller}: {MANIFEST} of {place.shown!r} is not a file. Choose another folder.")
        if found is not None:
            with place.filesystem.open_input_stream(manifest, compression=None) as stream:
                before = stream.read()
        kept = parse_manifest(before, caller, place.shown) if before is not None and mode != "overwrite" else []
        place.filesystem.create_dir(place.path, recursive=True)
        store_files.write(place.join(mark), b"")
        if before is not None:
            place.filesystem.delete_file(manifest)
    except FileExistsError:
        raise
    except OSError as error:
        raise explain(error, caller, place.shown) from error
    if mode != "overwrite":
        return Folder(place, (), tuple(kept), before, mark)
    replaced = [one for one in inside if one.path.endswith(ending) or filesystems.is_mark(place, one)]
    return Folder(place, tuple(one.path for one in replaced if one.is_file), (), before, mark)


def parse_manifest(blob: bytes, caller: str, shown: str) -> list[dict[str, Any]]:
    """Return a manifest's entries for the files of its folder."""
    try:
        found = json.loads(blob)["files"]
        paths = [(one["path"], one["rows"]) for one in found if isinstance(one, dict)]
        if len(paths) < len(found) or any(type(rows) is not int for _, rows in paths):
            raise ValueError("some of its entries do not describe a file")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(
            f"{caller}: {MANIFEST} of {shown!r} is damaged, or was not written by Hocket: {error!r:.200}. Choose "
            "another folder, or write it anew with mode='overwrite'."
        ) from error
    for path, _ in paths:
        names.check(path, f"{caller}: {MANIFEST} of {shown!r}")
    return list(found)


def undo(folder: Folder, run: str) -> None:
    """Remove a failed run's files, and restore the manifest. If that fails, or the process is killed, the mark
    stays."""
    place = folder.place
    with contextlib.suppress(Exception):  # the caller raises the first error
        for one in store_files.list_entries(place):
            if _is_of(run, one):
                place.filesystem.delete_file(one.path)
        if folder.before is not None:
            store_files.write(place.join(MANIFEST), folder.before)
        store_files.remove(place.join(folder.mark))


def _is_of(run: str, found: Any) -> bool:
    """Return whether a file in a folder was written by the run of this name."""
    return bool(found.is_file and posixpath.basename(found.path).startswith(f"{run}_"))


def _stage(name: str, run: str) -> str:
    """Return the temporary name of a file, which it has until its run is complete."""
    above, slash, own = name.rpartition("/")
    return f"{above}{slash}{run}_{own}"


def finish(
    caller: str, folder: Folder, run: str, written: Sequence[Mapping[str, Any]], *, is_staged: bool = False
) -> None:
    """Commit a run: remove replaced files and leftovers of repeated tasks, write the manifest, and remove the mark.

    Args:
        caller: The name of the writer, for messages.
        folder: The folder with the files.
        run: The run's part of their names.
        written: Their paths in the folder, and their numbers of rows.
        is_staged: Whether they have temporary names, which `Target.write_file` gives to files with chosen names.

    Raises:
        ValueError: Two files have the same name. The folder is restored.
    """
    counts = collections.Counter(one["path"] for one in written)
    double = next((path for path, count in counts.items() if count > 1), None)
    if double is not None:
        undo(folder, run)
        raise ValueError(
            f"{caller}: the filename_provider returned the name {double!r} for {counts[double]} files, so only one of "
            "them would remain. Include task_index and block_index, or row_index, in the name."
        )
    every = [*(one for one in folder.kept if one["path"] not in counts), *written]
    text = json.dumps({"run": run, "rows": sum(one["rows"] for one in every), "files": every}, indent=1)
    try:
        for path in counts if is_staged else ():
            store_files.move(folder.place.join(_stage(path, run)), folder.place.join(path))
        new = {folder.place.join(path).path for path in counts}
        for path in folder.old:
            if path not in new:
                folder.place.filesystem.delete_file(path)
        start = f"{folder.place.path.rstrip('/')}/"
        # A repeated task may have cut its rows into other files than its first attempt: these belong to no entry.
        for one in store_files.list_entries(folder.place):
            if _is_of(run, one) and one.path.startswith(start) and one.path.removeprefix(start) not in counts:
                folder.place.filesystem.delete_file(one.path)
        store_files.write(folder.place.join(MANIFEST), text.encode())
        if folder.mark:
            store_files.remove(folder.place.join(folder.mark))
    except OSError as error:
        raise explain(error, caller, folder.place.shown) from error
