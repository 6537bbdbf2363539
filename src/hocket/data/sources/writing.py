"""Blocks into files: each block becomes one, whole or not at all.

A file is written under another name and then renamed, on this machine; a store such as S3 shows an object only when it
is whole. What a task wrote that is done again is written over. When all files are there, ``_MANIFEST`` says which
they are and how many rows they have. Until then the folder has a mark (`filesystems.MARK`), of which readers warn; a
write that fails takes it away with all that it has written.
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
    """A folder is there that was to be new; a ValueError, too, as in Ray."""


MODES: Final = tuple(mode.value for mode in SaveMode)


class Form(Protocol):
    """The format of a written file."""

    @property
    def ending(self) -> str:
        """How its name ends."""

    def write(self, stream: Any, block: blocks.Block) -> None:
        """Write a block to an open file."""


@final
@dataclass(frozen=True)
class Parquet:
    """Parquet, written with the keywords of ``pyarrow.parquet.write_table`` that `options` returns, in columns of the
    types of `schema`; None: as they are."""

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
    """Return a table with its columns in the types that a schema has for them; one that it lacks has no values."""
    pa = arrow.load("write_parquet()")
    lacking = [name for name in table.column_names if name not in schema.names]
    if lacking:
        raise ValueError(f"the schema has no column {', '.join(map(repr, lacking))}, which is to be written. Add it")
    found = []
    for field in schema:
        is_there = field.name in table.column_names
        try:
            found.append(table.column(field.name).cast(field.type) if is_there else pa.nulls(len(table), field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"column {field.name!r} cannot be {field.type}, as the schema says: {error}") from error
    return pa.table(found, schema=schema)


def write_table(write: Callable[[Any, Any], object], table: Any, stream: object) -> None:
    """Write a table by a function of Arrow's. A column whose type the form has not is named."""
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
                    f"column {name!r} is {table.schema.field(name).type}, which such a file cannot have ({own}). Make "
                    f"numbers or texts of it with map_batches(), or leave it out with drop_columns([{name!r}])"
                ) from error
        raise


@final
@dataclass(frozen=True)
class Csv:
    """CSV, written with the keywords of ``pyarrow.csv.write_csv`` that `options` returns."""

    options: Callable[[], Mapping[str, Any]]
    ending: str = ".csv"

    def write(self, stream: Any, block: blocks.Block) -> None:
        write = functools.partial(arrow.load("write_csv()", "pyarrow.csv").write_csv, **self.options())
        table = block.to_batch("pyarrow")
        if len(block.columns) != 1 or not table.column(0).null_count:
            write_table(write, table, stream)
            return
        whole = io.BytesIO()  # a missing value that stands alone is an empty line, which readers pass over
        values = arrow.decode_dictionary(arrow.flatten(table.column(0)))
        if arrow.is_text(values.type) or arrow.is_bytes(values.type):
            write_table(write, table.set_column(0, table.column_names[0], values.fill_null("")), whole)
            stream.write(whole.getbuffer())
        else:
            write_table(write, table, whole)
            stream.write(_EMPTY_LINE.sub(b'""\n', whole.getvalue()))  # nothing but texts has ends of lines inside


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
    raise TypeError(f"{texts.name_kind(value)}, {value!r:.40}, cannot be JSON: leave it out, or make a text of it")


@final
@dataclass(frozen=True)
class Numpy:
    """One column as an array.

    Args:
        column: Which.
    """

    column: str
    ending: str = ".npy"

    def write(self, stream: Any, block: blocks.Block) -> None:
        array = block.select([self.column]).to_batch("numpy")[self.column]
        if array.dtype.hasobject:
            raise ValueError(f"write_numpy(): column {self.column!r} holds {array.dtype}, which is no array of numbers")
        np.lib.format.write_array(stream, array, allow_pickle=False)


