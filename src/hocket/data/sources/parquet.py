"""Parquet files, in parts: only the columns that are wanted, and only groups of rows that may have what is wanted."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from hocket.data import arrow, blocks, settings
from hocket.data.sources import choosing, file_rows, files, filesystems
from hocket.stores import places

MOST_FOOTERS: Final = 64
"""Of how many files the footers are read before anything else. They say how many rows there are; of more files that
would take longer than the first batch may."""

CALLER: Final = "read_parquet()"


@final
@dataclass(frozen=True, kw_only=True)
class Selection:
    """The columns and rows that a reader wants of files."""

    columns: tuple[str, ...] | None
    filter: Any
    """An expression of Arrow's, or None."""
    find_rows: Callable[[blocks.Block], npt.NDArray[np.int64]] | None = None
    """Returns the numbers of the rows that the filter keeps, where Arrow cannot compute it: it compares no whole number
    above 2**53 with a fraction. None: that is an error."""
    hashes_rows: bool = False
    """Whether the column ``row_hash`` is added."""

    def check(self, names: Sequence[str], path: str) -> None:
        """Raise if a file lacks a column.

        Args:
            names: The columns of the file, and those that its folders' names say.
            path: For the error.
        """
        try:
            blocks.check_columns(self.columns or (), names)
        except KeyError as error:
            raise KeyError(f"{path!r}: {error.args[0]}") from None

    def choose(self, constants: Mapping[str, object]) -> dict[str, object]:
        """Return those of some columns which are wanted."""
        return {name: value for name, value in constants.items() if self.columns is None or name in self.columns}

    def read(
        self,
        filesystem: filesystems.FileSystem,
        path: str,
        groups: Sequence[int],
        missing: Mapping[str, Any],
        spans: Sequence[range],
        expected: Sequence[str] | None = None,
    ) -> blocks.Block:
        """Return some groups of rows of a file.

        Args:
            filesystem: Where it is.
            path: Which file.
            groups: Which groups.
            missing: Columns that other files have, and their types: here all values of them are missing.
            spans: Which rows of the file each group has.
            expected: The columns that it had before; None: nothing is known.
        """
        numbers = _number(spans if self.hashes_rows else ())
        if self.filter is None:
            is_far = not places.is_local(filesystem)  # then one request has all columns
            opening = arrow.load(CALLER, "pyarrow.parquet").ParquetFile(path, filesystem=filesystem, pre_buffer=is_far)
            with opening as opened:
                _check_names(opened.schema_arrow.names, expected)
                own = self._list_own(opened.schema_arrow.names)
                table = opened.read_row_groups(list(groups), columns=own, use_threads=False)  # others read meanwhile
                if own is not None:  # for Arrow, "a.b" is also the b of a column of dicts
                    table = table.select(own)
        else:
            pa = arrow.load(CALLER)
            fragment = _open_fragment(filesystem, path, groups)
            own = fragment.physical_schema
            _check_names(own.names, expected)
            schema = pa.schema([*own, *(pa.field(*one) for one in missing.items())])
            own_names = self._list_own(own.names)
            if self.hashes_rows:  # Arrow does not say which rows it has left out
                table = fragment.to_table(schema=schema, use_threads=False)
                table = self._filter(table.append_column("\0row", pa.array(numbers)))
                numbers = table.column("\0row").to_numpy()
                table = table.select(table.column_names[:-1] if own_names is None else own_names)
            else:
                try:
                    table = fragment.to_table(schema=schema, filter=self.filter, columns=own_names, use_threads=False)
                except pa.ArrowInvalid:
                    table = self._filter(fragment.to_table(schema=schema, use_threads=False))
                    table = table.select(own.names if own_names is None else own_names)
        arrow.check_texts(table)
        block = blocks.Block(arrow.read_table(table), table.num_rows)
        gone = {name: arrow.build_missing(table.num_rows, kind) for name, kind in self.choose(missing).items()}
        hashes = {"row_hash": _hash(numbers, path)} if self.hashes_rows else {}
        return blocks.Block({**block.columns, **gone, **hashes}, block.num_rows)

    def _filter(self, table: Any) -> Any:
        try:
            return table.filter(self.filter)
        except arrow.load(CALLER).ArrowInvalid:
            if self.find_rows is None:
                raise
            return table.take(self.find_rows(blocks.Block(arrow.read_table(table), table.num_rows)))

    def _list_own(self, names: Sequence[str]) -> list[str] | None:
        return None if self.columns is None else [name for name in self.columns if name in names]


