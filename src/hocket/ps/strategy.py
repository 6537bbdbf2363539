"""The strategy: starts servers, and makes variables on them."""

from __future__ import annotations

import contextlib
import os
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

from hocket import keywords
from hocket.core import actor, api, session
from hocket.ps import (
    base_strategy,
    checkpoints,
    embedding,
    foreign,
    links,
    optimizers,
    partitioners,
    registry,
    scope,
    server,
    variable,
)
from hocket.ps import (
    cluster as cluster_module,
)
from hocket.ps.stores import gate, memory_owners, mutex, records
from hocket.ps.stores.memory import Array

TIMEOUT_SECONDS: Final = 600.0
"""How long a pull or a push may wait for others. A guess: longer than any healthy step."""


@final
@keywords.explained()
class ParameterServerStrategy(base_strategy.BaseStrategy):
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
        >>> from hocket import ps
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 2})
        >>> with strategy.scope():
        ...     counter = ps.Variable(0)
        >>> counter.assign_add(15).numpy()
        array(15)
        >>> strategy.close()
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
        return {made.name: base_strategy.build(self.address, made) for made in self._registry.list_made()}

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
            CapacityError: A table of hashed ids has room for fewer. Nothing is changed then, either.
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
class RemoteStrategy(base_strategy.BaseStrategy):
    """A strategy in a closure, or in a rank of a training run: what comes out when one is pickled.

    Args:
        address: Where its servers are.

    Example:
        >>> from hocket import ps
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1}, optimizer=ps.SGD(lr=0.5), hosted=True)
        >>> remote = ps.RemoteStrategy(strategy.address)
        >>> weights = remote.make_variable([1.0, 2.0], name="weights")
        >>> remote.push([([2.0, 2.0], weights)]).is_applied, strategy.variables["weights"].numpy().tolist()
        (True, [0.0, 1.0])
        >>> strategy.close()
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
