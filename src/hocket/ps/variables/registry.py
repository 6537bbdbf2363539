"""The registry makes variables: it chooses a server for each shard, orders its memory, and enters it into a book.

A strategy has one registry. It is an object of the driver or, for a training run whose ranks make the variables, an
actor; both use `Registry`. The servers' books hold the same knowledge, and a restarted actor reads it from them.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from hocket import exceptions
from hocket.core import actor, api
from hocket.engine import node
from hocket.ps import checks, errors
from hocket.ps.access import memory_owners, remote
from hocket.ps.rules import initializers, optimizers, partitioners, placement
from hocket.ps.stores import dense, gradient_accumulator, memory, records, rows, store
from hocket.ps.stores.memory import Array

ASKABLE: Final = frozenset({"make_variable", "make_embedding", "list_made"})
"""The names in `Registry` that other processes may use, if the registry is an actor."""

MEMORY_SHARE: Final = 0.9
"""The share of the machine's memory that all variables together may take. A larger request is refused. A guess."""

_HASH_SLACK: Final = 1.1
_HASH_SPARE: Final = 64
"""The extra room of a hashed table's shard beyond its share, because hashing does not divide evenly. With 10,000 rows
in a shard, a tenth more is ten standard deviations."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class VariableSettings:
    """The request for a new variable. `ParameterServerStrategy.make_variable` documents the fields."""

    name: str | None = None
    shape: Sequence[int] | None = None
    dtype: npt.DTypeLike | None = None
    optimizer: optimizers.Optimizer | None = None
    partitioner: partitioners.PartitionFunction | None = None
    colocate_with: int | None = None
    """The index of the server that must hold the variable. None: any."""
    exist_ok: bool = False


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TableSettings:
    """The request for a new table. `ParameterServerStrategy.make_embedding` documents the fields."""

    name: str | None = None
    dtype: npt.DTypeLike = "float32"
    initializer: initializers.Initializer | None = None
    initial_value: object = None
    optimizer: optimizers.Optimizer | None = None
    capacity: int | None = None
    eviction: records.Eviction | None = None
    exist_ok: bool = False


@final
@dataclass(frozen=True, slots=True)
class Defaults:
    """A strategy's settings for all of its variables."""

    optimizer: optimizers.Optimizer | None
    """The optimizer of variables without one of their own."""
    partitioner: partitioners.PartitionFunction | None
    """The partitioner of variables without one of their own."""
    is_synchronous: bool
    """Whether variables need boxes for gradients."""


