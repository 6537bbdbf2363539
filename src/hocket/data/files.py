"""Files, by way of Arrow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from hocket import addresses
from hocket.data import arrow, blocks, settings


@final
@dataclass(frozen=True, kw_only=True)
class ParquetRead:
    """Some groups of rows of a Parquet file."""

    path: str
    groups: tuple[int, ...]
    columns: tuple[str, ...] | None
    num_rows: int
    num_bytes: int

    def __call__(self) -> blocks.Block:
        parquet = arrow.load("read_parquet()", "pyarrow.parquet")
        try:
            with parquet.ParquetFile(self.path) as file:
                table = file.read_row_groups(
                    list(self.groups), columns=None if self.columns is None else list(self.columns)
                )
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors
            raise _explain("read_parquet", self.path, error) from error
        return blocks.Block(arrow.read_table(table), table.num_rows)


@final
@dataclass(frozen=True, kw_only=True)
class TextRead:
    """A file of text that an Arrow module reads."""

    caller: str
    path: str
    function: tuple[str, str]
    options: Mapping[str, Any]

    num_rows: None = None
    num_bytes: None = None

    def __call__(self) -> blocks.Block:
        module, name = self.function
        read = getattr(arrow.load(f"{self.caller}()", f"pyarrow.{module}"), name)
        try:
            table = read(self.path, **self.options)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError) as error:
            raise _explain(self.caller, self.path, error) from error
        return blocks.Block(arrow.read_table(table), table.num_rows)


def _explain(caller: str, path: str, error: Exception) -> ValueError:
    return ValueError(f"{caller}() cannot read {path!r}: {error}. Mend the file, or leave it out of the paths.")


def plan_parquet(paths: str | Sequence[str], columns: Sequence[str] | None) -> list[ParquetRead]:
    """Return what reads Parquet files: groups of rows that are small are read together.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: One is no Parquet file.
        KeyError: One has no such column.
    """
    parquet = arrow.load("read_parquet()", "pyarrow.parquet")
    most = settings.DataContext.get_current().target_max_block_size
    reads = []
    for path in list_files("read_parquet", paths, (".parquet",)):
        try:
            with parquet.ParquetFile(path) as file:
                metadata, names = file.metadata, file.schema_arrow.names
        except (OSError, ValueError) as error:
            raise _explain("read_parquet", path, error) from error
        if columns is not None:
            try:
                blocks.check_columns(list(columns), names)
            except KeyError as error:
                raise KeyError(f"{path!r}: {error.args[0]}") from None
        every = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
        for groups in _join_groups([group.total_byte_size for group in every], most):
            found = [every[at] for at in groups]
            reads.append(
                ParquetRead(
                    path=path,
                    groups=tuple(groups),
                    columns=None if columns is None else tuple(columns),
                    num_rows=sum(group.num_rows for group in found),
                    num_bytes=sum(group.total_byte_size for group in found),
                )
            )
    return reads


def _join_groups(sizes: Sequence[int], most: int) -> list[list[int]]:
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


def plan_text(
    caller: str,
    paths: str | Sequence[str],
    function: tuple[str, str],
    endings: tuple[str, ...],
    options: Mapping[str, object],
) -> list[TextRead]:
    """Return what reads files of text.

    Raises:
        FileNotFoundError: There is no such file.
    """
    arrow.load(f"{caller}()")
    return [
        TextRead(caller=caller, path=path, function=function, options=dict(options))
        for path in list_files(caller, paths, endings)
    ]


def list_files(caller: str, paths: str | Sequence[str], endings: tuple[str, ...]) -> list[str]:
    """Return the files that are named, and those of folders that are.

    Raises:
        FileNotFoundError: There is no such file or folder, or a folder has no such file.
        ValueError: No path is given, or it is an address.
        TypeError: It is no path.
    """
    given: Any = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, Sequence) or not all(isinstance(path, str | os.PathLike) for path in given):
        raise TypeError(
            f"{caller}() takes a path or a list of them, but received {paths!r}. Write {caller}('folder/')."
        )
    if not given:
        raise ValueError(f"{caller}() was given no path. Name a file or a folder.")
    found: list[str] = []
    for name in map(os.fspath, given):
        addresses.refuse(name, f"{caller}(): each path")
        path = Path(name).expanduser()
        if path.is_dir():
            inside = sorted(str(one) for one in path.rglob("*") if one.is_file() and one.name.endswith(endings))
            if not inside:
                raise FileNotFoundError(
                    f"{caller}(): the folder {name!r} has no file whose name ends in {' or '.join(endings)}. Name the "
                    "files themselves."
                )
            found += inside
        elif path.exists():
            found.append(str(path.resolve()))
        else:
            raise FileNotFoundError(
                f"{caller}(): there is no file or folder {name!r} in {str(Path.cwd())!r}. Check the path."
            )
    return found