@final
@dataclass(frozen=True)
class TfRecord:
    """TensorFlow's records of ``Example`` messages."""

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
    if all(isinstance(one, int) for one in values):  # True and False are 1 and 0, as in TensorFlow's own
        return train.Feature(int64_list=train.Int64List(value=[int(one) for one in values]))
    if all(isinstance(one, int | float) for one in values):
        return train.Feature(float_list=train.FloatList(value=values))
    raise TypeError(f"write_tfrecords(): column {name!r} has {value!r:.40}, and a feature is numbers, texts or bytes")


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """Where blocks are written, and how.

    Args:
        caller: For messages.
        place: The folder.
        form: What a file is.
        run: Part of the files' names: another one each time that something is written.
        partition_cols: Columns whose values are folders' names instead.
        most_rows: How many rows a file has at most.
        names: Gives files their names, in the place of `run`.
        names_columns: Whether folders' names have those of `partition_cols`, too.
        needs_run: Whether the names that `names` gives must have `run` in them.
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
        """Write a block, and return what was written: a row for each file. Runs in a task. Of a block without rows
        there is a row that has it, with an empty path: if there is no other, it is written."""
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
                    f"{self.caller} appends to a folder, and the filename_provider gave the name {name!r}, which a "
                    "later write would write over. Have it contain write_uuid, or write mode='overwrite'."
                )
            return name
        # Readers take files by name, so all numbers have as many digits: those of reads begin 1 << 20 apart.
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
            raise ValueError(f"partition_cols={list(self.partition_cols)} leaves no column to write. Leave one out.")
        rows: dict[str, list[int]] = {}
        for at, folder in enumerate(folders):
            rows.setdefault(folder, []).append(at)
        for folder, found in rows.items():
            yield folder, block.select(rest).pick(np.array(found))

    def _name_folder(self, column: str, value: object) -> str:
        """Return the name of the folder of rows that have a value, with a slash behind it."""
        is_gone = value is None or (isinstance(value, float) and math.isnan(value))
        if self.names_columns:
            return f"{partitions.quote(column)}={filesystems.GONE if is_gone else partitions.quote(str(value))}/"
        if value == "":
            raise ValueError(
                f"{self.caller}: column {column!r} has an empty text, and no folder has such a name. Leave "
                "partitioning_flavor=None out, so that the folder's name has the column's, too."
            )
        return f"{filesystems.GONE if is_gone else partitions.quote(str(value), is_alone=True)}/"

    def write_file(self, name: str, block: blocks.Block) -> tuple[str, int]:
        """Write a block into a file of this name, and return the name and how many rows it has. Where `names` chose it,
        an older file may have the name: `finish` gives it to this one."""
        staged = name if self.names is None else _stage(name, self.run)
        filesystem, path = self.place.filesystem, f"{self.place.path}/{staged}"
        if "/" in name:
            filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        renames = places.is_local(filesystem)
        temporary = f"{path}.{secrets.token_hex(4)}.tmp" if renames else path
        try:
            whole = io.BytesIO()  # a store has what was written when the stream is closed, also by an error
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
    """Return which files were written, of the rows of `Target.write`. If there is none, a block without rows is
    written, so that its columns are not lost."""
    found = [(row["path"], row["rows"]) for row in rows if row["path"]]
    if not found and rows and target.most_rows != 1:
        found = [target.write_file(f"{target.run}_{0:012}{target.form.ending}", rows[0]["empty"])]
    return [{"path": path, "rows": count} for path, count in found]


def explain(error: Exception, caller: str, path: str) -> Exception:
    """Return an error that says which file could not be written."""
    if isinstance(error, OSError):
        kind = PermissionError if "ACCESS_DENIED" in str(error) else type(error)
        found = kind(
            f"{caller} cannot write {path!r}: {error}. Its files are removed again. Make room, or check who may write "
            "there."
        )
        found.errno = error.errno
        return found
    return type(error)(f"{caller} cannot write {path!r}: {error}.")


@final
@dataclass(frozen=True)
class Folder:
    """A folder to write into.

    Args:
        place: Where it is.
        old: The files in it that are replaced when the new ones are there.
        kept: What its manifest says of files that stay.
    """

    place: places.Place
    old: tuple[str, ...]
    kept: tuple[Mapping[str, object], ...]
    before: bytes | None = None
    """Its manifest, as it was."""
    mark: str = ""
    """The name of this write's mark; empty if it has none."""


