"""The strategy: starts servers, and makes variables on them."""

from __future__ import annotations

import abc
import contextlib
import os
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy.typing as npt

from hocket import constructors
from hocket.core import actor, api, session
from hocket.ps import (
    arguments,
    checkpoints,
    closure_context,
    embedding,
    foreign,
    gate,
    handles,
    initializers,
    links,
    memory_owners,
    mutex,
    optimizers,
    partitioners,
    records,
    registry,
    scope,
    server,
    snapshots,
    variable,
)
from hocket.ps import (
    cluster as cluster_module,
)
from hocket.ps.memory import Array

TIMEOUT_SECONDS: Final = 600.0
"""How long a pull or a push may wait for others. A guess: longer than any healthy step."""


class BaseStrategy(abc.ABC):
    """What a strategy can do in every process that has it: make variables, pull, push, and be looked at."""

    def __init__(self, address: links.Address) -> None:
        self.address: Final = address

    @abc.abstractmethod
    def _get_registry(self) -> registry.Registry:
        """Return who makes variables.

        Raises:
            RuntimeError: Nobody does for this process.
        """

    def _list_made(self) -> list[records.VariableRecord]:
        return self._get_registry().list_made()

    # -- variables --

    def make_variable(
        self,
        initial_value: object,
        *,
        name: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: npt.DTypeLike | None = None,
        optimizer: optimizers.Optimizer | None = None,
        partitioner: partitioners.PartitionFunction | None = None,
        colocate_with: variable.BaseVariable | None = None,
        exist_ok: bool = False,
    ) -> variable.Variable | variable.ShardedVariable:
        """Make a variable; ``ps.Variable(...)`` under `scope` does it.

        Args:
            initial_value: An array; or a function of a shape, which is called for each shard, and returns its part. One
                that has an argument ``offset`` is told where its shard begins:
                ``initial_value(shape, offset=(row, 0))``.
            name: For messages and checkpoints. Default: ``variable_0`` and so on.
            shape: Needed for a function.
            dtype: Default: the array's, with 64-bit floats made 32; float32 for a function.
            optimizer: Default: the strategy's.
            partitioner: Default: the strategy's.
            colocate_with: A variable on whose server this one shall be. It is not split then.
            exist_ok: Whether to return the one that has the name, as it is, if there is one.

        Raises:
            RuntimeError: It is called in a closure: there the driver makes variables.
            ValueError: The name is taken, or a function has no shape.
            CapacityError: It does not fit into memory.
        """
        settings = registry.VariableSettings(
            name=name,
            shape=shape,
            dtype=dtype,
            optimizer=optimizer,
            partitioner=partitioner,
            colocate_with=colocate_with.servers[0] if colocate_with is not None else None,
            exist_ok=exist_ok,
        )
        made: Any = build(self.address, self._get_registry().make_variable(initial_value, settings))
        return made  # type: ignore[no-any-return]

    def make_embedding(
        self,
        rows: int | None,
        dim: int,
        *,
        name: str | None = None,
        dtype: npt.DTypeLike = "float32",
        initializer: initializers.Initializer | None = None,
        initial_value: object = None,
        optimizer: optimizers.Optimizer | None = None,
        capacity: int | None = None,
        eviction: records.Eviction | None = None,
        exist_ok: bool = False,
    ) -> embedding.Embedding:
        """Make a table; ``ps.Embedding(...)`` under `scope` does it.

        Args:
            rows: How many ids there are, from 0. None: ids are any 64-bit numbers.
            dim: How long a row is.
            name: For messages and checkpoints. Default: ``embedding_0`` and so on.
            dtype: A float.
            initializer: What a row is before its first update. Default: uniform in -0.05 to 0.05, as in Keras. Tables
                with one seed have the same rows.
            initial_value: All rows, [rows, dim], instead.
            optimizer: Default: the strategy's.
            capacity: With ``rows=None``: how many ids there is room for. Memory is taken as they come.
            eviction: With ``rows=None``: which rows go when it is full. Default: none; then a new id is an error.
            exist_ok: Whether to return the one that has the name, as it is, if there is one.

        Raises:
            RuntimeError: It is called in a closure: there the driver makes tables.
            ValueError: A number is out of range, the name is taken, or arguments do not go together.
            CapacityError: It does not fit into memory.
        """
        settings = registry.TableSettings(
            name=name,
            dtype=dtype,
            initializer=initializer,
            initial_value=initial_value,
            optimizer=optimizer,
            capacity=capacity,
            eviction=eviction,
            exist_ok=exist_ok,
        )
        made: embedding.Embedding = build(self.address, self._get_registry().make_embedding(rows, dim, settings))
        return made

    # -- training --

    def pull(self, variables: Iterable[variable.BaseVariable]) -> list[Array]:
        """Return copies of variables.

        With a bound on staleness it waits until this worker may read.

        Args:
            variables: Which: a list of them.

        Raises:
            TypeError: It is no list of variables.
        """
        variables = arguments.check_variables(variables)
        links.open_link(self.address).enter(closure_context.get_optional_context())
        return [one.read_value() for one in variables]

    def push(self, gradients: Iterable[tuple[Any, Any]], *, scale: float = 1.0) -> links.Outcome:
        """Apply gradients, on each server all of them or none.

        Args:
            gradients: Pairs of a gradient and its variable, as Keras' ``apply_gradients`` takes them: an array for a
                variable, `IndexedSlices` for a table. A variable is named once.
            scale: What the learning rate is multiplied with, this time.

        Returns:
            Whether it was applied, and how stale it was.

        Raises:
            TypeError: It is no list of pairs of a gradient and a variable.
            ValueError: A gradient does not fit its variable, or a variable is named twice.
            NonFiniteGradientError: A gradient has NaN or infinity, and the policy is to raise.
            PushTimeoutError: Another worker is to be applied first, and does not come.
        """
        operations: dict[int, list[records.Operation]] = {}
        seen: set[str] = set()
        for gradient, target in arguments.check_pairs(gradients):
            foreign.refuse_in_graph(getattr(target, "name", ""))
            if getattr(target, "name", None) in seen:
                raise ValueError(f"`{target.name}` is named twice in one push. Add its gradients up first.")
            found = _build(gradient, target, scale)
            if found is None:
                return links.Outcome(is_applied=False, staleness=0)
            seen.add(target.name)
            for home, some in found.items():
                operations.setdefault(home, []).extend(some)
        return links.open_link(self.address).push(closure_context.get_optional_context(), operations)

    # -- what there is --

    @property
    def version(self) -> int:
        """How many pushes of gradients (or synchronous steps) were applied."""
        return links.open_link(self.address).gate.version

    def snapshot(self) -> snapshots.Snapshot:
        """Return all variables as they are now, in one cut, while training goes on.

        For a process on the first server's machine. See `hocket.ps.snapshots`.
        """
        return snapshots.take(self.address, self._list_made())