class Registry:
    """All variables of a strategy, with the servers' books and the owners of their memory."""

    def __init__(
        self, books: Sequence[memory.MemoryRef], owners: Sequence[memory_owners.MemoryOwner], defaults: Defaults
    ) -> None:
        self._books = tuple(books)
        self._owners = tuple(owners)
        self._defaults = defaults
        self._placer = placement.Placer(len(books))
        self._counts = [0] * len(books)
        self._made: dict[str, records.VariableRecord] = {}
        self._nbytes = 0
        #: The shards of variables whose making was interrupted before this actor was restarted.
        self._begun: dict[str, list[Any]] = {}

    def read_books(self) -> None:
        """Read the variables that an earlier registry made from the books."""
        specs = [owner.list_specs(book) for book, owner in zip(self._books, self._owners, strict=True)]
        self._counts = [len(some) for some in specs]
        for spec in itertools.chain.from_iterable(specs):
            nbytes = _count_spec_bytes(spec)
            self._nbytes += nbytes
            self._placer.occupy(spec.server, nbytes, spec.nbytes if isinstance(spec, records.DenseSpec) else 0)
        for name, parts in _group_by_name(specs).items():
            if _is_whole(parts):
                self._made[name] = _join(name, parts)
            else:
                self._begun[name] = parts

    def list_made(self) -> list[records.VariableRecord]:
        """Return the records of all variables and tables, in the order of making."""
        return list(self._made.values())

    def make_variable(self, initial_value: object, settings: VariableSettings) -> records.VariableRecord:
        """Make a variable. See `ParameterServerStrategy.make_variable`."""
        whole, kind = _describe(initial_value, settings.shape, settings.dtype)
        known = self._find(settings.name, exist_ok=settings.exist_ok)
        if known is not None:
            return _check_same(
                known, known.shape == whole and known.dtype == kind and not known.is_table, f"{kind}{list(whole)}"
            )
        label = settings.name or self._choose_name("variable")
        home = settings.colocate_with
        rule = settings.optimizer if settings.optimizer is not None else self._defaults.optimizer
        if np.dtype(kind).kind != "f":
            rule = None
        chosen = settings.partitioner if settings.partitioner is not None else self._defaults.partitioner
        count = partitioners.count_shards(chosen, whole, kind) if home is None else 1
        sizes = partitioners.split_rows(whole[0], count) if count > 1 else [whole[0] if whole else 1]
        copies = 2 * (1 + (len(rule.slots) if rule is not None else 0))
        if not callable(initial_value):
            initial_value = checks.fit_into(label, initial_value, np.dtype(kind))
        with self._making(label) as making:
            making.reserve(math.prod(whole) * np.dtype(kind).itemsize * copies)
            start = 0
            for number, size in enumerate(sizes):
                if number < len(making.parts):
                    start += size
                    continue
                piece = (size, *whole[1:]) if whole else ()
                nbytes = math.prod(piece) * np.dtype(kind).itemsize
                server, position = making.place(nbytes * copies, nbytes, home)
                spec = records.DenseSpec(
                    position, server, label, piece, start, kind, rule, records.NO_MEMORY, total=sum(sizes)
                )
                value = _make_initial(label, initial_value, piece, whole, start, kind)
                making.build(spec, dense.plan(piece, kind, len(spec.slots)).nbytes, value)
                start += size
        parts = making.parts
        made = self._made[label] = records.VariableRecord(label, whole, kind, tuple(parts))
        return made

    def make_embedding(self, rows_count: int | None, dim: int, settings: TableSettings) -> records.VariableRecord:
        """Make a table. See `ParameterServerStrategy.make_embedding`."""
        _check_table(rows_count, dim, settings)
        kind = str(np.dtype(settings.dtype))
        if np.dtype(kind).kind != "f":
            raise TypeError(f"A table's rows are floats, but received dtype={kind}. Write dtype='float32'.")
        known = self._find(settings.name, exist_ok=settings.exist_ok)
        if known is not None:
            return _check_same(
                known,
                known.rows == rows_count and known.dim == dim and known.dtype == kind,
                f"a table of {rows_count} x {dim} {kind}",
            )
        first = _check_first(settings.initial_value, rows_count, dim, kind)
        label = settings.name or self._choose_name("embedding")
        rule = settings.optimizer if settings.optimizer is not None else self._defaults.optimizer
        begin = settings.initializer if settings.initializer is not None else initializers.Uniform()
        count = len(self._books)
        total = rows_count if rows_count is not None else settings.capacity
        assert total is not None, "checked"
        row_bytes = dim * np.dtype(kind).itemsize * (1 + (len(rule.slots) if rule is not None else 0))
        with self._making(label) as making:
            if rows_count is not None:
                making.reserve(total * row_bytes)
            for shard in range(len(making.parts), count):
                room = _count_room(rows_count, total, shard, count)
                spec = records.TableSpec(
                    number=making.place(room * row_bytes, 0, shard)[1],
                    server=shard,
                    name=label,
                    rows=room,
                    dim=dim,
                    dtype=kind,
                    optimizer=rule,
                    initializer=begin,
                    is_hashed=rows_count is None,
                    stride=count,
                    offset=shard,
                    eviction=settings.eviction,
                    ref=records.NO_MEMORY,
                    total=rows_count,
                )
                value = None if first is None else np.ascontiguousarray(first[shard::count])
                making.build(spec, rows.plan(spec).nbytes, value)
        parts = making.parts
        made = self._made[label] = records.VariableRecord(label, (), kind, tuple(parts), rows_count, dim)
        return made

    def _find(self, name: str | None, *, exist_ok: bool) -> records.VariableRecord | None:
        known = self._made.get(name) if name is not None else None
        if known is not None and not exist_ok:
            raise ValueError(
                f"A variable named {name!r} already exists. Choose another name, leave the name out, or write "
                "exist_ok=True to get that variable."
            )
        return known

    def _choose_name(self, kind: str) -> str:
        """Return a free name for a variable without one. A repeated attempt to make the variable gets the same name."""
        names = (f"{kind}_{number}" for number in itertools.count(len(self._made)))
        return next(name for name in names if name not in self._made)

    def _reserve(self, name: str, nbytes: int) -> None:
        limit = int(node.count_memory() * MEMORY_SHARE)
        if self._nbytes + nbytes > limit:
            raise errors.CapacityError(
                f"The variable `{name}` takes {nbytes / 2**30:.1f} GiB with its optimizer's slots, and others take "
                f"{self._nbytes / 2**30:.1f}, but this machine has {limit / 2**30:.1f} GiB for variables. Use fewer "
                "rows, a smaller dim or float32, or ps.Embedding(None, dim, capacity=...) with an eviction."
            )
        self._nbytes += nbytes

    @contextlib.contextmanager
    def _making(self, name: str) -> Iterator[_Making]:
        """Make the shards of a variable, and enter them into the books when all are ready. On failure, shards that are
        not in a book give their memory back."""
        making = _Making(self, name, self._begun.pop(name, []))
        try:
            yield making
            making.enter()
        except BaseException:
            making.take_back()
            raise


