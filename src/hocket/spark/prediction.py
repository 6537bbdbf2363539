"""A model, or any function of batches, called in Spark's own tasks.

Spark gives its Python workers batches of Arrow's (`DataFrame.mapInArrow`); they become blocks, are cut and called like
those of `Dataset.map_batches`, and what comes back becomes Arrow's again, of the types that the user has named. A
worker process serves one task after another. What a class was made into is kept there, so it is made once in each.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

from hocket.data import arrow, blocks, calls, plan, reading, steps
from hocket.data import columns as data_columns
from hocket.data.spark import access, kinds

CALLER: Final = "predict()"

MOST_KEPT: Final = 4
"""How many models a worker process keeps: those of other calls may come back, and each may be large. A guess."""

_Apply: TypeAlias = Callable[[blocks.Block], blocks.Block]

_kept: dict[str, _Apply] = {}
"""What this process has made, by the call it is for; the latest comes last."""


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
    """Call a function with the batches of a DataFrame of Spark's, in Spark's tasks; what it returns are the rows.

    A class is made once in each of Spark's Python workers, and its instances are called: as with `Dataset.map_batches`.
    As with all of Spark's, nothing runs before rows are read, and a task may be done twice; its rows count
    once.

    Args:
        df: The ``DataFrame``.
        fn: Takes a batch and returns one, in any format and of any length; or yields several. Or a class whose
            instances do. The workers need Hocket, and what the function imports.
        schema: The columns that are returned, as Spark writes them: ``"id bigint, score double"``, or a ``StructType``.
        batch_size: How many rows a batch has; the last one of a part has fewer. Default: what Spark gives, up to
            ``spark.sql.execution.arrow.maxRecordsPerBatch``.
        batch_format: What `fn` is given: ``"default"`` or ``"numpy"`` for a dict of arrays, ``"pandas"``,
            ``"pyarrow"``.
        fn_args: More arguments for `fn`.
        fn_kwargs: The same, by name.
        fn_constructor_args: What a class is made from.
        fn_constructor_kwargs: The same, by name.

    Returns:
        A ``DataFrame`` of `schema`.

    Raises:
        TypeError: `df` is no DataFrame of Spark's, or `fn` neither a function nor a class that can be called.
        ValueError: The batch size is less than 1, or there is no such format.
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
        steps.map_batches,
        keeps_rows=False,
        batch_size=batch_size,
        batch_format=blocks.check_format(batch_format),
        is_shared=True,
    )
    frame = access.check_frame(CALLER, df)
    if not frame.columns:
        raise ValueError(f"{CALLER}: the data frame has no columns, and Spark hands on no rows then. Select one.")
    wanted = frame.sparkSession.createDataFrame([], schema).schema
    twice = sorted({name for name in wanted.names if wanted.names.count(name) > 1})
    if twice:
        raise ValueError(f"{CALLER}: schema= has the column {twice[0]!r} twice. Give each column a name of its own.")
    to_arrow = access.load(CALLER, "pyspark.sql.pandas.types").to_arrow_schema
    return frame.mapInArrow(_Prediction(op=op, schema=to_arrow(wanted, timezone="UTC"), batch_size=batch_size), wanted)


@final
@dataclass(frozen=True, kw_only=True)
class _Prediction:
    """A task of Spark's, on the batches of a part of the rows."""

    op: plan.Op
    schema: Any
    """The columns that are returned, as Arrow has them."""
    batch_size: int | None
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def __call__(self, batches: Iterator[object]) -> Iterator[object]:
        apply = self._get_apply()
        for block in reading.cut_batches(map(_read, batches), self.batch_size, drop_last=False):
            made = apply(block)
            if made.num_rows:
                yield from self._fit(made).to_batches()

    def _get_apply(self) -> _Apply:
        if isinstance(self.op, plan.Step):
            return self.op.apply
        assert isinstance(self.op, plan.Pool), "a call is a step or a pool"
        if self.token not in _kept:
            while len(_kept) >= MOST_KEPT:
                del _kept[next(iter(_kept))]
            _kept[self.token] = self.op.bind(self.op.make())
        return _kept[self.token]

    def _fit(self, made: blocks.Block) -> Any:
        """Return what a function has made, with the columns and types that were promised."""
        pa = arrow.load(CALLER)
        if set(made.columns) != set(self.schema.names):
            raise ValueError(
                f"{self.op_name} returned the columns {list(made.columns)}, but the schema has {self.schema.names}. "
                "Name in schema= what it returns, no more and no less."
            )
        columns = []
        for wanted in self.schema:
            column = made.columns[wanted.name]
            try:
                columns.append(_cast(wanted.name, column, wanted.type))
            except pa.ArrowException as error:
                raise ValueError(
                    f"{self.op_name} returned {data_columns.describe(column)} in the column {wanted.name!r}, and not "
                    f"all values are {wanted.type}, as the schema says: {error}. Name another type in schema=."
                ) from error
        return pa.table(columns, schema=self.schema)

    @property
    def op_name(self) -> str:
        """The function's name, for messages."""
        return plan.describe(self.op)


def _cast(name: str, column: Any, wanted: object) -> object:
    """Return a column as an Arrow array of a type that Spark has, if its values are of it."""
    pa = arrow.load(CALLER)
    if not pa.types.is_map(wanted):
        values = kinds.strip(pa.chunked_array([arrow.build_array(name, column)]))
        is_cut = pa.types.is_decimal(wanted) and pa.types.is_floating(values.type)
        if is_cut or (pa.types.is_boolean(wanted) and not pa.types.is_boolean(values.type)):
            raise pa.ArrowInvalid(f"{values.type} would be {'cut' if is_cut else 'true or false'}")  # Arrow does it
        return values.cast(wanted)
    values = column.to_pylist() if isinstance(column, pa.Array) else list(column)
    is_struct = isinstance(column, pa.Array) and pa.types.is_struct(column.type)  # dicts, with each one's keys in all
    if is_struct:
        values = [None if value is None else {k: v for k, v in value.items() if v is not None} for value in values]
    return pa.array([list(value.items()) if isinstance(value, dict) else value for value in values], wanted)


def _read(batch: object) -> blocks.Block:
    table = arrow.load(CALLER).Table.from_batches([batch])
    return blocks.Block(arrow.read_table(table), table.num_rows)
