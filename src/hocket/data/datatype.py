"""Types of columns, under Ray's name of their module."""

from hocket.data.expressions.datatype import DataType, TypeCategory

__all__ = ["DataType", "TypeCategory"]
