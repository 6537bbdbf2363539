"""Types of columns, under Ray's name of their module."""

from hocket.data.expressions.datatype import DataType as DataType
from hocket.data.expressions.datatype import TypeCategory as TypeCategory
