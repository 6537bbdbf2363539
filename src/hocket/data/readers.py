"""Datasets of files, on this machine or any other file system.

All readers have this in common: a path is a file or a folder. A reader takes the files of a folder that have its file
extensions, in the order of their names. Paths may be addresses: ``s3://``, ``gs://``, and all that fsspec supports; or
any path with ``filesystem=``. Compressed files (``.gz``, ``.bz2``, ``.zst``) are unpacked. Folders such as
``year=2026/`` become columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hocket import keywords
from hocket.data import arrow, blocks, calls, dataset, reading
from hocket.data.expressions import computing, text, tree
from hocket.data.sources import archives, choosing, files, formats, parquet, partitions

Paths = Any
"""A path or a list of them."""

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp")


_WHICH = (
    *("filesystem", "ignore_missing_paths", "file_extensions"),
    *("partitioning", "partition_filter", "shuffle", "arrow_open_stream_args"),
)
"""Keywords that choose the files: the fields of `choosing.Choice`."""

_HOW = (*_WHICH, "include_paths", "on_error", "override_num_blocks")

_OF_RAY = (*calls.SCHEDULING, "batch_size", "use_threads")
"""Keywords of Ray's readers that have no effect here."""


def _read(
    caller: str, paths: Paths, form: files.Format, endings: Sequence[str], given: dict[str, Any]
) -> dataset.Dataset:
    how = {name: value for name, value in given.items() if name not in _OF_RAY}
    keywords.check(caller, how, _HOW, others=_list_own(caller))
    reading.check_count("override_num_blocks", how.get("override_num_blocks"), 1)
    choice = choosing.Choice(**{name: how.pop(name) for name in _WHICH if name in how})
    return dataset.Dataset(files.plan_files(caller, paths, form, endings, choice=choice, **how))


def _list_own(caller: str) -> list[str]:
    """Return the keywords in a reader's own signature."""
    return keywords.list_names(globals()[caller.removesuffix("()")])


def _check_options(caller: str, given: dict[str, object], known: Sequence[str]) -> dict[str, object]:
    """Return the keywords for Arrow's reader."""
    options = {name: value for name, value in given.items() if name not in (*_OF_RAY, *_HOW, "lines")}
    also = f"; and, for Arrow, {', '.join(known)}"
    keywords.check(caller, options, _HOW, also, [*known, *_list_own(caller)])
    return options


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: object = None,
    filesystem: object = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    on_error: str = "raise",
    override_num_blocks: int | None = None,
    partitioning: partitions.Partitioning | None = partitions.DEFAULT,
    partition_filter: partitions.PathPartitionFilter | None = None,
    file_extensions: Sequence[str] | None = ("parquet",),
    shuffle: str | choosing.FileShuffleConfig | None = None,
    include_row_hash: bool = False,
    **of_ray: object,
) -> dataset.Dataset:
    """Return a dataset of Parquet files. Tasks read the rows when they are needed.

    The footers of up to 64 files are read now; of more files, only the first footer. Files without a column that other
    files have get missing values there.

    Args:
        paths: Files, or folders whose ``.parquet`` files are read, in the order of their names. Also addresses such as
            ``s3://bucket/folder``.
        columns: The columns to read. Default: all.
        filter: The rows to read: a text such as ``"x > 3"``, or an expression; see `Dataset.filter`. Row groups whose
            statistics exclude the condition are not read at all.
        filesystem: A file system of pyarrow's or fsspec's. Default: chosen by the address.
        include_paths: Whether to add the column ``path`` with the file of each row.
        ignore_missing_paths: Whether a path that does not exist is left out.
        on_error: For a file that cannot be read: ``"raise"``, or ``"skip"``, which leaves the file out with a warning.
            If a later block of a file fails, the rest is left out, and the warning says after how many rows.
        override_num_blocks: Number of tasks that read many small files. Default: up to 256.
        partitioning: The conversion of folder names into columns; None: no conversion. Default: ``year=2026/`` becomes
            the column ``year``, of texts.
        partition_filter: Chooses files by the names of their folders.
        file_extensions: Ends of the names of the files that are read from folders; None: all.
        shuffle: ``"files"`` or a `FileShuffleConfig` to read the files in another order. Default: order of the names.
        include_row_hash: Whether to add the column ``row_hash``, a number made from the file's path and the row's place
            in the file. It is the same each time.
        **of_ray: Ray's keywords of scheduling, such as ``concurrency``. They have no effect.

    Raises:
        FileNotFoundError: A path does not exist.
        PermissionError: A file may not be read.
        ValueError: A file, which the message names, is not a Parquet file.
        KeyError: A requested column does not exist.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> import os, tempfile
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> from hocket import data
        >>> path = os.path.join(tempfile.mkdtemp(), "rows.parquet")
        >>> pq.write_table(pa.table({"x": [1, 2, 3]}), path)
        >>> data.read_parquet(path).count()
        3
    """
    reading.check_count("override_num_blocks", override_num_blocks, 1)
    _check_options("read_parquet()", of_ray, ("columns", "filter"))
    return dataset.Dataset(
        parquet.plan_parquet(
            paths,
            _check_columns(columns),
            *_read_condition(filter),
            choice=choosing.Choice(
                filesystem=filesystem,
                ignore_missing_paths=ignore_missing_paths,
                file_extensions=file_extensions or (),
                partitioning=partitioning,
                partition_filter=partition_filter,
                shuffle=shuffle,
            ),
            include_paths=include_paths,
            on_error=on_error,
            override_num_blocks=override_num_blocks,
            hashes_rows=include_row_hash,
        )
    )


