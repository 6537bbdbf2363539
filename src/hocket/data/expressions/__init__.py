"""Expressions of columns, such as ``col("x") * 2 + 1``: for `Dataset.with_column`, `Dataset.filter` and
`hocket.data.read_parquet`.

`tree` is what an expression is, and `spaces` its methods for texts, lists and times; `text` reads one that is written
as a text; `computing` computes it, of the columns of a block, or hands it to Arrow's readers; `functions` is what
they call.
"""

from hocket._base import missing as _missing
from hocket.data.expressions.computing import download as download
from hocket.data.expressions.tree import Expr as Expr
from hocket.data.expressions.tree import col as col
from hocket.data.expressions.tree import lit as lit
from hocket.data.expressions.tree import pyarrow_udf as pyarrow_udf
from hocket.data.expressions.tree import udf as udf

_missing.explain(__name__)
