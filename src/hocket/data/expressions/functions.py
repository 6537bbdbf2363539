"""The functions of expressions. Each takes ``pyarrow.compute``, then arrays or Arrow's expressions, and returns one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from hocket.data import arrow, columns

Value = Any
"""An Arrow array or scalar; while an Arrow expression is built, an expression."""


def _load() -> Any:
    return arrow.load("An expression")


def _is_text(value: Value) -> bool:
    types = _load().types
    return bool(types.is_string(value.type) or types.is_large_string(value.type))


def _align(compute: Any, left: Value, right: Value) -> tuple[Value, Value]:
    """Return both operands. If one is uint64, a signed value beside it that is not negative becomes uint64, too."""
    if isinstance(left, compute.Expression) or isinstance(right, compute.Expression):
        return left, right
    pa = _load()
    for one, other in ((left, right), (right, left)):
        is_value = isinstance(other, pa.Scalar) and pa.types.is_signed_integer(other.type) and other.is_valid
        if is_value and pa.types.is_uint64(one.type) and other.as_py() >= 0:
            fitted = other.cast(one.type)
            return (left, fitted) if other is right else (fitted, right)
    return left, right


def _calculate(name: str) -> Callable[..., Value]:
    def call(compute: Any, left: Value, right: Value) -> Value:
        return _call_with_fractions(getattr(compute, name), *_align(compute, left, right))

    return call


def _pick_of_fractions(name: str) -> Callable[..., Value]:
    """Return a wrapper of Arrow's function of this name, which takes a fraction."""

    def call(compute: Any, value: Value) -> Value:
        return _call_with_fractions(getattr(compute, name), value)

    return call


def _call_with_fractions(function: Callable[..., Value], *values: Value) -> Value:
    """Call an Arrow function of numbers. Arrow refuses a whole number that no float represents exactly; then use the
    nearest float, as Python does."""
    pa = _load()
    try:
        return function(*values)
    except pa.ArrowInvalid:
        is_whole = [pa.types.is_integer(one.type) for one in values]
        is_mixed = any(pa.types.is_floating(one.type) for one in values) or len(values) == 1
        if not (any(is_whole) and is_mixed):
            raise
        return function(*(one.cast("float64", safe=not whole) for one, whole in zip(values, is_whole, strict=True)))


def _compare(name: str) -> Callable[..., Value]:
    """Return an exact comparison, as in Python: of whole numbers with fractions, of signed with unsigned numbers."""

    def call(compute: Any, left: Value, right: Value) -> Value:
        function = getattr(compute, name)
        if isinstance(left, compute.Expression) or isinstance(right, compute.Expression):
            return function(left, right)
        pa = _load()
        is_integer, is_float = pa.types.is_integer, pa.types.is_floating
        kinds = (left.type, right.type)
        if all(map(is_integer, kinds)) and pa.types.is_decimal(arrow.unify(kinds)):
            # No type of 64 bits has all numbers of both.
            return function(*(one.cast(pa.decimal128(20, 0)) for one in (left, right)))
        try:
            return function(left, right)
        except pa.ArrowInvalid:
            if not (any(map(is_integer, kinds)) and any(map(is_float, kinds))):
                raise
            return _compute_each(left, right, _IN_PYTHON[name], pa.bool_())

    return call


_IN_PYTHON: Final = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def _compute_each(left: Value, right: Value, function: Callable[[Any, Any], object], kind: object) -> Value:
    """Call a Python function on each pair of values."""
    pa = _load()
    is_value = [isinstance(one, pa.Scalar) for one in (left, right)]
    count = 1 if all(is_value) else len(right if is_value[0] else left)
    sides = [
        [one.as_py()] * count if is_one else one.to_pylist()
        for one, is_one in zip((left, right), is_value, strict=True)
    ]
    pairs = zip(*sides, strict=True)
    try:
        found = pa.array([None if None in pair else function(*pair) for pair in pairs], kind)
    except ZeroDivisionError as error:
        raise pa.ArrowInvalid("divide by zero") from error
    return found[0] if all(is_value) else found


def _add(compute: Any, left: Value, right: Value) -> Value:
    # An expression has no type before it meets a column.
    if not isinstance(left, compute.Expression) and _is_text(left) and _is_text(right):
        return compute.binary_join_element_wise(left, right, "")
    return _call_with_fractions(compute.add_checked, *_align(compute, left, right))


