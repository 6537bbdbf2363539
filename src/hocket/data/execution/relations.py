"""Relations of whole tables, which the table engine (DuckDB) computes in one task, in bounded memory.

The task reads the blocks of its tables one by one, as the engine requests them, and yields the result in blocks, as
they are requested. The engine spills to a folder, which the task removes in the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import numpy as np

from hocket import extras
from hocket.core import api, scopes, session
from hocket.data import aggregate as aggregates
from hocket.data import arrow, block_reads, blocks, columns, relations, settings, steps, transport
from hocket.data.execution import scratch, tasks
from hocket.data.sources import scans
from hocket.engine import contract

_FEWEST_ROWS, _MOST_ROWS = 1 << 10, 1 << 20
"""Smallest and largest number of rows of an engine's batch."""

_BLOCK_MEMORY: Final = 1 << 30
"""Bytes that the engine may use for one block, far more than it needs."""

_SMALL_BLOCK: Final = 128 << 20
"""Bytes. The work on a block of this size is certain to fit into `_BLOCK_MEMORY`, so the engine needs no disk."""


_Source: TypeAlias = Callable[[], Iterator[blocks.Block]]
"""A function that returns an iterator over a table's blocks at each call."""


@final
@dataclass(frozen=True)
class _Part:
    """Rows of a block of a table."""

    ref: contract.ObjectRef[blocks.Block]
    start: int
    stop: int


@final
@dataclass(frozen=True)
class _Table:
    """A table of a query."""

    types: relations.Table
    source: _Source
    num_rows: int
    """Largest number of its rows."""
    sql: str | None = None
    """The query by which DuckDB reads it from files; None if blocks bring its rows."""


@final
@dataclass(frozen=True)
class _Limits:
    """The limits of the table engine."""

    memory: int
    threads: int
    block_bytes: int


def relate(
    tables: Sequence[Iterator[block_reads.Held | block_reads.Stored] | scans.Scan],
    query: relations.Query,
    options: settings.ExecutionOptions,
    scope: scopes.Scope,
) -> Iterator[block_reads.Stored]:
    """Yield the result of a query over tables."""
    tasks.check_store(options)
    types: list[relations.Table] = []
    parts: list[Sequence[_Part] | scans.Scan] = []
    mixed = frozenset[str]()
    for found in tables:
        if isinstance(found, scans.Scan):
            types.append(found.types)
            parts.append(found)
            continue
        known, stored = _store(found)
        types.append(transport.unify(known, query.name))
        mixed |= transport.list_mixed(known, types[-1])
        parts.append([_Part(one.ref, one.start, one.stop) for one in stored])
    if not any(types):  # no block of any table has columns: there is nothing to relate
        return
    statement = dataclasses.replace(query.build(types), mixed=mixed)
    is_alone = statement.is_ordered or options.memory_limit is not None  # each thread takes memory of its own
    threads = 1 if is_alone else max(1, int(tasks.count_cpus()))
    limits = _Limits(options.get_engine_memory(), threads, settings.DataContext.get_current().get_block_bytes())
    task = tasks.make_many(scope, _run, query.name, tasks.choose_cpus(options))
    scope.at_end(scratch.remove_left)  # removes the folder of a killed worker
    made = task.remote(statement, types, parts, limits)
    del parts
    yield from tasks.list_blocks(made, scope)


def _store(
    found: Iterable[block_reads.Held | block_reads.Stored],
) -> tuple[list[blocks.Types], list[block_reads.Stored]]:
    """Return the types of all blocks' columns, and the blocks that have rows, in the engine."""
    types: list[blocks.Types] = []
    stored = []
    for one in found:
        known = one.block.find_types() if isinstance(one, block_reads.Held) else one.types
        if known:
            types = transport.list_different([*types, known])
        if one.num_rows:
            stored.append(
                one if isinstance(one, block_reads.Stored) else block_reads.store_block(api.put(one.block), one)
            )
    return types, stored