def open_folder(caller: str, path: object, filesystem: object, mode: str, ending: str) -> Folder | None:
    """Return a folder to write into, which is made; None if it is there already and `mode` says to leave it. Its
    manifest is taken away, and it gets a mark: until the new files are there, it is not finished."""
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
            how = "was not written to its end" if is_unfinished else "has files" if inside else "is there"
            raise FolderExistsError(
                f"{caller}: the folder {place.shown!r} {how}. Choose another one, or mode='"
                f"{'overwrite' if is_unfinished else 'append'}'."
            )
        before, manifest = None, f"{place.path}/{MANIFEST}"
        mark = f"{filesystems.MARK}-{secrets.token_hex(6)}"  # of this write alone: a killed one's stays
        found = next((one for one in inside if one.path == manifest), None)
        if found is not None and not found.is_file:
            raise FileExistsError(f"{caller}: {MANIFEST} of {place.shown!r} is no file. Choose another folder.")
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
    """Return what a folder's manifest says of its files."""
    try:
        found = json.loads(blob)["files"]
        paths = [(one["path"], one["rows"]) for one in found if isinstance(one, dict)]
        if len(paths) < len(found) or any(type(rows) is not int for _, rows in paths):
            raise ValueError("it has entries that describe no file")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(
            f"{caller}: {MANIFEST} of {shown!r} is damaged, or was not written by Hocket: {error!r:.200}. Choose "
            "another folder, or write it anew with mode='overwrite'."
        ) from error
    for path, _ in paths:
        names.check(path, f"{caller}: {MANIFEST} of {shown!r}")
    return list(found)


def undo(folder: Folder, run: str) -> None:
    """Remove what a run of this name has written in a folder, because it failed, and give it its manifest again. Where
    that fails too, or the process is killed, the folder has its mark."""
    place = folder.place
    with contextlib.suppress(Exception):  # the first error is the one
        for one in store_files.list_entries(place):
            if _is_of(run, one):
                place.filesystem.delete_file(one.path)
        if folder.before is not None:
            store_files.write(place.join(MANIFEST), folder.before)
        store_files.remove(place.join(folder.mark))


def _is_of(run: str, found: Any) -> bool:
    """Tell whether a run of this name has written what was found in a folder."""
    return bool(found.is_file and posixpath.basename(found.path).startswith(f"{run}_"))


def _stage(name: str, run: str) -> str:
    """Return the name that a file has until all files of its run are there."""
    above, slash, own = name.rpartition("/")
    return f"{above}{slash}{run}_{own}"


def finish(
    caller: str, folder: Folder, run: str, written: Sequence[Mapping[str, Any]], *, is_staged: bool = False
) -> None:
    """Remove the files that are replaced, and those that tasks have left which were done again, and say that all files
    are there.

    Args:
        caller: For messages.
        folder: Where they are.
        run: The part of their names.
        written: Their paths in the folder, and how many rows they have.
        is_staged: Whether they were written under other names, as `Target.write_file` does with chosen ones.

    Raises:
        ValueError: Two files were given one name. The folder is as it was before.
    """
    counts = collections.Counter(one["path"] for one in written)
    double = next((path for path, count in counts.items() if count > 1), None)
    if double is not None:
        undo(folder, run)
        raise ValueError(
            f"{caller}: the filename_provider gave the name {double!r} to {counts[double]} files, of which one would "
            "be left. Have the name contain task_index and block_index, or row_index."
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
        for one in store_files.list_entries(folder.place):
            if _is_of(run, one) and one.path.startswith(start) and one.path.removeprefix(start) not in counts:
                folder.place.filesystem.delete_file(one.path)
        store_files.write(folder.place.join(MANIFEST), text.encode())
        if folder.mark:
            store_files.remove(folder.place.join(folder.mark))
    except OSError as error:
        raise explain(error, caller, folder.place.shown) from error
