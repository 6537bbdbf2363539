"""Parquet files, in parts: only the columns that are wanted, and only groups of rows that may have what is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from hocket.data import arrow, blocks, settings
from hocket.data.sources import files, filesystems

MOST_FOOTERS: Final = 64
"""Of how many files the footers are read before anything else. They say how many rows there are; of more files that
would take longer than the first batch may."""

CALLER: Final = "read_parquet()"


@final
@dataclass(frozen=True, kw_only=True)
class Selection:
    """What is wanted of files."""

    columns: tuple[str, ...] | None
    filter: Any
    """An expression of Arrow's, or None."""

    def check(self, names: Sequence[str], path: str) -> None:
        """Raise if a file lacks a column.

        Args:
            names: The columns of the file, and those that its folders' names say.
            path: For the error.

        Raises:
            KeyError: It does.
        """
        try:
            blocks.check_columns(self.columns or (), names)
        except KeyError as error:
            raise KeyError(f"{path!r}: {error.args[0]}") from None

    def choose(self, constants: Mapping[str, object]) -> dict[str, object]:
        """Return those of the columns that are the same in a whole file which are wanted."""
        return {name: value for name, value in constants.items() if self.columns is None or name in self.columns}

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File, groups: Sequence[int] | None) -> Any:
        """Return some groups of rows of a file as a table."""
        path, outside = file.path, filesystems.read_partitions(file)
        columns = None if self.columns is None else [name for name in self.columns if name not in outside]
        if self.filter is None:
            with arrow.load(CALLER, "pyarrow.parquet").ParquetFile(path, filesystem=filesystem) as opened:
                every = range(opened.num_row_groups) if groups is None else groups
                return opened.read_row_groups(list(every), columns=columns)
        fragment = _open_fragment(filesystem, path, groups)
        return fragment.to_table(filter=self.filter, columns=columns)


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

    def __call__(self) -> blocks.Block:
        try:
            table = self.selection.read(self.filesystem, self.file, self.groups)
        except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors
            raise filesystems.explain(error, CALLER, self.file.path) from error
        block = blocks.Block(arrow.read_table(table), table.num_rows)
        return block.add_constants(self.constants) if self.constants else block


@final
@dataclass(frozen=True, kw_only=True)
class Parquet:
    """A Parquet file of which nothing is known yet: its groups of rows, as many together as make a block."""

    selection: Selection

    def read(self, filesystem: filesystems.FileSystem, file: filesystems.File) -> Iterator[blocks.Block]:
        sizes, _ = _read_footer(filesystem, file, self.selection)
        for groups in join_groups(sizes, settings.DataContext.get_current().get_block_bytes()):
            table = self.selection.read(filesystem, file, groups)
            yield blocks.Block(arrow.read_table(table), table.num_rows)


def _read_footer(
    filesystem: filesystems.FileSystem, file: filesystems.File, selection: Selection
) -> tuple[list[int], list[int]]:
    """Return the bytes and the rows of each group of rows of a file, checked."""
    try:
        with arrow.load(CALLER, "pyarrow.parquet").ParquetFile(file.path, filesystem=filesystem) as opened:
            metadata, names = opened.metadata, opened.schema_arrow.names
    except (OSError, ValueError) as error:
        raise filesystems.explain(error, CALLER, file.path) from error
    selection.check([*names, *filesystems.read_partitions(file)], file.path)
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    return [group.total_byte_size for group in groups], [group.num_rows for group in groups]


def plan_parquet(
    paths: object,
    columns: Sequence[str] | None,
    condition: Any,
    *,
    filesystem: object,
    include_paths: bool,
    ignore_missing_paths: bool,
    on_error: str,
    override_num_blocks: int | None,
) -> list[Any]:
    """Return what reads Parquet files: groups of rows that are small are read together.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: One is no Parquet file.
        KeyError: One has no such column.
    """
    files.check_on_error(on_error)
    arrow.load(CALLER, "pyarrow.parquet")
    shared, found = filesystems.list_files(
        CALLER, paths, filesystem, (".parquet",), ignore_missing_paths=ignore_missing_paths
    )
    selection = Selection(columns=None if columns is None else tuple(columns), filter=condition)
    partitions = [selection.choose(one) for one in files.find_partitions(found)]
    if len(found) > MOST_FOOTERS or on_error == "skip":
        if on_error == "raise":
            _read_footer(shared, found[0], selection)
        form = Parquet(selection=selection)
        return files.group_files(
            CALLER,
            shared,
            found,
            form,
            partitions=partitions,
            include_paths=include_paths,
            on_error=on_error,
            num_groups=override_num_blocks,
        )
    reads = []
    for file, constants in zip(found, partitions, strict=True):
        added = {**selection.choose(constants), **({"path": file.path} if include_paths else {})}
        reads += _plan_file(shared, file, selection, added)
    return reads


def _plan_file(
    shared: filesystems.FileSystem,
    file: filesystems.File,
    selection: Selection,
    constants: Mapping[str, object],
) -> list[ParquetRead]:
    most = settings.DataContext.get_current().get_block_bytes()
    sizes, rows = _read_footer(shared, file, selection)
    kept = list(range(len(sizes)))
    if selection.filter is not None:  # groups whose statistics say that they have nothing of it are not read
        parts = _open_fragment(shared, file.path, None).split_by_row_group(filter=selection.filter)
        kept = [part.row_groups[0].id for part in parts]
    reads = []
    for places in join_groups([sizes[at] for at in kept], most):
        groups = tuple(kept[place] for place in places)
        count = sum(rows[at] for at in groups) if selection.filter is None else None
        reads.append(
            ParquetRead(
                filesystem=shared,
                file=file,
                groups=groups,
                selection=selection,
                num_rows=count,
                num_bytes=sum(sizes[at] for at in groups),
                constants=constants,
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
