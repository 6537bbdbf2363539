"""The functions behind the steps of a plan. Each works on one block, in a task."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import itertools
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from hocket import exceptions
from hocket._base import texts
from hocket.data import arrow, blocks, columns
from hocket.data.arrow import frames
from hocket.data.expressions import computing, tree


def name_function(function: Callable[..., object]) -> str:
    """Return a user's function's name for messages."""
    return str(getattr(function, "__qualname__", None) or repr(function)).replace("<locals>.", "")


def map_batches(
    block: blocks.Block,
    *,
    function: Callable[..., object],
    batch_size: int | None,
    batch_format: str,
    is_shared: bool,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> blocks.Block:
    """Call a user's function with batches of a block."""
    size = batch_size or max(1, block.num_rows)
    what = f"The result of map_batches(`{name_function(function)}`)"
    parts = ((start, start + size) for start in range(0, block.num_rows, size))
    return _map_parts(block, parts, lambda batch: function(batch, *args, **kwargs), what, batch_format, is_shared)


def _map_parts(
    block: blocks.Block,
    parts: Iterable[tuple[int, int]],
    call: Callable[[object], object],
    what: str,
    batch_format: str,
    is_shared: bool,
) -> blocks.Block:
    """Call a user's function with parts of a block, and return the results as one block."""
    made: list[blocks.Block] = []
    for start, stop in parts:
        part = block.cut(start, stop)
        if not is_shared:
            part = blocks.join([part])
        with _advise_copies(is_shared):
            view = blocks.View(part, batch_format, is_owned=not is_shared)
            result = call(view.batch)
            made += [view.read(one, what) for one in (result if isinstance(result, Iterator) else (result,))]
    return blocks.join(made) if len(made) > 1 else made[0] if made else blocks.Block({}, 0)


@contextlib.contextmanager
def _advise_copies(is_shared: bool) -> Iterator[None]:
    """Add advice to the error of a function that writes into a read-only array: the keyword that supplies copies."""
    try:
        yield
    except ValueError as error:
        if is_shared and "read-only" in str(error):
            error.add_note(
                "The function's argument is a read-only view of shared memory. Write zero_copy_batch=False for copies."
            )
        raise


