"""What a data set becomes outside: files."""

from __future__ import annotations

import abc
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Self

from hocket.data import arrow, blocks, plan
from hocket.data.sources import writing


class Writers(abc.ABC):
    """The methods that write files. Whoever has a plan implements it.

    Each block becomes a file, which is there whole or not at all. When all are written, ``_MANIFEST`` in the
    folder names them and says how many rows each has. Readers leave that file out.
    """

    @abc.abstractmethod
    def _then(self, op: plan.Op) -> Self:
        """Return the same with one thing more to do."""

    @abc.abstractmethod
    def take_all(self, limit: int | None = None) -> list[blocks.Row]:
        """Return all rows."""

    def write_parquet(
        self,
        path: Any,
        *,
        partition_cols: Sequence[str] | None = None,
        filesystem: object = None,
        mode: str = "append",
        **arrow_parquet_args: object,
    ) -> None:
        """Execute the plan, and write Parquet files.

        Args:
            path: A folder, of this machine or any file system: ``s3://bucket/folder``.
            partition_cols: Columns whose values become names of folders, as in ``year=2026/``, instead of columns.
            filesystem: One of pyarrow's or fsspec's. Default: what the address says.
            mode: What is done with a folder that has files: ``"append"``; ``"overwrite"``, which removes files of
                this kind when the new ones are there; ``"error"``; ``"ignore"``, which writes nothing.
            **arrow_parquet_args: For ``pyarrow.parquet.write_table``, such as ``compression``.

        Raises:
            FileExistsError: The folder has files, and `mode` is ``"error"``.
            PermissionError: It may not be written.
            OSError: It cannot be written, as on a disk that is full. Files that were written are whole, and there is no
                manifest.

        Example:
            >>> import hocket, tempfile
            >>> from hocket import data
            >>> context = hocket.init(num_cpus=2, engine="inprocess")
            >>> folder = tempfile.mkdtemp()
            >>> data.range(10).write_parquet(folder)
            >>> data.read_parquet(folder).count()
            10
            >>> hocket.shutdown()
        """
        form = writing.Parquet(dict(arrow_parquet_args))
        self._write("write_parquet()", path, form, filesystem, mode, _check_partitions(partition_cols))

    def write_csv(
        self, path: Any, *, filesystem: object = None, mode: str = "append", **arrow_csv_args: object
    ) -> None:
        """Execute the plan, and write CSV files; see `write_parquet`.

        Args:
            path: A folder.
            filesystem: See `write_parquet`.
            mode: See `write_parquet`.
            **arrow_csv_args: For ``pyarrow.csv.write_csv``.
        """
        self._write("write_csv()", path, writing.Csv(dict(arrow_csv_args)), filesystem, mode)

    def write_json(self, path: Any, *, filesystem: object = None, mode: str = "append") -> None:
        """Execute the plan, and write files with a JSON object in each line; see `write_parquet`. Arrays become lists,
        times become texts."""
        self._write("write_json()", path, writing.Json(), filesystem, mode)

    def write_numpy(self, path: Any, *, column: str, filesystem: object = None, mode: str = "append") -> None:
        """Execute the plan, and write ``.npy`` files of one column; see `write_parquet`."""
        self._write("write_numpy()", path, writing.Numpy(column), filesystem, mode)

    def write_tfrecords(self, path: Any, *, filesystem: object = None, mode: str = "append") -> None:
        """Execute the plan, and write TensorFlow's records of ``Example`` messages; see `write_parquet`."""
        self._write("write_tfrecords()", path, writing.TfRecord(), filesystem, mode)

    def _write(
        self, caller: str, path: Any, form: writing.Form, filesystem: object, mode: str, columns: tuple[str, ...] = ()
    ) -> None:
        arrow.load(caller)
        folder = writing.open_folder(caller, path, filesystem, mode, form.ending)
        if folder is None:
            return
        target = writing.Target(
            caller=caller, place=folder.place, form=form, run=secrets.token_hex(6), partition_cols=columns
        )
        step = plan.Step(apply=target.write, name=caller[:-2], keeps_rows=False, is_numbered=True)
        writing.finish(folder, target.run, self._then(step).take_all())


def _check_partitions(given: object) -> tuple[str, ...]:
    several: Any = (given,) if isinstance(given, str) else given
    names = () if several is None else tuple(several) if isinstance(several, Iterable) else (several,)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(
            f"partition_cols must be the names of columns, each once, but received {given!r}. Write ['year', 'month']."
        )
    return names
