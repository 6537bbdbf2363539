"""Targets of rows: a database, and base classes for users' own file formats."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from hocket import keywords
from hocket.data import blocks
from hocket.data.sources import custom, forms, naming, writing


@final
class Sql(custom.Datasink[None]):
    """A database statement that takes rows.

    Args:
        sql: The statement.
        connection_factory: Returns a connection.

    Raises:
        TypeError: The factory is not callable, or is itself a connection.
    """

    def __init__(self, sql: str, connection_factory: Callable[[], Any]) -> None:
        given: Any = connection_factory
        if not callable(given) or hasattr(given, "cursor"):
            raise TypeError(
                f"connection_factory must be a function, but received {connection_factory!r:.80}: a connection cannot "
                "be sent to a task. Write lambda: sqlite3.connect(path)."
            )
        self._sql = sql
        self._connect = connection_factory

    def write(self, blocks: Iterable[Any], ctx: custom.TaskContext) -> None:
        """Execute the statement for each row, in one transaction."""
        connection = self._connect()
        try:
            cursor = connection.cursor()
            for table in blocks:
                cursor.executemany(self._sql, [tuple(row.values()) for row in table.to_pylist()])
            connection.commit()
        finally:
            connection.close()


@final
class BlockAccessor:
    """Rows in the forms that a `BlockBasedFileDatasink` may need.

    Args:
        block: The rows.
    """

    def __init__(self, block: blocks.Block) -> None:
        self._block = block

    @staticmethod
    def for_block(table: object) -> BlockAccessor:
        """Return an accessor for an Arrow table, a data frame or a dict of arrays."""
        return BlockAccessor(blocks.build_from_batch(table, "for_block()"))

    def num_rows(self) -> int:
        """Return how many rows there are."""
        return self._block.num_rows

    def size_bytes(self) -> int:
        """Return about how many bytes of memory the rows take."""
        return self._block.count_bytes()

    def column_names(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._block.columns)

    def to_arrow(self) -> Any:
        """Return the rows as an Arrow table."""
        return self._block.to_batch("pyarrow")

    def to_pandas(self) -> Any:
        """Return the rows as a data frame."""
        return self._block.to_batch("pandas")

    def to_numpy(self, columns: str | None = None) -> Any:
        """Return a dict of arrays, or the array of one column."""
        found = self._block.to_batch("numpy", is_owned=True)
        return found if columns is None else found[columns]

    def iter_rows(self, public_row_format: bool = True) -> Iterator[blocks.Row]:
        """Yield each row as a dict."""
        return self._block.list_rows()


_OF_RAY = ("try_create_dir", "open_stream_args", "dataset_uuid", "min_bytes_per_file")
"""Keywords of Ray's targets that have no effect."""


class _FileDatasink(custom.Datasink[list[dict[str, Any]]], abc.ABC):
    """Base class of the two targets for users' own file formats.

    Args:
        path: The path of a folder.
        filesystem: A file system of pyarrow or fsspec. Default: the one in the path's address.
        file_format: The ending of the files' names.
        mode: How to treat a folder that has files; see `Dataset.write_parquet`.
        filename_provider: The names of the files.
        min_rows_per_file: How many rows a file has at least, except the last.
        **of_ray: ``try_create_dir`` and other keywords of Ray's: they have no effect.
    """

    most_rows: int | None = None

    def __init__(
        self,
        path: object,
        *,
        filesystem: object = None,
        file_format: str | None = None,
        mode: str = "append",
        filename_provider: naming.FilenameProvider | None = None,
        min_rows_per_file: int | None = None,
        **of_ray: object,
    ) -> None:
        own = keywords.list_names(_FileDatasink.__init__)
        keywords.check(f"{type(self).__name__}()", of_ray, own, others=_OF_RAY)
        self.path = path
        self.min_rows_per_write = min_rows_per_file
        self._how = (filesystem, mode)
        self._ending = f".{file_format}" if file_format else ""
        self._names = filename_provider
        self._folder: writing.Folder | None = None
        self._target: writing.Target | None = None

    @abc.abstractmethod
    def _write_part(self, part: blocks.Block, file: object) -> None:
        """Write a part of a block into an open file."""

    def on_write_start(self, schema: object = None) -> None:
        caller = "write_datasink()"
        self._folder = writing.open_folder(caller, self.path, *self._how, self._ending)
        if self._folder is None:
            return
        self._target = writing.Target(
            caller=caller,
            place=self._folder.place,
            form=forms.Own(self._write_part, self._ending),
            run=secrets.token_hex(6),
            most_rows=self.most_rows,
            names=self._names,
        )

    def write(self, blocks: Iterable[object], ctx: custom.TaskContext) -> list[dict[str, Any]]:
        """Write files, and return the path and the number of rows of each."""
        target = self._target
        if target is None:
            return []
        return [row for table in blocks for row in _list_rows(target, table, ctx.task_idx)]

    def on_write_complete(self, write_result: custom.WriteResult[list[dict[str, Any]]]) -> None:
        if self._folder is not None and self._target is not None:
            found = [row for rows in write_result.write_returns for row in rows]
            writing.finish("write_datasink()", self._folder, self._target.run, found, is_staged=self._names is not None)

    def on_write_failed(self, error: Exception) -> None:
        if self._folder is not None and self._target is not None:
            writing.undo(self._folder, self._target.run)


def _list_rows(target: writing.Target, table: object, number: int) -> list[dict[str, object]]:
    made = target.write(blocks.build_from_batch(table, "write_datasink()"), number)
    return [{"path": row["path"], "rows": row["rows"]} for row in made.list_rows()]


class RowBasedFileDatasink(_FileDatasink):
    """A user's own file format, with one row in each file."""

    most_rows = 1

    @abc.abstractmethod
    def write_row_to_file(self, row: blocks.Row, file: Any) -> None:
        """Write a row into an open file."""

    def _write_part(self, part: blocks.Block, file: object) -> None:
        for row in part.list_rows():
            self.write_row_to_file(row, file)


class BlockBasedFileDatasink(_FileDatasink):
    """A user's own file format, with the rows of a block in each file."""

    @abc.abstractmethod
    def write_block_to_file(self, block: BlockAccessor, file: Any) -> None:
        """Write rows into an open file."""

    def _write_part(self, part: blocks.Block, file: object) -> None:
        self.write_block_to_file(BlockAccessor(part), file)