def _read_condition(given: object) -> tuple[object, Callable[[blocks.Block], Any] | None]:
    """Return a condition for Arrow's readers, and a function that finds a block's rows that fulfil it. None stands for
    no condition, and for no function."""
    if given is None:
        return None, None
    found, what = text.read(given), "read_parquet(filter=...)"
    if not isinstance(found, tree.Expr):
        return found, None
    return computing.to_arrow(found, what), functools.partial(computing.compute_mask, found, what=what)


def read_csv(
    paths: Paths,
    *,
    filesystem: object = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    on_error: str = "raise",
    override_num_blocks: int | None = None,
    **arrow_csv_args: object,
) -> dataset.Dataset:
    """Return a dataset of CSV files with a line of names at the top.

    The first 32 MiB of a file determine its types. A text in quotes may have several lines.

    Args:
        paths: Files, or folders whose ``.csv`` files are read. See `read_parquet` for this and the arguments that are
            not listed here.
        **arrow_csv_args: For ``pyarrow.csv.read_csv``: ``read_options``, ``parse_options``, ``convert_options``. Also
            ``partitioning`` and others; see `read_text`.

    Raises:
        FileNotFoundError: A path does not exist.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> import hocket, pathlib, tempfile
        >>> from hocket import data
        >>> path = pathlib.Path(tempfile.mkdtemp(), "rows.csv")
        >>> _ = path.write_text("x,y\\n1,one\\n2,two\\n")
        >>> data.read_csv(str(path)).take(1)
        [{'x': 1, 'y': 'one'}]
    """
    given = {**locals(), **arrow_csv_args}
    how = {name: given[name] for name in _HOW if name in given}
    arrow.load("read_csv()")
    options = _check_options(
        "read_csv()", arrow_csv_args, ("read_options", "parse_options", "convert_options", "memory_pool")
    )
    return _read("read_csv()", paths, formats.Csv(options), (".csv",), how)