@final
@constructors.explained()
class ParameterServerStrategy(BaseStrategy):
    """Servers that hold variables, for workers that compute. The name is TensorFlow's.

    It is made in the driver, and can be used in closures: what travels there is where the servers are.

    Args:
        cluster: How many workers and servers: a `Cluster`, or ``{"worker": 2, "server": 1}``. Default: what TF_CONFIG
            says.
        optimizer: What turns gradients into updates, for variables that do not bring their own.
        partitioner: How variables are split over servers: ``(shape, dtype) -> list of shards, by axis``. Default: not
            at all.
        max_staleness: How many pushes of others may be applied between a worker's pull and its push. None: any number.
            0: none.
        synchronous: Whether all workers compute from the same version, and the mean of their gradients is applied.
        backup_workers: With ``synchronous``: how many workers a step does not wait for. What they bring later is
            dropped, and counted in `statistics`.
        bad_gradients: What to do with one that has NaN or infinity: ``"raise"``, ``"skip"`` the push (counted in
            `statistics`), or ``"clip"`` (NaN becomes 0, infinity the largest other value).
        scale_by_staleness: Whether a push of staleness s takes 1 / (1 + s) of a step.
        log_pushes: Whether each push is logged; see `get_log`.
        share_memory: Whether workers of a machine read and write the servers' memory themselves. False: they ask the
            servers, as workers of other machines do.
        hosted: Whether an actor, and not this process, makes and keeps the variables. Then other processes than the
            driver's can make them, too (`RemoteStrategy.make_variable`), as the ranks of a trainer do.
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
        cluster: cluster_module.Cluster | Mapping[str, object] | None = None,
        *,
        optimizer: optimizers.Optimizer | None = None,
        partitioner: partitioners.PartitionFunction | None = None,
        max_staleness: int | None = None,
        synchronous: bool = False,
        backup_workers: int = 0,
        bad_gradients: str = "raise",
        scale_by_staleness: bool = False,
        log_pushes: bool = False,
        share_memory: bool = True,
        hosted: bool = False,
        timeout_s: float = TIMEOUT_SECONDS,
    ) -> None:
        self.cluster: Final = cluster_module.parse_cluster(cluster)
        self.cluster.check_trainable()
        _check_settings(optimizer, max_staleness, bad_gradients, timeout_s)
        _check_rounds(self.cluster.num_workers, synchronous, backup_workers, max_staleness)
        if not mutex.is_available():
            raise OSError(
                "Parameter servers need Linux: robust mutexes in shared memory. On this system use hocket.train's "
                "AllReduce."
            )
        count = self.cluster.num_servers
        self._nodes = memory_owners.ServerNodes(count, is_hosted=hosted)
        books = [owner.make_book(index) for index, owner in enumerate(self._nodes.owners)]
        needed = self.cluster.num_workers - backup_workers if synchronous else 0
        gate_ref = self._nodes.owners[0].make_gate(
            gate.Settings(max_staleness, needed, log_pushes, self.cluster.num_workers)
        )
        self._servers = [
            server.start(index, book, gate_ref, timeout_s, self._nodes.choose_options(index))
            for index, book in enumerate(books)
        ]
        defaults = registry.Defaults(optimizer, partitioner, synchronous)
        self._registry, registrar = registry.open_registry(books, self._nodes.owners, defaults, is_hosted=hosted)
        address = links.Address(
            uuid.uuid4().hex,
            tuple(links.ServerAddress(book, handle) for book, handle in zip(books, self._servers, strict=True)),
            gate_ref,
            timeout_s,
            bad_gradients,
            scale_by_staleness,
            synchronous,
            share_memory,
            registrar,
        )
        super().__init__(address)
        self._link = links.open_link(address)
        self._at_close: list[Callable[[], None]] = []
        actors = [*self._servers, *([registrar] if registrar is not None else [])]
        self._end = weakref.finalize(self, _close, self._at_close, self._nodes, actors, address.key)
        session.at_shutdown(self._end)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStrategy, (self.address,)

    def _get_registry(self) -> registry.Registry:
        return self._registry

    @contextlib.contextmanager
    def scope(self) -> Iterator[ParameterServerStrategy]:
        """Make the variables of the ``with`` block on this strategy's servers."""
        with scope.entered(self), foreign.adopted(self.make_variable):
            yield self

    @property
    def variables(self) -> dict[str, variable.BaseVariable | embedding.Embedding]:
        """All variables and tables, by name."""
        return {made.name: build(self.address, made) for made in self._registry.list_made()}

    # -- checkpoints --

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, object] | None = None) -> str:
        """Write a checkpoint of all variables with their optimizers' slots; return its path.

        See `hocket.ps.checkpoints`.

        Args:
            path: A directory that does not exist, or a checkpoint, which is replaced; or an address (``s3://...``).
            extra: What else to remember: what JSON can hold.

        Raises:
            FileExistsError: The path is something else.
        """
        return checkpoints.save(self.address, self._registry.list_made(), path, extra or {})

    def restore(self, path: str | os.PathLike[str], *, strict: bool = True) -> dict[str, Any]:
        """Set all variables to what a checkpoint has, also one of another number of servers; return what it remembers.

        Args:
            path: The checkpoint, or its address.
            strict: Whether all variables must be in it, and all of its variables be here.

        Raises:
            FileNotFoundError: It is no checkpoint.
            CheckpointMismatchError: A variable has another shape, dtype or optimizer, or is missing. Nothing is changed
                then.
        """
        return checkpoints.restore(self.address, self._registry.list_made(), path, strict=strict)

    # -- what happened --

    @property
    def version(self) -> int:
        """How many pushes of gradients (or synchronous steps) were applied. Known after `close`, too."""
        return self._link.gate.version

    def get_staleness(self) -> dict[int, int]:
        """Return how many pushes had each staleness."""
        return self._link.gate.get_histogram()

    def get_log(self) -> Array:
        """Return the newest pushes, [pushes, 4]: worker, version read, version applied at, nanoseconds.

        Needs ``log_pushes=True``.
        """
        return self._link.gate.get_log()

    def statistics(self) -> dict[str, Any]:
        """Return counts.

        ``pushes`` of gradients (or synchronous steps), ``updates`` of any kind by server, ``recoveries`` of updates
        whose process died, ``bytes`` by server, ``late`` gradients of synchronous steps, pushes ``skipped`` because of
        NaN.
        """
        found = [one.get_statistics() for one in self._link.stores]
        return {
            "pushes": self._link.gate.version,
            "updates": [one["version"] for one in found],
            "recoveries": sum(one["recoveries"] for one in found),
            "bytes": registry.count_bytes(self._link.stores),
            "late": self._link.gate.late,
            "skipped": self._link.gate.skipped,
        }

    def get_server_pids(self) -> list[int]:
        """Return the servers' processes, by server."""
        pids: list[int] = api.get([handle.get_pid.remote() for handle in self._servers])
        return pids

    @property
    def is_lost(self) -> bool:
        """Whether memory that variables lie in is gone, with the process or the machine that kept it.

        Then nobody can use them any more: make a new strategy, and restore a checkpoint. The end of a server alone
        does not do that.
        """
        return self._nodes.is_lost()

    def on_close(self, function: Callable[[], None]) -> None:
        """Have a function called when the strategy is closed, before its servers end."""
        self._at_close.append(function)

    def close(self) -> None:
        """End the servers and give up the memory. Done at the session's end, too."""
        self._end()