def apply(query: relations.Query, block: blocks.Block) -> blocks.Block:
    """Return the query's result for a single block. Runs in a task."""
    if not block.columns:
        return block
    table = transport.unify([block.find_types()], query.name)
    statement = query.build([table])
    limits = _Limits(_BLOCK_MEMORY, 1, 1 << 60)
    opened = _open_kept() if block.count_bytes() <= _SMALL_BLOCK else _open(limits)
    with opened as connection:
        made = list(_query(connection, statement, [_Table(table, lambda: iter([block]), block.num_rows)], limits))
    return blocks.join(made) if len(made) != 1 else made[0]


def take_scan(query: relations.Query, scan: scans.Scan) -> blocks.Block:
    """Return a query's result for the only block of a scan. Runs in a task."""
    limits = _Limits(_BLOCK_MEMORY, 1, 1 << 60)
    is_small = all((read.num_bytes or _SMALL_BLOCK + 1) <= _SMALL_BLOCK for read in scan.reads)
    with _open_kept() if is_small else _open(limits) as connection:
        made = list(_query(connection, query.build([scan.types]), [_open_scan(scan)], limits))
    return blocks.join(made) if len(made) != 1 else made[0]


def _run(
    statement: relations.Statement,
    tables: Sequence[relations.Table],
    parts: Sequence[Sequence[_Part] | scans.Scan],
    limits: _Limits,
) -> Iterator[blocks.Block | tasks.Size]:
    """Yield the blocks of a result, each followed by its size. Runs in a task."""
    opened = [
        _open_scan(one) if isinstance(one, scans.Scan) else _open_parts(table, one)
        for table, one in zip(tables, parts, strict=True)
    ]
    with _open(limits) as connection:
        for block in _query(connection, statement, opened, limits):
            yield block
            yield tasks.measure(block)


def _open_parts(types: relations.Table, parts: Sequence[_Part]) -> _Table:
    source: _Source = functools.partial(map, _fetch, parts)
    if "parallelism" in session.get_limits():  # the engine's threads could not ask for blocks
        source = functools.partial(iter, list(source()))
    return _Table(types, source, sum(part.stop - part.start for part in parts))


def _open_scan(scan: scans.Scan) -> _Table:
    return _Table(scan.types, scan.read, scan.num_rows, scan.build() if scan.is_unchanged() else None)


def _fetch(part: _Part) -> blocks.Block:
    block: blocks.Block = api.get(part.ref)
    return block.cut(part.start, part.stop)


@contextlib.contextmanager
def _open(limits: _Limits) -> Iterator[Any]:
    """Yield a connection to an engine that spills to disk beyond its memory limit."""
    with scratch.make_folder() as folder:
        config = {
            "memory_limit": f"{max(limits.memory >> 20, 64)}MiB",
            "temp_directory": folder,
            "threads": limits.threads,
        }
        with load("A relation").connect(":memory:", config=config) as connection:
            yield _silence(connection)


@contextlib.contextmanager
def _open_kept() -> Iterator[object]:
    """Yield a connection to the engine that this process keeps for single blocks: starting one would cost more than the
    query. This engine writes nothing to disk."""
    with _keep_engine(os.getpid()).cursor() as connection:
        yield _silence(connection)


@functools.lru_cache(1)
def _keep_engine(pid: int) -> Any:
    """Return the engine of a process. A forked process makes its own."""
    config = {"memory_limit": f"{_BLOCK_MEMORY >> 20}MiB", "temp_directory": "", "threads": 1}
    return load("A relation").connect(":memory:", config=config)


def _silence(connection: Any) -> object:
    connection.execute("SET enable_progress_bar = false")  # the bar would appear among the program's own output
    return connection


def _query(
    connection: Any, statement: relations.Statement, tables: Sequence[_Table], limits: _Limits
) -> Iterator[blocks.Block]:
    """Yield the result of a statement about tables."""
    if all(table.sql is None for table in tables):
        yield from _execute(connection, statement, tables, limits)
        return
    made = _execute(connection, statement, tables, limits)
    try:
        first = next(made)
    except ValueError:  # the engine reads fewer files than Arrow, whose errors name the file
        yield from _execute(connection, statement, [dataclasses.replace(one, sql=None) for one in tables], limits)
        return
    yield first
    yield from made