@final
class _Making:
    """The shards of a variable that is being made.

    Args:
        registry: The registry that makes the variable.
        name: The variable's name.
        begun: The variable's shards that are in the books already.
    """

    def __init__(self, registry: Registry, name: str, begun: list[Any]) -> None:
        self.parts: Final = list(begun)
        self._registry = registry
        self._name = name
        self._num_entered = len(begun)
        self._placed: list[tuple[int, int, int]] = []
        """Each new shard's placement: server, bytes, and bytes that a step moves."""
        self._memory: list[tuple[memory_owners.MemoryOwner, list[memory.MemoryRef]]] = []
        """The memory of each new shard."""
        self._nbytes = 0

    def reserve(self, nbytes: int) -> None:
        """Count the variable's bytes; raise if there is no room for them."""
        self._registry._reserve(self._name, nbytes)
        self._nbytes = nbytes

    def place(self, nbytes: int, traffic: int, home: int | None) -> tuple[int, int]:
        """Choose the next shard's server, unless `home` names it; return the server, and the shard's number there."""
        placer = self._registry._placer
        if home is None:
            home = placer.place(nbytes, traffic)
        else:
            placer.occupy(home, nbytes, traffic)
        number = self._registry._counts[home] + sum(server == home for server, _, _ in self._placed)
        self._placed.append((home, nbytes, traffic))
        return home, number

    def build(self, spec: records.Spec, nbytes: int, value: object) -> None:
        """Order memory for a shard, and fill it."""
        owner = self._registry._owners[spec.server]
        made: list[memory.MemoryRef] = []
        self._memory.append((owner, made))
        made.append(owner.make(nbytes, spec.name))
        if self._registry._defaults.is_synchronous and spec.optimizer is not None:
            made.append(owner.make(gradient_accumulator.plan(spec).nbytes, f"{spec.name}-accumulator"))
        whole = records.replace_memory(spec, made[0], made[1] if len(made) > 1 else None)
        owner.build(whole, value)
        self.parts.append(whole)

    def enter(self) -> None:
        """Enter the new shards into their servers' books."""
        for spec in self.parts[self._num_entered :]:
            registry = self._registry
            registry._owners[spec.server].add(registry._books[spec.server], spec)
            registry._counts[spec.server] += 1
            self._num_entered += 1
            self._placed.pop(0)
            self._memory.pop(0)

    def take_back(self) -> None:
        """Give up shards that are not in a book. The next attempt to make the variable continues from the others."""
        registry = self._registry
        del self.parts[self._num_entered :]
        if self.parts:
            registry._begun[self._name] = self.parts
        else:
            registry._nbytes -= self._nbytes
        for placed in self._placed:
            registry._placer.release(*placed)
        for owner, refs in self._memory:
            with contextlib.suppress(exceptions.HocketError):  # an owner that has ended has given up its memory
                owner.discard(refs)


