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
from hocket.ps import base_strategy, scope, server
from hocket.ps import cluster as cluster_module
from hocket.ps.access import links, memory_owners
from hocket.ps.checkpoint import checkpoints
from hocket.ps.rules import optimizers, partitioners
from hocket.ps.stores import gate, mutex, records
from hocket.ps.stores.memory import Array
from hocket.ps.variables import embedding, foreign, registry, variable

TIMEOUT_SECONDS: Final = 600.0
"""Seconds that a pull or a push may wait for other workers. A guess: longer than any healthy step."""


@final
@keywords.explained()
class ParameterServerStrategy(base_strategy.BaseStrategy):
    """Servers that hold variables, for workers that compute. The name is TensorFlow's.

    Make it in the driver. Closures can use it: a pickled strategy holds only the addresses of the servers.

    Args:
        cluster: The numbers of workers and servers: a `Cluster`, or ``{"worker": 2, "server": 1}``. Default: the
            cluster that TF_CONFIG describes.
        optimizer: The rule that turns gradients into updates, for variables without one of their own.
        partitioner: The rule that splits variables over servers: ``(shape, dtype) -> list of shards, by axis``.
            Default: variables are not split.
        max_staleness: The number of other workers' pushes between a worker's pull and its push. None: any. 0: none.
        synchronous: Whether all workers compute from the same version, and the mean of their gradients is applied.
        backup_workers: With ``synchronous``: the number of workers that a step does not wait for. Their late gradients
            are dropped, and counted in `statistics`.
        bad_gradients: The policy for a gradient that has NaN or infinity: ``"raise"``, ``"skip"`` the push (counted in
            `statistics`), or ``"clip"`` (NaN becomes 0, infinity the largest other value).
        scale_by_staleness: Whether a push of staleness s takes 1 / (1 + s) of a step.
        log_pushes: Whether each push is logged; see `get_log`.
        share_memory: Whether workers on a server's machine read and write its memory directly. False: they call the
            server, as workers on other machines do.
        hosted: Whether an actor, and not this process, makes and keeps the variables. Then processes other than the
            driver can make variables, too (`RemoteStrategy.make_variable`), as a trainer's ranks do.
        timeout_s: Seconds that a pull or a push may wait for other workers.

    Raises:
        ValueError: There is no server or no worker, or another setting breaks its rule.
        OSError: This system has no shared memory with locks that survive their holders.

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

        See `hocket.ps.checkpoint.checkpoints`.

        Args:
            path: A directory that does not exist, or a checkpoint, which is replaced; or an address (``s3://...``).
            extra: Further data to save, as JSON allows.

        Raises:
            FileExistsError: The path exists, and is no checkpoint.
        """
        return checkpoints.save(self.address, self._registry.list_made(), path, extra or {})

    def restore(self, path: str | os.PathLike[str], *, strict: bool = True) -> dict[str, Any]:
        """Set all variables from a checkpoint, which may come from another number of servers; return its `extra`.

        Args:
            path: The checkpoint, or its address.
            strict: Whether the checkpoint and the strategy must have the same variables.

        Raises:
            FileNotFoundError: The path is no checkpoint.
            CheckpointMismatchError: A variable has another shape, dtype or optimizer, or is missing. Nothing is
                changed.
            CapacityError: A table of hashed ids has too little room. No variable is changed.
        """
        return checkpoints.restore(self.address, self._registry.list_made(), path, strict=strict)

    # -- statistics --

    @property
    def version(self) -> int:
        """Number of pushes of gradients (or synchronous steps) applied. Available after `close`, too."""
        return self._link.gate.version

    def get_staleness(self) -> dict[int, int]:
        """Return the number of pushes by staleness."""
        return self._link.gate.get_histogram()

    def get_log(self) -> Array:
        """Return the newest pushes, [pushes, 4]: worker, version read, version applied at, nanoseconds.

        Needs ``log_pushes=True``.
        """
        return self._link.gate.get_log()

    def statistics(self) -> dict[str, Any]:
        """Return counts.

        ``pushes`` of gradients (or synchronous steps), ``updates`` of any kind by server, ``recoveries`` after deaths,
        ``bytes`` by server, ``late`` gradients of synchronous steps, pushes ``skipped`` because of NaN.
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
        """Return the process ids of the servers, in order."""
        pids: list[int] = api.get([handle.get_pid.remote() for handle in self._servers])
        return pids

    @property
    def is_lost(self) -> bool:
        """Whether some memory of the variables is gone, with the process or the machine that kept it.

        Then make a new strategy, and restore a checkpoint. The end of a server alone loses no memory.
        """
        return self._nodes.is_lost()

    def on_close(self, function: Callable[[], None]) -> None:
        """Register a function to call when the strategy closes, before its servers end."""
        self._at_close.append(function)

    def close(self) -> None:
        """End the servers and give up the memory. The end of the session does the same."""
        self._end()


@final
class RemoteStrategy(base_strategy.BaseStrategy):
    """A strategy in a closure, or in a rank of a training run; the unpickled form of a strategy.

    Args:
        address: The addresses of its servers.

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
        raise ValueError(
            f"backup_workers={backup_workers!r} is only for synchronous=True: asynchronous pushes wait for no other "
            "worker. Leave it out."
        )
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
    with contextlib.suppress(Exception):  # a closed session has ended them already
        for handle in actors:
            api.kill(handle)
        nodes.close()