def _execute(
    connection: Any, statement: relations.Statement, tables: Sequence[_Table], limits: _Limits
) -> Iterator[blocks.Block]:
    """Yield the result of a statement about tables, which all take the same way."""
    duckdb = load("A relation")
    failed: list[BaseException] = []
    seen = _Categories(statement)
    read_by_engine = []
    for number, table in enumerate(tables):
        if table.sql is not None:
            read_by_engine.append(f"t{number} AS NOT MATERIALIZED ({table.sql})")
            continue
        ranks = {} if number else _list_ranks(statement, table.source)
        watched = map(functools.partial(seen.add, number), table.source())
        reader = _build_reader(table.types, watched, table.num_rows, ranks, failed)
        connection.register(f"t{number}", reader)
    sql = f"WITH {', '.join(read_by_engine)} {statement.sql}" if read_by_engine else statement.sql
    try:
        result = connection.sql(sql).to_arrow_reader(_choose_rows(statement, limits))
        yield from _cut_result(result, statement, seen, limits)
    except (duckdb.Error, OSError) as error:  # Arrow raises an OSError for failures while it reads on
        if failed:
            raise failed[0] from None
        raise _explain(duckdb, error, statement, limits) from error


def load(caller: str) -> Any:
    """Return DuckDB.

    Raises:
        MissingExtraError: DuckDB is not installed.
    """
    return extras.load("duckdb", caller, "DuckDB", "Run pip install 'hocket[data]'.")


def _explain(duckdb: Any, error: Exception, statement: relations.Statement, limits: _Limits) -> Exception:
    text = str(error).splitlines()[0]
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in text:
        return MemoryError(
            f"A relation of {len(statement.columns)} columns fits neither into its {limits.memory >> 20} MiB of "
            f"memory nor onto the disk: {text}. Raise ExecutionOptions(memory_limit=...), or free some disk space."
        )
    if isinstance(error, duckdb.OutOfRangeException | duckdb.ConversionException):
        return OverflowError(
            f"A value is too large for its column: {text}. Convert the column to floats with map_batches()."
        )
    return ValueError(f"DuckDB, the engine for tables, cannot do this: {text}.")


def _build_reader(
    table: relations.Table,
    source: Iterator[blocks.Block],
    count: int,
    ranks: Mapping[str, object],
    failed: list[BaseException],
) -> object:
    """Return an Arrow stream of a table's blocks for the engine. It has the row numbers, and the numbers of the
    categories in the columns of `ranks`."""
    pa = arrow.load("A relation")
    number_type = pa.uint32() if count <= 1 << 32 else pa.int64()  # sorting by fewer bytes is up to three times as fast
    types = [transport.encode_type(kind) for kind in table.values()]
    places = [(f"r{list(table).index(name)}", pa.int32()) for name in ranks]
    schema = pa.schema([*((f"c{at}", kind) for at, kind in enumerate(types)), ("n", number_type), *places])

    def read() -> Iterator[object]:
        start = 0
        try:
            for block in source:
                if block.num_rows:
                    num_rows = block.num_rows
                    found = [
                        transport.encode(name, block.columns.get(name), kind, num_rows) for name, kind in table.items()
                    ]
                    numbers = pa.array(np.arange(start, start + num_rows), number_type)
                    orders = [_rank(block, name, table[name], known) for name, known in ranks.items()]
                    yield pa.RecordBatch.from_arrays([*found, numbers, *orders], schema=schema)
                    start += num_rows
        except BaseException as error:  # the engine would keep only its text
            failed.append(error)
            raise

    return pa.RecordBatchReader.from_batches(schema, read())


def _list_ranks(statement: relations.Statement, source: _Source) -> dict[str, object]:
    """Return the ordered categories of the columns that the engine sorts by their categories."""
    if not statement.ranks:
        return {}
    found: dict[str, list[object]] = {name: [] for name in statement.ranks}
    for block in source():
        for name, some in found.items():
            some.extend(_list_categories(block, name))
    return {name: arrow.merge_categories(name, some, ordered=True) for name, some in found.items() if some}


