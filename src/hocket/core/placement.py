"""Placement groups: resources reserved together, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket import exceptions
from hocket.core import session
from hocket.engine import contract, node
from hocket.kernel import resources


class PlacementGroup:
    """A handle on a reservation. Made by `placement_group`."""

    def __init__(self, ref: contract.ObjectRef[None] | None, bundles: Sequence[Mapping[str, float]]) -> None:
        self._ref = ref
        self._bundles = [dict(bundle) for bundle in bundles]

    @classmethod
    def empty(cls) -> PlacementGroup:
        """Return the group that stands for "no placement group"."""
        return cls(None, [])

    @property
    def group_id(self) -> int:
        """The id as a number; 0 for the empty group."""
        return self._ref._id if self._ref is not None else 0

    @property
    def id(self) -> str:
        """The id in hexadecimal."""
        return f"{self.group_id:016x}"

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """The bundles as they were asked for."""
        return [dict(bundle) for bundle in self._bundles]

    @property
    def bundle_count(self) -> int:
        """How many bundles there are."""
        return len(self._bundles)

    def ready(self) -> contract.ObjectRef[None]:
        """Return a reference that has a value when all bundles are reserved."""
        if self._ref is None:
            raise ValueError("The empty placement group reserves nothing. Make one with placement_group([{'CPU': 1}]).")
        return self._ref

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Wait until all bundles are reserved; False if the time is over first."""
        return session.get_engine().wait([self.ready()], 1, timeout_seconds)[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.group_id == other.group_id

    def __hash__(self) -> int:
        return hash(self.group_id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id}, {self._bundles})"


class PlacementGroupSchedulingStrategy:
    """Run a task or an actor in a placement group.

    Args:
        placement_group: Where.
        placement_group_bundle_index: In which bundle, from 0; -1 is any that has room.
    """

    def __init__(self, placement_group: PlacementGroup | None, placement_group_bundle_index: int = -1) -> None:
        if placement_group is not None and not isinstance(placement_group, PlacementGroup):
            raise TypeError(
                f"placement_group must be a PlacementGroup, but received {placement_group!r}. Make one with "
                "hocket.util.placement_group([{'CPU': 1}])."
            )
        count = placement_group.bundle_count if placement_group is not None else 0
        if placement_group is not None and not -1 <= placement_group_bundle_index < count:
            raise ValueError(
                f"placement_group_bundle_index must lie between -1 (any) and {count - 1}, but received "
                f"{placement_group_bundle_index}."
            )
        self.placement_group = placement_group
        self.placement_group_bundle_index = placement_group_bundle_index


def check_strategy(name: str, value: object) -> str | None:
    """Return what is wrong with a scheduling strategy, or None."""
    if isinstance(value, str) and value not in ("DEFAULT", "SPREAD"):
        return f"{name!r} must be 'DEFAULT', 'SPREAD' or a PlacementGroupSchedulingStrategy, but received {value!r}."
    return None


def placement_group(
    bundles: Sequence[Mapping[str, float]], strategy: str | None = "PACK", name: str = ""
) -> PlacementGroup:
    """Reserve bundles of resources, all together or not at all.

    Returns at once; `PlacementGroup.ready` tells when they are reserved. On one machine all strategies but STRICT_SPREAD (which
    needs several) mean the same.

    Args:
        bundles: One dict a bundle, from resource name to amount: ``[{"CPU": 1}, {"CPU": 1, "GPU": 0.5}]``.
        strategy: ``"PACK"`` (default), ``"SPREAD"``, ``"STRICT_PACK"`` or ``"STRICT_SPREAD"``.
        name: For messages and `placement_group_table`.

    Raises:
        ValueError: A bundle is empty or has a negative amount, or the strategy is unknown.
        InfeasibleResourcesError: The session can never have so much.

    Example:
        >>> import hocket
        >>> from hocket.util import placement_group, remove_placement_group
        >>> context = hocket.init(num_cpus=2, engine="inprocess")
        >>> group = placement_group([{"CPU": 1}, {"CPU": 1}])
        >>> group.wait(timeout_seconds=10)
        True
        >>> remove_placement_group(group)
        >>> hocket.shutdown()
    """
    strategy = strategy or "PACK"
    if strategy not in node.STRATEGIES:
        raise ValueError(f"Invalid placement group strategy {strategy!r}. Valid ones are {list(node.STRATEGIES)}.")
    if not isinstance(bundles, list | tuple) or not bundles:
        raise ValueError(f"bundles must be a list of at least one dict such as {{'CPU': 1}}, but received {bundles!r}.")
    demands = []
    for index, bundle in enumerate(bundles):
        if not isinstance(bundle, Mapping) or any(not isinstance(amount, int | float) for amount in bundle.values()):
            raise TypeError(
                f"Bundle {index} must be a dict from name to amount such as {{'CPU': 1}}, but received {bundle!r}."
            )
        demand = resources.parse_demand(bundle)
        if not demand or any(units < 0 for _, units in demand):
            raise ValueError(
                f"Bundle {index} must ask for something, and for nothing negative, but received {bundle!r}. "
                "Write for example {'CPU': 1}."
            )
        demands.append(demand)
    return PlacementGroup(session.get_engine().reserve(demands, strategy, name), bundles)


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Give the bundles back. Tasks and actors in them are ended; what waits for them fails."""
    if not isinstance(placement_group, PlacementGroup):
        raise TypeError(f"remove_placement_group takes a PlacementGroup, but received {placement_group!r}.")
    session.get_engine().remove_group(placement_group.group_id)


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Return the placement group of that name.

    Raises:
        ValueError: There is none.
    """
    engine = session.get_engine()
    for group in engine.list_groups():
        if group["name"] == placement_group_name and placement_group_name:
            ref = engine.intern(int(group["placement_group_id"], 16))
            return PlacementGroup(ref, list(group["bundles"].values()))
    raise ValueError(f"Failed to look up placement group with name {placement_group_name!r}: there is none.")


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Return a description of one placement group, or of all by id."""
    table = {group["placement_group_id"]: group for group in session.get_engine().list_groups()}
    if placement_group is None:
        return table
    found = table.get(placement_group.id)
    if found is None:
        raise exceptions.TaskPlacementGroupRemoved(f"{placement_group!r} was removed.")
    return dict(found)


def get_current_placement_group() -> PlacementGroup | None:
    """Return the placement group that the calling task or actor runs in, or None."""
    engine = session.get_engine()
    found = engine.get_context().placement_group_id
    if found is None:
        return None
    group = next((group for group in engine.list_groups() if group["placement_group_id"] == found), None)
    if group is None:
        return None
    return PlacementGroup(engine.intern(int(found, 16)), list(group["bundles"].values()))
