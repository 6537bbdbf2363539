"""Computation of expressions: on the columns of a block, or by Arrow's readers."""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.data import arrow, blocks, columns
from hocket.data.expressions import functions, tree
from hocket.stores import places


def compute_column(expr: tree.Expr, block: blocks.Block, what: str) -> columns.Column:
    """Return the values of an expression for a block.

    Args:
        expr: The expression.
        block: The block.
        what: The call with the expression, for the error.
    """
    found = _compute_array(expr, block, what)
    return arrow.read_column(found)


def compute_mask(expr: tree.Expr, block: blocks.Block, what: str) -> npt.NDArray[np.int64]:
    """Return the numbers of the rows for which a condition is true."""
    pa = arrow.load(what)
    found = _compute_array(expr, block, what)
    if not (pa.types.is_boolean(found.type) or pa.types.is_null(found.type)):
        raise ValueError(
            f"{what} gives {found.type}, but a condition must give True or False. Write filter(expr=col('x') > 0)."
        )
    kept = found.cast("bool").fill_null(False).to_numpy(zero_copy_only=False)
    return np.flatnonzero(kept)


def _compute_array(expr: tree.Expr, block: blocks.Block, what: str) -> Any:
    pa, compute = arrow.load(what), arrow.load(what, "pyarrow.compute")
    names = tree.list_columns(expr)
    blocks.check_columns(names, list(block.columns))
    arrays = {name: arrow.decode_dictionary(arrow.build_array(name, block.columns[name])) for name in names}
    try:
        found = _walk(expr, compute, arrays.__getitem__, _build_scalar)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowKeyError, OverflowError) as error:
        there = ", ".join(f"{name!r} ({array.type})" for name, array in arrays.items())
        raise ValueError(f"{what} cannot be computed: {error}. It uses the columns {there}.") from error
    if isinstance(found, pa.Scalar):
        return pa.array([found.as_py()] * block.num_rows, found.type)
    if isinstance(found, pa.ChunkedArray):
        found = arrow.flatten(found)
    if not isinstance(found, pa.Array) or len(found) != block.num_rows:
        raise ValueError(
            f"{what} gives {found!r:.80} for {block.num_rows} rows. A function of udf() takes Arrow arrays, and must "
            "return an Arrow array with one value for each row."
        )
    return found


def _build_scalar(value: object) -> object:
    held: Any = arrow.get_optional_array([value])  # this keeps nanoseconds, and uint64
    return arrow.load("An expression").scalar(_fit(value)) if held is None else held[0]


def _fit(value: object) -> object:
    """Return a whole number of more than 64 bits as a decimal, and any other value unchanged."""
    return decimal.Decimal(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


def _walk(expr: tree.Expr, compute: object, look: Callable[[str], object], make: Callable[[Any], object]) -> object:
    match expr.function:
        case "column":
            return look(expr.settings["name"])
        case "literal":
            return make(expr.settings["value"])
    inputs = [_walk(one, compute, look, make) for one in expr.inputs]
    if expr.function == "udf":
        found = expr.settings["function"](*inputs)
        kind = expr.settings["return_dtype"]
        return found if kind is None or not hasattr(found, "cast") else found.cast(kind)
    return functions.FUNCTIONS[expr.function](compute, *inputs, **expr.settings)


def to_arrow(expr: tree.Expr, what: str) -> Any:
    """Return an expression as an Arrow expression, for Arrow's readers."""
    compute = arrow.load(what, "pyarrow.compute")
    if (strange := _find_strange(expr)) is not None:
        raise ValueError(
            f"{what}: {expr!r} calls {strange}(), which cannot be evaluated while files are read. Write "
            "read_parquet(...).filter(expr=...)."
        )
    return _walk(expr, compute, compute.field, lambda value: compute.scalar(_fit(value)))


def _find_strange(expr: tree.Expr) -> str | None:
    if expr.function not in (*functions.PUSHED, "column", "literal"):
        return expr.function
    return next((found for one in expr.inputs if (found := _find_strange(one)) is not None), None)


def download(uri_column_name: str, *, filesystem: object = None) -> tree.Expr:
    """Return an expression for the contents of the files at a column's addresses. A missing address stays missing.

    Args:
        uri_column_name: The column with paths, or addresses such as ``s3://bucket/file``.
        filesystem: The file system with the files; see `hocket.data.read_parquet`.

    Raises:
        FileNotFoundError: A file does not exist. Raised when rows are read.

    Example:
        >>> import pathlib, tempfile
        >>> from hocket import data
        >>> from hocket.data.expressions import download
        >>> path = pathlib.Path(tempfile.mkdtemp(), "note")
        >>> _ = path.write_bytes(b"read me")
        >>> data.from_items([{"at": str(path)}]).with_column("content", download("at")).take(1)[0]["content"]
        b'read me'
    """
    read = functools.partial(_download, filesystem)
    return tree.Expr("udf", (tree.col(uri_column_name),), {"function": read, "return_dtype": "binary"})


def _download(filesystem: object, addresses: Any) -> object:
    found: list[bytes | None] = []
    for address in addresses.to_pylist():
        place = None if address is None else places.find_place(address, filesystem, "download()")
        found.append(None if place is None else _read_bytes(place))
    return arrow.load("download()").array(found, "large_binary")


def _read_bytes(place: places.Place) -> bytes:
    with place.filesystem.open_input_stream(place.path, compression=None) as stream:
        content: bytes = stream.read()
    return content