def _rank(block: blocks.Block, name: str, kind: Any, known: object) -> object:
    """Return the numbers of the categories of a block's rows."""
    if name not in block.columns:
        return arrow.build_missing(block.num_rows, arrow.load("A relation").int32())
    return arrow.find_categories(arrow.decode_dictionary(arrow.convert(name, block.columns[name], kind)), known)


def _list_categories(block: blocks.Block, name: str) -> list[object]:
    """Return a list with the categories of a block's column; empty if there are none."""
    found = getattr(block.columns.get(name), "dictionary", None)
    return [found] if found is not None and len(found) else []


@final
class _Categories:
    """The categories of the columns of a result. They are complete at the result's first row: each result has an order,
    so the engine has read all tables by then.

    Args:
        statement: The statement of the result.
    """

    def __init__(self, statement: relations.Statement) -> None:
        kinds = {name: getattr(kind, "kind", kind) for name, kind in statement.columns}
        self._kinds = {name: kinds[name] for name in statement.sources if arrow.is_categorical(kinds[name])}
        self._sources = statement.sources
        self._seen: dict[tuple[int, str], list[object]] = {
            source: [] for name in self._kinds for source in statement.sources[name]
        }
        self._merged: dict[str, object] = {}

    def add(self, number: int, block: blocks.Block) -> blocks.Block:
        """Note the categories of a block of a table, and return the block."""
        for (table, name), seen in self._seen.items():
            if table == number:
                seen.extend(_list_categories(block, name))
        return block

    def get(self, name: str) -> object:
        """Return the categories of a column of the result; None if there are none."""
        if name in self._kinds and name not in self._merged:
            seen = [one for source in self._sources[name] for one in self._seen[source]]
            ordered = self._kinds[name].ordered
            self._merged[name] = arrow.merge_categories(name, seen, ordered=ordered) if seen else None
        return self._merged.get(name)