def read_orc(paths: Paths, *, columns: Sequence[str] | None = None, **how: object) -> dataset.Dataset:
    """Return a dataset of ORC files, whose stripes are blocks.

    Args:
        paths: Files, or folders whose ``.orc`` files are read; see `read_parquet`.
        columns: The columns to read. Default: all.
        **how: See `read_text`.

    Raises:
        FileNotFoundError: A path does not exist.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> import hocket, tempfile
        >>> from hocket import data
        >>> folder = tempfile.mkdtemp()
        >>> data.range(3).write_orc(folder)
        >>> data.read_orc(folder).sum("id")
        3
    """
    arrow.load("read_orc()", "pyarrow.orc")
    return _read("read_orc()", paths, formats.Orc(_check_columns(columns)), (".orc",), how)


def _check_columns(columns: object) -> tuple[str, ...] | None:
    several = [columns] if isinstance(columns, str) else columns
    if several is not None and not (isinstance(several, Sequence) and all(isinstance(one, str) for one in several)):
        raise TypeError(f"columns must be a list of names, but received {columns!r}. Write columns=['x', 'y'].")
    return None if several is None else tuple(several)


def read_json(
    paths: Paths,
    *,
    filesystem: object = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    on_error: str = "raise",
    override_num_blocks: int | None = None,
    **arrow_json_args: object,
) -> dataset.Dataset:
    """Return a dataset of files with a JSON object in each line, or with an array of objects.

    Args:
        paths: Files, or folders whose ``.json`` and ``.jsonl`` files are read. See `read_parquet` for this and the
            arguments that are not listed here.
        **arrow_json_args: For ``pyarrow.json.read_json``: ``read_options``, ``parse_options``. Also
            ``partitioning`` and others; see `read_text`.

    Raises:
        FileNotFoundError: A path does not exist.
        MissingExtraError: pyarrow is not installed.
    """
    given = {**locals(), **arrow_json_args}
    how = {name: given[name] for name in _HOW if name in given}
    arrow.load("read_json()")
    options = _check_options("read_json()", arrow_json_args, ("read_options", "parse_options", "memory_pool"))
    return _read("read_json()", paths, formats.Json(options), (".json", ".jsonl"), how)


def read_text(
    paths: Paths, *, encoding: str = "utf-8", drop_empty_lines: bool = True, **how: object
) -> dataset.Dataset:
    """Return a dataset of text files: a row for each line, in the column ``text``.

    Args:
        paths: Files, or folders whose files are all read; see `read_parquet`.
        encoding: The encoding of the text.
        drop_empty_lines: Whether lines without a character are left out.
        **how: ``filesystem``, ``include_paths``, ``ignore_missing_paths``, ``on_error``, ``override_num_blocks``,
            ``partitioning``, ``partition_filter``, ``file_extensions``, ``shuffle``; see `read_parquet`.

    Raises:
        FileNotFoundError: A path does not exist.
        LookupError: The encoding does not exist.
    """
    "".encode(encoding)
    return _read("read_text()", paths, formats.Text(encoding, drop_empty_lines), (), how)


def read_binary_files(paths: Paths, **how: object) -> dataset.Dataset:
    """Return a dataset of files as bytes: a row for each file, in the column ``bytes``.

    Args:
        paths: Files, or folders whose files are all read; see `read_parquet`.
        **how: See `read_text`.

    Raises:
        FileNotFoundError: A path does not exist.
    """
    return _read("read_binary_files()", paths, formats.Binary(), (), {"partitioning": None, **how})


def read_images(
    paths: Paths,
    *,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    transform: Callable[[Any], object] | None = None,
    **how: object,
) -> dataset.Dataset:
    """Return a dataset of images: a row for each, in the column ``image``, an array of height, width and colours.

    Args:
        paths: Files, or folders whose images are read; see `read_parquet`.
        size: Height and width to which images are resized. Default: no change.
        mode: Pillow's name of the colours, such as ``"RGB"`` or ``"L"``. Default: no change.
        transform: Takes the array of an image, and returns another array.
        **how: See `read_text`.

    Raises:
        FileNotFoundError: A path does not exist.
        ValueError: `size` is not a pair of positive numbers. Or a file is not an image, when rows are requested.
        MissingExtraError: Pillow is not installed. Raised when rows are requested.
    """
    given: Any = size
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if size is not None and not (is_pair and all(reading.is_number(one, 1, 1 << 30) for one in given)):
        raise ValueError(f"size must be a height and a width, but received {size!r}. Write size=(224, 224).")
    form = formats.Image(None if size is None else (size[0], size[1]), mode, transform)
    return _read("read_images()", paths, form, PICTURES, {"partitioning": None, **how})


