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
        num_rows: How many they are; None if that is not known. `Dataset.count` believes it.
        size_bytes: About how much memory they take.
        input_files: Which files they are read from.
        exec_stats: For programs written for Ray: has no effect.
        schema: The same.
    """

    num_rows: int | None = None
    size_bytes: int | None = None
    input_files: Sequence[str] | None = None
    exec_stats: object = None
    schema: object = None


@final
@dataclass(frozen=True)
class ReadTask:
    """A part of a `Datasource` that is read alone, in a task.

    Args:
        read_fn: Gives tables: dicts of arrays, data frames or Arrow tables.
        metadata: What is known of them.
        schema: For programs written for Ray: has no effect.
        per_task_row_limit: How many rows are taken of them at most. Default: all.

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
    """Where rows come from, written by a user for `read_datasource`."""

    def get_name(self) -> str:
        """Return how it is called in messages."""
        return type(self).__name__.removesuffix("Datasource") or type(self).__name__

    def estimate_inmemory_data_size(self) -> int | None:
        """Return about how much memory all rows take; None if nothing is known."""
        return None

    @abc.abstractmethod
    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None
    ) -> list[ReadTask]:
        """Return the parts that are read.

        Args:
            parallelism: How many there should be, about.
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
        """Give the rows, in blocks."""
        left = self.task.per_task_row_limit
        for table in self.task():
            block = blocks.build_from_batch(table, f"What a ReadTask of {self.name} gives")
            yield block if left is None else block.cut(0, left)
            left = None if left is None else left - block.num_rows
            if left is not None and left <= 0:
                return

    def __call__(self) -> blocks.Block:
        return blocks.join(list(self.iter_blocks()) or [blocks.Block({}, 0)])


def list_reads(source: object, parallelism: int) -> list[TaskRead]:
    """Return what reads a user's source."""
    given: object = source
    if not hasattr(given, "get_read_tasks"):
        raise TypeError(f"read_datasource() takes a Datasource, but received {source!r:.80}. Derive a class from it.")
    tasks = given.get_read_tasks(parallelism)
    name = given.get_name() if hasattr(given, "get_name") else type(given).__name__
    strange = next((task for task in tasks if not isinstance(task, ReadTask)), None)
    if strange is not None:
        raise TypeError(f"get_read_tasks() of {name} must return a list of ReadTask, but one is {strange!r:.80}.")
    return [TaskRead(task, name) for task in tasks]


@final
@dataclass(frozen=True)
class TaskContext:
    """Which task calls `Datasink.write`."""

    task_idx: int
    op_name: str = "write"


if TYPE_CHECKING:
    import typing_extensions

    Returned = typing_extensions.TypeVar("Returned", default=Any)  # which Python has from 3.13 on
else:
    Returned = TypeVar("Returned")


@final
@dataclass(frozen=True)
class WriteResult(Generic[Returned]):
    """The argument of `Datasink.on_write_complete`.

    Args:
        num_rows: How many rows were written.
        size_bytes: About how much memory they took.
        write_returns: What each call of `Datasink.write` has returned.
    """

    num_rows: int
    size_bytes: int
    write_returns: list[Returned]


class Datasink(abc.ABC, Generic[Returned]):
    """Where rows go, written by a user for `Dataset.write_datasink`; ``Datasink[int]`` says what `write` returns.

    The object is sent to tasks, which call `write` on their copies. A task that is done again calls it again.
    """

    min_rows_per_write: int | None = None
    """How many rows `write` is given at least, but for the last ones."""

    def get_name(self) -> str:
        """Return how it is called in messages."""
        return type(self).__name__.removesuffix("Datasink") or type(self).__name__

    def on_write_start(self, schema: object = None) -> None:
        """Prepare, in the caller's process."""

    @abc.abstractmethod
    def write(self, blocks: Iterable[Any], ctx: TaskContext) -> Returned:
        """Write Arrow tables, in a task, and return something that can be sent."""

    def on_write_complete(self, write_result: WriteResult[Returned]) -> None:
        """Finish, in the caller's process, when all is written."""

    def on_write_failed(self, error: Exception) -> None:
        """Clean up, in the caller's process, when something has failed."""


def check_sink(sink: object) -> None:
    """Raise if something is no target."""
    if not hasattr(sink, "write") or not hasattr(sink, "on_write_complete"):
        raise TypeError(f"write_datasink() takes a Datasink, but received {sink!r:.80}. Derive a class from it.")


def start(sink: Any) -> None:
    """Tell a target that it is written to. It may take the schema, or nothing."""
    takes_schema = bool(inspect.signature(sink.on_write_start).parameters)
    sink.on_write_start(*((None,) if takes_schema else ()))


def write_block(sink: Any, block: blocks.Block, number: int) -> blocks.Block:
    """Write a block, and return a row with what the target has returned. Runs in a task."""
    if not block.num_rows:
        return blocks.Block({}, 0)
    returned = np.empty(1, object)
    returned[0] = sink.write([block.to_batch("pyarrow")], TaskContext(number))
    sizes = {"rows": np.array([block.num_rows]), "bytes": np.array([block.count_bytes()])}
    return blocks.Block({**sizes, "returned": returned}, 1)


def finish(sink: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Tell a target that all is written."""
    result = WriteResult(
        sum(row["rows"] for row in rows), sum(row["bytes"] for row in rows), [row["returned"] for row in rows]
    )
    sink.on_write_complete(result)
