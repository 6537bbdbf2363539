"""Sources and targets that users write: Ray's `Datasource` and `Datasink`, over blocks."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import numpy as np

from hocket.data import blocks


@final
@dataclass(frozen=True)
class BlockMetadata:
    """Facts about the rows of a `ReadTask`.

    Args:
        num_rows: The number of rows; None if it is unknown. `Dataset.count` trusts it.
        size_bytes: About how many bytes of memory the rows take.
        input_files: The files that hold the rows.
        exec_stats: For programs written for Ray: has no effect.
        schema: For programs written for Ray: has no effect.
    """

    num_rows: int | None = None
    size_bytes: int | None = None
    input_files: Sequence[str] | None = None
    exec_stats: object = None
    schema: object = None


@final
@dataclass(frozen=True)
class ReadTask:
    """A part of a `Datasource`. A task of its own reads it.

    Args:
        read_fn: Returns tables: dicts of arrays, data frames or Arrow tables.
        metadata: Known facts about the tables.
        schema: For programs written for Ray: has no effect.
        per_task_row_limit: How many rows to take at most. Default: all.

    Raises:
        TypeError: `read_fn` is no function.
    """

    read_fn: Callable[[], Iterable[Any]]
    metadata: BlockMetadata = field(default_factory=BlockMetadata)
    schema: object = None
    per_task_row_limit: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.read_fn):
            raise TypeError(f"ReadTask() takes a function, but received {self.read_fn!r:.80}. Write lambda: [table].")

    def __call__(self) -> Iterable[Any]:
        return self.read_fn()


class Datasource(abc.ABC):
    """A source of rows for `read_datasource`, written by a user."""

    def get_name(self) -> str:
        """Return the name of the source for messages."""
        return type(self).__name__.removesuffix("Datasource") or type(self).__name__

    def estimate_inmemory_data_size(self) -> int | None:
        """Return about how many bytes of memory all rows take; None if that is unknown."""
        return None

    @abc.abstractmethod
    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None
    ) -> list[ReadTask]:
        """Return the parts to read.

        Args:
            parallelism: About how many parts there should be.
            per_task_row_limit: None: there is no limit.
            data_context: None.
        """


@final
@dataclass(frozen=True)
class TaskRead:
    """The rows of a `ReadTask`."""

    task: ReadTask
    name: str

    @property
    def num_rows(self) -> int | None:
        known, most = self.task.metadata.num_rows, self.task.per_task_row_limit
        return known if known is None or most is None else min(known, most)

    @property
    def num_bytes(self) -> int | None:
        return self.task.metadata.size_bytes

    def iter_blocks(self) -> Iterator[blocks.Block]:
        """Yield the rows, in blocks."""
        left = self.task.per_task_row_limit
        for table in self.task():
            block = blocks.build_from_batch(table, f"A table from a ReadTask of {self.name}")
            yield block if left is None else block.cut(0, left)
            left = None if left is None else left - block.num_rows
            if left is not None and left <= 0:
                return

    def __call__(self) -> blocks.Block:
        return blocks.join(list(self.iter_blocks()) or [blocks.Block({}, 0)])


def list_reads(source: object, parallelism: int) -> list[TaskRead]:
    """Return a reader for each `ReadTask` of a user's source."""
    given: object = source
    if not hasattr(given, "get_read_tasks"):
        raise TypeError(
            f"read_datasource() takes a Datasource, but received {source!r:.80}. Derive a class from Datasource."
        )
    tasks = given.get_read_tasks(parallelism)
    name = given.get_name() if hasattr(given, "get_name") else type(given).__name__
    strange = next((task for task in tasks if not isinstance(task, ReadTask)), None)
    if strange is not None:
        raise TypeError(f"get_read_tasks() of {name} must return a list of ReadTask, but the list has {strange!r:.80}.")
    return [TaskRead(task, name) for task in tasks]


@final
@dataclass(frozen=True)
class TaskContext:
    """The task that calls `Datasink.write`."""

    task_idx: int
    op_name: str = "write"


if TYPE_CHECKING:
    import typing_extensions

    Returned = typing_extensions.TypeVar("Returned", default=Any)  # Python has it from 3.13 on
else:
    Returned = TypeVar("Returned")


@final
@dataclass(frozen=True)
class WriteResult(Generic[Returned]):
    """The argument of `Datasink.on_write_complete`.

    Args:
        num_rows: How many rows were written.
        size_bytes: About how many bytes of memory they took.
        write_returns: The return values of all calls of `Datasink.write`.
    """

    num_rows: int
    size_bytes: int
    write_returns: list[Returned]


class Datasink(abc.ABC, Generic[Returned]):
    """A target of rows for `Dataset.write_datasink`, written by a user; ``Datasink[int]`` says what `write` returns.

    Each task calls `write` on its own copy of the object. A repeated task calls `write` again.
    """

    min_rows_per_write: int | None = None
    """How many rows `write` receives at least, except at the end."""

    def get_name(self) -> str:
        """Return the name of the target for messages."""
        return type(self).__name__.removesuffix("Datasink") or type(self).__name__

    def on_write_start(self, schema: object = None) -> None:
        """Prepare the write, in the caller's process."""

    @abc.abstractmethod
    def write(self, blocks: Iterable[Any], ctx: TaskContext) -> Returned:
        """Write Arrow tables, in a task, and return a value that can be sent to the caller."""

    def on_write_complete(self, write_result: WriteResult[Returned]) -> None:
        """Finish the write, in the caller's process, when all rows are written."""

    def on_write_failed(self, error: Exception) -> None:
        """Clean up, in the caller's process, after a failure."""


def check_sink(sink: object) -> None:
    """Raise if an object lacks the methods of a target."""
    if not hasattr(sink, "write") or not hasattr(sink, "on_write_complete"):
        raise TypeError(f"write_datasink() takes a Datasink, but received {sink!r:.80}. Derive a class from Datasink.")


def start(sink: Any) -> None:
    """Call a target's `on_write_start`, with None as the schema if the method takes one."""
    takes_schema = bool(inspect.signature(sink.on_write_start).parameters)
    sink.on_write_start(*((None,) if takes_schema else ()))


def write_block(sink: Any, block: blocks.Block, number: int) -> blocks.Block:
    """Write a block, and return a row with the target's return value. Runs in a task."""
    if not block.num_rows:
        return blocks.Block({}, 0)
    returned = np.empty(1, object)
    returned[0] = sink.write([block.to_batch("pyarrow")], TaskContext(number))
    sizes = {"rows": np.array([block.num_rows]), "bytes": np.array([block.count_bytes()])}
    return blocks.Block({**sizes, "returned": returned}, 1)


def finish(sink: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Call a target's `on_write_complete`."""
    result = WriteResult(
        sum(row["rows"] for row in rows), sum(row["bytes"] for row in rows), [row["returned"] for row in rows]
    )
    sink.on_write_complete(result)
