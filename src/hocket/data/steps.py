"""The steps of a plan: each makes one block from one block, in a task.

`Work` is the sum of all kinds. A kind holds the step's settings, and its method ``apply`` takes a block. The kinds of
`Call` call a user's function. `take` runs any of them.
"""

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
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt

from hocket import exceptions
from hocket._base import texts
from hocket.data import arrow, blocks, columns
from hocket.data.arrow import frames
from hocket.data.expressions import computing, tree

# --- users' functions -------------------------------------------------------------------------------------------------


def name_function(function: Callable[..., object]) -> str:
    """Return a user's function's name for messages."""
    return str(getattr(function, "__qualname__", None) or repr(function)).replace("<locals>.", "")


@final
@dataclass(frozen=True)
class Function:
    """A user's function, with the arguments that follow those of a step.

    Args:
        call: The function; for a pool, until it is bound, the class.
        args: Its further arguments.
        kwargs: Its keyword arguments.
    """

    call: Callable[..., Any]
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, *own: object) -> Any:
        """Call the function with a step's arguments."""
        return self.call(*own, *self.args, **self.kwargs)

    @property
    def plain(self) -> Callable[..., Any]:
        """The function itself if it has no further arguments, otherwise this object. Saves a call for each row."""
        return self if self.args or self.kwargs else self.call

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return name_function(self.call)

    def bind(self, call: Callable[..., Any]) -> Function:
        """Return the same arguments for another function, in the form in which steps call it."""
        return replace(self, call=Asynchronous(call) if is_asynchronous(call) else call)


@final
@dataclass(frozen=True, kw_only=True)
class MapBatches:
    """Calls a user's function with batches of a block."""

    fn: Function
    batch_size: int | None
    batch_format: str
    is_shared: bool
    """Whether the function gets read-only views of shared memory."""

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        size = self.batch_size or max(1, block.num_rows)
        what = f"The result of map_batches(`{self.fn.name}`)"
        parts = ((start, start + size) for start in range(0, block.num_rows, size))
        return _map_parts(block, parts, self.fn, what, self.batch_format, self.is_shared)


@final
@dataclass(frozen=True, kw_only=True)
class MapBlocks:
    """Calls a function with each block as it is: a preprocessor's."""

    fn: Function
    keeps_rows: bool

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        made: blocks.Block = self.fn(block)
        return made


@final
@dataclass(frozen=True)
class MapRows:
    """Calls a user's function with each row."""

    fn: Function

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        view = blocks.RowView(block)
        call = self.fn.plain
        rows = [call(row) for row in view]
        return view.read(rows, f"The result of map(`{self.fn.name}`)")


@final
@dataclass(frozen=True)
class FlatMapRows:
    """Calls a user's function with each row, and keeps all rows of its results."""

    fn: Function

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        what = f"The result of flat_map(`{self.fn.name}`)"
        view, call = blocks.RowView(block), self.fn.plain
        rows: list[object] = []
        counts: list[int] = []
        for row in view:
            result = call(row)
            if isinstance(result, Iterator):
                result = list(result)
            if not isinstance(result, Sequence) or isinstance(result, str):
                raise TypeError(
                    f"{what} must be a list of rows, but is {texts.name_kind(result)}: {result!r:.80}. Write "
                    "return [row]."
                )
            rows += result
            counts.append(len(result))
        return view.read(rows, what, np.repeat(np.arange(block.num_rows), counts))


@final
@dataclass(frozen=True)
class FilterRows:
    """Keeps the rows for which a user's function returns a true value."""

    fn: Function

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        call = self.fn.plain
        kept = [at for at, row in enumerate(block.list_rows()) if call(row)]
        return block.pick(np.array(kept, np.int64))


@final
@dataclass(frozen=True, kw_only=True)
class MapGroups:
    """Calls a user's function with each group of a block, which has whole groups, one after the other."""

    fn: Function
    keys: Sequence[str]
    batch_format: str
    is_shared: bool
    """See `MapBatches`."""

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        what = f"The result of map_groups(`{self.fn.name}`)"
        parts = itertools.pairwise([*find_groups(block, self.keys).tolist(), block.num_rows])
        return _map_parts(block, parts, self.fn, what, self.batch_format, self.is_shared)

    def iter_groups(self, block: blocks.Block) -> Iterator[blocks.Block]:
        """Return an iterator over the groups of a block."""
        starts = find_groups(block, self.keys).tolist()
        return (block.cut(start, stop) for start, stop in itertools.pairwise([*starts, block.num_rows]))


