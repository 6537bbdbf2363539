"""Blocks: parts of a dataset that are read, processed and sent as a whole.

A block is a few columns of equal length. It never changes, and its memory may be shared memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
import numpy.typing as npt

from hocket._base import texts
from hocket.data import arrow, columns
from hocket.data.arrow import frames

Batch: TypeAlias = Any
"""A dict of numpy arrays, a pandas DataFrame, or an Arrow table."""

BatchFormat: TypeAlias = Literal["default", "numpy", "pandas", "pyarrow"]

Row: TypeAlias = dict[str, Any]

Types: TypeAlias = tuple[tuple[str, columns.Type], ...]
"""Names and types of a block's columns."""


@final
@dataclass(frozen=True, kw_only=True)
class Schema:
    """The names and types of a dataset's columns.

    Example:
        >>> import numpy as np
        >>> from hocket import data
        >>> data.from_numpy({"image": np.zeros((4, 28, 28), np.float32), "label": np.arange(4)}).schema()
        Schema(names=['image', 'label'], types=['float32[28, 28]', 'int64'])
    """

    names: list[str]
    types: list[str]
    """Numpy's name of each type, with the shape of a row if there is one; or Arrow's name."""

    def __str__(self) -> str:
        width = max(map(len, ["Column", *self.names]))
        rows = [("Column", "Type"), ("------", "----"), *zip(self.names, self.types, strict=True)]
        return "\n".join(f"{name:<{width}}  {kind}" for name, kind in rows)


@final
class Block:
    """Rows, stored column by column.

    Args:
        found: The columns, by name.
        num_rows: Number of rows of each column.
    """

    __slots__ = ("columns", "num_rows")

    def __init__(self, found: Mapping[str, columns.Column], num_rows: int) -> None:
        self.columns = dict(found)
        self.num_rows = num_rows

    def __reduce__(self) -> tuple[object, ...]:
        return Block, ({name: _shrink(column) for name, column in self.columns.items()}, self.num_rows)

    def count_bytes(self) -> int:
        """Return the approximate memory of the block in bytes."""
        return sum(map(columns.count_bytes, self.columns.values()))

    def find_types(self) -> Types:
        """Return the columns' types. The type of a column without values is a `columns.Unfilled`."""
        return tuple((name, columns.find_filling(column)) for name, column in self.columns.items())

    def read_schema(self) -> Schema:
        """Return the names and types of the columns."""
        return Schema(names=list(self.columns), types=list(map(columns.describe, self.columns.values())))

    def cut(self, start: int, stop: int) -> Block:
        """Return consecutive rows, without a copy."""
        start, stop = min(start, self.num_rows), min(stop, self.num_rows)
        return Block({name: columns.cut(column, start, stop) for name, column in self.columns.items()}, stop - start)

    def add_constants(self, values: Mapping[str, object]) -> Block:
        """Return the block with more columns, each filled with one value. Existing columns stay as they are."""
        added = {
            name: columns.repeat(value, self.num_rows) for name, value in values.items() if name not in self.columns
        }
        return Block({**self.columns, **added}, self.num_rows)

    def pick(self, rows: npt.NDArray[np.int64]) -> Block:
        """Return a copy of the rows with these numbers, in this order."""
        return Block({name: columns.pick(column, rows) for name, column in self.columns.items()}, len(rows))

    def select(self, names: Sequence[str]) -> Block:
        """Return the block with only these columns."""
        check_columns(names, list(self.columns))
        return Block({name: self.columns[name] for name in names}, self.num_rows)

    def to_batch(self, batch_format: str, *, is_owned: bool = False) -> Batch:
        """Return the rows in the batch format that a user requests.

        Args:
            batch_format: The format.
            is_owned: Whether the columns belong to the caller alone. The batch's numpy arrays are then writable.
        """
        if batch_format == "pyarrow":
            return arrow.build_table(self.columns)
        if batch_format == "pandas":
            return frames.build_frame(self.columns, self.num_rows)
        prepare = columns.own if is_owned else columns.protect
        return {name: prepare(columns.to_numpy(column)) for name, column in self.columns.items()}

    def list_rows(self) -> Iterator[Row]:
        """Return an iterator over the rows, each a dict of Python values."""
        return iter(RowView(self))


