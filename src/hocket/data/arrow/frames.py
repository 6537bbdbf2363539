"""pandas: data frames as columns, and columns as data frames."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from hocket import extras
from hocket.data import arrow


def load(caller: str, other_way: str = "use batch_format='numpy'") -> Any:
    """Return pandas.

    Args:
        caller: Name of the user's call that needs pandas.
        other_way: An alternative without pandas.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    return extras.load("pandas", caller, "pandas", f"Run pip install pandas, or {other_way}.")


def is_frame(value: object) -> bool:
    """Return whether a value is a data frame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_series(value: object) -> bool:
    """Return whether a value is a column of a data frame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series)


def read_frame(frame: Any) -> dict[str, object]:
    """Return the columns of a data frame, by name. Its index is dropped."""
    if not frame.columns.is_unique:
        raise ValueError(
            f"A data frame's columns must have different names, but received {list(frame.columns)}. Rename the "
            "repeated ones."
        )
    return {name: read_series(frame[name]) for name in frame.columns}


def read_series(series: Any) -> object:
    """Return a column of a data frame as an array, an Arrow array or a list."""
    if isinstance(series.dtype, np.dtype):
        if not series.dtype.hasobject:
            return series.to_numpy()
    elif (pa := arrow.get_optional()) is not None:
        with contextlib.suppress(pa.ArrowTypeError, pa.ArrowInvalid):
            found = _convert(pa, series)
            kind = getattr(found.type, "value_type", found.type)
            is_span = hasattr(kind, "freq") or hasattr(kind, "subtype")  # pandas' own types, or categories of them
            if not is_span:
                return found
    missing = series.isna().to_numpy()
    values = series.to_numpy(object)
    return [None if gone else value for value, gone in zip(values.tolist(), missing, strict=True)]


def _convert(pa: Any, series: Any) -> Any:
    found = pa.array(series)
    found = arrow.flatten(found, str(series.name)) if isinstance(found, pa.ChunkedArray) else found
    categories = getattr(series.dtype, "categories", None)
    if getattr(categories, "tz", None):  # Arrow drops the zone
        return pa.DictionaryArray.from_arrays(found.indices, pa.array(categories), ordered=series.dtype.ordered)
    return found


def build_frame(columns: Mapping[str, Any], num_rows: int) -> Any:
    """Return columns as a data frame that owns its values. Rows with axes become arrays in a column of objects."""
    return load("batch_format='pandas'").DataFrame(
        {name: build_values(column) for name, column in columns.items()}, index=range(num_rows)
    )


def build_values(column: Any) -> Any:
    """Return a column in the form that a data frame takes."""
    if isinstance(column, np.ndarray):
        if column.ndim > 1:
            return list(column)
        if column.dtype.kind not in "mM":
            return column.copy()
        times = arrow.convert_times(column)
        return times.astype(object) if times.dtype == np.dtype("M8[D]") else times.copy()  # pandas lacks the unit day
    found = arrow.to_series(column)
    return found.copy() if hasattr(found, "index") and not isinstance(found, list) else found
