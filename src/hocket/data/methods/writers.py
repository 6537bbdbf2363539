"""Writers of datasets: to files, to databases, and to users' own datasinks."""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hocket import keywords
from hocket.data import arrow, plan, reading, steps
from hocket.data.methods import looking
from hocket.data.methods.contract import Planned
from hocket.data.sources import custom, forms, naming, sinks, writing

_HOW = (
    *("filesystem", "mode", "min_rows_per_file", "max_rows_per_file", "num_rows_per_file"),
    *("filename_provider", "concurrency", "partitioning_flavor"),
)
_OF_RAY = ("try_create_dir", "ray_remote_args", "arrow_open_stream_args", "min_bytes_per_file")
"""Ray's keywords for the scheduling of writers. They have no effect."""

_NOT_FOR_USERS = ("table", "data", "where", "output_file", "schema", "filesystem", "kwargs", "options")
"""Arguments that our writers pass to Arrow's writers themselves."""


def write_parquet(
    self: Planned, path: object, *, partition_cols: Sequence[str] | None = None, schema: object = None, **how: object
) -> None:
    """Execute the plan, and write Parquet files.

    A dataset without rows becomes a file without rows, if its columns are known.

    Args:
        path: A folder, on this machine or any file system: ``s3://bucket/folder``.
        partition_cols: Columns whose values become names of folders, as in ``year=2026/``, and leave the files.
        schema: An Arrow schema of all columns: the types to write. Default: the columns' own.
        **how: Keywords of all writers:

            - ``filesystem``: A file system of pyarrow's or fsspec's. Default: chosen by the address.
            - ``mode``: For a folder with files. ``"append"`` adds files. ``"overwrite"`` removes files of this kind
              when the new ones are written. ``"ignore"`` writes nothing. ``"error"`` refuses a folder that exists.
            - ``min_rows_per_file``: Smallest number of rows of each file but the last. Blocks are put together.
            - ``max_rows_per_file``: Largest number of rows of a file. Blocks are cut.
            - ``filename_provider``: A `FilenameProvider`, which names the files.
            - ``concurrency``: Largest number of tasks that write at a time.
            - ``partitioning_flavor``: With `partition_cols`: ``"hive"``, the default, names folders ``year=2026``;
              None names them ``2026``.

            All other keywords are for ``pyarrow.parquet.write_table``, such as ``compression``.

    Raises:
        FileExistsError: The folder exists, and `mode` is ``"error"``. It is a ValueError, too.
        PermissionError: The folder may not be written.
        OSError: Writing fails, as on a full disk. Files that were written are whole, and there is no manifest.

    Example:
        >>> import hocket, tempfile
        >>> from hocket import data
        >>> folder = tempfile.mkdtemp()
        >>> data.range(10).write_parquet(folder)
        >>> data.read_parquet(folder).count()
        10
    """
    how, options = _split_options("write_parquet()", how, "arrow_parquet_args_fn", ("write_table", "ParquetWriter"))
    names = _check_partitions(partition_cols)
    pa = arrow.load("write_parquet()")
    if isinstance(schema, pa.Schema):
        schema = pa.schema([field for field in schema if field.name not in names])
    elif schema is not None:
        raise TypeError(
            f"schema must be an Arrow schema, but received {schema!r:.80}. Write pyarrow.schema([('x', "
            "pyarrow.float32())])."
        )
    write_files(self, "write_parquet()", path, writing.Parquet(options, schema), how, columns=names)


def write_csv(self: Planned, path: object, **how: object) -> None:
    """Execute the plan, and write CSV files.

    Args:
        path: A folder.
        **how: See `write_parquet`. All other keywords are for ``pyarrow.csv.write_csv``.
    """
    how, options = _split_options("write_csv()", how, "arrow_csv_args_fn", ("write_csv",))
    write_files(self, "write_csv()", path, writing.Csv(options), how)


def write_orc(self: Planned, path: object, **how: object) -> None:
    """Execute the plan, and write ORC files.

    Args:
        path: A folder.
        **how: See `write_parquet`. All other keywords are for ``pyarrow.orc.write_table``.
    """
    how, options = _split_options("write_orc()", how, "arrow_orc_args_fn", ("write_table",))
    write_files(self, "write_orc()", path, forms.Orc(options), how)


