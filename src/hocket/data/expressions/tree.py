"""Expressions: trees of columns, values and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from hocket.data.expressions import datatype, spaces

SIGNS: Final = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "modulo": "%",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "&",
    "or": "|",
}
"""The operators of functions with two operands."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Expr:
    """A computation on the values of each row. Made by `col` and `lit`, with Python's operators, and by methods.

    The result is missing if a value is missing, except that ``&`` of False and a missing value is False, and ``|`` of
    True and a missing value is True. A quotient of whole numbers is a fraction, as in Python; ``//`` and ``%`` follow
    Python, too.

    Args:
        function: The operation: ``"column"``, ``"literal"``, ``"alias"``, ``"udf"``, or a key of `functions.FUNCTIONS`.
        inputs: The operands.
        settings: The other arguments: the name of a column, the value of a literal, or options of a function.

    Example:
        >>> from hocket.data.expressions import col
        >>> (col("x") * 2 + 1 > 3) & col("name").is_not_null()
        (((col('x') * 2) + 1) > 3) & col('name').is_not_null()
    """

    function: str
    inputs: tuple[Expr, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return _write(self)

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self!r} is neither true nor false before there are rows. Write & for and, | for or, ~ for not, and "
            "is_in([...]) for in; and parentheses around each comparison."
        )

    __hash__ = object.__hash__

    @property
    def name(self) -> str | None:
        """The name of the column, or the name that `alias` gave; None if the expression has none."""
        return self.settings.get("name")

    def call(self, function: str, *others: object, **settings: object) -> Expr:
        """Return the expression that applies a function to this expression and others."""
        return Expr(function, (self, *map(read_operand, others)), settings)

    def alias(self, name: str) -> Expr:
        """Return this expression under a name."""
        return Expr("alias", (self,), {"name": check_name("alias", name)})

    # --- signs --------------------------------------------------------------------------------------------------------

    def __add__(self, other: object) -> Expr:
        return self.call("add", other)

    def __radd__(self, other: object) -> Expr:
        return read_operand(other).call("add", self)

    def __sub__(self, other: object) -> Expr:
        return self.call("subtract", other)

    def __rsub__(self, other: object) -> Expr:
        return read_operand(other).call("subtract", self)

    def __mul__(self, other: object) -> Expr:
        return self.call("multiply", other)

    def __rmul__(self, other: object) -> Expr:
        return read_operand(other).call("multiply", self)

    def __truediv__(self, other: object) -> Expr:
        return self.call("divide", other)

    def __rtruediv__(self, other: object) -> Expr:
        return read_operand(other).call("divide", self)

    def __floordiv__(self, other: object) -> Expr:
        return self.call("floor_divide", other)

    def __rfloordiv__(self, other: object) -> Expr:
        return read_operand(other).call("floor_divide", self)

    def __mod__(self, other: object) -> Expr:
        return self.call("modulo", other)

    def __rmod__(self, other: object) -> Expr:
        return read_operand(other).call("modulo", self)

    def __pow__(self, other: object) -> Expr:
        return self.call("power", other)

    def __rpow__(self, other: object) -> Expr:
        return read_operand(other).call("power", self)

    def __neg__(self) -> Expr:
        return self.call("negate")

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]  # an expression, as in Ray
        return self.call("equal", other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]  # an expression, as in Ray
        return self.call("not_equal", other)

    def __lt__(self, other: object) -> Expr:
        return self.call("less", other)

    def __le__(self, other: object) -> Expr:
        return self.call("less_equal", other)

    def __gt__(self, other: object) -> Expr:
        return self.call("greater", other)

    def __ge__(self, other: object) -> Expr:
        return self.call("greater_equal", other)

    def __and__(self, other: object) -> Expr:
        return self.call("and", other)

    def __rand__(self, other: object) -> Expr:
        return read_operand(other).call("and", self)

    def __or__(self, other: object) -> Expr:
        return self.call("or", other)

    def __ror__(self, other: object) -> Expr:
        return read_operand(other).call("or", self)

    def __invert__(self) -> Expr:
        return self.call("invert")

    # --- functions ----------------------------------------------------------------------------------------------------

    def is_null(self) -> Expr:
        """Return whether the value is missing or NaN."""
        return self.call("is_null")

    def is_not_null(self) -> Expr:
        """Return whether the value is neither missing nor NaN."""
        return self.call("is_not_null")

    def is_in(self, values: Sequence[object] | Expr) -> Expr:
        """Return whether the value is among `values`."""
        return self.call("is_in", values=_check_values("is_in", values))

    def not_in(self, values: Sequence[object] | Expr) -> Expr:
        """Return whether the value is not among `values`."""
        return ~self.call("is_in", values=_check_values("not_in", values))

    def cast(self, target_type: object, *, safe: bool = True) -> Expr:
        """Return the value as another type.

        Args:
            target_type: A `DataType`, a type of Arrow's, or its name, such as ``"float32"``.
            safe: Whether to raise if the cast would change a value.
        """
        return self.call("cast", target_type=datatype.read(target_type), safe=safe)

    def negate(self) -> Expr:
        """Return the number with the opposite sign."""
        return -self

    def power(self, exponent: object) -> Expr:
        """Return the number to the power of another number."""
        return self**exponent

    def abs(self) -> Expr:
        """Return the absolute value."""
        return self.call("abs")

    def ceil(self) -> Expr:
        """Return the number rounded up to a whole number."""
        return self.call("ceil")

    def floor(self) -> Expr:
        """Return the number rounded down to a whole number."""
        return self.call("floor")

    def round(self) -> Expr:
        """Return the number rounded to the nearest whole number; halfway between two, the even one."""
        return self.call("round")

    def trunc(self) -> Expr:
        """Return the whole part."""
        return self.call("trunc")

    def sign(self) -> Expr:
        """Return -1, 0 or 1."""
        return self.call("sign")

    def exp(self) -> Expr:
        """Return e to the power of the number."""
        return self.call("exp")

    def ln(self) -> Expr:
        """Return the natural logarithm."""
        return self.call("ln")

    def log2(self) -> Expr:
        """Return the logarithm to the base 2."""
        return self.call("log2")

    def log10(self) -> Expr:
        """Return the logarithm to the base 10."""
        return self.call("log10")

    def sin(self) -> Expr:
        """Return the sine."""
        return self.call("sin")

    def cos(self) -> Expr:
        """Return the cosine."""
        return self.call("cos")

    def tan(self) -> Expr:
        """Return the tangent."""
        return self.call("tan")

    def asin(self) -> Expr:
        """Return the angle that has this sine."""
        return self.call("asin")

    def acos(self) -> Expr:
        """Return the angle that has this cosine."""
        return self.call("acos")

    def atan(self) -> Expr:
        """Return the angle that has this tangent."""
        return self.call("atan")

    def structurally_equals(self, other: object) -> bool:
        """Return whether another expression has the same written form."""
        return isinstance(other, Expr) and repr(self) == repr(other)

    # --- functions for one kind of values -----------------------------------------------------------------------------

    @property
    def str(self) -> spaces.Texts[Expr]:
        """The methods for texts: ``col("name").str.upper()``."""
        return spaces.Texts(self.call)

    @property
    def list(self) -> spaces.Lists[Expr]:
        """The methods for lists: ``col("words").list.len()``."""
        return spaces.Lists(self.call)

    @property
    def dt(self) -> spaces.Times[Expr]:
        """The methods for times: ``col("when").dt.year()``."""
        return spaces.Times(self.call)

    @property
    def struct(self) -> spaces.Structs[Expr]:
        """The methods for dicts: ``col("point").struct.field("x")``."""
        return spaces.Structs(self.call)