def _number(spans: Sequence[range]) -> npt.NDArray[np.uint64]:
    found = [np.arange(one.start, one.stop, dtype=np.uint64) for one in spans]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _hash(numbers: npt.NDArray[np.uint64], path: str) -> npt.NDArray[np.uint64]:
    """Return a number for each row of a file, of which the numbers are given."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(zlib.crc32(path.encode()))  # splitmix64
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _check_names(found: Sequence[str], expected: Sequence[str] | None) -> None:
    if expected is not None and list(found) != list(expected):
        raise ValueError(f"it was changed: it has the columns {list(found)}, and had {list(expected)}")


def _open_fragment(filesystem: filesystems.FileSystem, path: str, groups: Sequence[int] | None) -> Any:
    made = arrow.load(CALLER, "pyarrow.dataset").ParquetFileFormat()
    return made.make_fragment(path, filesystem, row_groups=None if groups is None else list(groups))


@final
@dataclass(frozen=True, kw_only=True)
class ParquetRead:
    """Some groups of rows of a Parquet file."""

    filesystem: filesystems.FileSystem
    file: filesystems.File
    groups: tuple[int, ...]
    selection: Selection
    num_rows: int | None
    num_bytes: int
    constants: Mapping[str, object]
    """Columns whose values are the same in all rows: the file's path, and what its folders' names say."""
    missing: Mapping[str, object]
    """The columns that other files have and this one lacks, and their types."""
    types: Mapping[str, object]
    """The columns of the file itself, when the data set was made, and their types."""
    file_num_rows: int
    """How many rows the file had then."""
    spans: tuple[range, ...]
    """Which rows of the file each group has."""

    def narrow(self, names: Sequence[str]) -> ParquetRead | None:
        """Return what reads some of the columns alone; None if it lacks one, or none would be the file's."""
        wanted = self.selection.columns
        own = [name for name in (*self.types, *self.missing) if wanted is None or name in wanted]
        constants = {name: value for name, value in self.constants.items() if name not in own}  # a file's own counts
        added = [*constants, *(["row_hash"] if self.selection.hashes_rows else [])]
        if not set(names) <= {*own, *added} or not set(names) & set(self.types):
            return None
        kept = tuple(name for name in names if name not in added)
        selection = replace(self.selection, columns=kept, hashes_rows="row_hash" in added and "row_hash" in names)
        constants = {name: value for name, value in constants.items() if name in names}
        return replace(self, selection=selection, constants=constants)

    def find_rows(self) -> file_rows.FileRows | None:
        """Return which rows of which file it reads, as they are; None if it does more than that."""
        chosen = self.selection
        is_plain = chosen.filter is None and not chosen.hashes_rows and not self.constants and not self.missing
        if not is_plain or not self.spans or not places.is_local(self.filesystem):
            return None
        return file_rows.FileRows(
            path=self.file.path,
            start=self.spans[0].start,
            stop=self.spans[-1].stop,
            file_num_rows=self.file_num_rows,
            all_types=self.types,
            names=tuple(self.types if chosen.columns is None else chosen.columns),
        )

    def __call__(self) -> blocks.Block:
        try:
            block = self._read()
        except (OSError, ValueError, LookupError) as error:  # Arrow's own errors are among them
            raise filesystems.explain(error, CALLER, self.file.path) from error
        return block.add_constants(self.constants) if self.constants else block

    def _read(self) -> blocks.Block:
        block = self.selection.read(
            self.filesystem, self.file.path, self.groups, self.missing, self.spans, tuple(self.types)
        )
        if self.num_rows is not None and block.num_rows != self.num_rows:
            raise ValueError(f"it was changed: {self.num_rows} rows are {block.num_rows} now")
        return block


@final
@dataclass(frozen=True, kw_only=True)
class Parquet:
    """A Parquet file of which nothing is known yet: its groups of rows, as many together as make a block."""

    selection: Selection

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        footer = _read_footer(filesystem, file)
        most = settings.DataContext.get_current().get_block_bytes()
        for groups in join_groups(footer.sizes, most) or [[]]:  # of a file without a group the columns are known
            spans = [footer.spans[at] for at in groups]
            yield self.selection.read(filesystem, file.path, groups, {}, spans)


@final
@dataclass(frozen=True, kw_only=True)
class Footer:
    """Facts from a file's footer."""

    types: Mapping[str, object]
    """The columns and their types."""
    sizes: list[int]
    """How many bytes each group of rows has."""
    spans: list[range]
    """Which rows of the file each has."""


