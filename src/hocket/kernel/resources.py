"""Amounts of CPU, GPU and custom resources, and the pools from which they are taken.

Amounts are whole numbers of 1/10,000 (`UNIT`), as in Ray, so that fractions such as 0.1 add up exactly. A *demand* is
the amounts that a task asks for; a *pool* is the amounts that a node, or one bundle of a placement group, has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hocket._base import texts

UNIT = 10_000
"""How many units make one CPU."""

Demand = tuple[tuple[str, int], ...]
"""Pairs of a resource's name and units, sorted by name, without zeros. Hashable: equal demands can share a queue."""


def parse_demand(amounts: Mapping[str, float]) -> Demand:
    """Return the demand for these amounts; zeros are dropped."""
    return tuple(sorted((name, round(amount * UNIT)) for name, amount in amounts.items() if round(amount * UNIT)))


def format_demand(demand: Demand) -> str:
    """Return the demand in readable form: ``{CPU: 2, GPU: 0.5, memory: 1.5 GiB}``."""
    return "{" + ", ".join(f"{name}: {_format_amount(name, units / UNIT)}" for name, units in demand) + "}"


def _format_amount(name: str, amount: float) -> str:
    return texts.format_bytes(amount) if name in ("memory", "object_store_memory") else f"{amount:g}"


GpuId = int | str
"""The name of a GPU: its index on the machine, or the name that the user gave it."""


class Shape(NamedTuple):
    """The requirements of a task, which decide where it may run. To the scheduler, tasks of one shape are
    interchangeable."""

    demand: Demand
    group_id: int = 0
    """The placement group; 0 is none."""
    bundle_index: int = -1
    """The bundle in the group; -1 is any."""
    environment: str = ""
    """The runtime environment, in encoded form; a worker runs only tasks of its own environment."""
    only: str = ""
    """A function with ``max_calls``, which shares workers with no other: its workers end after so many runs."""
    captures_children: bool = False
    """Whether tasks that these tasks submit run in the same placement group."""
    nodes: str = ""
    """The nodes on which the task may or should run, as JSON; only engines with several nodes use it."""
    leaves_group: bool = False
    """Whether the tasks run outside of the placement group that captures other tasks of the same parent."""


class Allocation:
    """Resources taken from one pool, to be given back as a whole."""

    __slots__ = ("cpu_lent", "demand", "gpu_ids", "pool")

    def __init__(self, pool: Pool, demand: Demand, gpu_ids: tuple[GpuId, ...] = ()) -> None:
        self.pool = pool
        self.demand = demand
        self.gpu_ids = gpu_ids
        #: Whether the CPU share is lent for the time of a blocking `get`.
        self.cpu_lent = False

    def give_back(self) -> None:
        """Return everything to the pool."""
        self.pool.give(self)

    def lend_cpu(self) -> None:
        """Let others use the CPU share while the holder only waits."""
        if not self.cpu_lent:
            self.cpu_lent = True
            self.pool.adjust("CPU", _get_units(self.demand, "CPU"))

    def reclaim_cpu(self) -> None:
        """Take the CPU share again, even if that overbooks the pool: the alternative is a deadlock."""
        if self.cpu_lent:
            self.cpu_lent = False
            self.pool.adjust("CPU", -_get_units(self.demand, "CPU"))


def _get_units(demand: Demand, name: str) -> int:
    return next((units for key, units in demand if key == name), 0)


class Pool:
    """A stock of resources.

    Invariant: ``free[name] <= total[name]``. `free` is negative while a worker has taken its lent CPU back and others
    still use it.
    """

    __slots__ = ("free", "gpu_free", "total")

    def __init__(self, total: dict[str, int], free: dict[str, int], gpu_free: dict[GpuId, int]) -> None:
        self.total = total
        self.free = free
        #: Units left on each GPU, by the GPU's name.
        self.gpu_free = gpu_free

    @classmethod
    def build(cls, demand: Demand, gpu_ids: tuple[GpuId, ...] | None = None) -> Pool:
        """Return a full pool; GPUs are numbered from 0 unless their names are given."""
        total = dict(demand)
        gpus = total.get("GPU", 0)
        if gpu_ids is None:
            gpu_ids = tuple(range(-(-gpus // UNIT)))
        gpu_free = {gpu_id: min(UNIT, gpus - position * UNIT) for position, gpu_id in enumerate(gpu_ids)}
        return cls(total, dict(total), gpu_free)

    def could_fit(self, demand: Demand) -> bool:
        """Return whether the demand would fit into the full pool."""
        return all(units <= self.total.get(name, 0) for name, units in demand)

    def fits(self, demand: Demand) -> bool:
        """Return whether the demand fits now."""
        free = self.free
        for name, units in demand:
            if free.get(name, 0) < units:
                return False
        return not self.gpu_free or self._pick_gpus(_get_units(demand, "GPU")) is not None

    def take_if_fits(self, demand: Demand) -> Allocation | None:
        """Take the demand, or return None if it does not fit now."""
        if self.gpu_free:
            return self.take(demand) if self.fits(demand) else None
        free = self.free
        for name, units in demand:
            if free.get(name, 0) < units:
                return None
        for name, units in demand:
            free[name] -= units
        return Allocation(self, demand)

    def take(self, demand: Demand) -> Allocation:
        """Take the demand; the caller has checked that it fits."""
        free = self.free
        for name, units in demand:
            free[name] -= units
        if not self.gpu_free:
            return Allocation(self, demand)
        units = _get_units(demand, "GPU")
        gpu_ids = self._pick_gpus(units) or ()
        for gpu_id in gpu_ids:
            self.gpu_free[gpu_id] -= min(units, UNIT)
        return Allocation(self, demand, gpu_ids)

    def give(self, allocation: Allocation) -> None:
        """Take an allocation back."""
        free = self.free
        for name, units in allocation.demand:
            if not (allocation.cpu_lent and name == "CPU"):
                free[name] += units
        if allocation.gpu_ids:
            units = _get_units(allocation.demand, "GPU")
            for gpu_id in allocation.gpu_ids:
                self.gpu_free[gpu_id] += min(units, UNIT)

    def adjust(self, name: str, units: int) -> None:
        """Add units (or remove them, if negative) of one resource that is lent or reclaimed."""
        if units:
            self.free[name] += units

    def _pick_gpus(self, units: int) -> tuple[GpuId, ...] | None:
        """Return whole GPUs, or for a fraction the fullest GPU with room for it; None if there is none."""
        if units == 0:
            return ()
        if units < UNIT:
            fitting = [gpu_id for gpu_id, left in self.gpu_free.items() if left >= units]
            return (min(fitting, key=self.gpu_free.__getitem__),) if fitting else None
        whole = [gpu_id for gpu_id, left in self.gpu_free.items() if left >= UNIT]
        count = -(-units // UNIT)
        return tuple(whole[:count]) if len(whole) >= count else None


def all_fit(pool: Pool, bundles: tuple[Demand, ...]) -> bool:
    """Return whether the bundles together fit the pool now."""
    taken: list[Allocation] = []
    try:
        for bundle in bundles:
            if not pool.fits(bundle):
                return False
            taken.append(pool.take(bundle))
        return True
    finally:
        for allocation in taken:
            allocation.give_back()
