"""Arrow, its types, our extension type for arrays, and the common type of several types."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hocket import extras

Array: TypeAlias = npt.NDArray[Any]


def load(caller: str, module: str = "pyarrow") -> Any:
    """Return pyarrow, or one of its modules, with `Arrays` registered.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    remedy = "Run pip install 'hocket[data]'; from_items(), from_numpy() and range() work without it."
    found = extras.load(module, caller, "pyarrow", remedy)
    _teach_arrays()
    return found


def get_optional() -> Any:
    """Return pyarrow, or None if it is not installed."""
    try:
        _teach_arrays()
    except ImportError:
        return None
    return sys.modules["pyarrow"]


@functools.cache
def _teach_arrays() -> Any:
    """Register an Arrow type of columns whose values are arrays, each of its own shape, and return the type's class.

    Arrow's own tensor type holds only numbers, of one shape and not empty, and its files of bools cannot be read. A
    reader without this type sees a struct: the shape, and the values row by row.
    """
    pa: Any = importlib.import_module("pyarrow")

    class Arrays(pa.ExtensionType):  # type: ignore[misc]  # Arrow has no types to check against
        def __init__(self, kind: object) -> None:
            parts = [("shape", pa.list_(pa.int64())), ("values", pa.large_list(kind))]
            super().__init__(pa.struct(parts), "hocket.array")

        @property
        def kind(self) -> Any:
            return self.storage_type.field("values").type.value_type

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> object:
            return cls(storage_type.field("values").type.value_type)

        def __hash__(self) -> int:
            return hash((self.extension_name, self.kind))

        def __reduce__(self) -> tuple[object, ...]:
            # pickle cannot find a class that a function has made.
            return build_arrays_type, (self.kind,)

        def __str__(self) -> str:
            return f"arrays<{self.kind}>"

    with contextlib.suppress(pa.ArrowKeyError):  # an earlier import of this module has registered the type
        pa.register_extension_type(Arrays(pa.null()))
    return Arrays


def build_arrays_type(kind: object) -> Any:
    return _teach_arrays()(kind)


def is_tensor(column: object) -> bool:
    """Return whether each value of an Arrow array is itself an array."""
    return is_tensor_type(getattr(column, "type", None))


def is_tensor_type(kind: object) -> bool:
    """Return whether the values of an Arrow type are arrays, of one shape or of several."""
    return hasattr(kind, "permutation") or getattr(kind, "extension_name", "") == "hocket.array"