def write_json(self: Planned, path: object, **how: object) -> None:
    """Execute the plan, and write files with a JSON object in each line. Arrays become lists, and times become texts.

    Args:
        path: A folder.
        **how: See `write_parquet`.
    """
    write_files(self, "write_json()", path, writing.Json(), how)


def write_numpy(self: Planned, path: object, *, column: str, **how: object) -> None:
    """Execute the plan, and write ``.npy`` files of one column.

    Args:
        path: A folder.
        column: The column.
        **how: See `write_parquet`.
    """
    write_files(self, "write_numpy()", path, writing.Numpy(column), how)


def write_tfrecords(self: Planned, path: object, **how: object) -> None:
    """Execute the plan, and write TensorFlow's records of ``Example`` messages.

    Args:
        path: A folder.
        **how: See `write_parquet`.
    """
    write_files(self, "write_tfrecords()", path, writing.TfRecord(), how)


def write_images(self: Planned, path: object, column: str, file_format: str = "png", **how: object) -> None:
    """Execute the plan, and write an image for each row.

    Args:
        path: A folder.
        column: The column of images: arrays of height, width and colours.
        file_format: The encoding of the images.
        **how: See `write_parquet`.

    Raises:
        TypeError: A value is not an image.
        MissingExtraError: Pillow is not installed.
    """
    forms.check_endings([file_format])
    write_files(self, "write_images()", path, forms.Picture(column, file_format), {**how, "max_rows_per_file": 1})


def write_webdataset(self: Planned, path: object, *, encoder: object = True, **how: object) -> None:
    """Execute the plan, and write tar archives of samples.

    Each value of a row becomes a file, named by the row's ``__key__`` and the column. Values that are missing, and
    columns whose names begin with ``__``, are left out.

    Args:
        path: A folder.
        encoder: True encodes values by the columns' names: ``txt``, ``cls``, ``json``, ``npy``, ``png``. Or a function
            that takes a row and returns a row, or a list of these.
        **how: See `write_parquet`.

    Example:
        >>> import hocket, tempfile
        >>> from hocket import data
        >>> folder = tempfile.mkdtemp()
        >>> data.from_items([{"__key__": "a", "txt": "one", "cls": 1}]).write_webdataset(folder)
        >>> data.read_webdataset(folder).drop_columns(["__url__"]).take_all()
        [{'__key__': 'a', 'txt': 'one', 'cls': 1}]
    """
    write_files(self, "write_webdataset()", path, forms.Archive(forms.read_encoders(encoder)), how)


def write_sql(
    self: Planned,
    sql: str,
    connection_factory: Callable[[], object],
    ray_remote_args: object = None,
    concurrency: int | None = None,
) -> None:
    """Execute the plan, and pass its rows to a statement of a database. Each block is a transaction.

    If a worker dies, its block is processed again, and may be written twice.

    Args:
        sql: The statement, with a place for each column in the database's form: ``INSERT INTO t VALUES (?, ?)``.
        connection_factory: Returns a connection that follows Python's database interface (PEP 249).
        ray_remote_args: For programs written for Ray: has no effect.
        concurrency: Largest number of tasks that write at a time.

    Raises:
        TypeError: `connection_factory` is not a function.
    """
    write_datasink(self, sinks.Sql(sql, connection_factory), concurrency=concurrency)


def write_datasink(
    self: Planned, datasink: custom.Datasink[Any], *, ray_remote_args: object = None, concurrency: int | None = None
) -> None:
    """Execute the plan, and pass its blocks to a user's own datasink, in tasks.

    Args:
        datasink: The datasink.
        ray_remote_args: For programs written for Ray: has no effect.
        concurrency: Largest number of tasks that write at a time.

    Raises:
        TypeError: `datasink` is not a datasink.
    """
    custom.check_sink(datasink)
    reading.check_count("concurrency", concurrency, 1)
    custom.start(datasink)
    try:
        write = functools.partial(custom.write_block, datasink)
        name = f"write to {datasink.get_name()}"
        step = plan.Step(work=steps.WriteBlock(write), name=name, concurrency=concurrency)
        least = getattr(datasink, "min_rows_per_write", None)
        source = self if least is None else self._then(plan.Repartition(least_rows=least))
        rows = looking.take_all(source._then(step))
    except BaseException as error:
        datasink.on_write_failed(error)  # type: ignore[arg-type]  # Ctrl-C ends the write, too
        raise
    custom.finish(datasink, rows)