def read_numpy(paths: Paths, **how: object) -> dataset.Dataset:
    """Return a dataset of ``.npy`` files, whose first axis is the rows, in the column ``data``; or of ``.npz`` files,
    with a column for each array.

    Args:
        paths: Files, or folders whose ``.npy`` and ``.npz`` files are read; see `read_parquet`.
        **how: See `read_text`.

    Raises:
        FileNotFoundError: A path does not exist.
    """
    return _read("read_numpy()", paths, formats.Numpy(), (".npy", ".npz"), how)


def read_tfrecords(paths: Paths, **how: object) -> dataset.Dataset:
    """Return a dataset of TensorFlow's records of ``Example`` messages, with a column for each feature. A feature of
    one value becomes that value, other features become lists.

    Args:
        paths: Files, or folders whose files are all read; see `read_parquet`.
        **how: See `read_text`.

    Raises:
        FileNotFoundError: A path does not exist.
        MissingExtraError: TensorFlow, which parses the messages, is not installed. Raised when rows are requested.
    """
    return _read("read_tfrecords()", paths, formats.TfRecord(), (), how)


def read_webdataset(
    paths: Paths,
    *,
    decoder: bool | Callable[[dict[str, Any]], Mapping[str, object]] | None = True,
    fileselect: archives.Names | None = None,
    filerename: archives.Renaming | None = None,
    suffixes: archives.Names | None = None,
    expand_json: bool = False,
    verbose_open: bool = False,
    **how: object,
) -> dataset.Dataset:
    """Return a dataset of tar archives of samples.

    Files with the same name up to the first dot are one row. It has a column for each ending, the name as ``__key__``,
    and the archive as ``__url__``. Files without an ending are left out, and so are files whose names begin with a dot,
    as macOS adds them.

    Args:
        paths: Archives, or folders whose ``.tar`` files are read; see `read_parquet`.
        decoder: Whether to decode texts, numbers, JSON, arrays and images by their endings; if not, all values are
            bytes. Or a function that takes a sample, a dict of bytes, and returns the decoded sample.
        fileselect: The files of an archive to read: a list of names and patterns (``"*.jpg"``), or a function of the
            name. Default: all.
        filerename: New names of the files, applied before `fileselect`: pairs of an old and a new part, or a function.
        suffixes: The columns to keep: a list of endings (``"jpg"``) and patterns, or a function. Default: all.
        expand_json: Whether each key of a sample's ``json`` becomes a column.
        verbose_open: For programs written for Ray: has no effect.
        **how: See `read_text`.

    Raises:
        FileNotFoundError: A path does not exist.
        TypeError: `fileselect`, `filerename` or `suffixes` is neither a list nor a function, or `decoder` is neither
            a bool nor a function.
    """
    named: dict[str, object] = {"fileselect": fileselect, "filerename": filerename, "suffixes": suffixes}
    for name, given in named.items():
        if given is not None and not callable(given) and (isinstance(given, str) or not isinstance(given, Sequence)):
            raise TypeError(f"{name} must be a list or a function, but received {given!r:.80}.")
    if decoder is not None and not isinstance(decoder, bool) and not callable(decoder):
        raise TypeError(
            f"decoder must be True, False or a function of a sample, but received {decoder!r:.80}. Decode anything "
            "else in map()."
        )
    form = archives.WebDataset(
        decoder=decoder if callable(decoder) else bool(decoder),
        select=fileselect,
        rename=filerename,
        suffixes=suffixes,
        expands_json=expand_json,
    )
    return _read("read_webdataset()", paths, form, (".tar",), how)


keywords.guard_functions(__name__)
