"""Expressions on columns, such as ``col("x") * 2 + 1``: for `Dataset.with_column`, `Dataset.filter` and
`hocket.data.read_parquet`.

`tree` has the class of expressions, and `spaces` its methods for texts, lists and times; `text` parses conditions that
are written as text; `computing` computes expressions on blocks, or passes them to Arrow's readers; `functions` has the
functions that expressions call.
"""

from hocket._base import missing as _missing
from hocket.data.expressions.computing import download as download
from hocket.data.expressions.tree import Expr as Expr
from hocket.data.expressions.tree import col as col
from hocket.data.expressions.tree import lit as lit
from hocket.data.expressions.tree import pyarrow_udf as pyarrow_udf
from hocket.data.expressions.tree import udf as udf

_missing.explain(__name__)
