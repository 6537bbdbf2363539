"""Operations on the columns of a dataset. Each method adds a step to the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hocket.data import block_reads, blocks, calls, plan, steps
from hocket.data.expressions import tree
from hocket.data.methods.contract import Self


def select_columns(self: Self, cols: str | Sequence[str], **of_ray: object) -> Self:
    """Keep only these columns, in this order.

    Args:
        cols: Names of the columns.
        **of_ray: Ray's keywords that choose the tasks. They have no effect.

    Raises:
        KeyError: A column does not exist. Raised here if the columns are known, else when rows are requested.
        ValueError: No column is named, or one is named twice.
    """
    calls.check_scheduling("select_columns", of_ray)
    names = _check_names("select_columns", cols)
    return _try(self, "select_columns", steps.SelectColumns(names))


def drop_columns(self: Self, cols: str | Sequence[str], **of_ray: object) -> Self:
    """Remove these columns.

    Args:
        cols: Names of the columns.
        **of_ray: Ray's keywords that choose the tasks. They have no effect.

    Raises:
        KeyError: A column does not exist. Raised here if the columns are known, else when rows are requested.
        ValueError: A column is named twice, or no column is left.
    """
    calls.check_scheduling("drop_columns", of_ray)
    names = () if isinstance(cols, list | tuple) and not cols else _check_names("drop_columns", cols)
    return _try(self, "drop_columns", steps.DropColumns(names))


def rename_columns(self: Self, names: Mapping[str, str] | Sequence[str], **of_ray: object) -> Self:
    """Rename columns.

    Args:
        names: The new name of each old one; or a name for each column, in their order.
        **of_ray: Ray's keywords that choose the tasks. They have no effect.

    Raises:
        KeyError: A column does not exist. Raised here if the columns are known, else when rows are requested.
        TypeError: `names` is neither a dict nor a list of texts.
        ValueError: Two columns would have one name, or there are not as many names as columns.
    """
    calls.check_scheduling("rename_columns", of_ray)
    several: object = names
    if isinstance(several, str | bytes) or not isinstance(several, Iterable):
        raise TypeError(f"rename_columns() takes a dict, but received {names!r}. Write {{'old': 'new'}}.")
    given = dict(several) if isinstance(several, Mapping) else tuple(several)
    if not given:
        raise ValueError(f"rename_columns() needs at least one name, but received {names!r}. Write {{'old': 'new'}}.")
    new = given.values() if isinstance(given, dict) else given
    if not all(isinstance(name, str) for name in new):
        raise TypeError(f"rename_columns() needs texts as new names, but received {names!r}. Write {{'old': 'new'}}.")
    return _try(self, "rename_columns", steps.RenameColumns(given))


def add_column(
    self: Self, col: str, fn: Callable[..., object], *, batch_format: str | None = "pandas", **how: object
) -> Self:
    """Add or replace a column: a function computes it from each block.

    Args:
        col: Name of the column.
        fn: Takes a block, and returns a value for each of its rows.
        batch_format: Format of the block for `fn`; see `map_batches`.
        **how: See `map`.

    Raises:
        TypeError: `fn` is not a function.
        ValueError: The format does not exist.
    """
    form = blocks.check_format(batch_format)
    call = calls.read_call("add_column", fn, how, own=["batch_format"])
    return self._then(call.build(steps.AddColumn, column=col, batch_format=form))


def with_column(self: Self, column_name: str, expr: tree.Expr, **of_ray: object) -> Self:
    """Add or replace a column: an expression computes it from each row's values, many times faster than `map`.

    Args:
        column_name: Name of the column.
        expr: An expression of `hocket.data.expressions`.
        **of_ray: Ray's keywords that choose the tasks. They have no effect.

    Raises:
        TypeError: `expr` is not an expression.
        KeyError: The expression needs a column that does not exist. Raised when rows are requested.
        ValueError: The columns do not allow the computation. Raised when rows are requested.

    Example:
        >>> from hocket import data
        >>> from hocket.data.expressions import col
        >>> people = data.from_items([{"name": "Ada", "born": 1815}, {"name": "Alan", "born": 1912}])
        >>> people.with_column("initial", col("name").str.slice(0, 1)).take(1)
        [{'name': 'Ada', 'born': 1815, 'initial': 'A'}]
    """
    calls.check_scheduling("with_column", of_ray)
    return with_columns(self, {column_name: expr})


def with_columns(self: Self, exprs: Mapping[str, tree.Expr]) -> Self:
    """Add or replace columns, by expressions of the columns as they were before. See `with_column`."""
    several: object = exprs
    if not isinstance(several, Mapping) or not several:
        raise TypeError(f"with_columns() takes a dict, but received {exprs!r:.80}. Write {{'y': col('x') + 1}}.")
    for name, expr in several.items():
        tree.check_name("with_column", name)
        if not isinstance(expr, tree.Expr):
            raise TypeError(
                f"with_column({name!r}) takes an expression, but received {expr!r:.80}. Write col('x') + 1, or "
                "lit(value) for a value; add_column() takes a function."
            )
    work = steps.WithColumns(dict(several))
    return self._then(plan.Step(work=work, name=f"with_column({', '.join(several)})"))


def _try(self: Self, name: str, work: steps.SelectColumns | steps.DropColumns | steps.RenameColumns) -> Self:
    """Add a step that only changes columns.

    If that costs nothing, the step runs once on no rows, to raise for a mistake at the faulty call.
    """
    reads, ops = self._plan.reads, self._plan.ops
    if not ops and reads and isinstance(reads[0], block_reads.Held):
        work.apply(reads[0].block.cut(0, 0))
    return self._then(plan.Step(work=work, name=name))


def _check_names(verb: str, given: str | Sequence[str]) -> tuple[str, ...]:
    several: object = given
    names = (given,) if isinstance(given, str) else tuple(several) if isinstance(several, Iterable) else ()
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"{verb}() takes the names of columns, each once, but received {given!r}. Write {verb}(['x', 'y'])."
        )
    return names
