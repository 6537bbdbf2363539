"""How datasets are executed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from hocket.engine import node

_current: DataContext | None = None


@final
@dataclass(kw_only=True)
class ExecutionOptions:
    """How much of a data set is worked on ahead of whoever reads it.

    Args:
        max_blocks_in_flight: How many blocks may be worked on, or be finished and not yet read. Default: twice the
            session's CPUs.
        max_bytes_in_flight: How many bytes these may have, judged by the largest block so far. One block is always let
            through. A guess: 256 MiB.
        memory_limit: How many bytes sorting, joining and grouping may have before they write to disk. Default: a
            quarter of the machine's memory, or of what its container may have.

        preserve_order: For programs written for Ray: rows always stay in their order.

    Raises:
        ValueError: A number is less than 1.

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
    """How many CPUs each task holds, whatever its steps ask for: none where pools of actors leave none. Set by the
    execution of a plan."""

    def __post_init__(self) -> None:
        for name in ("max_blocks_in_flight", "max_bytes_in_flight", "memory_limit"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(
                    f"{name} must be a whole number from 1, but received {value!r}. Leave it out for the default."
                )

    def get_engine_memory(self) -> int:
        """Return `memory_limit`, or its default."""
        return self.memory_limit or node.count_memory() // 4


@final
@dataclass(kw_only=True)
class DataContext:
    """This process's settings for datasets. They are read when a data set is executed.

    Example:
        >>> from hocket import data
        >>> data.DataContext.get_current().target_max_block_size
        33554432
    """

    target_max_block_size: int = 32 << 20
    """Into blocks of how many bytes at most sources are cut. A guess: large enough that a task costs nothing beside it,
    small enough that several fit into a small machine."""
    execution_options: ExecutionOptions = field(default_factory=ExecutionOptions)

    @staticmethod
    def get_current() -> DataContext:
        """Return the process's settings, which may be changed."""
        global _current  # noqa: PLW0603 (Ray's way to say it: one for each process)
        if _current is None:
            _current = DataContext()
        return _current