@final
class RemoteStrategy(BaseStrategy):
    """A strategy in a closure, or in a rank of a training run: what comes out when one is pickled.

    Args:
        address: Where its servers are.

    Example:
        >>> import hocket
        >>> from hocket import ps
        >>> context = hocket.init(engine="inprocess")
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1}, optimizer=ps.SGD(lr=0.5), hosted=True)
        >>> remote = ps.RemoteStrategy(strategy.address)
        >>> weights = remote.make_variable([1.0, 2.0], name="weights")
        >>> remote.push([([2.0, 2.0], weights)]).is_applied, strategy.variables["weights"].numpy().tolist()
        (True, [0.0, 1.0])
        >>> strategy.close()
        >>> hocket.shutdown()
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStrategy, (self.address,)

    def _list_made(self) -> list[records.VariableRecord]:
        if self.address.registry is None:
            return registry.list_made(links.open_link(self.address).stores)
        return super()._list_made()

    def _get_registry(self) -> registry.Registry:
        if self.address.registry is None:
            raise RuntimeError(
                "A closure cannot make variables. Make them in the driver, under strategy.scope(), and use them in "
                "the closure."
            )
        return registry.reach(self.address.registry)


def build(address: links.Address, record: records.VariableRecord) -> Any:
    """Return a variable or table that the registry has made."""
    if record.is_table:
        return handles.build(embedding.Embedding, address, record)
    cls = variable.ShardedVariable if len(record.parts) > 1 else variable.Variable
    return handles.build(cls, address, record)


def _build(gradient: object, target: object, scale: float) -> dict[int, list[records.Operation]] | None:
    """Return what a gradient does on each server; None if the push is to be skipped."""
    if isinstance(target, embedding.Embedding):
        if not isinstance(gradient, embedding.IndexedSlices):
            raise TypeError(
                f"The gradient of the table `{target.name}` is IndexedSlices(values, ids), but received "
                f"{type(gradient).__name__}. A table's gradient names its rows. Write ps.IndexedSlices(values, ids), "
                "or found.gradient(values) of what `found = table.pull(ids)` returned."
            )
        return target.build_operations(gradient, scale)
    if not isinstance(target, variable.BaseVariable):
        raise TypeError(
            f"A push takes pairs of a gradient and its variable, but received {type(target).__name__} for a variable."
        )
    return target.build_operations(gradient, scale)


def _check_settings(optimizer: object, max_staleness: object, bad_gradients: str, timeout_s: float) -> None:
    if optimizer is not None and not isinstance(optimizer, optimizers.Optimizer):
        raise TypeError(
            f"optimizer must be one of hocket.ps, such as ps.SGD(lr=0.1), but received {optimizer!r}: servers apply "
            "updates without a framework."
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
            f"timeout_s must be more than 0 seconds, but received {timeout_s!r}. Leave it out for "
            f"{TIMEOUT_SECONDS:.0f}."
        )


def _check_rounds(num_workers: int, synchronous: bool, backup_workers: int, max_staleness: int | None) -> None:
    if backup_workers and not synchronous:
        raise ValueError(f"backup_workers={backup_workers!r} is for synchronous=True: other pushes wait for nobody.")
    if synchronous and max_staleness is not None:
        raise ValueError(
            f"synchronous=True has no staleness, but received max_staleness={max_staleness!r}, too. Leave one of them "
            "out."
        )
    if not 0 <= backup_workers < num_workers:
        raise ValueError(
            f"backup_workers must leave at least one of the {num_workers} workers to wait for, but received "
            f"{backup_workers!r}."
        )


def _close(
    at_close: list[Callable[[], None]], nodes: memory_owners.ServerNodes, actors: list[actor.ActorHandle], key: str
) -> None:
    for function in at_close:
        function()
    links.close_link(key)
    with contextlib.suppress(Exception):  # the session may be closed, which ends them
        for handle in actors:
            api.kill(handle)
        nodes.close()
