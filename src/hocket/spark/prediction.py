"""A model, or any function of batches, called in Spark's own tasks.

Spark gives Arrow batches to its Python workers (`DataFrame.mapInArrow`). They become blocks, which are cut and
processed as in `Dataset.map_batches`. The results become Arrow batches again, with the types that the user named. A
worker process serves one task after another, and keeps the instance of a class for later tasks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from hocket.data import arrow, blocks, calls, plan, reading, steps
from hocket.data import columns as data_columns
from hocket.data.spark import access, kinds

CALLER: Final = "predict()"

MOST_KEPT: Final = 4
"""How many models a worker process keeps: models of other calls may be needed again, but each may be large. A guess."""


_kept: dict[str, steps.Call] = {}
"""The models that this process has made, by the token of their call. The latest is last."""


def predict(
    df: object,
    fn: Callable[..., blocks.Batch | Iterator[blocks.Batch]] | type,
    *,
    schema: object,
    batch_size: int | None = None,
    batch_format: str | None = "default",
    fn_args: Iterable[object] | None = None,
    fn_kwargs: Mapping[str, object] | None = None,
    fn_constructor_args: Iterable[object] | None = None,
    fn_constructor_kwargs: Mapping[str, object] | None = None,
) -> Any:
    """Call a function with the batches of a Spark DataFrame, in Spark's tasks. Its results are the rows.

    As with `Dataset.map_batches`, a class is instantiated once in each of Spark's Python workers, and the instances are
    called. As always in Spark, nothing runs before rows are read. A task may run twice, but its rows count once.

    Args:
        df: The ``DataFrame``.
        fn: Takes a batch and returns one, in any format and of any length; or yields several. Or a class with such
            instances. The workers need Hocket, and all that the function imports.
        schema: The columns of the result, in Spark's form: ``"id bigint, score double"``, or a ``StructType``.
        batch_size: How many rows a batch has; the last batch of a partition may have fewer. Default: Spark's own
            batches, of up to ``spark.sql.execution.arrow.maxRecordsPerBatch`` rows.
        batch_format: The form of batches: ``"default"`` or ``"numpy"`` for a dict of arrays, ``"pandas"``,
            ``"pyarrow"``.
        fn_args: Further arguments for `fn`.
        fn_kwargs: Further arguments for `fn`, by name.
        fn_constructor_args: Arguments for the constructor of a class.
        fn_constructor_kwargs: Arguments for the constructor, by name.

    Returns:
        A ``DataFrame`` with the columns of `schema`.

    Raises:
        TypeError: `df` is no DataFrame of Spark's, or `fn` cannot be called.
        ValueError: The batch size is less than 1, the format is unknown, or columns are missing or repeated.
        MissingExtraError: PySpark is not installed.
    """
    reading.check_batch_size(batch_size, may_be_none=True)
    call = calls.Call(
        verb="predict",
        fn=fn,
        args=fn_args,
        kwargs=fn_kwargs,
        constructor_args=fn_constructor_args,
        constructor_kwargs=fn_constructor_kwargs,
    )
    op = call.build(
        steps.MapBatches,
        batch_size=batch_size,
        batch_format=blocks.check_format(batch_format),
        is_shared=True,
    )
    frame = access.check_frame(CALLER, df)
    if not frame.columns:
        raise ValueError(
            f"{CALLER}: the data frame has no columns, so Spark passes no rows on. Select at least one column."
        )
    wanted = frame.sparkSession.createDataFrame([], schema).schema
    twice = sorted({name for name in wanted.names if wanted.names.count(name) > 1})
    if twice:
        raise ValueError(f"{CALLER}: schema= has the column {twice[0]!r} twice. Give each column a name of its own.")
    to_arrow = access.load(CALLER, "pyspark.sql.pandas.types").to_arrow_schema
    return frame.mapInArrow(_Prediction(op=op, schema=to_arrow(wanted, timezone="UTC"), batch_size=batch_size), wanted)


@final
@dataclass(frozen=True, kw_only=True)
class _Prediction:
    """The function that a Spark task calls with the batches of its partition."""

    op: plan.Step | plan.Pool
    schema: Any
    """The columns of the result, as an Arrow schema."""
    batch_size: int | None
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def __call__(self, batches: Iterator[object]) -> Iterator[object]:
        work = self._get_work()
        for block in reading.cut_batches(map(_read, batches), self.batch_size, drop_last=False):
            made = steps.call(work, block)
            if made.num_rows:
                yield from self._fit(made).to_batches()

    def _get_work(self) -> steps.Call:
        if isinstance(self.op, plan.Step):
            assert isinstance(self.op.work, steps.Call), "the step calls the function"
            return self.op.work
        if self.token not in _kept:
            while len(_kept) >= MOST_KEPT:
                del _kept[next(iter(_kept))]
            _kept[self.token] = steps.bind(self.op.work, self.op.make())
        return _kept[self.token]

    def _fit(self, made: blocks.Block) -> Any:
        """Return a result as a table with the columns and types of the schema."""
        pa = arrow.load(CALLER)
        if set(made.columns) != set(self.schema.names):
            raise ValueError(
                f"{self.op_name} returned the columns {list(made.columns)}, but the schema has {self.schema.names}. "
                "Name exactly the returned columns in schema=."
            )
        columns = []
        for wanted in self.schema:
            column = made.columns[wanted.name]
            try:
                columns.append(_cast(wanted.name, column, wanted.type))
            except pa.ArrowException as error:
                raise ValueError(
                    f"{self.op_name} returned {data_columns.describe(column)} in the column {wanted.name!r}, but not "
                    f"all of its values fit the schema's type {wanted.type}: {error}. Name another type in schema=."
                ) from error
        return pa.table(columns, schema=self.schema)

    @property
    def op_name(self) -> str:
        """The name of the function, for messages."""
        return plan.describe(self.op)


def _cast(name: str, column: Any, wanted: object) -> object:
    """Return a column as an Arrow array of a type that Spark has. Raise if the cast would change values."""
    pa = arrow.load(CALLER)
    if not pa.types.is_map(wanted):
        values = kinds.strip(pa.chunked_array([arrow.build_array(name, column)]))
        is_cut = pa.types.is_decimal(wanted) and pa.types.is_floating(values.type)
        if is_cut or (pa.types.is_boolean(wanted) and not pa.types.is_boolean(values.type)):
            # Arrow would cast without an error.
            raise pa.ArrowInvalid(f"{values.type} would be {'truncated' if is_cut else 'read as true or false'}")
        return values.cast(wanted)
    values = column.to_pylist() if isinstance(column, pa.Array) else list(column)
    is_struct = isinstance(column, pa.Array) and pa.types.is_struct(column.type)  # each dict has the keys of all
    if is_struct:
        values = [None if value is None else {k: v for k, v in value.items() if v is not None} for value in values]
    return pa.array([list(value.items()) if isinstance(value, dict) else value for value in values], wanted)


def _read(batch: object) -> blocks.Block:
    table = arrow.load(CALLER).Table.from_batches([batch])
    return blocks.Block(arrow.read_table(table), table.num_rows)
