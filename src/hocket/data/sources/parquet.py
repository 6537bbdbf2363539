"""Parquet files, read in parts: only the wanted columns, and only groups of rows that may hold wanted rows."""

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
"""Up to how many files a plan reads all footers first, to know the number of rows. For more files that would take
longer than the first batch may."""

CALLER: Final = "read_parquet()"


@final
@dataclass(frozen=True, kw_only=True)
class Selection:
    """The columns and rows that a reader wants."""

    columns: tuple[str, ...] | None
    filter: Any
    """An Arrow expression, or None."""
    find_rows: Callable[[blocks.Block], npt.NDArray[np.int64]] | None = None
    """Returns the numbers of the rows that the filter keeps, where Arrow cannot compute the filter: Arrow compares no
    whole number above 2**53 with a fraction. None: such a filter is an error."""
    hashes_rows: bool = False
    """Whether to add the column ``row_hash``."""

    def check(self, names: Sequence[str], path: str) -> None:
        """Raise if a file lacks a column.

        Args:
            names: The columns of the file, and those in its folders' names.
            path: For the error.
        """
        try:
            blocks.check_columns(self.columns or (), names)
        except KeyError as error:
            raise KeyError(f"{path!r}: {error.args[0]}") from None

    def choose(self, constants: Mapping[str, object]) -> dict[str, object]:
        """Return the wanted columns among some constant ones."""
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
        """Read some groups of rows of a file.

        Args:
            filesystem: The file system with the file.
            path: The path of the file.
            groups: The numbers of the groups.
            missing: Columns that only other files have, with their types. Here all of their values are missing.
            spans: The row numbers of each group.
            expected: The columns that the file had before; None: unknown.
        """
        numbers = _number(spans if self.hashes_rows else ())
        if self.filter is None:
            is_far = not places.is_local(filesystem)  # then one request reads all columns
            opening = arrow.load(CALLER, "pyarrow.parquet").ParquetFile(path, filesystem=filesystem, pre_buffer=is_far)
            with opening as opened:
                _check_names(opened.schema_arrow.names, expected)
                own = self._list_own(opened.schema_arrow.names)
                table = opened.read_row_groups(list(groups), columns=own, use_threads=False)  # reads run in parallel
                if own is not None:  # to Arrow, "a.b" also means field b of a column a of dicts
                    table = table.select(own)
        else:
            pa = arrow.load(CALLER)
            fragment = _open_fragment(filesystem, path, groups)
            own = fragment.physical_schema
            _check_names(own.names, expected)
            schema = pa.schema([*own, *(pa.field(*one) for one in missing.items())])
            own_names = self._list_own(own.names)
            if self.hashes_rows:  # so filter here: Arrow does not say which rows it left out
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
    """Return a hash for each row of a file, by the row's number."""
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(zlib.crc32(path.encode()))  # splitmix64
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _check_names(found: Sequence[str], expected: Sequence[str] | None) -> None:
    if expected is not None and list(found) != list(expected):
        raise ValueError(f"it was changed: it had the columns {list(expected)}, and now has {list(found)}")


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
    """Columns with one value for all rows: the file's path, and those in its folders' names."""
    missing: Mapping[str, object]
    """The columns that only other files have, with their types."""
    types: Mapping[str, object]
    """The file's own columns and their types when the dataset was made."""
    file_num_rows: int
    """Number of rows of the file then."""
    spans: tuple[range, ...]
    """The row numbers of each group."""

    def narrow(self, names: Sequence[str]) -> ParquetRead | None:
        """Return a read of some columns alone. None if a column is lacking, or none of them is the file's own."""
        wanted = self.selection.columns
        own = [name for name in (*self.types, *self.missing) if wanted is None or name in wanted]
        constants = {name: value for name, value in self.constants.items() if name not in own}  # its own column wins
        added = [*constants, *(["row_hash"] if self.selection.hashes_rows else [])]
        if not set(names) <= {*own, *added} or not set(names) & set(self.types):
            return None
        kept = tuple(name for name in names if name not in added)
        selection = replace(self.selection, columns=kept, hashes_rows="row_hash" in added and "row_hash" in names)
        constants = {name: value for name, value in constants.items() if name in names}
        return replace(self, selection=selection, constants=constants)

    def locate_rows(self) -> file_rows.FileRows | None:
        """Return the file and the rows of this read; None if it also filters, adds columns or reads remotely."""
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
        except (OSError, ValueError, LookupError) as error:  # these include Arrow's own errors
            raise filesystems.explain(error, CALLER, self.file.path) from error
        return block.add_constants(self.constants) if self.constants else block

    def _read(self) -> blocks.Block:
        block = self.selection.read(
            self.filesystem, self.file.path, self.groups, self.missing, self.spans, tuple(self.types)
        )
        if self.num_rows is not None and block.num_rows != self.num_rows:
            raise ValueError(f"it was changed: it had {self.num_rows} rows, and now has {block.num_rows}")
        return block


@final
@dataclass(frozen=True, kw_only=True)
class Parquet:
    """A Parquet file with an unread footer: its groups of rows, joined up to the size of a block."""

    selection: Selection

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        footer = _read_footer(filesystem, file)
        most = settings.DataContext.get_current().get_block_bytes()
        for groups in join_groups(footer.sizes, most) or [[]]:  # a file without groups still has columns
            spans = [footer.spans[at] for at in groups]
            yield self.selection.read(filesystem, file.path, groups, {}, spans)


@final
@dataclass(frozen=True, kw_only=True)
class Footer:
    """Facts from the footer of a file."""

    types: Mapping[str, object]
    """The columns and their types."""
    sizes: list[int]
    """The bytes of each group of rows."""
    spans: list[range]
    """The row numbers of each group."""


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
    """Return the reads of Parquet files: small groups of rows share one."""
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
    """Return the reads of a file. If no group may hold wanted rows, return no read; or, if needed for the columns, a
    read of no rows."""
    most = settings.DataContext.get_current().get_block_bytes()
    sizes = footer.sizes
    kept = list(range(len(sizes)))
    if selection.filter is not None:  # skip groups that, by their statistics, hold no wanted row
        pa = arrow.load(CALLER)
        schema = pa.schema(list({**footer.types, **missing}.items()))
        try:
            parts = _open_fragment(shared, file.path, None).split_by_row_group(filter=selection.filter, schema=schema)
            kept = [part.row_groups[0].id for part in parts]
        except pa.ArrowInvalid as error:
            if selection.find_rows is None or "FieldRef" in str(error):  # else a number in the statistics is at fault
                raise ValueError(
                    f"{CALLER} filters by columns of the files, which are {', '.join(map(repr, schema.names))}, but "
                    f"received {str(selection.filter)!r}: {error}. For a column that comes from the folders' names, "
                    "write read_parquet(...).filter(expr=...), or partition_filter=..."
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
    """Return the numbers of groups, joined up to a size of `most` bytes; a larger group stays alone."""
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