def map_rows(
    block: blocks.Block, *, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> blocks.Block:
    """Call a user's function with each row."""
    view = blocks.RowView(block)
    rows = [function(row, *args, **kwargs) for row in view]
    return view.read(rows, f"The result of map(`{name_function(function)}`)")


def flat_map_rows(
    block: blocks.Block, *, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> blocks.Block:
    """Call a user's function with each row, and return all rows of its results."""
    what = f"The result of flat_map(`{name_function(function)}`)"
    view = blocks.RowView(block)
    rows: list[object] = []
    counts: list[int] = []
    for row in view:
        result = function(row, *args, **kwargs)
        if isinstance(result, Iterator):
            result = list(result)
        if not isinstance(result, Sequence) or isinstance(result, str):
            raise TypeError(
                f"{what} must be a list of rows, but is {texts.name_kind(result)}: {result!r:.80}. Write return [row]."
            )
        rows += result
        counts.append(len(result))
    return view.read(rows, what, np.repeat(np.arange(block.num_rows), counts))


def filter_rows(
    block: blocks.Block, *, function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> blocks.Block:
    """Keep the rows for which a user's function returns a true value."""
    kept = [at for at, row in enumerate(block.list_rows()) if function(row, *args, **kwargs)]
    return block.pick(np.array(kept, np.int64))


def map_groups(
    block: blocks.Block,
    *,
    function: Callable[..., object],
    keys: Sequence[str],
    batch_format: str,
    is_shared: bool,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> blocks.Block:
    """Call a user's function with each group of a block. The block has whole groups, one after the other."""
    what = f"The result of map_groups(`{name_function(function)}`)"
    parts = itertools.pairwise([*find_groups(block, keys).tolist(), block.num_rows])
    return _map_parts(block, parts, lambda group: function(group, *args, **kwargs), what, batch_format, is_shared)


def find_groups(block: blocks.Block, keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the first row of each group in a block whose rows are sorted by their keys."""
    if not block.num_rows:
        return np.empty(0, np.int64)
    changed = np.zeros(block.num_rows - 1, bool)
    for key in keys:
        changed |= columns.find_changes(block.columns[key])
    return np.flatnonzero(np.concatenate([[True], changed]))


_MISSING: Final = re.compile(r"No match for FieldRef\.Name\((.*?)\)")
"""Arrow's message for a column that does not exist."""


def filter_expression(block: blocks.Block, *, expression: object, given: str) -> blocks.Block:
    """Keep the rows for which an expression is true."""
    if not block.num_rows:
        return block
    what = f"filter(expr={given!r})"
    if isinstance(expression, tree.Expr):
        return block.pick(computing.compute_mask(expression, block, what))
    table = block.to_batch("pyarrow").append_column("\0row", arrow.build_array("row", np.arange(block.num_rows)))
    try:
        kept = table.filter(expression).column("\0row")
    except (KeyError, ValueError, TypeError, NotImplementedError) as error:  # Arrow's own errors derive from these
        if (missing := _MISSING.search(str(error))) is not None:
            blocks.check_columns([missing.group(1)], list(block.columns))
        names = ", ".join(map(repr, block.columns))
        raise ValueError(f"{what} cannot be computed: {error}. The columns are {names}.") from error
    return block.pick(kept.to_numpy())


def with_columns(exprs: Mapping[str, tree.Expr], block: blocks.Block) -> blocks.Block:
    """Add columns that expressions compute from a block."""
    if not block.columns:
        return block
    made = {
        name: computing.compute_column(expr, block, f"with_column({name!r}, {expr!r:.80})")
        for name, expr in exprs.items()
    }
    return blocks.Block({**block.columns, **made}, block.num_rows)


def sample_rows(block: blocks.Block, number: int, *, fraction: float, seed: int) -> blocks.Block:
    """Keep each row of a block with the same probability."""
    drawn = np.random.default_rng([seed, number]).random(block.num_rows)
    return block.pick(np.flatnonzero(drawn < fraction))


def take_share(
    block: blocks.Block, number: int, *, share: float, seed: int, column: str | None, is_test: bool
) -> blocks.Block:
    """Keep the rows of one of two parts, chosen by a random number or by the hash of a column's value."""
    if not block.num_rows:
        return block
    if column is None:
        drawn = np.random.default_rng([seed, number]).random(block.num_rows)
    else:
        values = (_normalize(row[column]) for row in block.select([column]).list_rows())
        drawn = np.array([zlib.crc32(repr(value).encode()) / (1 << 32) for value in values])
    return block.pick(np.flatnonzero((drawn < share) == is_test))


def _normalize(value: object) -> object:
    """Return a value in one form for columns of all types: 1 for 1.0, None for NaN."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None if math.isnan(value) else value
    return value


def select_columns(names: tuple[str, ...], block: blocks.Block) -> blocks.Block:
    """Keep only these columns."""
    return block.select(names) if block.columns else block


def drop_columns(names: tuple[str, ...], block: blocks.Block) -> blocks.Block:
    """Remove these columns."""
    if not block.columns:
        return block
    blocks.check_columns(names, list(block.columns))
    kept = [name for name in block.columns if name not in names]
    if not kept:
        raise ValueError(
            f"drop_columns({list(names)!r}) leaves no column, and rows cannot be counted without one. Keep at least "
            "one."
        )
    return block.select(kept)


def rename_columns(names: Mapping[str, str] | tuple[str, ...], block: blocks.Block) -> blocks.Block:
    """Rename columns."""
    if not block.columns:
        return block
    if isinstance(names, tuple):
        if len(names) != len(block.columns):
            raise ValueError(
                f"rename_columns({list(names)!r}) gives {len(names)} names to {len(block.columns)} columns: "
                f"{list(block.columns)}. Give one name for each column, or a dict of the names that change."
            )
        names = dict(zip(block.columns, names, strict=True))
    blocks.check_columns(list(names), list(block.columns))
    renamed = [names.get(name, name) for name in block.columns]
    if len(set(renamed)) < len(renamed):
        raise ValueError(
            f"rename_columns({dict(names)!r}) gives two columns the same name: {renamed}. Choose other names."
        )
    return blocks.Block(dict(zip(renamed, block.columns.values(), strict=True)), block.num_rows)


def add_column(
    block: blocks.Block,
    *,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    column: str,
    batch_format: str,
) -> blocks.Block:
    """Add a column that a user's function computes from a block."""
    if not block.columns:
        return block
    what = f"add_column({column!r}, `{name_function(function)}`)"
    made = function(block.to_batch(batch_format), *args, **kwargs)
    if frames.is_frame(made) or isinstance(made, Mapping) or hasattr(made, "column_names"):
        raise TypeError(
            f"{what} returned {texts.name_kind(made)}, a whole batch, but must return one column. Return a value for "
            "each row, such as batch['x'] % 3."
        )
    added = blocks.build({column: made}, what)
    if added.num_rows != block.num_rows:
        raise ValueError(f"{what} returned {added.num_rows} values for {block.num_rows} rows. Return one for each row.")
    return blocks.Block({**block.columns, **added.columns}, block.num_rows)


def cut_rows(limit: int, block: blocks.Block) -> blocks.Block:
    """Keep the first rows of a block."""
    return block.cut(0, limit)


ROW_BY_ROW = (map_rows, with_columns, select_columns, drop_columns, rename_columns)
"""Steps that make each row from one row, in order."""


def takes_groups(apply: Callable[..., blocks.Block]) -> bool:
    """Return whether a step calls a function with groups."""
    return getattr(apply, "func", None) is map_groups


def iter_groups(block: blocks.Block, apply: Callable[..., blocks.Block]) -> Iterator[blocks.Block]:
    """Return an iterator over the groups of a block, for a step that `takes_groups`."""
    starts = find_groups(block, getattr(apply, "keywords", {})["keys"]).tolist()
    return (block.cut(start, stop) for start, stop in itertools.pairwise([*starts, block.num_rows]))


# --- users' functions -------------------------------------------------------------------------------------------------

_SIDE_BY_SIDE: Final = 4
"""How many coroutines run at once for a block. Ray's number."""


@final
@dataclass(frozen=True)
class _Outcome:
    """The result or the error of a call. The loop returns either as a value, because some errors would end the loop,
    and a future cannot hold a StopIteration."""

    value: Any = None
    error: BaseException | None = None

    def open(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


@final
class Asynchronous:
    """A coroutine function, or an asynchronous generator, that threads call as an ordinary function. An event loop runs
    it, in the thread that waits for these threads. Objects that it keeps, such as a connection, stay with that loop.

    The event loop runs until each of the threads has ended, also after an error: a thread that called into a stopped
    loop would wait for ever. After the first error, calls that have begun are cancelled, and no others begin.

    Args:
        function: The coroutine function or asynchronous generator.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__qualname__ = name_function(function)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._is_left = False

    def __reduce__(self) -> tuple[object, ...]:
        return Asynchronous, (self._function,)

    def __del__(self) -> None:
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()

    def __call__(self, *args: object, **kwargs: object) -> object:
        assert self._loop is not None, "only `run` has it called"
        return asyncio.run_coroutine_threadsafe(self._call(args, kwargs), self._loop).result().open()

    async def _call(self, args: Sequence[object], kwargs: Mapping[str, object]) -> _Outcome:
        if self._is_left:  # only the loop's thread reads and sets this, so no call slips through
            return _Outcome(error=futures.CancelledError())
        try:
            found = self._function(*args, **kwargs)
            return _Outcome(iter([one async for one in found]) if hasattr(found, "__aiter__") else await found)
        except BaseException as error:  # noqa: BLE001 (the thread that called raises it)
            return _Outcome(error=error)

    def run(self, apply: Callable[[blocks.Block], blocks.Block], block: blocks.Block, size: int) -> blocks.Block:
        """Return the step's result for a block. Threads process parts of it at once, in multiples of `size` rows."""
        count = size * max(1, math.ceil(block.num_rows / size / _SIDE_BY_SIDE))
        parts = [block.cut(start, start + count) for start in range(0, max(1, block.num_rows), count)]

        loop = self._loop = self._loop or asyncio.new_event_loop()
        begun = loop.create_future()
        begun.set_result(None)
        loop.run_until_complete(begun)  # raises where a loop cannot run, before a thread waits for this loop
        self._is_left = False
        errors: list[BaseException] = []  # in order of time: the first is the cause of the others

        def work(part: blocks.Block) -> blocks.Block | None:
            try:
                return apply(part)
            except BaseException as error:  # noqa: BLE001 (raised below)
                errors.append(error)
                loop.call_soon_threadsafe(self._leave)
                return None

        with futures.ThreadPoolExecutor(_SIDE_BY_SIDE) as threads:
            works = [loop.run_in_executor(threads, contextvars.copy_context().run, work, part) for part in parts]
            while not all(one.done() for one in works):
                self._waiting = loop.create_task(self._wait(works))
                try:
                    loop.run_until_complete(self._waiting)
                except BaseException as error:  # noqa: BLE001 (raised below: an interrupt, or a task's own error)
                    errors.append(error)
                    self._leave()
        try:
            if errors:
                raise errors[0]
        finally:
            errors.clear()  # an error refers to this frame, and a cycle would keep both alive
        made = [found for one in works if (found := one.result()) is not None]
        return blocks.join(made) if len(made) > 1 else made[0]

    async def _wait(self, works: Sequence[asyncio.Future[Any]]) -> None:
        await asyncio.wait(works)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if self._is_left and others:
            await asyncio.wait(others)

    def _leave(self) -> None:
        """Cancel the calls that have begun, and let no others begin. Runs in the loop's thread."""
        assert self._loop is not None
        self._is_left = True
        for one in asyncio.all_tasks(self._loop) - {self._waiting}:
            one.cancel()


def is_asynchronous(function: object) -> bool:
    """Return whether calling a function, or an instance of a class, makes a coroutine or an asynchronous generator."""
    called = function.func if isinstance(function, functools.partial) else function
    return _makes_coroutine(called) or _makes_coroutine(getattr(called, "__call__", None))  # noqa: B004 (not whether)


def _makes_coroutine(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def adapt(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function in the form in which steps call it."""
    return Asynchronous(function) if is_asynchronous(function) else function


def call(apply: Callable[[blocks.Block], blocks.Block], block: blocks.Block) -> blocks.Block:
    """Return the result of a step that calls a user's function. An error is marked as the user's."""
    how = getattr(apply, "keywords", {})
    try:
        if not isinstance(how.get("function"), Asynchronous):
            return apply(block)
        is_by_row = getattr(apply, "func", None) in (map_rows, flat_map_rows, filter_rows)
        size = 1 if is_by_row else how.get("batch_size") or max(1, block.num_rows)
        made: blocks.Block = how["function"].run(apply, block, size)
        return made
    except Exception as error:
        exceptions.mark_user_code(error)
        raise
