"""Conditions on rows, written as text with Python's syntax: ``"x > 3 and y in ['a', 'b']"``."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from hocket.data import arrow
from hocket.data.expressions import tree

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
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def read(given: object) -> Any:
    """Return a condition as an expression.

    Args:
        given: A text, an expression, or an Arrow expression. The last two are returned unchanged.

    Raises:
        TypeError: `given` is none of these.
        ValueError: The text is no condition.
    """
    compute = arrow.load("filter(expr=...)", "pyarrow.compute")
    if isinstance(given, compute.Expression | tree.Expr):
        return given
    if not isinstance(given, str):
        raise TypeError(
            f"expr must be a text or an expression, but received {given!r:.80}. Write filter(expr='x > 3') or "
            "filter(expr=col('x') > 3)."
        )
    try:
        parsed = ast.parse(given.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(
            f"expr={given!r} is not an expression: {error.msg}. Write expr='x > 3', for example."
        ) from None
    if isinstance(parsed, ast.Constant | ast.BinOp | ast.List | ast.Tuple):
        raise _refuse(parsed, given)
    return _build(parsed, given)


def _build(node: ast.expr, text: str) -> tree.Expr:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return _join(operator.and_, values, text)
        case ast.BoolOp(op=ast.Or(), values=values):
            return _join(operator.or_, values, text)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_build(operand, text)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return tree.lit(-value)
        case ast.Compare():
            return _compare(node, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            found: tree.Expr = _ARITHMETIC[type(op)](_build(left, text), _build(right, text))
            return found
        case ast.Name(id=name):
            return tree.col(name)
        case ast.Attribute() if (dotted := ast.unparse(node)).replace(".", "").isidentifier():
            return tree.col(dotted)
        case ast.Constant(value=value):
            return tree.lit(value)
    raise _refuse(node, text)


def _join(function: Callable[[Any, Any], Any], values: Sequence[ast.expr], text: str) -> tree.Expr:
    found: tree.Expr = functools.reduce(function, (_build(value, text) for value in values))
    return found


def _compare(node: ast.Compare, text: str) -> tree.Expr:
    parts: list[tree.Expr] = []
    left = node.left
    for op, right in zip(node.ops, node.comparators, strict=True):
        here = _build(left, text)
        match op, right:
            case ((ast.Is() | ast.IsNot()), ast.Constant(value=None)):
                parts.append(here.is_null() if isinstance(op, ast.Is) else here.is_not_null())
            case ((ast.In() | ast.NotIn()), (ast.List(elts=elements) | ast.Tuple(elts=elements))):
                try:
                    values = [ast.literal_eval(element) for element in elements]
                except ValueError:
                    raise _refuse(right, text) from None
                parts.append(here.is_in(values) if isinstance(op, ast.In) else here.not_in(values))
            case _ if type(op) in _COMPARISONS:
                parts.append(_COMPARISONS[type(op)](here, _build(right, text)))
            case _:
                raise _refuse(node, text)
        left = right
    found: tree.Expr = functools.reduce(operator.and_, parts)
    return found


def _refuse(node: ast.AST, text: str) -> ValueError:
    return ValueError(
        f"expr={text!r} contains {ast.unparse(node)!r}, which a condition on columns cannot contain. A condition may "
        "have names of columns, numbers, texts, + - * / // %, comparisons, in, is None, and, or, not. For anything "
        "else, write a function."
    )