def _divide(compute: Any, left: Value, right: Value) -> Value:
    if isinstance(left, compute.Expression) or isinstance(right, compute.Expression):
        return compute.divide_checked(left.cast("float64"), right)
    pa = _load()
    is_integer = pa.types.is_integer
    try:
        return compute.divide_checked(left.cast("float64"), right.cast("float64"))
    except pa.ArrowInvalid:
        if not (is_integer(left.type) and is_integer(right.type)):
            sides = [one.cast("float64", safe=not is_integer(one.type)) for one in (left, right)]
            return compute.divide_checked(*sides)
    return _compute_each(left, right, operator.truediv, pa.float64())  # at least one number has no exact float


def _negate(compute: Any, value: Value) -> Value:
    types = _load().types
    if not isinstance(value, compute.Expression) and types.is_unsigned_integer(value.type):
        # A negative number needs one bit more.
        value = value.cast(f"int{min(64, 2 * value.type.bit_width)}")
    return compute.negate_checked(value)


def _floor_divide(compute: Any, left: Value, right: Value) -> Value:
    types = _load().types
    if not (types.is_integer(left.type) and types.is_integer(right.type)):
        return _as_python(compute, left, right, np.floor_divide)
    left, right = _align(compute, left, right)
    quotient = compute.divide_checked(left, right)  # towards zero
    if types.is_unsigned_integer(left.type) and types.is_unsigned_integer(right.type):
        return quotient
    rest = compute.subtract(left, compute.multiply(quotient, right))
    is_below = compute.and_(compute.not_equal(rest, 0), compute.xor(compute.less(rest, 0), compute.less(right, 0)))
    return compute.subtract(quotient, is_below.cast(quotient.type))


def _modulo(compute: Any, left: Value, right: Value) -> Value:
    types = _load().types
    if not (types.is_integer(left.type) and types.is_integer(right.type)):
        return _as_python(compute, left, right, np.mod)
    left, right = _align(compute, left, right)
    return compute.subtract(left, compute.multiply(_floor_divide(compute, left, right), right))


def _as_python(compute: Any, left: Value, right: Value, function: Any) -> Value:
    """Call a numpy function on two numbers: numpy follows Python's rules for ``//`` and ``%`` of fractions."""
    pa = _load()
    sides = [one.cast("float64", safe=not pa.types.is_integer(one.type)) for one in (left, right)]
    mask = compute.is_null(compute.divide_checked(*sides))  # raises on a division by 0
    values = [one.as_py() if isinstance(one, pa.Scalar) else one.to_numpy(zero_copy_only=False) for one in sides]
    if isinstance(mask, pa.Scalar):
        return pa.scalar(None if mask.as_py() else float(function(*values)), "float64")
    # A missing value counts as NaN here, and the mask takes the result out.
    with np.errstate(invalid="ignore"):
        found = function(*[np.nan if one is None else one for one in values])
    return pa.array(found, mask=mask.to_numpy(zero_copy_only=False))


def _is_in(compute: Any, value: Value, *, values: tuple[Any, ...]) -> Value:
    if isinstance(value, compute.Expression):
        return value.isin(list(values))
    pa = _load()
    held: Any = arrow.get_optional_array(values)
    found = pa.array(values) if held is None else held
    # A list of missing values alone has no type of its own.
    if found.type != value.type and pa.types.is_null(found.type):
        found = found.cast(value.type)
    elif found.type != value.type:
        shared = arrow.unify([found.type, value.type])
        if shared is None:
            raise pa.ArrowTypeError(f"is_in() received values of type {found.type} for a column of type {value.type}")
        try:
            value, found = value.cast(shared), found.cast(shared)
        except pa.ArrowInvalid:  # the shared type lacks a number
            return pa.array([one in values for one in value.to_pylist()])
    return compute.is_in(value, value_set=found)


def _cast(compute: object, value: Value, *, target_type: object, safe: bool) -> Value:
    return value.cast(target_type, safe=safe)


def _strip(end: str) -> Callable[..., Value]:
    def strip(compute: object, value: Value, *, characters: str | None) -> Value:
        if characters is None:
            return getattr(compute, f"utf8_{end}trim_whitespace")(value)
        return getattr(compute, f"utf8_{end}trim")(value, characters=characters)

    return strip


def _pick(name: str) -> Callable[..., Value]:
    """Return a wrapper of Arrow's function of this name, which takes arrays and options."""

    def call(compute: object, *values: Value, **options: object) -> Value:
        return getattr(compute, name)(*values, **options)

    return call


def _find(name: str) -> Callable[..., Value]:
    """Return a wrapper of Arrow's function of this name, which takes an array and a pattern."""

    def call(compute: object, value: Value, *, pattern: str, **how: object) -> Value:
        return getattr(compute, name)(value, pattern=pattern, **how)

    return call