@final
class HostedRegistry(Registry):
    """A registry that is an actor."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if api.get_runtime_context().was_current_actor_reconstructed:
            self.read_books()


def open_registry(
    books: Sequence[memory.MemoryRef],
    owners: Sequence[memory_owners.MemoryOwner],
    defaults: Defaults,
    *,
    is_hosted: bool,
) -> tuple[Registry, actor.ActorHandle | None]:
    """Start a registry, in this process or as an actor; return it, and the actor."""
    if not is_hosted:
        return Registry(books, owners, defaults), None
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    handle = actor.ActorClass(HostedRegistry, options).remote(books, owners, defaults)
    return reach(handle), handle


def reach(handle: actor.ActorHandle) -> Registry:
    """Return a proxy of a registry that is an actor."""
    return remote.build_actor_proxy(Registry, ASKABLE, handle)


def list_made(stores: Sequence[store.Store]) -> list[records.VariableRecord]:
    """Return the variables that are in the servers' books, for a process without a registry."""
    grouped = _group_by_name([one.list_specs() for one in stores])
    return [_join(name, parts) for name, parts in grouped.items()]


def count_bytes(stores: Sequence[store.Store]) -> list[int]:
    """Return the bytes of the variables in each server's book, with their slots."""
    return [sum(map(_count_spec_bytes, one.list_specs())) for one in stores]


def _count_spec_bytes(spec: store.Spec) -> int:
    if isinstance(spec, records.DenseSpec):
        return 2 * (1 + len(spec.slots)) * spec.nbytes
    return spec.rows * spec.dim * np.dtype(spec.dtype).itemsize * (1 + len(spec.slots))


def _group_by_name(specs: Iterable[Iterable[store.Spec]]) -> dict[str, list[object]]:
    parts: dict[str, list[Any]] = {}
    for spec in itertools.chain.from_iterable(specs):
        parts.setdefault(spec.name, []).append(spec)
    for found in parts.values():
        found.sort(key=lambda part: part.offset if isinstance(part, records.TableSpec) else part.start)
    return parts


def _is_whole(parts: list[Any]) -> bool:
    """Tell whether these are all shards of a variable. If its making was interrupted, some are missing."""
    first = parts[0]
    if isinstance(first, records.TableSpec):
        return len(parts) == first.stride
    count = sum(part.shape[0] if part.shape else 1 for part in parts)
    return bool(count == first.total)


def _join(name: str, parts: list[Any]) -> records.VariableRecord:
    first = parts[0]
    if isinstance(first, records.TableSpec):
        return records.VariableRecord(name, (), first.dtype, tuple(parts), first.total, first.dim)
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:]) if first.shape else ()
    return records.VariableRecord(name, shape, first.dtype, tuple(parts))


def _count_room(rows_count: int | None, total: int, shard: int, count: int) -> int:
    """Return the number of rows that a shard has room for."""
    if rows_count is not None:
        return max(1, placement.count_rows(rows_count, count)[shard])
    if count == 1:
        return total
    return min(total, int(total / count * _HASH_SLACK) + _HASH_SPARE)