def _choose_rows(statement: relations.Statement, limits: _Limits) -> int:
    """Return the number of rows of the engine's batches: a part of a block, if the width of a row is known."""
    try:
        width: int = sum(kind.bit_width for _, kind in statement.columns) // 8
    except (AttributeError, ValueError):  # texts, lists and types that the engine determines
        return _FEWEST_ROWS
    return max(_FEWEST_ROWS, min(_MOST_ROWS, limits.block_bytes // 4 // max(1, width)))


def _cut_result(
    result: Any, statement: relations.Statement, seen: _Categories, limits: _Limits
) -> Iterator[blocks.Block]:
    """Yield a result in blocks of the wanted size, or a block without rows if there are none."""
    waiting: list[object] = []
    rest = None
    num_bytes, wanted, is_empty = 0, limits.block_bytes, True
    for batch in result:
        if not batch.num_rows:
            continue
        is_empty = False
        waiting.append(batch)
        num_bytes += batch.nbytes
        if num_bytes < wanted:
            continue
        whole = _read_batches(waiting, rest, statement, seen)
        waiting.clear()
        # The last group may go on in the next batch, so it has to wait.
        end = _find_border(whole, statement.num_keys) if statement.num_keys else whole.num_rows
        if end:
            yield whole.cut(0, end)
        rest = whole.cut(end, whole.num_rows) if end < whole.num_rows else None
        num_bytes = rest.count_bytes() if rest is not None else 0
        wanted = limits.block_bytes if end else 2 * num_bytes  # a large group is not joined anew with every batch
    if waiting:
        yield _read_batches(waiting, rest, statement, seen)
    elif rest is not None:
        yield rest
    elif is_empty:
        yield _read_table(result.schema.empty_table(), statement, seen)


def _read_batches(
    batches: Sequence[object], before: blocks.Block | None, statement: relations.Statement, seen: _Categories
) -> blocks.Block:
    block = _read_table(arrow.load("A relation").Table.from_batches(batches), statement, seen)
    return block if before is None else blocks.join([before, block])


def _read_table(table: Any, statement: relations.Statement, seen: _Categories) -> blocks.Block:
    found = {}
    for at, (name, kind) in enumerate(statement.columns):
        column = table.column(at)
        decoded = _decode(name, arrow.flatten(column), kind, seen)
        found[name] = arrow.read_column(_narrow(decoded, is_part=True) if name in statement.mixed else decoded)
    return blocks.Block(found, table.num_rows)


def _decode(name: str, column: Any, kind: object, seen: _Categories) -> object:
    if kind == relations.COMPUTED:
        return column
    if kind == relations.WHOLE:
        return _narrow(column, is_part=name.startswith("\0"))
    if isinstance(kind, relations.ListOf):
        pa = arrow.load("A relation")
        values = transport.decode(column.flatten(), kind.kind, seen.get(name))
        return pa.ListArray.from_arrays(column.offsets, values, mask=column.is_null()) if not column.offset else column
    return transport.decode(column, kind, seen.get(name))


def _narrow(column: Any, *, is_part: bool) -> object:
    """Return 128-bit whole numbers as 64-bit ones, signed or not. Parts may be larger than their sum, and stay wide."""
    found = arrow.narrow(column)
    if is_part or not arrow.load("A relation").types.is_decimal(found.type):
        return found
    raise OverflowError(
        f"A value is too large for its column: {max(column.to_pylist(), key=abs)}. Convert the column to "
        "floats with map_batches()."
    )


def _find_border(block: blocks.Block, num_keys: int) -> int:
    """Return where the last group of a block begins: it may go on in the next block."""
    starts = steps.find_groups(block, list(block.columns)[:num_keys])
    return int(starts[-1]) if len(starts) else 0


# Aggregates of Python functions: first of the groups of each block, and then of all blocks. They run in tasks.
def accumulate(
    keys: Sequence[str], aggregations: Sequence[aggregates.Accumulating], block: blocks.Block
) -> blocks.Block:
    """Return a row for each group of a block: its key, and the accumulations of its rows."""
    if not block.num_rows:
        return blocks.Block({}, 0)
    groups = list(_list_groups(block, keys))
    made = [[one.add(one.begin(_read_key(group, keys)), group) for group in groups] for one in aggregations]
    found = blocks.join([group.select(keys).cut(0, 1) for group in groups]).columns if keys else {}
    held = {_name_made(number): _hold_made(values) for number, values in enumerate(made)}
    return blocks.Block({**found, **held}, len(groups))


def merge(keys: Sequence[str], aggregations: Sequence[aggregates.Accumulating], block: blocks.Block) -> blocks.Block:
    """Return a row for each group, in the order of the keys, with the results of all blocks' accumulations."""
    if not block.num_rows:
        return blocks.Block({}, 0)
    groups = list(_list_groups(block, keys))
    found = dict(blocks.join([group.select(keys).cut(0, 1) for group in groups]).columns) if keys else {}
    for number, one in enumerate(aggregations):
        values = []
        for group in groups:
            first, *others = group.columns[_name_made(number)]
            for other in others:
                first = one.merge(first, other)
            values.append(one.finish(first))
        found[one.name] = columns.build_from_values(values)
    return blocks.Block(found, len(groups))


def _list_groups(block: blocks.Block, keys: Sequence[str]) -> Iterator[blocks.Block]:
    """Yield the rows of each group, in the order of the keys."""
    if not keys:
        yield block
        return
    rows = blocks.Block({**block.select(keys).columns, "\0row": np.arange(block.num_rows)}, block.num_rows)
    ordered = apply(relations.Sort(tuple(keys), (False,) * len(keys)), rows)
    chosen = block.pick(columns.to_numpy(ordered.columns["\0row"]))
    starts = steps.find_groups(ordered.select(keys), keys).tolist()
    for start, stop in itertools.pairwise([*starts, block.num_rows]):
        yield chosen.cut(start, stop)


def _read_key(group: blocks.Block, keys: Sequence[str]) -> object:
    if not keys:
        return None
    (row,) = group.select(keys).cut(0, 1).list_rows()
    return row[keys[0]] if len(keys) == 1 else tuple(row.values())


def _name_made(number: int) -> str:
    """Return the name of a column of accumulations. No user's column begins with a NUL character."""
    return f"\0{number}"


def _hold_made(values: Sequence[object]) -> object:
    found = np.empty(len(values), object)
    for at, value in enumerate(values):
        found[at] = value
    return found
