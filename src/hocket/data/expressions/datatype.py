"""Types of columns, with Ray's names. Each is a type of Arrow's, numpy's or Python's."""

from __future__ import annotations

import builtins
import datetime as dt
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from hocket.data import arrow

_PYTHON = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    bytes: "binary",
    bytearray: "binary",
    dt.datetime: "timestamp[us]",
    dt.date: "date32",
    dt.time: "time64[us]",
    dt.timedelta: "duration[us]",
}
"""Arrow's names for Python's types."""

_TEMPORAL = {
    "timestamp": ("us", ("s", "ms", "us", "ns")),
    "time32": ("s", ("s", "ms")),
    "time64": ("us", ("us", "ns")),
    "duration": ("us", ("s", "ms", "us", "ns")),
    "date32": (None, ()),
    "date64": (None, ()),
}
"""Arrow's types of times: the default unit of each, and all of its units."""


def _load() -> Any:
    return arrow.load("DataType")


class TypeCategory(enum.StrEnum):
    """Categories of types, for `DataType.is_of`."""

    LIST = "list"
    LARGE_LIST = "large_list"
    STRUCT = "struct"
    MAP = "map"
    TENSOR = "tensor"
    TEMPORAL = "temporal"


def _name(name: str) -> Callable[[], DataType]:
    return lambda: DataType(getattr(_load(), "bool_" if name == "bool" else name)())