def write_files(
    self: Planned, caller: str, path: object, form: writing.Form, how: Mapping[str, Any], columns: tuple[str, ...] = ()
) -> None:
    arrow.load(caller)
    least, most = _read_sizes(caller, how)
    flavor = how.get("partitioning_flavor", "hive")
    if flavor not in ("hive", None) or ("partitioning_flavor" in how and not columns):
        raise ValueError(
            f"{caller} received partitioning_flavor={flavor!r} and partition_cols={list(columns)}. The flavor must be "
            "'hive' or None, and needs partition columns, such as partition_cols=['year']."
        )
    folder = writing.open_folder(caller, path, how.get("filesystem"), how.get("mode", "append"), form.ending)
    if folder is None:
        return
    target = writing.Target(
        caller=caller,
        place=folder.place,
        form=form,
        run=secrets.token_hex(6),
        partition_cols=columns,
        most_rows=most,
        names=how.get("filename_provider"),
        names_columns=flavor == "hive",
        needs_run=caller == "write_parquet()" and how.get("mode", "append") == "append",
    )
    step = plan.Step(work=steps.WriteBlock(target.write), name=caller[:-2], concurrency=how.get("concurrency"))
    source = self if least is None else self._then(plan.Repartition(least_rows=least))
    try:
        written = writing.list_files(target, looking.take_all(source._then(step)))
    except BaseException:
        writing.undo(folder, target.run)
        raise
    writing.finish(caller, folder, target.run, written, is_staged=target.names is not None)


def _split_options(
    caller: str, given: Mapping[str, Any], function: str, arrows: Sequence[str]
) -> tuple[dict[str, object], Callable[[], dict[str, object]]]:
    """Return the keywords of all writers, and a function that returns the keywords for Arrow.

    A user's function overrides plain keywords. It is called again where files are written, because its results, such as
    Arrow's WriteOptions, may be impossible to send.

    Args:
        caller: The writer.
        given: The keywords that the writer received.
        function: Name of the keyword that holds the user's function.
        arrows: Arrow's functions and classes that take the other keywords.
    """
    plain = {name: value for name, value in given.items() if name != function}
    make = given.get(function)
    options = _join_options(plain, make)
    how = {name: options.pop(name) for name in (*_HOW, *_OF_RAY) if name in options}
    module = arrow.load(caller, f"pyarrow.{caller.partition('_')[2].removesuffix('()')}")
    theirs = {name: None for one in arrows for name in inspect.signature(getattr(module, one)).parameters}
    known = [name for name in theirs if name not in _NOT_FOR_USERS]
    own = keywords.list_names(globals()[caller.removesuffix("()")])
    keywords.check(caller, options, _HOW, f"; and, for Arrow, {', '.join(known)}", [*known, *own, *_OF_RAY])
    kept = {name: value for name, value in plain.items() if name in options}
    return how, functools.partial(_join_options, kept, make, left_out=tuple(how))


def _join_options(
    given: Mapping[str, object], make: Callable[[], Mapping[str, object]] | None, left_out: Sequence[str] = ()
) -> dict[str, object]:
    made = {} if make is None else make()
    return {name: value for name, value in {**given, **made}.items() if name not in left_out}


def _read_sizes(caller: str, how: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the smallest and the largest number of rows of a file."""
    method = globals().get(caller.removesuffix("()"))  # to_spark is in another module
    own = [] if method is None else keywords.list_names(method)
    keywords.check(caller, how, _HOW, others=[*_OF_RAY, *own])
    for name in ("min_rows_per_file", "max_rows_per_file", "num_rows_per_file", "concurrency"):
        reading.check_count(name, how.get(name), 1)
    names = how.get("filename_provider")
    if names is not None and not isinstance(names, naming.FilenameProvider):
        raise TypeError(
            f"filename_provider must be a FilenameProvider, but received {names!r:.80}. Derive a class from that."
        )
    least, most = how.get("min_rows_per_file"), how.get("max_rows_per_file")
    if least is None:
        least = how.get("num_rows_per_file")
    if least is not None and most is not None and least > most:
        raise ValueError(f"min_rows_per_file={least} is more than max_rows_per_file={most}. Swap them.")
    return least, most


def _check_partitions(given: object) -> tuple[str, ...]:
    several: object = (given,) if isinstance(given, str) else given
    names = () if several is None else tuple(several) if isinstance(several, Iterable) else (several,)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(
            f"partition_cols must be the names of columns, each once, but received {given!r}. Write ['year', 'month']."
        )
    return names