@final
class View:
    """A batch of a block as a user's function takes it, and the way back.

    A batch format may hold less than a column does. So a column that the function returns unchanged becomes the block's
    own column again. `read` recognises such a column by its place in memory, else by its name. See `columns.restore`.

    Args:
        block: The block.
        batch_format: The format.
        is_owned: Whether the columns belong to the caller alone. The batch's numpy arrays are then writable.
    """

    def __init__(self, block: Block, batch_format: str, *, is_owned: bool = False) -> None:
        self.batch = block.to_batch(batch_format, is_owned=is_owned)
        self._block = block
        self._format = batch_format
        self._places: dict[object, str] = {}
        # An Arrow table has the block's own columns, so none has to be found again.
        for name in () if batch_format == "pyarrow" else block.columns:
            self._places[_find_place(self.batch[name])] = name
        self._places.pop(None, None)

    def read(self, returned: Batch, what: str) -> Block:
        """Return the function's result as a block."""
        made = build_from_batch(returned, what)
        if self._format == "pyarrow" or not (isinstance(returned, Mapping) or frames.is_frame(returned)):
            return made
        found = {}
        for name, column in made.columns.items():
            # By its memory first: the function may have renamed the column.
            source = self._places.get(_find_place(returned[name]), name)
            found[name] = self._restore(column, self._block.columns.get(source))
        return Block(found, made.num_rows)

    def _restore(self, column: columns.Column, original: columns.Column | None) -> columns.Column:
        if original is None:
            return column
        return columns.restore(column, original, self._show, keeps_zones=self._format == "pandas")

    def _show(self, column: columns.Column) -> object:
        """Return a column in the form of the batch."""
        if self._format == "numpy":
            return columns.to_numpy(column)
        return frames.build_frame({"": column}, len(column))[""]


def _find_place(values: Any) -> tuple[object, ...] | None:
    """Return the address and layout of an array or of a data frame's column; None if its memory is not one array."""
    if not isinstance(values, np.ndarray):
        if not isinstance(getattr(values, "dtype", None), np.dtype) or not hasattr(values, "to_numpy"):
            return None
        values = values.to_numpy()
    return values.__array_interface__["data"][0], values.strides, values.shape, values.dtype


@final
class RowView:
    """The rows of a block as a user's function takes them, and the way back. See `View`."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._values = {name: columns.to_values(column) for name, column in block.columns.items()}

    def __iter__(self) -> Iterator[Row]:
        names = list(self._values)
        return (dict(zip(names, row, strict=True)) for row in zip(*self._values.values(), strict=True))

    def read(self, returned: Sequence[Any], what: str, origins: npt.NDArray[np.int64] | None = None) -> Block:
        """Return the function's results as a block.

        Args:
            returned: The rows that the function returned.
            what: Their source, for the error.
            origins: Number of the original row for each returned row; None: the row with the same number.
        """
        check_rows(returned, what)
        names = list(dict.fromkeys(name for row in returned for name in row))
        found = {}
        for name in names:
            values = [row.get(name) for row in returned]
            source = self._find_source(name, values, origins)
            found[name] = values if source is None else source
        made = build(found, what) if returned else Block({}, 0)
        for name, column in made.columns.items():
            original = self._block.columns.get(name)
            # Python's values do not show how an Arrow column kept them: its zone, width or categories.
            if column is not found[name] and original is not None and not isinstance(original, np.ndarray):
                made.columns[name] = arrow.recast(column, original, keeps_zones=True)
        return made

    def _find_source(
        self, name: str, values: Sequence[object], origins: npt.NDArray[np.int64] | None
    ) -> columns.Column | None:
        """Return the block's column that supplied all of these values, row by row; None if there is none."""
        first = 0 if origins is None else int(origins[0])
        for source in dict.fromkeys([name, *self._values]):
            known = self._values.get(source)
            # Identity, since 1, 1.0 and True are equal. The first row distinguishes most columns.
            if known is None or values[0] is not known[first]:
                continue
            given = known if origins is None else [known[at] for at in origins]
            if not all(map(operator.is_, values, given)):
                continue
            column = self._block.columns[source]
            column = column if origins is None else columns.pick(column, origins)
            # The same list may have other items by now, so it is compared with a fresh one.
            if not columns.is_mutable(column) or columns.is_same(values, columns.to_values(column)):
                return column
        return None


def _shrink(column: columns.Column) -> columns.Column:
    """Return a column for pickling: contiguous, and without the larger column that an Arrow array may be part of."""
    return np.ascontiguousarray(column) if isinstance(column, np.ndarray) else arrow.compact(column)


def build(found: Mapping[str, object], what: str) -> Block:
    """Return the columns that a user supplied as a block.

    Args:
        found: An array or a list for each column.
        what: The source of the columns, for the error.
    """
    if not found:
        raise ValueError(f"{what} has no column, and rows cannot be counted without one. Keep at least one column.")
    built = {}
    for name, values in found.items():
        if not isinstance(name, str):
            raise TypeError(f"{what} has a column named {name!r}, but a name must be a text. Write {str(name)!r}.")
        try:
            built[name] = columns.build(values)
        except TypeError as error:
            raise TypeError(
                f"{what}: column {name!r} has {error}. Use arrays or lists, such as {{{name!r}: np.array([...])}}."
            ) from None
    lengths = {name: columns.length(column) for name, column in built.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"{what} has columns of different lengths, {lengths}, but all columns need one value for each row. Make "
            "them equally long."
        )
    return Block(built, next(iter(lengths.values())))


