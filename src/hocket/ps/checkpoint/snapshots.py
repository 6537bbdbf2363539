"""Snapshots: the values of variables at one moment, taken while training goes on or read from a checkpoint.

**A live snapshot is one cut** through all variables and servers. The process that takes it holds the gate while it
copies the dense variables and informs the tables (milliseconds), so no push is half applied. Then training goes on, and
the tables are copied meanwhile, copy on write: the first change of a row saves the row's old value
(`rows.TableShard.begin_snapshot`). A table has room for one snapshot at a time. A second snapshot that begins meanwhile
copies the table at once.

Updates other than gradients (``assign_add`` and so on) bypass the gate. A shard's snapshot has them wholly or not at
all.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from hocket.ps import checks
from hocket.ps.access import links
from hocket.ps.rules import initializers
from hocket.ps.stores import gate, memory, records, store
from hocket.ps.stores.memory import Array

_HOLD_SECONDS: Final = 600.0


@final
@dataclass(frozen=True, slots=True)
class Table:
    """A table's rows. `lookup` gives other ids the values that `Embedding` would give them.

    Attributes:
        ids: The ids, rising.
        rows: [ids, dim]
        count: The number of ids that the table allows; None: any.
        initializer: Computes the rows of other ids.
    """

    ids: Array
    rows: Array
    count: int | None
    initializer: initializers.Initializer

    def lookup(self, ids: object) -> Array:
        """Return a row for each id: [..., dim]."""
        asked = checks.read_ids(ids)
        if asked.dtype.kind not in "iu":
            raise TypeError(f"Ids are whole numbers, but received {asked.dtype}. Write ids.astype('int64').")
        asked = asked.astype(np.int64, copy=False)
        if self.count is not None and asked.size and (asked.min() < 0 or asked.max() >= self.count):
            raise IndexError(
                f"The table has the ids 0 to {self.count - 1}, but received {asked.min()} to {asked.max()}."
            )
        flat = asked.reshape(-1)
        places = np.searchsorted(self.ids, flat)
        is_known = places < len(self.ids)
        is_known[is_known] = self.ids[places[is_known]] == flat[is_known]
        result = np.empty((len(flat), self.rows.shape[1]), self.rows.dtype)
        result[is_known] = self.rows[places[is_known]]
        if not is_known.all():
            fresh = np.empty((int((~is_known).sum()), result.shape[1]), result.dtype)
            self.initializer.fill(flat[~is_known], fresh)
            result[~is_known] = fresh
        return result.reshape(*asked.shape, result.shape[1])


@final
class Snapshot:
    """All variables at one moment; immutable.

    Args:
        version: The number of pushes that were applied before that moment.
        values: Arrays of dense variables and `Table` objects of tables, by name.

    Example:
        >>> from hocket import ps
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 2})
        >>> with strategy.scope():
        ...     counter = ps.Variable(0, name="counter")
        >>> before = strategy.snapshot()
        >>> _ = counter.assign(5)
        >>> before["counter"], strategy.snapshot()["counter"]
        (array(0), array(5))
        >>> strategy.close()
    """

    def __init__(self, version: int, values: Mapping[str, Array | Table]) -> None:
        self.version: Final = version
        self._values = dict(values)

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self._values)} variables after {self.version} pushes>"

    def __getitem__(self, name: str) -> Any:
        """Return a variable's array, or a table's `Table`.

        Raises:
            KeyError: The snapshot has no such variable.
        """
        if name not in self._values:
            raise KeyError(f"There is no variable {name!r} in the snapshot; its variables are {sorted(self._values)}.")
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def take(address: links.Address, made: list[records.VariableRecord]) -> Snapshot:
    """Take a snapshot of variables."""
    link = links.open_link(address)
    values: dict[str, Array | Table] = {}
    tables: dict[str, list[_Shard]] = {one.name: [] for one in made if one.is_table}
    try:
        with open_gate(address).held() as version:
            for one in made:
                for part in one.parts if one.is_table else ():
                    found = link.stores[part.server].begin_snapshot(part.number)
                    tables[one.name].append(_Shard(link.stores[part.server], part.number, *found))
                if not one.is_table:
                    exported = [link.stores[part.server].export(part.number) for part in one.parts]
                    values[one.name] = join_dense(one, exported)
        for one in made:
            if one.is_table:
                values[one.name] = _join_table(one, tables[one.name])
    finally:
        for shard in itertools.chain.from_iterable(tables.values()):
            shard.give_up()
    return Snapshot(version, {one.name: values[one.name] for one in made})


@dataclass(slots=True)
class _Shard:
    """A table's shard, while a snapshot of it is being taken."""

    store: store.Store
    number: int
    rows: Array
    ids: Array
    values: Array | None
    """The rows' values; None until they are copied."""

    def read(self) -> Array:
        if self.values is None:
            self.values = self.store.finish_snapshot(self.number, self.rows)
        return self.values

    def give_up(self) -> None:
        """End the snapshot without its rows, so that the next one can begin. Has no effect after `read`."""
        if self.values is None:
            self.values = self.store.finish_snapshot(self.number, self.rows[:0])


def _join_table(made: records.VariableRecord, shards: list[_Shard]) -> Table:
    ids = np.concatenate([shard.ids for shard in shards])
    rows = np.concatenate([shard.read() for shard in shards])
    order = np.argsort(ids)
    first: Any = made.parts[0]
    return Table(ids[order], rows[order], made.rows, first.initializer)


def open_gate(address: links.Address) -> gate.Gate:
    """Return the gate for a process that holds it; raise if that process does not share the gate's memory."""
    if not memory.is_reachable(address.gate):
        raise OSError(
            "Snapshots and checkpoints are taken on the machine of the first server, which keeps the gate, but this "
            "process is on another. Take them in the driver."
        )
    return gate.Gate(address.gate, _HOLD_SECONDS)


def join_dense(made: records.VariableRecord, shards: list[dict[str, Any]], part: str = "value", slot: int = 0) -> Array:
    """Return a dense variable's value, or one of its slots, joined from its shards."""
    arrays = [shard[part] if part == "value" else shard[part][slot] for shard in shards]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
