"""Records that describe variables and requests: immutable, and small enough to travel."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np

from hocket import keywords
from hocket._base import showing
from hocket.ps.rules import initializers, optimizers
from hocket.ps.stores import memory


@final
@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A dense variable's shard: an array of any shape."""

    number: int
    """The shard's number on its server, from 0 in the order of making."""
    server: int
    name: str
    shape: tuple[int, ...]
    start: int
    """The row of the whole variable that is this shard's first."""
    dtype: str
    optimizer: optimizers.Optimizer | None
    """The optimizer that turns gradients into updates. None: the variable takes no gradients."""
    ref: memory.MemoryRef
    accumulator: memory.MemoryRef | None = None
    """The memory where the gradients of a synchronous step wait. None: no synchronous steps."""
    total: int = 1
    """Number of rows of the whole variable."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The optimizer's arrays beside the value."""
        return self.optimizer.slots if self.optimizer is not None else ()

    @property
    def nbytes(self) -> int:
        """Number of bytes that a pull moves."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def describe(self) -> showing.Facts:
        """Return the facts that viewers show."""
        return _describe(self, f"{self.dtype}[{', '.join(map(str, self.shape))}]")


@final
@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table's shard: rows, by row number or by any 64-bit id."""

    number: int
    server: int
    name: str
    rows: int
    """Number of rows that there is room for."""
    dim: int
    dtype: str
    optimizer: optimizers.Optimizer | None
    initializer: initializers.Initializer
    """Computes a row before its first update."""
    is_hashed: bool
    """Whether ids are any 64-bit numbers, found by hashing; else they are row numbers."""
    stride: int
    """Number of shards of the table: with row numbers, row r of shard s is the id r * stride + s."""
    offset: int
    """The shard's index in the table."""
    eviction: Eviction | None
    ref: memory.MemoryRef
    accumulator: memory.MemoryRef | None = None
    total: int | None = None
    """Number of ids of the whole table; None: any."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The optimizer's arrays beside the rows."""
        return self.optimizer.slots if self.optimizer is not None else ()

    def describe(self) -> showing.Facts:
        """Return the facts that viewers show."""
        return _describe(self, f"{self.dtype}[{self.rows} rows, {self.dim}]")


def _describe(spec: DenseSpec | TableSpec, shape: str) -> showing.Facts:
    optimizer = type(spec.optimizer).__name__ if spec.optimizer is not None else None
    return {"name": spec.name, "shape": shape, "bytes": spec.ref.nbytes, "optimizer": optimizer}


@final
@keywords.explained()
@dataclass(frozen=True, kw_only=True)
class Eviction:
    """The choice of rows that a full table of hashed ids gives up, to make room for new ones.

    Raises:
        ValueError: The order is unknown, or the fraction is out of range.

    Example:
        >>> from hocket.ps import Eviction
        >>> Eviction(by="age")
        Eviction(by='age', fraction=0.1)
    """

    by: str
    """``"age"``: the rows not updated for longest; ``"frequency"``: the rows updated least often."""
    fraction: float = 0.1
    """The part of the rows that goes at once. A larger part makes evictions rarer, and forgets more. A guess."""

    def __post_init__(self) -> None:
        if self.by not in ("age", "frequency"):
            raise ValueError(
                f"Eviction's by must be 'age' or 'frequency', but received {self.by!r}. Write by='age' to give up the "
                "rows not updated for longest."
            )
        if not 0 < self.fraction <= 1:
            raise ValueError(
                f"Eviction's fraction must be more than 0 and at most 1, but received {self.fraction!r}. Leave it out "
                "for a tenth."
            )


@final
@dataclass(frozen=True, slots=True)
class Ticket:
    """A push's id. A server drops a push with a ticket that it has applied."""

    holder: int
    """The worker's index: a holder's ticket replaces its last one."""
    closure: int
    """The number of the closure, or step; rises for each holder."""
    turn: int
    """The number of the push in its closure, from 0."""


@final
@dataclass(frozen=True, slots=True)
class Operation:
    """The effect of a push on one shard."""

    number: int
    kind: str
    """Dense: ``assign``, ``gradient``, ``add``, ``restore``, or ``scatter_`` before a name of `dense.SCATTERS`. Table:
    ``rows_assign``, ``rows_add``, ``rows_gradient``, ``restore``."""
    value: Any
    """An array, or a value that numpy converts to one; for ``restore`` the result of `export`."""
    ids: Any = None
    """The rows. Table: local ids, each once."""
    scale: float = 1.0
    """The factor of the learning rate."""


NO_MEMORY: Final = memory.MemoryRef("", "", 0)
"""A placeholder for memory that is not made yet."""


Spec = TypeVar("Spec", DenseSpec, TableSpec)


def replace_memory(spec: Spec, ref: memory.MemoryRef, accumulator: memory.MemoryRef | None) -> Spec:
    """Return the spec of the same shard in other memory."""
    return dataclasses.replace(spec, ref=ref, accumulator=accumulator)


class VariableRecord(NamedTuple):  # pickled with each variable, and a dataclass takes longer
    """A variable or table: its type and shape, and the places of its shards."""

    name: str
    shape: tuple[int, ...]
    """The shape of a dense variable. Of a table: () ."""
    dtype: str
    parts: tuple[DenseSpec, ...] | tuple[TableSpec, ...]
    """The shards: of a dense variable in the order of their rows, of a table by server."""
    rows: int | None = None
    """Of a table: the number of ids; None: any."""
    dim: int = 0
    """Of a table: the length of a row."""

    @property
    def is_table(self) -> bool:
        """Whether this is a table."""
        return self.dim > 0
