"""Settings of the execution of datasets."""

from __future__ import annotations

import contextlib
import contextvars
import enum
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, final

from hocket import keywords
from hocket.engine import node

_current: DataContext | None = None
_lent: contextvars.ContextVar[DataContext | None] = contextvars.ContextVar("lent", default=None)
"""The settings of the dataset that calls a task."""

LEAST_MEMORY: Final = 1 << 30
"""Bytes. Measured: a driver and two workers take 230 MiB after they have read a Parquet file, and an idle DuckDB takes
70 MiB. The rest has to suffice to sort ten times the limit."""

MEMORY_PER_CPU: Final = 128 << 20
"""Bytes that each worker beyond the first two takes. Measured: 85 to 110 MiB."""

_LEAST_BLOCK: Final = 1 << 20
"""Bytes. In smaller blocks, a task costs more than its work. A guess."""

_MOST_BLOCK: Final = 1 << 30
"""Bytes. Arrow's readers of text formats count the bytes of a block in 32 bits."""


@final
@keywords.explained()
@dataclass(kw_only=True)
class ExecutionOptions:
    """Limits of the work on a dataset ahead of its reader.

    Args:
        max_blocks_in_flight: Largest number of blocks that are in work, or finished and not yet read. Default: twice
            the session's CPUs.
        max_bytes_in_flight: Largest number of bytes of these blocks, estimated by the largest block so far. One block
            is always allowed. Default: 256 MiB, a guess.
        memory_limit: Largest resident memory of all processes of the pipeline, in bytes, including the reader and kept
            rows. All other limits derive from it: a block has at most a 64th, all blocks in flight a 16th, and sorting,
            joining and grouping a third before they write to disk. Kept rows lie in the session's store, which must
            have at most a sixth: ``hocket.init(object_store_memory=...)``. The limit holds if each of the program's own
            functions needs only the memory of a few blocks. Default: no limit. Sorting, joining and grouping then take
            up to a quarter of the memory of the machine or container.
        preserve_order: For programs written for Ray: rows always stay in their order.

    Raises:
        ValueError: A number is less than 1, or the limit is less than what idle processes take.

    Example:
        >>> from hocket import data
        >>> data.ExecutionOptions(max_blocks_in_flight=4).max_bytes_in_flight
        268435456
    """

    max_blocks_in_flight: int | None = None
    max_bytes_in_flight: int = 256 << 20
    memory_limit: int | None = None
    preserve_order: bool = True
    task_cpus: float | None = field(default=None, repr=False)
    """How many CPUs each task holds, whatever its steps request. Execution sets 0 where pools of actors leave none."""

    def __post_init__(self) -> None:
        for name in ("max_blocks_in_flight", "max_bytes_in_flight", "memory_limit"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(
                    f"{name} must be a whole number from 1, but received {value!r}. Leave it out for the default."
                )
        if self.memory_limit is not None and self.memory_limit < LEAST_MEMORY:
            raise ValueError(
                f"memory_limit covers all processes of a pipeline, and must be at least {LEAST_MEMORY >> 20} MiB, but "
                f"received {self.memory_limit:,} bytes. Raise it, or leave it out."
            )

    def get_engine_memory(self) -> int:
        """Return how many bytes sorting, joining and grouping may use."""
        return node.count_memory() // 4 if self.memory_limit is None else self.memory_limit // 3

    def get_bytes_in_flight(self) -> int:
        """Return the largest number of bytes of blocks in flight."""
        if self.memory_limit is None:
            return self.max_bytes_in_flight
        return min(self.max_bytes_in_flight, self.memory_limit // 16)

    def check_memory(self, num_cpus: float) -> None:
        """Raise if the limit is less than the memory of a session's idle processes.

        Raises:
            ValueError: The limit is too small.
        """
        least = LEAST_MEMORY + int(max(0.0, num_cpus - 2)) * MEMORY_PER_CPU
        if self.memory_limit is not None and self.memory_limit < least:
            raise ValueError(
                f"memory_limit={self.memory_limit} covers all processes of the pipeline, but in a session of "
                f"{num_cpus:g} CPUs these need {least} bytes. Raise the limit to that, or start the session with "
                "fewer CPUs: hocket.init(num_cpus=2)."
            )

    def get_store_memory(self) -> int | None:
        """Return the largest size of the session's store in bytes; None without a limit."""
        return None if self.memory_limit is None else self.memory_limit // 6


class ShuffleStrategy(enum.StrEnum):
    """Ray's strategies of rearranging rows."""

    SORT_SHUFFLE_PULL_BASED = "sort_shuffle_pull_based"
    SORT_SHUFFLE_PUSH_BASED = "sort_shuffle_push_based"
    HASH_SHUFFLE = "hash_shuffle"
    GPU_SHUFFLE = "gpu_shuffle"


@final
@dataclass
class DataContext:
    """This process's settings for datasets. They are read when a dataset is executed.

    Example:
        >>> from hocket import data
        >>> data.DataContext.get_current().target_max_block_size
        33554432
    """

    target_max_block_size: int | None = 32 << 20
    """Largest number of bytes of the blocks into which sources are cut; None: any size up to 1 GiB. A guess: large
    enough to make the cost of a task negligible, small enough for several blocks on a small machine."""
    _: KW_ONLY
    execution_options: ExecutionOptions = field(default_factory=ExecutionOptions)
    enable_progress_bars: bool = True
    """Whether a line in the terminal shows the progress, if reading takes more than two seconds."""
    shuffle_strategy: ShuffleStrategy = ShuffleStrategy.HASH_SHUFFLE
    """For programs written for Ray: has no effect."""

    def get_block_bytes(self) -> int:
        """Return the largest size of a block in bytes: `target_max_block_size`, or less if memory is limited."""
        limit = self.execution_options.memory_limit
        most = _MOST_BLOCK if self.target_max_block_size is None else self.target_max_block_size
        return most if limit is None else min(most, max(_LEAST_BLOCK, limit // 64))

    @staticmethod
    def get_current() -> DataContext:
        """Return the process's settings, which may be changed. In a function that a dataset calls, return the settings
        of the process that reads the dataset."""
        lent = _lent.get()
        if lent is not None:
            return lent
        global _current  # noqa: PLW0603 (Ray's way to say it: one for each process)
        if _current is None:
            _current = DataContext()
        return _current


@contextlib.contextmanager
def lend(context: DataContext) -> Iterator[None]:
    """Make `DataContext.get_current` return these settings in the ``with`` block of a task."""
    token = _lent.set(context)
    try:
        yield
    finally:
        _lent.reset(token)


# --- files that cannot be read ----------------------------------------------------------------------------------------

_left_out: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("left_out", default=None)


def note_left_out(path: str) -> None:
    """Note that a file is left out because it cannot be read. A task reports it with the size of its block."""
    noted = _left_out.get()
    if noted is not None:
        noted.append(path)


@contextlib.contextmanager
def collect_left_out() -> Iterator[list[str]]:
    """Yield a list that collects the paths of the files that are left out within the ``with`` block."""
    noted: list[str] = []
    token = _left_out.set(noted)
    try:
        yield noted
    finally:
        _left_out.reset(token)
