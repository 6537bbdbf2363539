"""What can be done to the rows of a data set, block by block: each method adds a step to the plan."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from hocket.data import blocks, plan, reading


class RowOperations(abc.ABC):
    """The steps that a data set can be given. Whoever has a plan implements it; nothing is executed here."""

    _plan: plan.Plan

    @abc.abstractmethod
    def _then(self, op: plan.Op) -> Self:
        """Return the same with one thing more to do."""

    def map_batches(
        self,
        fn: Callable[..., blocks.Batch | Iterator[blocks.Batch]],
        *,
        batch_size: int | None = None,
        batch_format: str | None = "default",
        zero_copy_batch: bool = True,
        fn_args: Iterable[object] = (),
        fn_kwargs: Mapping[str, object] | None = None,
        num_cpus: float = 1,
    ) -> Self:
        """Call a function with batches; what it returns are the rows.

        Args:
            fn: Takes a batch and returns one, in any format and of any length; or yields several.
            batch_size: How many rows a batch has at most: blocks are cut, not joined. Default: whole blocks.
            batch_format: What `fn` is given: ``"default"`` or ``"numpy"`` for a dict of arrays, ``"pandas"``,
                ``"pyarrow"``.
            zero_copy_batch: Whether arrays are read-only, because they look into shared memory. False gives copies.
            fn_args: More arguments for `fn`.
            fn_kwargs: The same, by name.
            num_cpus: How many CPUs a task holds.

        Raises:
            TypeError: `fn` is no function.
            ValueError: The batch size is less than 1, or there is no such format.

        Example:
            >>> import hocket
            >>> from hocket import data
            >>> context = hocket.init(num_cpus=2, engine="inprocess")
            >>> data.range(3).map_batches(lambda batch, by: {"id": batch["id"] * by}, fn_kwargs={"by": 10}).take_all()
            [{'id': 0}, {'id': 10}, {'id': 20}]
            >>> hocket.shutdown()
        """
        _check_function("map_batches", fn)
        reading.check_batch_size(batch_size, may_be_none=True)
        step = functools.partial(
            plan.map_batches,
            function=fn,
            batch_size=batch_size,
            batch_format=blocks.check_format(batch_format),
            is_shared=zero_copy_batch,
            args=tuple(fn_args),
            kwargs=dict(fn_kwargs or {}),
        )
        return self._then(_build_step("map_batches", step, fn, num_cpus=num_cpus))

    def map(self, fn: Callable[[blocks.Row], blocks.Row], *, num_cpus: float = 1) -> Self:
        """Call a function with each row, a dict of Python values; what it returns is the row.

        `map_batches` is many times faster.

        Raises:
            TypeError: `fn` is no function.
        """
        _check_function("map", fn)
        return self._then(
            _build_step("map", functools.partial(plan.map_rows, fn), fn, keeps_rows=True, num_cpus=num_cpus)
        )

    def flat_map(self, fn: Callable[[blocks.Row], list[blocks.Row]], *, num_cpus: float = 1) -> Self:
        """Call a function with each row; what it returns is a list of rows.

        Raises:
            TypeError: `fn` is no function.
        """
        _check_function("flat_map", fn)
        return self._then(_build_step("flat_map", functools.partial(plan.flat_map_rows, fn), fn, num_cpus=num_cpus))

    def filter(self, fn: Callable[[blocks.Row], bool], *, num_cpus: float = 1) -> Self:
        """Keep the rows of which a function says True.

        Raises:
            TypeError: `fn` is no function.
        """
        _check_function("filter", fn)
        return self._then(_build_step("filter", functools.partial(plan.filter_rows, fn), fn, num_cpus=num_cpus))

    def select_columns(self, cols: str | Sequence[str]) -> Self:
        """Keep some columns, in the order in which they are named.

        Raises:
            KeyError: There is no such column. Raised here if the columns are known, and else when rows are asked for.
            ValueError: No column is named, or one twice.
        """
        return self._try("select_columns", plan.select_columns, _check_names("select_columns", cols))

    def drop_columns(self, cols: str | Sequence[str]) -> Self:
        """Leave some columns out.

        Raises:
            KeyError: There is no such column. Raised here if the columns are known, and else when rows are asked for.
            ValueError: No column is named, or one twice, or none is left.
        """
        return self._try("drop_columns", plan.drop_columns, _check_names("drop_columns", cols))

    def rename_columns(self, names: Mapping[str, str]) -> Self:
        """Give columns other names.

        Raises:
            KeyError: There is no such column. Raised here if the columns are known, and else when rows are asked for.
            ValueError: Two columns would have one name.
        """
        return self._try("rename_columns", plan.rename_columns, dict(names))

    def add_column(self, col: str, fn: Callable[[Any], object], *, batch_format: str | None = "pandas") -> Self:
        """Add a column, or replace it: what a function makes of each block.

        Args:
            col: Its name.
            fn: Takes a block, and returns a value for each of its rows.
            batch_format: What it is given; see `map_batches`.

        Raises:
            TypeError: `fn` is no function.
            ValueError: There is no such format.
        """
        _check_function("add_column", fn)
        form = blocks.check_format(batch_format)
        step = functools.partial(plan.add_column, name=col, function=fn, batch_format=form)
        return self._then(plan.Step(apply=step, name=f"add_column({col})", keeps_rows=True))

    def _try(self, name: str, apply: Callable[[Any, blocks.Block], blocks.Block], columns: Any) -> Self:
        """Add a step that looks at columns only.

        The step is taken once, if that costs nothing, so that a mistake is found where it is made.
        """
        reads, ops = self._plan.reads, self._plan.ops
        if not ops and reads and isinstance(reads[0], plan.Held):
            apply(columns, reads[0].block.cut(0, 0))
        return self._then(plan.Step(apply=functools.partial(apply, columns), name=name, keeps_rows=True))


def _build_step(
    verb: str,
    apply: Callable[[blocks.Block], blocks.Block],
    fn: Callable[..., object],
    *,
    keeps_rows: bool = False,
    num_cpus: object,
) -> plan.Step:
    if isinstance(num_cpus, bool) or not isinstance(num_cpus, int | float) or num_cpus < 0:
        raise ValueError(f"num_cpus must be a number from 0, but received {num_cpus!r}. Leave it out for 1.")
    return plan.Step(apply=apply, name=f"{verb}({plan.name_function(fn)})", keeps_rows=keeps_rows, num_cpus=num_cpus)


def _check_function(verb: str, fn: object) -> None:
    if isinstance(fn, type):
        raise TypeError(
            f"{verb}() takes a function, but received the class {fn.__name__}. Make what it needs in a function, with "
            "functools.cache to make it once in each worker."
        )
    if not callable(fn):
        raise TypeError(f"{verb}() takes a function, but received {fn!r}. Write {verb}(function), without calling it.")


def _check_names(verb: str, given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"{verb}() takes the names of columns, each once, but received {given!r}. Write {verb}(['x', 'y'])."
        )
    return names
