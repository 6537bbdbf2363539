"""Tables: rows that are looked up by id. A step touches few of them; parameter servers exist for such variables.

Ids are either row numbers, 0 to ``rows - 1``, or any 64-bit integers (``rows=None``), which are hashed. The first
lookup of an id makes its row. Rows are dealt out over all servers, by ``id % servers`` or a hash. So the most used
rows, which usually have small numbers, are spread, too.

A lookup transfers each different row once, however often its id occurs. Gradients of equal ids are summed first, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn, final

import numpy as np
import numpy.typing as npt

from hocket.ps import checks, scope
from hocket.ps.access import closure_context, links
from hocket.ps.rules import placement
from hocket.ps.stores import dense, records, slices
from hocket.ps.stores.memory import Array
from hocket.ps.variables import foreign, handles


@final
@dataclass(frozen=True, slots=True)
class IndexedSlices:
    """The gradient of a table: the gradient of the row of each id.

    Ids may repeat; their gradients add up. The name is TensorFlow's.

    Attributes:
        values: [..., dim]
        indices: [...], the ids.

    Example:
        >>> import numpy as np
        >>> from hocket import ps
        >>> ids, values = ps.IndexedSlices(np.ones((3, 2)), np.array([7, 5, 7])).combine()
        >>> ids.tolist(), values.tolist()
        ([5, 7], [[1.0, 1.0], [2.0, 2.0]])
    """

    values: Any
    indices: Any

    def combine(self, dtype: npt.DTypeLike | None = None) -> tuple[Array, Array]:
        """Return each id once, in rising order, and the sum of its gradients.

        Args:
            dtype: The type of the variable that the sums are for. Sums are made in a type that has room for it, too.
                Default: the values' own.

        Raises:
            ValueError: The number of rows differs from the number of ids.
        """
        ids = np.asarray(self.indices).reshape(-1)
        values = np.asarray(self.values)
        if values.ndim < 1 or values.shape[:-1] != np.shape(self.indices):
            raise ValueError(
                f"IndexedSlices needs a row for each id: values of the shape {(*np.shape(self.indices), 'dim')}, but "
                f"received {values.shape}."
            )
        if len(ids) < 2 or (ids[1:] > ids[:-1]).all():
            return ids, values.reshape(-1, values.shape[-1])
        found = slices.group(ids)
        return found.ids, found.sum_rows(values, dtype)


@final
@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of a pull of ids: each row once.

    Attributes:
        ids: [unique], rising.
        rows: [unique, dim]
        places: The index in `rows` of each requested id; of the shape of these ids.
    """

    ids: Array
    rows: Array
    places: Array
    _grouping: slices.Grouping = field(repr=False)

    def expand(self, out: Array | None = None) -> Array:
        """Return a row for each requested id: [..., dim].

        Args:
            out: Receives the rows. Default: a new array.
        """
        return np.take(self.rows, self.places, axis=0, out=out, mode="clip")

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        """Raise a TypeError that recommends `expand`: a lookup is no array, and has each row once."""
        raise TypeError(
            "The result of pull() has each row once, and is not an array. Write .expand(), which has a row for each "
            "requested id, or .rows."
        )

    __array_ufunc__ = None  # an array on the left then defers to this class
    __array__ = __getitem__ = __neg__ = _refuse
    __matmul__ = __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = _refuse
    __rmatmul__ = __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = _refuse

    def gradient(self, values: object) -> IndexedSlices:
        """Return the gradient of the table from the gradient of `expand`: summed over equal ids.

        The method reuses the lookup's order of the ids, without sorting again.

        A model that sums the rows of a bag of ids has one gradient for the whole bag. Pass it through
        `numpy.broadcast_to`: it is then not copied for each id.

        Args:
            values: [..., dim], a row for each requested id.

        Example:
            >>> import hocket, numpy as np
            >>> from hocket import ps
            >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1}, optimizer=ps.SGD(lr=1.0))
            >>> with strategy.scope():
            ...     words = ps.Embedding(10, 2, initializer=ps.Zeros())
            >>> bags = words.pull([[1, 2], [2, 2]])
            >>> errors = bags.expand().sum(axis=1) - 1
            >>> outcome = strategy.push([(bags.gradient(np.broadcast_to(errors[:, None], (2, 2, 2))), words)])
            >>> words.lookup([0, 1, 2])[:, 0].tolist()
            [0.0, 1.0, 3.0]
            >>> strategy.close()
        """
        given = np.asarray(values)
        if given.ndim < 1 or given.shape[:-1] != self.places.shape:
            raise ValueError(
                f"A gradient of this lookup must have the shape {(*self.places.shape, 'dim')}, a row for each "
                f"requested id, but received {given.shape}."
            )
        return IndexedSlices(self._grouping.sum_rows(given, self.rows.dtype), self.ids)