@final
@dataclass(frozen=True, repr=False)
class DataType:
    """The type of a column's values, for `udf` and `Expr.cast`.

    Args:
        kind: A type of Arrow's, numpy's or Python's.

    Raises:
        TypeError: `kind` is none of these.

    Example:
        >>> import pyarrow.compute as pc
        >>> from hocket import data
        >>> from hocket.data.datatype import DataType
        >>> from hocket.data.expressions import col, udf
        >>> @udf(return_dtype=DataType.int32())
        ... def add_one(numbers):
        ...     return pc.add(numbers, 1)
        >>> data.range(2).with_column("more", add_one(col("id"))).schema().types
        ['int64', 'int32']
    """

    kind: Any

    int8 = staticmethod(_name("int8"))
    int16 = staticmethod(_name("int16"))
    int32 = staticmethod(_name("int32"))
    int64 = staticmethod(_name("int64"))
    uint8 = staticmethod(_name("uint8"))
    uint16 = staticmethod(_name("uint16"))
    uint32 = staticmethod(_name("uint32"))
    uint64 = staticmethod(_name("uint64"))
    float32 = staticmethod(_name("float32"))
    float64 = staticmethod(_name("float64"))
    string = staticmethod(_name("string"))
    binary = staticmethod(_name("binary"))
    bool = staticmethod(_name("bool"))

    def __post_init__(self) -> None:
        if not isinstance(self.kind, _load().DataType | np.dtype | type):
            raise TypeError(
                f"DataType() takes an Arrow, numpy or Python type, but received {self.kind!r:.80}. Write "
                "DataType.int64(), or DataType.from_numpy('int64')."
            )

    def __eq__(self, other: object) -> builtins.bool:
        return isinstance(other, DataType) and type(self.kind) is type(other.kind) and self.kind == other.kind

    def __hash__(self) -> int:
        return hash((type(self.kind), self.kind))

    def __repr__(self) -> str:
        of = "arrow" if self.is_arrow_type() else "numpy" if self.is_numpy_type() else "python"
        return f"DataType({of}:{self.kind.__name__ if of == 'python' else self.kind})"

    # --- constructors -------------------------------------------------------------------------------------------------

    @staticmethod
    def from_arrow(arrow_type: Any) -> DataType:
        """Return the data type for a type of Arrow's."""
        return DataType(arrow_type)

    @staticmethod
    def from_numpy(numpy_dtype: Any) -> DataType:
        """Return the data type for a type of numpy's, or for its name."""
        return DataType(np.dtype(numpy_dtype))

    @staticmethod
    def infer_dtype(value: object) -> DataType:
        """Return the type of a value: numpy's for its arrays and scalars, else Arrow's, or Python's without one of
        Arrow's."""
        if isinstance(value, np.ndarray | np.generic):
            return DataType(value.dtype)
        pa = _load()
        try:
            return DataType(pa.array([value]).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return DataType(type(value))

    @staticmethod
    def list(value_type: DataType) -> DataType:
        """Return the type of lists with values of a type."""
        return DataType(_load().list_(value_type.to_arrow_dtype()))

    @staticmethod
    def large_list(value_type: DataType) -> DataType:
        """Return the type of lists with 64-bit lengths."""
        return DataType(_load().large_list(value_type.to_arrow_dtype()))

    @staticmethod
    def fixed_size_list(value_type: DataType, list_size: int) -> DataType:
        """Return the type of lists with one fixed length."""
        return DataType(_load().list_(value_type.to_arrow_dtype(), list_size))

    @staticmethod
    def struct(fields: Sequence[tuple[str, DataType]]) -> DataType:
        """Return the type of dicts with fixed keys, each with its type."""
        return DataType(_load().struct([(name, kind.to_arrow_dtype()) for name, kind in fields]))

    @staticmethod
    def map(key_type: DataType, value_type: DataType) -> DataType:
        """Return the type of dicts with any keys of a type."""
        return DataType(_load().map_(key_type.to_arrow_dtype(), value_type.to_arrow_dtype()))

    @staticmethod
    def tensor(shape: tuple[int, ...], dtype: DataType) -> DataType:
        """Return the type of arrays with a fixed shape."""
        return DataType(_load().fixed_shape_tensor(dtype.to_arrow_dtype(), shape))

    @staticmethod
    def temporal(temporal_type: str, unit: str | None = None, tz: str | None = None) -> DataType:
        """Return a type of times.

        Args:
            temporal_type: ``"timestamp"``, ``"date32"``, ``"date64"``, ``"time32"``, ``"time64"`` or ``"duration"``.
            unit: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``. Default: ``"us"``; for ``"time32"``, ``"s"``.
            tz: The time zone of a timestamp.

        Raises:
            ValueError: The type is unknown, or does not have the unit.
        """
        name = temporal_type.lower()
        usual, units = _TEMPORAL.get(name, (None, ()))
        if name not in _TEMPORAL or (unit is not None and unit not in units):
            raise ValueError(
                f"temporal() takes one of {', '.join(_TEMPORAL)}, and a unit of that type, but received "
                f"{temporal_type!r} and {unit!r}. Write temporal('timestamp', 'us')."
            )
        chosen = [] if usual is None else [unit or usual]
        return DataType(getattr(_load(), name)(*chosen, **({"tz": tz} if name == "timestamp" else {})))

    # --- conversions --------------------------------------------------------------------------------------------------

    def to_arrow_dtype(self, values: Sequence[object] | None = None) -> Any:
        """Return Arrow's type. For a Python type that Arrow lacks, return the type of `values`."""
        pa = _load()
        if self.is_arrow_type():
            return self.kind
        if self.is_numpy_type():
            return pa.from_numpy_dtype(self.kind)
        if self.kind in _PYTHON:
            return pa.types.lib.ensure_type(_PYTHON[self.kind])
        if not values:
            raise ValueError(
                f"Arrow has no type for all values of {self.kind.__name__}. Write to_arrow_dtype(values) for the type "
                "of some values."
            )
        return pa.array(values).type

    def to_numpy_dtype(self) -> np.dtype[Any]:
        """Return numpy's type, or its type of objects if numpy has none."""
        if self.is_numpy_type():
            found: np.dtype[Any] = self.kind
            return found
        try:
            return np.dtype(self.kind.to_pandas_dtype() if self.is_arrow_type() else object)
        except (TypeError, ValueError, NotImplementedError):
            return np.dtype(object)

    def to_python_type(self) -> type:
        """Return Python's type.

        Raises:
            ValueError: This is a type of Arrow's or numpy's.
        """
        if not self.is_python_type():
            raise ValueError(f"{self!r} is not a Python type. Write to_arrow_dtype() or to_numpy_dtype().")
        found: type = self.kind
        return found

    # --- categories ---------------------------------------------------------------------------------------------------

    def is_arrow_type(self) -> builtins.bool:
        """Return whether this is a type of Arrow's."""
        return isinstance(self.kind, _load().DataType)

    def is_numpy_type(self) -> builtins.bool:
        """Return whether this is a type of numpy's."""
        return isinstance(self.kind, np.dtype)

    def is_python_type(self) -> builtins.bool:
        """Return whether this is a type of Python's."""
        return isinstance(self.kind, type)

    def is_of(self, category: TypeCategory | str) -> builtins.bool:
        """Return whether this type belongs to a category; False for an unknown category."""
        if category == TypeCategory.LARGE_LIST:
            return self._is("large_list", "large_list_view")
        return category in [*TypeCategory] and getattr(self, f"is_{TypeCategory(category)}_type")()

    def _is(self, *names: str) -> builtins.bool:
        """Return whether one of Arrow's checks of types, such as ``is_list``, holds for this type."""
        types = _load().types
        try:
            kind = self.to_arrow_dtype()
        except (TypeError, ValueError, NotImplementedError):  # Arrow has no such type
            return False
        kind = kind.value_type if types.is_dictionary(kind) else kind
        asked = (getattr(types, f"is_{name}", None) for name in names)  # older versions of Arrow lack some
        return any(ask is not None and ask(kind) for ask in asked)

    def is_list_type(self) -> builtins.bool:
        """Return whether the values are lists."""
        return self._is("list", "large_list", "fixed_size_list", "list_view", "large_list_view")

    def is_tensor_type(self) -> builtins.bool:
        """Return whether the values are arrays."""
        return isinstance(self.kind, _load().FixedShapeTensorType)

    def is_struct_type(self) -> builtins.bool:
        """Return whether the values are dicts with fixed keys."""
        return self._is("struct")

    def is_map_type(self) -> builtins.bool:
        """Return whether the values are dicts with any keys."""
        return self._is("map")

    def is_nested_type(self) -> builtins.bool:
        """Return whether the values hold other values."""
        return self._is("nested")

    def is_numerical_type(self) -> builtins.bool:
        """Return whether the values are numbers."""
        return self._is("integer", "floating", "decimal")

    def is_string_type(self) -> builtins.bool:
        """Return whether the values are texts."""
        return self._is("string", "large_string", "string_view") or (self.is_numpy_type() and self.kind.kind in "US")

    def is_binary_type(self) -> builtins.bool:
        """Return whether the values are bytes."""
        return self._is("binary", "large_binary", "binary_view", "fixed_size_binary")

    def is_temporal_type(self) -> builtins.bool:
        """Return whether the values are times."""
        return self._is("temporal")


def read(given: object) -> object:
    """Return a `DataType` as Arrow's type, and any other argument unchanged."""
    return given.to_arrow_dtype() if isinstance(given, DataType) else given