def _round_time(name: str) -> Callable[..., Value]:
    def call(compute: object, value: Value, *, unit: str) -> Value:
        return getattr(compute, name)(value, unit=unit)

    return call


def _sort_lists(compute: object, value: Value, *, reverse: bool, nulls_first: bool) -> Value:
    found = []
    for values in value.to_pylist():
        gone = [one for one in values or () if columns.is_missing(one)]
        there = sorted([one for one in values or () if not columns.is_missing(one)], reverse=reverse)
        found.append(None if values is None else gone + there if nulls_first else there + gone)
    return _load().array(found, value.type)


FUNCTIONS: Final[Mapping[str, Callable[..., Value]]] = {
    "add": _add,
    "subtract": _calculate("subtract_checked"),
    "multiply": _calculate("multiply_checked"),
    "divide": _divide,
    "floor_divide": _floor_divide,
    "modulo": _modulo,
    "power": _calculate("power_checked"),
    "negate": _negate,
    **{name: _compare(name) for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")},
    # As in SQL: false and a missing value is false.
    "and": _pick("and_kleene"),
    "or": _pick("or_kleene"),
    "invert": _pick("invert"),
    # A NaN is a missing value, as everywhere in this room.
    "is_null": lambda compute, value: value.is_null(nan_is_null=True),
    "is_not_null": lambda compute, value: compute.invert(value.is_null(nan_is_null=True)),
    "is_in": _is_in,
    "cast": _cast,
    "alias": lambda compute, value, name: value,
    "abs": _pick("abs_checked"),
    "round": _pick("round"),
    "sign": _pick("sign"),
    **{name: _pick_of_fractions(name) for name in ("ceil", "floor", "trunc", "exp", "ln", "log2", "log10")},
    **{name: _pick_of_fractions(name) for name in ("sin", "cos", "tan", "asin", "acos", "atan")},
    "str.len": _pick("utf8_length"),
    "str.byte_len": _pick("binary_length"),
    **{
        f"str.{name}": _pick(f"utf8_{name}")
        for name in ("lower", "upper", "capitalize", "title", "swapcase", "reverse")
    },
    "str.strip": _strip(""),
    "str.lstrip": _strip("l"),
    "str.rstrip": _strip("r"),
    "str.starts_with": _find("starts_with"),
    "str.ends_with": _find("ends_with"),
    "str.contains": _find("match_substring"),
    "str.match_regex": _find("match_substring_regex"),
    "str.find": _find("find_substring"),
    "str.count": _find("count_substring"),
    "str.count_regex": _find("count_substring_regex"),
    "str.find_regex": _find("find_substring_regex"),
    "str.split_regex": _find("split_pattern_regex"),
    "str.is_ascii": _pick("string_is_ascii"),
    "str.repeat": lambda compute, value, n: compute.binary_repeat(value, n),
    **{
        f"str.is_{name}": _pick(f"utf8_is_{name}")
        for name in ("alnum", "alpha", "decimal", "digit", "lower", "numeric", "printable", "space", "title", "upper")
    },
    "str.replace": _pick("replace_substring"),
    "str.replace_regex": _pick("replace_substring_regex"),
    "str.slice": _pick("utf8_slice_codeunits"),
    "str.split": _find("split_pattern"),
    "str.split_whitespace": _pick("utf8_split_whitespace"),
    "str.lpad": _pick("utf8_lpad"),
    "str.rpad": _pick("utf8_rpad"),
    "str.center": _pick("utf8_center"),
    "list.len": _pick("list_value_length"),
    "list.get": lambda compute, value, index: compute.list_element(value, index),
    "list.slice": _pick("list_slice"),
    "list.sort": _sort_lists,
    **{f"dt.{name}": _pick(name) for name in ("year", "month", "day", "hour", "minute", "second")},
    "dt.strftime": lambda compute, value, fmt: compute.strftime(value, format=fmt),
    "dt.floor": _round_time("floor_temporal"),
    "dt.ceil": _round_time("ceil_temporal"),
    "dt.round": _round_time("round_temporal"),
    "struct.field": lambda compute, value, field_name: compute.struct_field(value, field_name),
}
"""The functions, by name."""

PUSHED: Final = (
    *("add", "subtract", "multiply", "divide", "negate"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("and", "or", "invert", "is_null", "is_not_null", "is_in", "alias"),
)
"""The functions that Arrow's readers can compute, too."""