@final
@dataclass(frozen=True, kw_only=True)
class AddColumn:
    """Adds a column that a user's function computes from a block."""

    fn: Function
    column: str
    batch_format: str

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        if not block.columns:
            return block
        what = f"add_column({self.column!r}, `{self.fn.name}`)"
        made = self.fn(block.to_batch(self.batch_format))
        if frames.is_frame(made) or isinstance(made, Mapping) or hasattr(made, "column_names"):
            raise TypeError(
                f"{what} returned {texts.name_kind(made)}, a whole batch, but must return one column. Return a value "
                "for each row, such as batch['x'] % 3."
            )
        added = blocks.build({self.column: made}, what)
        if added.num_rows != block.num_rows:
            raise ValueError(
                f"{what} returned {added.num_rows} values for {block.num_rows} rows. Return one for each row."
            )
        return blocks.Block({**block.columns, **added.columns}, block.num_rows)


Call: TypeAlias = MapBatches | MapBlocks | MapRows | FlatMapRows | FilterRows | MapGroups | AddColumn
"""A step that calls a user's function."""


def bind(work: Call, call: Callable[..., object]) -> Call:
    """Return a step with another function: a pool's actor binds the instance of a class."""
    return replace(work, fn=work.fn.bind(call))


def call(work: Call, block: blocks.Block) -> blocks.Block:
    """Return the result of a step that calls a user's function. An error is marked as the user's."""
    try:
        function = work.fn.call
        if not isinstance(function, Asynchronous):
            return work.apply(block)
        match work:
            case MapRows() | FlatMapRows() | FilterRows():
                size = 1
            case MapBatches(batch_size=int(size)):
                pass
            case _:
                size = max(1, block.num_rows)
        return function.run(work.apply, block, size)
    except Exception as error:
        exceptions.mark_user_code(error)
        raise


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