@final
class Embedding(handles.Handle):
    """A table on the servers. Make it under ``strategy.scope()``.

    Args:
        rows: The number of ids, from 0. None: ids are any 64-bit numbers.
        dim: The length of a row.
        **settings: ``name``, ``dtype``, ``initializer``, ``optimizer``, ``capacity``, ``eviction``: see
            `ParameterServerStrategy.make_embedding`.

    Raises:
        RuntimeError: No strategy is in scope.
        ValueError: A setting breaks its rule.
        CapacityError: The table does not fit into memory.

    Example:
        >>> from hocket import ps
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 2})
        >>> with strategy.scope():
        ...     words = ps.Embedding(None, 2, capacity=1000, initializer=ps.Zeros())
        >>> words.add_rows([2**40, 7, 7], [[1, 2], [3, 4], [3, 4]])
        >>> words.lookup([7, 2**40, 5]).tolist()
        [[6.0, 8.0], [1.0, 2.0], [0.0, 0.0]]
        >>> strategy.close()
    """

    rows: int | None
    dim: int
    _parts: tuple[records.TableSpec, ...]
    """The specs of the shards, by server."""
    _FIELDS = ("rows", "dim")

    def __new__(cls, rows: int | None, dim: int, **settings: object) -> Embedding:
        """Make the table on the servers of the strategy in scope."""
        made: Embedding = scope.require_strategy("ps.Embedding").make_embedding(rows, dim, **settings)
        return made

    def __init__(self, rows: int | None, dim: int, **settings: object) -> None:
        """Do nothing: `__new__` has made the table."""

    def __repr__(self) -> str:
        return (
            f"<Embedding {self.name!r} rows={self.rows if self.rows is not None else 'hashed'} dim={self.dim} "
            f"dtype={self.dtype}>"
        )

    def __getitem__(self, ids: object) -> NoReturn:
        """Raise an error that recommends `lookup`, because reading rows is a call to the servers.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"The table `{self.name}` cannot be indexed, because its rows are on the servers. Write "
            f"{self.name}.lookup({ids!r:.60}), or {self.name}.pull(...).expand()."
        )

    def pull(self, ids: object) -> Lookup:
        """Return the rows of ids, each row once.

        Args:
            ids: Integers, of any shape.

        Raises:
            IndexError: An id is out of range.
            TypeError: The ids are not integers.
            CapacityError: A table of hashed ids is full.
        """
        foreign.refuse_in_graph(self.name)
        asked = self._check(ids)
        found = slices.group(asked.reshape(-1))
        return Lookup(found.ids, self.read_rows(found.ids), found.find_places().reshape(asked.shape), found)

    def lookup(self, ids: object) -> Array:
        """Return a row for each id: [..., dim]. See `pull`, which does not repeat rows."""
        return self.pull(ids).expand()

    def read_rows(self, ids: Array) -> Array:
        """Return the rows of ids, which must be int64 and in range."""
        link = links.open_link(self._address)
        link.enter(closure_context.get_optional_context())
        if len(self._parts) == 1:
            part = self._parts[0]
            return link.stores[part.server].read_rows(part.number, ids)
        result = np.empty((len(ids), self.dim), self.dtype)
        for part, mine, local in self._deal(ids):
            if len(mine):
                result[mine] = link.stores[part.server].read_rows(part.number, local)
        return result

    def assign_rows(self, ids: object, values: object) -> None:
        """Set rows; each id once.

        Raises:
            IndexError: An id is out of range.
            ValueError: The values do not fit, or an id is named twice.
        """
        self._write("rows_assign", ids, values)

    def add_rows(self, ids: object, values: object) -> None:
        """Add to rows; the values of equal ids add up.

        Raises:
            IndexError: An id is out of range.
            ValueError: The values do not fit.
        """
        foreign.refuse_in_graph(self.name)
        unique, sums = IndexedSlices(values, self._check(ids)).combine(self.dtype)
        self._write("rows_add", unique, sums)

    def evict(self, idle_updates: int) -> int:
        """Give up the rows that the table's last updates did not touch; return their number.

        The next lookup makes such a row anew.

        Args:
            idle_updates: The number of last updates.

        Raises:
            ValueError: The table's ids are row numbers, whose rows are permanent; or the number is negative.
        """
        if self.rows is not None:
            raise ValueError(
                f"`{self.name}` has {self.rows} rows in fixed places, so it cannot give any up. Write "
                f"ps.Embedding(None, {self.dim}, capacity=...) for a table that can."
            )
        checks.require_count(
            "idle_updates", idle_updates, "Write 1000 for rows that the last 1000 updates did not touch.", least=0
        )
        link = links.open_link(self._address)
        return sum(link.stores[part.server].evict(part.number, idle_updates) for part in self._parts)

    def build_operations(
        self, gradient: IndexedSlices, scale: float = 1.0
    ) -> dict[int, list[records.Operation]] | None:
        """Return a gradient's operations on each server; None if it is not finite, and the push is to be skipped.

        Args:
            gradient: The gradient of some rows.
            scale: The factor of the learning rate.

        Raises:
            NonFiniteGradientError: The gradient is not finite, and the policy is to raise.
            ValueError: The table takes no gradients, or the rows have another length.
            IndexError: An id is out of range.
        """
        if self.optimizer is None:
            raise ValueError(
                f"`{self.name}` has no optimizer, so it takes no gradients. Write ps.Embedding(..., "
                "optimizer=ps.Adagrad(lr=0.1))."
            )
        self._check(gradient.indices)
        ids, values = gradient.combine(self.dtype)
        if not dense.is_finite(values):  # checks the few sums; the repair reads all values
            link = links.open_link(self._address)
            admitted = link.admit(self.name, np.asarray(gradient.values))
            if admitted is None:
                return None
            ids, sums = IndexedSlices(admitted, gradient.indices).combine(self.dtype)
            again = link.admit(self.name, sums)  # finite numbers can have an infinite sum
            if again is None:
                return None
            values = again
        if values.shape[-1] != self.dim:
            raise ValueError(
                f"A gradient of `{self.name}` must have rows of length {self.dim}, but received rows of length "
                f"{values.shape[-1]}."
            )
        values = checks.fit_into(self.name, values, self.dtype)
        return self._build("rows_gradient", ids.astype(np.int64, copy=False), values, scale)

    def _write(self, kind: str, ids: object, values: object) -> None:
        foreign.refuse_in_graph(self.name)
        asked = self._check(ids)
        which, given = asked.reshape(-1), checks.fit_into(self.name, values, self.dtype)
        shape = asked.shape if given.ndim > 2 else which.shape  # one row for each id, in the shape of `lookup`
        rows = np.broadcast_to(given, (*shape, self.dim)).reshape(len(which), self.dim)
        if len(np.unique(which)) < len(which):
            raise ValueError(f"An id of `{self.name}` is given twice. Give each id once.")
        link, here = links.open_link(self._address), closure_context.get_optional_context()
        for server, operations in self._build(kind, which, rows).items():
            link.update(here, server, operations)

    def _build(self, kind: str, ids: Array, values: Array, scale: float = 1.0) -> dict[int, list[records.Operation]]:
        if len(self._parts) == 1:
            part = self._parts[0]
            return {part.server: [records.Operation(part.number, kind, values, ids, scale)]}
        return {
            part.server: [records.Operation(part.number, kind, values[mine], local, scale)]
            for part, mine, local in self._deal(ids)
        }

    def _deal(self, ids: Array) -> list[tuple[records.TableSpec, Array, Array]]:
        """Return for each shard the places of its ids, and their local ids.

        Shards without ids are included: an update is a step of each shard, whatever the number of servers."""
        count = len(self._parts)
        owners, local = (placement.hash_shard(ids, count), ids) if self.rows is None else placement.locate(ids, count)
        places = [np.flatnonzero(owners == shard) for shard in range(count)]
        return [(part, mine, local[mine]) for part, mine in zip(self._parts, places, strict=True)]

    def _check(self, ids: object) -> Array:
        given = checks.read_ids(ids)
        if given.dtype.kind not in "iu":
            raise TypeError(
                f"Ids of `{self.name}` are whole numbers, but received {given.dtype}. Write ids.astype('int64')."
            )
        if self.rows is not None and given.size and (given.min() < 0 or given.max() >= self.rows):
            bad = given[(given < 0) | (given >= self.rows)]
            raise IndexError(
                f"`{self.name}` has the ids 0 to {self.rows - 1}, but received {bad.flat[0]}. For ids of any size "
                f"write ps.Embedding(None, {self.dim}, capacity=...)."
            )
        return given.astype(np.int64, copy=False)
