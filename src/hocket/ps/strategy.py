"""The strategy: starts servers, and makes variables on them."""

from __future__ import annotations

import contextlib
import inspect
import math
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np

from hocket.core import actor, api, session
from hocket.engine import node
from hocket.ps import (
    cluster as cluster_module,
)
from hocket.ps import dense as dense_module
from hocket.ps import (
    embedding,
    errors,
    gate,
    initializers,
    links,
    mutex,
    optimizers,
    partitioners,
    placement,
    records,
    rows,
    scope,
    server,
    store,
    variable,
)
from hocket.ps.memory import Array

TIMEOUT_SECONDS: Final = 600.0
"""How long a pull or a push may wait for others. A guess: longer than any healthy step."""

_MEMORY_SHARE: Final = 0.9
"""How much of the machine's memory variables may take together, before one is refused. A guess."""

Partitioner: TypeAlias = Callable[..., Sequence[int]]


@final
class ParameterServerStrategy:
    """Servers that hold variables, for workers that compute. The name is TensorFlow's.

    It is made in the driver, and can be used in closures: what travels there is where the servers are.

    Args:
        cluster: How many workers and servers: a `Cluster`, or ``{"worker": 2, "server": 1}``. Default: what TF_CONFIG says.
        optimizer: What turns gradients into updates, for variables that do not bring their own.
        partitioner: How variables are split over servers: ``(shape, dtype) -> list of shards, by axis``. Default: not at all.
        max_staleness: How many pushes of others may be applied between a worker's pull and its push. None: any number. 0: none.
        bad_gradients: What to do with one that has NaN or infinity: ``"raise"``, ``"skip"`` the push (counted in `statistics`), or ``"clip"``
            (NaN becomes 0, infinity the largest other value).
        scale_by_staleness: Whether a push of staleness s takes 1 / (1 + s) of a step.
        log_pushes: Whether each push is logged; see `get_log`.
        timeout_s: Seconds that a pull or a push may wait for others.

    Raises:
        ValueError: There is no server or no worker, or another setting breaks its rule.
        OSError: This system has no memory that processes share, with locks that survive their holders.

    Example:
        >>> import hocket
        >>> from hocket import ps
        >>> context = hocket.init(engine="inprocess")
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 2})
        >>> with strategy.scope():
        ...     counter = ps.Variable(0)
        >>> counter.assign_add(15).numpy()
        array(15)
        >>> strategy.close()
        >>> hocket.shutdown()
    """

    def __init__(
        self,
        cluster: cluster_module.Cluster | Mapping[str, Any] | None = None,
        *,
        optimizer: optimizers.Optimizer | None = None,
        partitioner: Partitioner | None = None,
        max_staleness: int | None = None,
        bad_gradients: str = "raise",
        scale_by_staleness: bool = False,
        log_pushes: bool = False,
        timeout_s: float = TIMEOUT_SECONDS,
    ) -> None:
        _check_settings(optimizer, max_staleness, bad_gradients, timeout_s)
        self.cluster: Final = _parse_cluster(cluster)
        self.cluster.check_trainable()
        if not mutex.is_available():
            raise OSError(
                "Parameter servers need Linux: robust mutexes in shared memory. On this system use hocket.train's AllReduce."
            )
        self._optimizer = optimizer
        self._partitioner = partitioner
        self._max_staleness = max_staleness
        self._keeper = server.Keeper()
        count = self.cluster.num_servers
        books = [self._keeper.make_book(index) for index in range(count)]
        gate_ref = self._keeper.make_gate(max_staleness, log_pushes)
        self._servers: list[actor.ActorHandle] = [
            actor.ActorClass(
                server.Server,
                {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": _SERVER_THREADS},
            ).remote(index, book, gate_ref, timeout_s)
            for index, book in enumerate(books)
        ]
        self.address: Final = links.Address(
            uuid.uuid4().hex,
            tuple(links.ServerAddress(book, handle) for book, handle in zip(books, self._servers, strict=True)),
            gate_ref,
            timeout_s,
            bad_gradients,
            scale_by_staleness,
        )
        self._placer = placement.Placer(count)
        self._counts = [0] * count
        self._names: dict[str, variable.BaseVariable | embedding.Embedding] = {}
        self._nbytes = 0
        self._link = links.open_link(self.address)
        self._at_close: list[Callable[[], None]] = []
        self._end = weakref.finalize(self, _close, self._at_close, self._keeper, self._servers, self.address.key)
        session.at_shutdown(self._end)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStrategy, (self.address,)

    @contextlib.contextmanager
    def scope(self) -> Iterator[ParameterServerStrategy]:
        """Make the variables of the ``with`` block on this strategy's servers."""
        with scope.entered(self):
            yield self

    # -- variables --

    def make_variable(
        self,
        initial_value: Any,
        *,
        name: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        optimizer: optimizers.Optimizer | None = None,
        partitioner: Partitioner | None = None,
        colocate_with: variable.BaseVariable | None = None,
    ) -> variable.Variable | variable.ShardedVariable:
        """Make a variable; ``ps.Variable(...)`` under `scope` does it.

        Args:
            initial_value: An array; or a function of a shape, which is called for each shard, and returns its part. One that has an argument ``offset`` is told
                where its shard begins: ``initial_value(shape, offset=(row, 0))``.
            name: For messages and checkpoints. Default: ``variable_0`` and so on.
            shape: Needed for a function.
            dtype: Default: the array's, with 64-bit floats made 32; float32 for a function.
            optimizer: Default: the strategy's.
            partitioner: Default: the strategy's.
            colocate_with: A variable on whose server this one shall be. It is not split then.

        Raises:
            ValueError: The name is taken, or a function has no shape.
            CapacityError: It does not fit into memory.
        """
        whole, kind = _describe(initial_value, shape, dtype)
        label = self._name(name, "variable")
        rule = optimizer if optimizer is not None else self._optimizer
        if np.dtype(kind).kind != "f":
            rule = None
        chosen = partitioner if partitioner is not None else self._partitioner
        count = partitioners.count_shards(chosen, whole, kind) if colocate_with is None else 1
        sizes = partitioners.split_rows(whole[0], count) if count > 1 else [whole[0] if whole else 1]
        copies = 2 * (1 + (len(rule.slots) if rule is not None else 0))
        self._reserve(label, math.prod(whole) * np.dtype(kind).itemsize * copies)
        parts = []
        start = 0
        for size in sizes:
            piece = (size, *whole[1:]) if whole else ()
            nbytes = math.prod(piece) * np.dtype(kind).itemsize
            home = (
                colocate_with.servers[0] if colocate_with is not None else self._placer.place(nbytes * copies, nbytes)
            )
            ref = self._keeper.make(
                dense_module.plan(piece, kind, len(rule.slots) if rule is not None else 0).nbytes, label
            )
            spec = records.DenseSpec(self._counts[home], home, label, piece, kind, rule, ref)
            self._add(spec, _make_initial(initial_value, piece, whole, start, kind))
            parts.append(spec)
            start += size
        cls = variable.ShardedVariable if count > 1 else variable.Variable
        made: variable.Variable | variable.ShardedVariable = variable.build(
            cls, self.address, label, whole, kind, parts
        )
        self._names[label] = made
        return made

    def make_embedding(
        self,
        rows_count: int | None,
        dim: int,
        *,
        name: str | None = None,
        dtype: Any = "float32",
        initializer: initializers.Initializer | None = None,
        optimizer: optimizers.Optimizer | None = None,
        capacity: int | None = None,
        eviction: records.Eviction | None = None,
    ) -> embedding.Embedding:
        """Make a table; ``ps.Embedding(...)`` under `scope` does it.

        Args:
            rows_count: How many ids there are, from 0. None: ids are any 64-bit numbers.
            dim: How long a row is.
            name: For messages and checkpoints. Default: ``embedding_0`` and so on.
            dtype: A float.
            initializer: What a row is before its first update. Default: uniform in -0.05 to 0.05, as in Keras.
            optimizer: Default: the strategy's.
            capacity: With ``rows_count=None``: how many ids there is room for. Memory is taken as they come.
            eviction: With ``rows_count=None``: which rows go when it is full. Default: none; then a new id is an error.

        Raises:
            ValueError: A number is out of range, the name is taken, or arguments do not go together.
            CapacityError: It does not fit into memory.
        """
        _check_table(rows_count, dim, capacity, eviction)
        kind = str(np.dtype(dtype))
        label = self._name(name, "embedding")
        rule = optimizer if optimizer is not None else self._optimizer
        start = initializer if initializer is not None else initializers.Uniform()
        count = self.cluster.num_servers
        total = rows_count if rows_count is not None else capacity
        assert total is not None, "checked"
        copies = 1 + (len(rule.slots) if rule is not None else 0)
        if rows_count is not None:
            self._reserve(label, total * dim * np.dtype(kind).itemsize * copies)
        parts = []
        for shard in range(count):
            if rows_count is not None:
                room = len(range(shard, total, count))
            else:
                room = min(total, int(total / count * _HASH_SLACK) + _HASH_SPARE) if count > 1 else total
            spec = records.TableSpec(
                self._counts[shard],
                shard,
                label,
                max(room, 1),
                dim,
                kind,
                rule,
                start,
                rows_count is None,
                count,
                shard,
                eviction,
                _NOWHERE,
            )
            ref = self._keeper.make(rows.plan(spec).nbytes, label)
            spec = records.replace_ref(spec, ref)
            self._add(spec, None)
            parts.append(spec)
        made = embedding.build(self.address, label, rows_count, dim, parts)
        self._names[label] = made
        return made

    @property
    def variables(self) -> dict[str, variable.BaseVariable | embedding.Embedding]:
        """All variables and tables, by name."""
        return dict(self._names)

    # -- training --

    def pull(self, variables: Iterable[variable.BaseVariable]) -> list[Array]:
        """Return copies of variables; see `RemoteStrategy.pull`."""
        return RemoteStrategy(self.address).pull(variables)

    def push(self, gradients: Iterable[tuple[Any, Any]]) -> links.Outcome:
        """Apply gradients; see `RemoteStrategy.push`."""
        return RemoteStrategy(self.address).push(gradients)

    # -- what happened --

    def get_staleness(self) -> dict[int, int]:
        """Return how many pushes had each staleness."""
        return self._get_gate().get_histogram()

    def get_log(self) -> Array:
        """Return the newest pushes, [pushes, 4]: worker, version read, version applied at, nanoseconds. Needs ``log_pushes=True``."""
        return self._get_gate().get_log()

    def statistics(self) -> dict[str, Any]:
        """Return counts: pushes applied by each server, updates of dead processes that were put right, bytes of each server, gradients skipped."""
        stores = [one for one in self._link.stores if isinstance(one, store.Store)]
        return {
            "pushes": self._get_gate().version,
            "updates": [one.version for one in stores],
            "recoveries": sum(one.recoveries for one in stores),
            "bytes": list(self._placer.statistics().num_bytes),
            "skipped": self._link.skipped,
        }

    def get_server_pids(self) -> list[int]:
        """Return the servers' processes, by server."""
        pids: list[int] = api.get([handle.get_pid.remote() for handle in self._servers])
        return pids

    def on_close(self, function: Callable[[], None]) -> None:
        """Have a function called when the strategy is closed, before its servers end."""
        self._at_close.append(function)

    def close(self) -> None:
        """End the servers and give up the memory. Done at the session's end, too."""
        self._end()

    # -- inside --

    def _get_gate(self) -> gate.Gate:
        found = self._link.gate
        assert isinstance(found, gate.Gate), "the driver keeps the gate"
        return found

    def _name(self, given: str | None, kind: str) -> str:
        if given is None:
            given = f"{kind}_{len(self._names)}"
        if given in self._names:
            raise ValueError(
                f"There is a variable named {given!r} already: {self._names[given]!r}. Choose another name, or leave it out."
            )
        return given

    def _reserve(self, name: str, nbytes: int) -> None:
        limit = int(node.count_memory() * _MEMORY_SHARE)
        if self._nbytes + nbytes > limit:
            raise errors.CapacityError(
                f"The variable `{name}` takes {nbytes / 2**30:.1f} GiB with its optimizer's slots, and others take {self._nbytes / 2**30:.1f}, but this machine "
                f"has {limit / 2**30:.1f} GiB for variables. Use fewer rows, a smaller dim or float32, or ps.Embedding(None, dim, capacity=...) with an eviction."
            )
        self._nbytes += nbytes

    def _add(self, spec: store.Spec, value: Any) -> None:
        self._keeper.add(self.address.servers[spec.server].book, spec, value)
        self._counts[spec.server] += 1


@final
class RemoteStrategy:
    """A strategy in a closure. It can pull and push, and makes no variables.

    Args:
        address: Where its servers are.
    """

    def __init__(self, address: links.Address) -> None:
        self.address: Final = address

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStrategy, (self.address,)

    def pull(self, variables: Iterable[variable.BaseVariable]) -> list[Array]:
        """Return copies of variables.

        With a bound on staleness it waits until this worker may read.

        Args:
            variables: Which.
        """
        links.open_link(self.address).enter()
        return [one.read_value() for one in variables]

    def push(self, gradients: Iterable[tuple[Any, Any]]) -> links.Outcome:
        """Apply gradients, on each server all of them or none.

        Args:
            gradients: Pairs of a gradient and its variable, as Keras' ``apply_gradients`` takes them: an array for a variable, `IndexedSlices` for a table.
                A variable is named once.

        Returns:
            Whether it was applied, and how stale it was.

        Raises:
            ValueError: A gradient does not fit its variable, or a variable is named twice.
            NonFiniteGradientError: A gradient has NaN or infinity, and the policy is to raise.
            PushTimeoutError: Another worker is to be applied first, and does not come.
        """
        link = links.open_link(self.address)
        operations: dict[int, list[records.Operation]] = {}
        seen: set[str] = set()
        for gradient, target in gradients:
            if target.name in seen:
                raise ValueError(f"`{target.name}` is named twice in one push. Add its gradients up first.")
            seen.add(target.name)
            for home, found in _build(link, gradient, target).items():
                operations.setdefault(home, []).extend(found)
        if any(one.value is None for found in operations.values() for one in found):
            return links.Outcome(is_applied=False, staleness=0)
        return link.push(operations)


_SERVER_THREADS: Final = 64
"""How many requests a server answers at once: those that wait at the gate among them. A guess."""

_HASH_SLACK: Final = 1.1
_HASH_SPARE: Final = 64
"""How much more room a shard of a hashed table has than its share, as hashing does not divide evenly: for 10,000 rows in a shard 1 in 10 is ten standard deviations."""

_NOWHERE: Final = records.NO_MEMORY


def _build(link: links.Link, gradient: Any, target: Any) -> dict[int, list[records.Operation]]:
    """Return what a gradient does on each server; an operation without a value if the push is to be skipped."""
    if isinstance(target, embedding.Embedding):
        if not isinstance(gradient, embedding.IndexedSlices):
            raise TypeError(
                f"The gradient of the table `{target.name}` is IndexedSlices(values, ids), but received {type(gradient).__name__}. A table's gradient names its rows."
            )
        admitted = link.admit(target.name, np.asarray(gradient.values))
        if admitted is None:
            return _SKIPPED
        return target.build_operations(embedding.IndexedSlices(admitted, gradient.indices))
    if not isinstance(target, variable.BaseVariable):
        raise TypeError(
            f"A push takes pairs of a gradient and its variable, but received {type(target).__name__} for a variable."
        )
    given = np.asarray(gradient)
    if target.optimizer is not None:
        given = given.astype(target.dtype, copy=False)
    admitted = link.admit(target.name, given)
    return _SKIPPED if admitted is None else target.build_operations(admitted)


_SKIPPED: Final = {0: [records.Operation(0, "gradient", None)]}


def _describe(initial_value: Any, shape: Sequence[int] | None, dtype: Any) -> tuple[tuple[int, ...], str]:
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
        raise ValueError(f"The value has the shape {array.shape}, but shape={tuple(shape)} was given. Leave it out.")
    return array.shape, str(kind)


def _make_initial(given: Any, piece: tuple[int, ...], whole: tuple[int, ...], start: int, kind: str) -> Array:
    if not callable(given):
        array = np.asarray(given)
        return array if piece == whole else array[start : start + piece[0]]
    value = (
        np.asarray(given(piece, offset=(start, *(0 for _ in piece[1:]))))
        if _takes_offset(given)
        else np.asarray(given(piece))
    )
    if value.shape != piece:
        raise ValueError(f"The function was asked for the shape {piece}, but returned {value.shape}.")
    return value.astype(kind, copy=False)


def _parse_cluster(given: Any) -> cluster_module.Cluster:
    if given is None:
        return cluster_module.Cluster.from_tf_config()
    if isinstance(given, cluster_module.Cluster):
        return given
    if isinstance(given, Mapping):
        return cluster_module.Cluster(given)
    raise TypeError(
        f"cluster must be a ps.Cluster or a dict, but received {given!r}. Write ps.Cluster(workers=2, servers=1)."
    )


def _takes_offset(function: Callable[..., Any]) -> bool:
    with contextlib.suppress(TypeError, ValueError):  # some callables do not tell
        return "offset" in inspect.signature(function).parameters
    return False


def _check_settings(optimizer: Any, max_staleness: Any, bad_gradients: str, timeout_s: float) -> None:
    if optimizer is not None and not isinstance(optimizer, optimizers.Optimizer):
        raise TypeError(
            f"optimizer must be one of hocket.ps, such as ps.SGD(lr=0.1), but received {optimizer!r}: servers apply updates without a framework."
        )
    if max_staleness is not None and (
        isinstance(max_staleness, bool) or not isinstance(max_staleness, int) or max_staleness < 0
    ):
        raise ValueError(
            f"max_staleness must be 0 or more pushes, or None for no bound, but received {max_staleness!r}."
        )
    if bad_gradients not in links.POLICIES:
        raise ValueError(f"bad_gradients must be 'raise', 'skip' or 'clip', but received {bad_gradients!r}.")
    if not timeout_s > 0:
        raise ValueError(
            f"timeout_s must be more than 0 seconds, but received {timeout_s!r}. Leave it out for {TIMEOUT_SECONDS:.0f}."
        )


def _check_table(rows_count: int | None, dim: int, capacity: int | None, eviction: Any) -> None:
    if rows_count is not None and rows_count < 1:
        raise ValueError(
            f"A table has 1 row or more, but received {rows_count!r}. For ids of any size write ps.Embedding(None, dim, capacity=...)."
        )
    if dim < 1:
        raise ValueError(f"dim must be 1 or more, but received {dim!r}.")
    if rows_count is None and (capacity is None or capacity < 1):
        raise ValueError(
            f"ps.Embedding(None, {dim}) takes any id, and must be told how many there is room for: capacity=1_000_000."
        )
    if rows_count is not None and (capacity is not None or eviction is not None):
        raise ValueError(
            f"capacity and eviction are for ps.Embedding(None, {dim}, ...): with {rows_count} rows each has its place."
        )


def _close(
    at_close: list[Callable[[], None]], keeper: server.Keeper, servers: list[actor.ActorHandle], key: str
) -> None:
    for function in at_close:
        function()
    links.close_link(key)
    with contextlib.suppress(Exception):  # the session may be closed, which ends them
        for handle in servers:
            api.kill(handle)
    keeper.close()
