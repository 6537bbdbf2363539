"""Conditions on rows, written as text: ``"x > 3 and y in ['a', 'b']"``, with Python's words and rules."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, Final

from hocket.data import arrow

_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def read(given: object) -> Any:
    """Return a condition as an expression of Arrow's.

    Args:
        given: A text, or an expression.

    Raises:
        TypeError: It is neither.
        ValueError: The text is no condition.
    """
    compute = arrow.load("filter(expr=...)", "pyarrow.compute")
    if isinstance(given, compute.Expression):
        return given
    if not isinstance(given, str):
        raise TypeError(
            f"expr must be a text or an expression of pyarrow.compute, but received {given!r:.80}. Write "
            "filter(expr='x > 3')."
        )
    try:
        parsed = ast.parse(given.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"expr={given!r} is no expression: {error.msg}. Write for example expr='x > 3'.") from None
    if isinstance(parsed, ast.Constant | ast.BinOp | ast.List | ast.Tuple):
        raise _refuse(parsed, given)
    return _build(parsed, compute, given)


def _build(node: ast.expr, compute: Any, text: str) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return _join(operator.and_, values, compute, text)
        case ast.BoolOp(op=ast.Or(), values=values):
            return _join(operator.or_, values, compute, text)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_build(operand, compute, text)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return compute.scalar(-value)
        case ast.Compare():
            return _compare(node, compute, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            first, second = _build(left, compute, text), _build(right, compute, text)
            return _ARITHMETIC[type(op)](first.cast("float64") if isinstance(op, ast.Div) else first, second)
        case ast.Name(id=name):
            return compute.field(name)
        case ast.Constant(value=value):
            return compute.scalar(value)
    raise _refuse(node, text)


def _join(function: Callable[[Any, Any], Any], values: list[ast.expr], compute: Any, text: str) -> Any:
    first, *others = (_build(value, compute, text) for value in values)
    for other in others:
        first = function(first, other)
    return first


def _compare(node: ast.Compare, compute: Any, text: str) -> Any:
    parts = []
    left = node.left
    for op, right in zip(node.ops, node.comparators, strict=True):
        here = _build(left, compute, text)
        match op, right:
            case ((ast.Is() | ast.IsNot()), ast.Constant(value=None)):
                found = here.is_null(nan_is_null=True)
                parts.append(found if isinstance(op, ast.Is) else ~found)
            case ((ast.In() | ast.NotIn()), (ast.List(elts=elements) | ast.Tuple(elts=elements))):
                try:
                    values = [ast.literal_eval(element) for element in elements]
                except ValueError:
                    raise _refuse(right, text) from None
                parts.append(here.isin(values) if isinstance(op, ast.In) else ~here.isin(values))
            case _ if type(op) in _COMPARISONS:
                parts.append(_COMPARISONS[type(op)](here, _build(right, compute, text)))
            case _:
                raise _refuse(node, text)
        left = right
    found = parts[0]
    for part in parts[1:]:
        found = found & part
    return found


def _refuse(node: ast.AST, text: str) -> ValueError:
    return ValueError(
        f"expr={text!r} has {ast.unparse(node)!r}, which is no condition on columns. It may have names of columns, "
        "numbers, texts, + - * /, comparisons, in, is None, and, or, not. Write a function for more."
    )