def col(name: str) -> Expr:
    """Return the value of a column.

    Raises:
        TypeError: The name is no text.

    Example:
        >>> from hocket import data
        >>> from hocket.data.expressions import col
        >>> data.range(3).with_column("square", col("id") * col("id")).take_all()
        [{'id': 0, 'square': 0}, {'id': 1, 'square': 1}, {'id': 2, 'square': 4}]
    """
    return Expr("column", (), {"name": check_name("col", name)})


def lit(value: object) -> Expr:
    """Return a value that is the same in all rows.

    Example:
        >>> from hocket.data.expressions import col, lit
        >>> lit(1) / col("x")
        1 / col('x')
    """
    return Expr("literal", (), {"value": value})


def udf(return_dtype: object = None) -> Callable[[Callable[..., Any]], Callable[..., Expr]]:
    """Return a decorator that turns a function of Arrow arrays into a function of expressions.

    Args:
        return_dtype: The type of the result: a `DataType`, a type of Arrow's, or its name. Default: the function's own.

    Example:
        >>> import pyarrow.compute as pc
        >>> from hocket import data
        >>> from hocket.data.expressions import col, udf
        >>> @udf("float32")
        ... def half(numbers):
        ...     return pc.multiply(numbers, 0.5)
        >>> data.range(2).with_column("half", half(col("id"))).take_all()
        [{'id': 0, 'half': 0.0}, {'id': 1, 'half': 0.5}]
    """

    def decorate(function: Callable[..., object]) -> Callable[..., Expr]:
        def call(*inputs: object) -> Expr:
            settings = {"function": function, "return_dtype": datatype.read(return_dtype)}
            return Expr("udf", tuple(map(read_operand, inputs)), settings)

        return call

    return decorate


pyarrow_udf = udf
"""Ray's name for `udf` with a function of Arrow arrays."""


def read_operand(value: object) -> Expr:
    """Return an operand as an expression."""
    return value if isinstance(value, Expr) else lit(value)


def check_name(verb: str, name: object) -> str:
    """Check the name of a column, and return it."""
    if not isinstance(name, str):
        raise TypeError(f"{verb}() takes the name of a column, but received {name!r:.80}. Write {verb}('x').")
    return name


def _check_values(verb: str, given: object) -> tuple[object, ...]:
    values: Any = given.settings["value"] if isinstance(given, Expr) and given.function == "literal" else given
    if isinstance(values, str | bytes | Expr) or not hasattr(values, "__iter__"):
        raise TypeError(f"{verb}() takes a list of values, but received {values!r:.80}. Write {verb}([1, 2]).")
    return tuple(values)


def list_columns(expr: Expr) -> list[str]:
    """Return the names of the columns that an expression needs, each once."""
    if expr.function == "column":
        return [expr.settings["name"]]
    return list(dict.fromkeys(name for one in expr.inputs for name in list_columns(one)))


def _write(expr: Expr) -> str:
    match expr.function:
        case "column":
            return f"col({expr.settings['name']!r})"
        case "literal":
            return repr(expr.settings["value"])
        case "udf":
            name = getattr(expr.settings["function"], "__name__", "udf")
            return f"{name}({', '.join(map(_write, expr.inputs))})"
        case "invert":
            return f"~{_enclose(expr.inputs[0])}"
        case "negate":
            return f"-{_enclose(expr.inputs[0])}"
        case sign if sign in SIGNS:
            return f" {SIGNS[sign]} ".join(map(_enclose, expr.inputs))
    first, *others = expr.inputs
    settings = [*map(_write, others), *(f"{name}={value!r}" for name, value in expr.settings.items())]
    return f"{_enclose(first)}.{expr.function}({', '.join(settings)})"


def _enclose(expr: Expr) -> str:
    return f"({_write(expr)})" if expr.function in SIGNS else _write(expr)