def build_from_batch(batch: Batch, what: str) -> Block:
    """Return a batch in any format as a block."""
    if isinstance(batch, Mapping):
        return build(batch, what)
    if frames.is_frame(batch):
        return build(frames.read_frame(batch), what)
    if hasattr(batch, "column_names") and hasattr(batch, "num_rows"):  # an Arrow table or record batch
        return Block(arrow.read_table(batch), batch.num_rows)
    raise TypeError(
        f"{what} must be a dict of arrays, a pandas DataFrame or an Arrow table, but is {texts.name_kind(batch)}: "
        f"{batch!r:.80}. Write {{'x': array}}, for example."
    )


def build_from_rows(rows: Sequence[Any], what: str, first: int = 0) -> Block:
    """Return rows, each a dict, as a block. A column that a row lacks is None there.

    Args:
        rows: The rows.
        what: The source of the rows, for the error.
        first: Number of the first row, for the error.
    """
    check_rows(rows, what, first)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return build({name: [row.get(name) for row in rows] for name in names}, what) if rows else Block({}, 0)


def check_rows(rows: Sequence[object], what: str, first: int = 0) -> None:
    """Raise if a row is not a dict."""
    for number, row in enumerate(rows, first):
        if not isinstance(row, Mapping):
            raise TypeError(
                f"{what}: a row must be a dict of values by column, but row {number} is {texts.name_kind(row)}: "
                f"{row!r:.80}. Write {{'x': value}}."
            )


def join(blocks: Sequence[Block]) -> Block:
    """Return a copy of several blocks as one. A column that a block lacks is None in its rows."""
    # Empty blocks often lack columns or have other types. One of them counts only if all are empty.
    filled = [block for block in blocks if block.num_rows] or list(blocks[:1])
    names = list(dict.fromkeys(name for block in filled for name in block.columns))
    filled = [block if len(block.columns) == len(names) else _fill(block, names) for block in filled]
    if len(filled) == 1:
        return Block({name: columns.copy(column) for name, column in filled[0].columns.items()}, filled[0].num_rows)
    joined = {name: columns.join(name, [block.columns[name] for block in filled]) for name in names}
    return Block(joined, sum(block.num_rows for block in filled))


def _fill(block: Block, names: Sequence[str]) -> Block:
    """Return a block with all of these columns; those that it lacks hold missing values."""
    gone = {name: columns.repeat(None, block.num_rows) for name in names if name not in block.columns}
    return Block({**block.columns, **gone}, block.num_rows)


def put_beside(found: Sequence[Block]) -> Block:
    """Join the columns of blocks of equal length. A column whose name is taken gets ``_1``, ``_2``, ... added."""
    made = dict(found[0].columns)
    for number, block in enumerate(found[1:], 1):
        for name, column in block.columns.items():
            free = name if name not in made else f"{name}_{number}"
            if free in made:
                raise ValueError(f"Two columns would be called {free!r}. Rename one with rename_columns().")
            made[free] = column
    return Block(made, found[0].num_rows)


def gather(rows: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], fetch: Callable[[int], Block]) -> Block:
    """Return a copy of rows of a dataset, in the given order.

    Args:
        rows: Numbers of the rows.
        starts: Number of each block's first row, rising from 0.
        fetch: Returns a block by its number. It is called once for each block that has one of the rows, in the order of
            the blocks.
    """
    if not len(rows):
        return fetch(0).cut(0, 0)
    where = np.searchsorted(starts, rows, side="right") - 1
    # Consecutive rows need no index: each block is cut.
    if rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        first, last = int(rows[0]), int(rows[-1])
        spans = [(at, int(starts[at])) for at in range(int(where[0]), int(where[-1]) + 1)]
        return join([fetch(at).cut(max(0, first - start), last + 1 - start) for at, start in spans])
    if where[0] == where[-1] and (where == where[0]).all():
        return fetch(int(where[0])).pick(rows - starts[where[0]])
    by_block = np.argsort(where, kind="stable")
    found, firsts = np.unique(where[by_block], return_index=True)
    parts = [
        fetch(int(at)).pick(rows[chosen] - starts[at])
        for at, chosen in zip(found, np.split(by_block, firsts[1:]), strict=True)
    ]
    # The parts have the order of the blocks; the caller asked for another one.
    back = np.empty(len(rows), np.int64)
    back[by_block] = np.arange(len(rows))
    return join(parts).pick(back)


def check_columns(asked: Sequence[str], there: Sequence[str]) -> None:
    """Raise for the name of a column that does not exist."""
    missing = [name for name in asked if name not in there]
    if missing:
        error = KeyError(
            f"There is no column {', '.join(map(repr, missing))}: the columns are {', '.join(map(repr, there))}. Use "
            "one of these names."
        )
        raise texts.mark_told(error)


def check_format(batch_format: str | None) -> str:
    """Return a batch format's own name. None is Ray's name for the format of its blocks, Arrow tables."""
    if batch_format is None:
        return "pyarrow"
    if batch_format not in get_args(BatchFormat):
        raise ValueError(
            f"batch_format must be one of {', '.join(map(repr, get_args(BatchFormat)))}, but received "
            f"{batch_format!r}. 'default' is a dict of numpy arrays."
        )
    return "numpy" if batch_format == "default" else batch_format