def _check_same(known: records.VariableRecord, is_same: bool, asked: str) -> records.VariableRecord:
    if not is_same:
        there = (
            f"a table of {known.rows} x {known.dim} {known.dtype}"
            if known.is_table
            else f"{known.dtype}{list(known.shape)}"
        )
        raise ValueError(
            f"The variable `{known.name}` already exists as {there}, but received {asked}. Choose another name."
        )
    return known


def _describe(
    initial_value: object, shape: Sequence[int] | None, dtype: npt.DTypeLike | None
) -> tuple[tuple[int, ...], str]:
    if callable(initial_value):
        if shape is None:
            raise ValueError(
                "A variable that a function fills needs its shape: ps.Variable(function, shape=(1000, 64))."
            )
        return tuple(shape), str(np.dtype(dtype or "float32"))
    array = np.asarray(initial_value)
    kind = np.dtype(dtype) if dtype is not None else array.dtype
    if dtype is None and kind == np.float64:
        kind = np.dtype("float32")
    if kind.kind not in "fiub":
        raise TypeError(f"A variable holds numbers, but received {kind}.")
    if shape is not None and tuple(shape) != array.shape:
        raise ValueError(f"The value has the shape {array.shape}, but received shape={tuple(shape)}. Leave shape out.")
    return array.shape, str(kind)


def _make_initial(
    name: str, given: object, piece: tuple[int, ...], whole: tuple[int, ...], start: int, kind: str
) -> Array:
    if not callable(given):
        array = np.asarray(given)
        return array if piece == whole else array[start : start + piece[0]]
    if _takes_offset(given):
        value = np.asarray(given(piece, offset=(start, *(0 for _ in piece[1:]))))
    else:
        value = np.asarray(given(piece))
    if value.shape != piece:
        raise ValueError(f"The function must return a value of the shape {piece}, but returned {value.shape}.")
    with np.errstate(all="ignore"):  # numbers that do not fit are refused below
        found = value.astype(kind, copy=False)
    is_kept = found.dtype.kind != "f" and np.array_equal(found, value)  # np.ones gives floats for integers
    return found if is_kept else checks.fit_into(name, value, found.dtype)


def _takes_offset(function: Callable[..., object]) -> bool:
    with contextlib.suppress(TypeError, ValueError):  # some callables have no signature
        return "offset" in inspect.signature(function).parameters
    return False


def _check_table(rows_count: int | None, dim: int, settings: TableSettings) -> None:
    capacity = settings.capacity
    if rows_count is not None and rows_count < 1:
        raise ValueError(
            f"A table must have 1 row or more, but received {rows_count!r}. For ids of any size write "
            "ps.Embedding(None, dim, capacity=...)."
        )
    if dim < 1:
        raise ValueError(f"dim must be 1 or more, but received {dim!r}.")
    if rows_count is None and (capacity is None or capacity < 1):
        raise ValueError(
            f"ps.Embedding(None, {dim}) takes any id, so capacity must be the number of ids to hold, 1 or more, but "
            f"received {capacity!r}. Write capacity=1_000_000."
        )
    if rows_count is not None and (capacity is not None or settings.eviction is not None):
        raise ValueError(
            f"capacity and eviction are only for ps.Embedding(None, {dim}, ...), but this table has {rows_count} rows "
            "in fixed places. Leave them out."
        )


def _check_first(initial_value: object, rows_count: int | None, dim: int, kind: str) -> Array | None:
    if initial_value is None:
        return None
    first = np.asarray(initial_value)
    if rows_count is None:
        raise ValueError(
            "initial_value is for tables whose ids are row numbers. Write table.assign_rows(ids, values) for any ids."
        )
    if first.shape != (rows_count, dim):
        raise ValueError(f"initial_value must have the shape {(rows_count, dim)}, but received {first.shape}.")
    return first.astype(kind, copy=False)