def find_type(dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> Any:
    """Return Arrow's type of a numpy column with this shape of a row; None if Arrow has none."""
    pa = load("A column")
    if dtype.kind in "mM":
        dtype = fit_times(dtype)
    texts = {"U": pa.string(), "S": pa.binary()}
    try:
        inner = texts.get(dtype.kind) or pa.from_numpy_dtype(dtype.newbyteorder("="))
    except pa.ArrowNotImplementedError:
        return None
    if not shape:
        return inner
    is_plain = dtype.kind in "iuf" and 0 not in shape
    return pa.fixed_shape_tensor(inner, shape) if is_plain else build_arrays_type(inner)


def fit_times(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return numpy's time type in a unit that Arrow has: one whose whole numbers hold these times, or nanoseconds."""
    unit, _ = np.datetime_data(dtype)
    if unit in ("ps", "fs", "as"):
        unit = "ns"
    elif unit not in UNITS:
        unit = "D" if dtype.kind == "M" and unit in ("Y", "M", "W", "D") else "s"
    return np.dtype(f"{dtype.kind}8[{unit}]")


def convert_times(times: Array) -> Array:
    """Return times in a unit that Arrow has.

    Raises:
        OverflowError: A time would change.
    """
    own = times.dtype.newbyteorder("=")
    times, aim = times.astype(own, copy=False), fit_times(own)
    if own == aim and aim != np.dtype("M8[D]"):
        return times
    is_span = aim.kind == "m" and np.datetime_data(own)[0] in ("Y", "M")  # a month has no length
    found = times if is_span else times.astype(aim)
    given, made = times.view(np.int64), found.view(np.int64)
    is_same = np.isnat(times) if is_span else found.astype(own).view(np.int64) == given
    if aim == np.dtype("M8[D]"):  # Arrow's days have 32 bits
        is_same &= np.isnat(times) | (np.abs(made) < 1 << 31)
    if not is_same.all():
        raise OverflowError(
            f"{times[~is_same][0]!r} is not among Arrow's times, which are 32-bit days, or 64-bit seconds, "
            "milliseconds, microseconds or nanoseconds"
        )
    return found.astype(aim)


def rebuild_type(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return an Arrow type with its inner types changed. A type without inner types stays as it is."""
    pa = load("A column")
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(change(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(change(kind.value_type)), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(change(kind.value_type)))
    return pa.list_(kind.value_field.with_type(change(kind.value_type))) if types.is_list(kind) else kind


def unify(kinds: Sequence[Any]) -> Any:
    """Return the type that holds each value of columns of these types unchanged; None if there is none. Whole numbers
    beside fractions become fractions: `convert` refuses numbers that would change."""
    found = kinds[0]
    for kind in kinds[1:]:
        found = None if found is None else _unify(load("A column"), found, kind)
    return found


UNITS: Final = ("s", "ms", "us", "ns")


def is_text(kind: Any) -> bool:
    types = load("A column").types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: Any) -> bool:
    types = load("A column").types
    is_any = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(is_any or types.is_fixed_size_binary(kind))


def is_list(kind: Any) -> bool:
    types = load("A column").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def decode_dictionary(column: Any) -> Any:
    """Return the values of a dictionary array, which holds each different value once; other arrays unchanged."""
    return column.dictionary_decode() if load("A column").types.is_dictionary(column.type) else column


def _unify(pa: Any, one: Any, other: Any) -> Any:
    types = pa.types
    pair = (one, other)
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if all(map(types.is_dictionary, pair)) and one.value_type == other.value_type and one.ordered == other.ordered:
        index = _unify_numbers(pa, one.index_type, other.index_type)
        index = pa.int64() if types.is_decimal(index) else index  # categories never need 64 bits without a sign
        return pa.dictionary(index, one.value_type, one.ordered)
    if any(map(types.is_dictionary, pair)):
        return _unify(pa, *(kind.value_type if types.is_dictionary(kind) else kind for kind in pair))
    if any(map(is_tensor_type, pair)):
        return _unify_tensors(pa, one, other) if all(map(is_tensor_type, pair)) else None
    for is_kind, plain, large in (
        (is_text, pa.string(), pa.large_string()),
        (is_bytes, pa.binary(), pa.large_binary()),
    ):
        if all(map(is_kind, pair)):
            return large if large in pair else plain
    for is_time, build in (
        (types.is_timestamp, lambda unit: pa.timestamp(unit, one.tz)),
        (types.is_duration, pa.duration),
        (types.is_time, lambda unit: pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)),
    ):
        if all(map(is_time, pair)):
            has_zone = getattr(one, "tz", None) == getattr(other, "tz", None)
            return build(max(one.unit, other.unit, key=UNITS.index)) if has_zone else None
    if all(map(types.is_date, pair)):
        return pa.date64()
    if any(map(types.is_nested, pair)):
        return _unify_nested(pa, one, other)
    return _unify_numbers(pa, one, other)


def _unify_numbers(pa: Any, one: Any, other: Any) -> Any:
    types = pa.types
    pair = (one, other)
    if any(map(types.is_boolean, pair)):
        rest = other if types.is_boolean(one) else one
        return rest if types.is_integer(rest) or types.is_floating(rest) else None
    if any(map(types.is_decimal, pair)):
        if not all(types.is_decimal(kind) or types.is_integer(kind) for kind in pair):
            return None
        scale = max(getattr(kind, "scale", 0) for kind in pair)
        digits = [
            kind.precision - kind.scale if types.is_decimal(kind) else len(str(1 << kind.bit_width)) for kind in pair
        ]
        # Room for the longest part before the point, and for the longest one after it.
        width = max(digits) + scale
        return pa.decimal128(width, scale) if width <= 38 else pa.decimal256(width, scale) if width <= 76 else None
    if not all(types.is_integer(kind) or types.is_floating(kind) for kind in pair):
        return None
    if all(map(types.is_floating, pair)):
        return max(pair, key=lambda kind: kind.bit_width)
    if any(map(types.is_floating, pair)):
        return pa.float64()  # whole numbers that it lacks are refused by `convert`
    wide = max(pair, key=lambda kind: kind.bit_width)
    if types.is_signed_integer(one) == types.is_signed_integer(other):
        return wide
    (unsigned,) = filter(types.is_unsigned_integer, pair)
    # The sign takes one bit, and the next wider type has it.
    bits = max(wide.bit_width, 2 * unsigned.bit_width)
    return pa.decimal128(20, 0) if bits > 64 else getattr(pa, f"int{bits}")()


def _unify_tensors(pa: Any, one: Any, other: Any) -> Any:
    inner = _unify(pa, *(getattr(kind, "kind", None) or kind.value_type for kind in (one, other)))
    if inner is None or pa.types.is_decimal(inner):
        return None
    shapes = [tuple(getattr(kind, "shape", ())) for kind in (one, other)]
    return pa.fixed_shape_tensor(inner, shapes[0]) if shapes[0] and shapes[0] == shapes[1] else build_arrays_type(inner)


def _unify_nested(pa: Any, one: Any, other: Any) -> Any:
    types = pa.types
    pair = (one, other)
    if all(map(types.is_struct, pair)):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _unify(pa, fields.get(field.name, field.type), field.type)
        return None if None in fields.values() else pa.struct(list(fields.items()))
    if all(map(types.is_map, pair)):
        inner = [_unify(pa, one.key_type, other.key_type), _unify(pa, one.item_type, other.item_type)]
        return None if None in inner else pa.map_(*inner)
    if not all(map(is_list, pair)):
        return None
    inner = _unify(pa, one.value_type, other.value_type)
    if inner is None:
        return None
    sizes = {getattr(kind, "list_size", None) for kind in pair}
    if len(sizes) == 1 and None not in sizes:
        return pa.list_(inner, *sizes)
    return pa.large_list(inner) if any(map(types.is_large_list, pair)) else pa.list_(inner)
