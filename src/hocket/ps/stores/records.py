"""Records that describe variables and requests: immutable, and small enough to travel."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np

from hocket import keywords
from hocket._base import showing
from hocket.ps import initializers, optimizers
from hocket.ps.stores import memory


@final
@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A dense variable's shard: an array of any shape."""

    number: int
    """Which of its server's shards it is, from 0 in the order of making."""
    server: int
    name: str
    shape: tuple[int, ...]
    start: int
    """Which row of the whole variable is its first."""
    dtype: str
    optimizer: optimizers.Optimizer | None
    """What turns gradients into updates. None: it takes no gradients."""
    ref: memory.MemoryRef
    accumulator: memory.MemoryRef | None = None
    """Where the gradients of a synchronous step wait. None: there are no such steps."""
    total: int = 1
    """How many rows the whole variable has."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The optimizer's arrays beside the value."""
        return self.optimizer.slots if self.optimizer is not None else ()

    @property
    def nbytes(self) -> int:
        """How many bytes a pull moves."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def describe(self) -> showing.Facts:
        """Return what viewers see of it."""
        return _describe(self, f"{self.dtype}[{', '.join(map(str, self.shape))}]")


@final
@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table's shard: rows by number, or by any id."""

    number: int
    server: int
    name: str
    rows: int
    """How many rows there is room for."""
    dim: int
    dtype: str
    optimizer: optimizers.Optimizer | None
    initializer: initializers.Initializer
    """What a row is before its first update."""
    is_hashed: bool
    """Whether ids are any 64-bit numbers, found by hashing; else they are row numbers."""
    stride: int
    """How many shards the table has: with row numbers, row r of shard s is the id r * stride + s."""
    offset: int
    """Which of them this is."""
    eviction: Eviction | None
    ref: memory.MemoryRef
    accumulator: memory.MemoryRef | None = None
    total: int | None = None
    """How many ids the whole table has; None: any."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The optimizer's arrays beside the rows."""
        return self.optimizer.slots if self.optimizer is not None else ()

    def describe(self) -> showing.Facts:
        """Return what viewers see of it."""
        return _describe(self, f"{self.dtype}[{self.rows} rows, {self.dim}]")


def _describe(spec: DenseSpec | TableSpec, shape: str) -> showing.Facts:
    optimizer = type(spec.optimizer).__name__ if spec.optimizer is not None else None
    return {"name": spec.name, "shape": shape, "bytes": spec.ref.nbytes, "optimizer": optimizer}


@final
@keywords.explained()
@dataclass(frozen=True, kw_only=True)
class Eviction:
    """Which rows a full table of hashed ids gives up, to make room for new ones.

    Raises:
        ValueError: The order is unknown, or the fraction is out of range.

    Example:
        >>> from hocket.ps import Eviction
        >>> Eviction(by="age")
        Eviction(by='age', fraction=0.1)
    """

    by: str
    """``"age"``: those that were not updated for longest; ``"frequency"``: those updated least often."""
    fraction: float = 0.1
    """Which part of the rows goes at once. More is rarer, and forgets more. A guess."""

    def __post_init__(self) -> None:
        if self.by not in ("age", "frequency"):
            raise ValueError(
                f"Eviction's by must be 'age' or 'frequency', but received {self.by!r}. 'age' forgets what was not "
                "seen for longest."
            )
        if not 0 < self.fraction <= 1:
            raise ValueError(
                f"Eviction's fraction must be more than 0 and at most 1, but received {self.fraction!r}. Leave it out "
                "for a tenth."
            )


@final
@dataclass(frozen=True, slots=True)
class Ticket:
    """A push's id: the same push, sent again, is dropped."""

    holder: int
    """The worker's index: a ticket of a holder replaces its last one."""
    closure: int
    """Which closure, or step, it belongs to. Rises, for a holder."""
    turn: int
    """Which of the closure's pushes it is, from 0."""


@final
@dataclass(frozen=True, slots=True)
class Operation:
    """The effect of a push on one shard."""

    number: int
    kind: str
    """Dense: ``assign``, ``gradient``, or a name of `dense.SCATTERS` after ``scatter_``, or ``add``. Table:
    ``rows_assign``, ``rows_add``, ``rows_gradient``."""
    value: Any
    """An array, or what numpy makes one of."""
    ids: Any = None
    """Which rows. Table: local ids, each once."""
    scale: float = 1.0
    """What the learning rate is multiplied with."""


NO_MEMORY: Final = memory.MemoryRef("", "", 0)
"""Stands for memory that is not made yet."""


Spec = TypeVar("Spec", DenseSpec, TableSpec)


def replace_memory(spec: Spec, ref: memory.MemoryRef, accumulator: memory.MemoryRef | None) -> Spec:
    """Return the same shard in other memory."""
    return dataclasses.replace(spec, ref=ref, accumulator=accumulator)


class VariableRecord(NamedTuple):  # it travels with each variable, and a dataclass takes longer
    """A variable or table: what it is, and where its shards are."""

    name: str
    shape: tuple[int, ...]
    """Of a dense variable. Of a table: () ."""
    dtype: str
    parts: tuple[DenseSpec, ...] | tuple[TableSpec, ...]
    """Its shards: of a dense variable in the order of their rows, of a table by server."""
    rows: int | None = None
    """Of a table: how many ids there are; None: any."""
    dim: int = 0
    """Of a table: how long a row is."""

    @property
    def is_table(self) -> bool:
        """Whether it is a table."""
        return self.dim > 0