def _read_footer(filesystem: filesystems.FileSystem, file: filesystems.File) -> Footer:
    try:
        with arrow.load(CALLER, "pyarrow.parquet").ParquetFile(file.path, filesystem=filesystem) as opened:
            metadata, schema = opened.metadata, opened.schema_arrow
            types = dict(zip(schema.names, schema.types, strict=True))
    except (OSError, ValueError) as error:
        raise filesystems.explain(error, CALLER, file.path) from error
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    ends = list(itertools.accumulate((group.num_rows for group in groups), initial=0))
    return Footer(
        types=types,
        sizes=[group.total_byte_size for group in groups],
        spans=list(itertools.starmap(range, itertools.pairwise(ends))),
    )


def plan_parquet(
    paths: object,
    columns: Sequence[str] | None,
    condition: object,
    find_rows: Callable[[blocks.Block], npt.NDArray[np.int64]] | None,
    *,
    choice: choosing.Choice,
    include_paths: bool,
    on_error: str,
    override_num_blocks: int | None,
    hashes_rows: bool,
) -> list[Any]:
    """Return what reads Parquet files: groups of rows that are small are read together."""
    choosing.check_on_error(on_error)
    arrow.load(CALLER, "pyarrow.parquet")
    chosen = choosing.choose(CALLER, paths, (".parquet",), choice)
    shared, found = chosen.filesystem, chosen.files
    kept = None if columns is None else tuple(columns)
    selection = Selection(columns=kept, filter=condition, find_rows=find_rows, hashes_rows=hashes_rows)
    constants = [selection.choose(one) for one in chosen.values]
    if len(found) > MOST_FOOTERS or on_error == "skip":
        if on_error == "raise":
            selection.check([*_read_footer(shared, found[0]).types, *chosen.values[0]], found[0].path)
        return files.group_files(
            CALLER,
            choosing.Chosen(shared, found, list(constants)),
            Parquet(selection=selection),
            include_paths=include_paths,
            on_error=on_error,
            num_groups=override_num_blocks,
        )
    footers = [_read_footer(shared, file) for file in found]
    types = {name: kind for footer in reversed(footers) for name, kind in footer.types.items()}
    selection.check([*types, *chosen.values[0]], found[0].path)
    reads: list[ParquetRead] = []
    for file, footer, same in zip(found, footers, constants, strict=True):
        added = {**same, **({"path": file.path} if include_paths else {})}
        missing = {name: kind for name, kind in types.items() if name not in (*footer.types, *chosen.values[0])}
        is_needed = not reads and file is found[-1]
        reads += _plan_file(shared, file, footer, selection, added, missing, is_needed=is_needed)
    return reads


def _plan_file(
    shared: filesystems.FileSystem,
    file: filesystems.File,
    footer: Footer,
    selection: Selection,
    constants: Mapping[str, object],
    missing: Mapping[str, object],
    *,
    is_needed: bool,
) -> list[ParquetRead]:
    """Return what reads a file. If no group may have rows, that is nothing; or, where it is needed so that columns are
    known, something that reads none."""
    most = settings.DataContext.get_current().get_block_bytes()
    sizes = footer.sizes
    kept = list(range(len(sizes)))
    if selection.filter is not None:  # groups whose statistics say that they have nothing of it are not read
        pa = arrow.load(CALLER)
        schema = pa.schema(list({**footer.types, **missing}.items()))
        try:
            parts = _open_fragment(shared, file.path, None).split_by_row_group(filter=selection.filter, schema=schema)
            kept = [part.row_groups[0].id for part in parts]
        except pa.ArrowInvalid as error:
            if selection.find_rows is None or "FieldRef" in str(error):  # else it is a number of the statistics
                raise ValueError(
                    f"{CALLER} filters by columns of the files, which are {', '.join(map(repr, schema.names))}, and "
                    f"received {str(selection.filter)!r}: {error}. Write read_parquet(...).filter(expr=...) for a "
                    "column that folders' names say, or partition_filter=..."
                ) from error
    reads = []
    joined = join_groups([sizes[at] for at in kept], most)
    for chosen in joined or [[]] * is_needed:
        groups = tuple(kept[at] for at in chosen)
        count = sum(len(footer.spans[at]) for at in groups) if selection.filter is None else None
        reads.append(
            ParquetRead(
                filesystem=shared,
                file=file,
                groups=groups,
                selection=selection,
                num_rows=count,
                num_bytes=sum(sizes[at] for at in groups),
                constants=constants,
                missing=missing,
                types=footer.types,
                file_num_rows=footer.spans[-1].stop if footer.spans else 0,
                spans=tuple(footer.spans[at] for at in groups),
            )
        )
    return reads


def join_groups(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Return numbers of groups that together are no larger than allowed, each at least one."""
    joined: list[list[int]] = []
    total = 0
    for at, size in enumerate(sizes):
        if joined and total + size <= most:
            joined[-1].append(at)
            total += size
        else:
            joined.append([at])
            total = size
    return joined