def find_groups(block: blocks.Block, keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the first row of each group in a block whose rows are sorted by their keys."""
    if not block.num_rows:
        return np.empty(0, np.int64)
    changed = np.zeros(block.num_rows - 1, bool)
    for key in keys:
        changed |= columns.find_changes(block.columns[key])
    return np.flatnonzero(np.concatenate([[True], changed]))


# --- columns ----------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class SelectColumns:
    """Keeps only these columns."""

    names: tuple[str, ...]

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        return block.select(self.names) if block.columns else block


@final
@dataclass(frozen=True)
class DropColumns:
    """Removes these columns."""

    names: tuple[str, ...]

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        if not block.columns:
            return block
        blocks.check_columns(self.names, list(block.columns))
        kept = [name for name in block.columns if name not in self.names]
        if not kept:
            raise ValueError(
                f"drop_columns({list(self.names)!r}) leaves no column, and rows cannot be counted without one. Keep at "
                "least one."
            )
        return block.select(kept)


@final
@dataclass(frozen=True)
class RenameColumns:
    """Renames columns."""

    names: Mapping[str, str] | tuple[str, ...]
    """The new name of each old one, or a name for each column."""

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        if not block.columns:
            return block
        names = self.names
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


@final
@dataclass(frozen=True)
class WithColumns:
    """Adds columns that expressions compute from a block."""

    exprs: Mapping[str, tree.Expr]

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        if not block.columns:
            return block
        made = {
            name: computing.compute_column(expr, block, f"with_column({name!r}, {expr!r:.80})")
            for name, expr in self.exprs.items()
        }
        return blocks.Block({**block.columns, **made}, block.num_rows)


# --- rows -------------------------------------------------------------------------------------------------------------

_MISSING: Final = re.compile(r"No match for FieldRef\.Name\((.*?)\)")
"""Arrow's message for a column that does not exist."""


@final
@dataclass(frozen=True)
class FilterExpression:
    """Keeps the rows for which an expression is true."""

    expression: object
    given: str
    """The expression as the user wrote it, for messages."""

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        if not block.num_rows:
            return block
        what = f"filter(expr={self.given!r})"
        if isinstance(self.expression, tree.Expr):
            return block.pick(computing.compute_mask(self.expression, block, what))
        table = block.to_batch("pyarrow").append_column("\0row", arrow.build_array("row", np.arange(block.num_rows)))
        try:
            kept = table.filter(self.expression).column("\0row")
        except (KeyError, ValueError, TypeError, NotImplementedError) as error:  # Arrow's own errors derive from these
            if (missing := _MISSING.search(str(error))) is not None:
                blocks.check_columns([missing.group(1)], list(block.columns))
            names = ", ".join(map(repr, block.columns))
            raise ValueError(f"{what} cannot be computed: {error}. The columns are {names}.") from error
        return block.pick(kept.to_numpy())


@final
@dataclass(frozen=True)
class SampleRows:
    """Keeps each row of a block with the same probability."""

    fraction: float
    seed: int

    def apply(self, block: blocks.Block, number: int) -> blocks.Block:
        """Return the rows of a block after the step."""
        drawn = np.random.default_rng([self.seed, number]).random(block.num_rows)
        return block.pick(np.flatnonzero(drawn < self.fraction))


@final
@dataclass(frozen=True, kw_only=True)
class TakeShare:
    """Keeps the rows of one of two parts, chosen by a random number or by the hash of a column's value."""

    share: float
    seed: int
    column: str | None
    is_test: bool

    def apply(self, block: blocks.Block, number: int) -> blocks.Block:
        """Return the rows of a block after the step."""
        if not block.num_rows:
            return block
        if self.column is None:
            drawn = np.random.default_rng([self.seed, number]).random(block.num_rows)
        else:
            values = (_normalize(row[self.column]) for row in block.select([self.column]).list_rows())
            drawn = np.array([zlib.crc32(repr(value).encode()) / (1 << 32) for value in values])
        return block.pick(np.flatnonzero((drawn < self.share) == self.is_test))


@final
@dataclass(frozen=True)
class CutRows:
    """Keeps the first rows of a block."""

    limit: int

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        return block.cut(0, self.limit)


def _normalize(value: object) -> object:
    """Return a value in one form for columns of all types: 1 for 1.0, None for NaN."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None if math.isnan(value) else value
    return value


# --- functions of this package ----------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class EachBlock:
    """Calls a function of this package with each block."""

    function: Callable[[blocks.Block], blocks.Block]
    keeps_rows: bool
    """Whether a block has as many rows after the step as before."""

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        return self.function(block)


@final
@dataclass(frozen=True)
class WriteBlock:
    """Writes each block somewhere else, and keeps a row that says where."""

    write: Callable[[blocks.Block, int], blocks.Block]
    """Takes the block, and its number."""

    def apply(self, block: blocks.Block, number: int) -> blocks.Block:
        """Return the rows of a block after the step."""
        return self.write(block, number)


@final
@dataclass(frozen=True, kw_only=True)
class Summarize:
    """Computes a part of an aggregate from each block, or from files without a block."""

    function: Callable[[blocks.Block], blocks.Block]
    take_scan: Callable[[Any], blocks.Block]
    """Returns the result for the only block of a scan (`hocket.data.sources.scans.Scan`)."""
    columns: tuple[str, ...] | None
    """The columns that the function reads; None: unknown."""

    def apply(self, block: blocks.Block) -> blocks.Block:
        """Return the rows of a block after the step."""
        return self.function(block)


# --- the sum of all kinds ---------------------------------------------------------------------------------------------

RowByRow: TypeAlias = MapRows | WithColumns | SelectColumns | DropColumns | RenameColumns
"""A step that makes each row from one row, in order."""

Numbered: TypeAlias = SampleRows | TakeShare | WriteBlock
"""A step that needs the number of the block."""

Work: TypeAlias = Call | RowByRow | Numbered | FilterExpression | CutRows | EachBlock | Summarize


def keeps_rows(work: Work) -> bool:
    """Return whether a block has as many rows after the step as before."""
    match work:
        case MapRows() | WithColumns() | SelectColumns() | DropColumns() | RenameColumns() | AddColumn():
            return True
        case EachBlock() | MapBlocks():
            return work.keeps_rows
        case _:
            return False


def take(work: Work, block: blocks.Block, number: int) -> blocks.Block:
    """Return the result of a step for a block.

    Args:
        work: The step.
        block: The block.
        number: The block's number among those of the plan.
    """
    if isinstance(work, Call):
        return call(work, block)
    return work.apply(block, number) if isinstance(work, Numbered) else work.apply(block)


# --- coroutine functions ----------------------------------------------------------------------------------------------

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
