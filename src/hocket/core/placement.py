"""Placement groups: resources reserved together, or not at all."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket import exceptions
from hocket.core import amounts, labels, session
from hocket.engine import contract, node
from hocket.kernel import resources


class PlacementGroup:
    """A handle on reserved bundles of resources. `placement_group` makes it."""

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
    def id(self) -> contract.Id:
        """The id in hexadecimal: 16 digits, or 36 for a group of Ray's."""
        digits = 16 if self.group_id < 1 << 64 else 36
        return contract.Id(f"{self.group_id:0{digits}x}")

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """The bundles, as the caller gave them."""
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
        """Wait until all bundles are reserved; return False if they are not within `timeout_seconds`."""
        return session.get_engine().objects.wait([self.ready()], 1, timeout_seconds)[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.group_id == other.group_id

    def __hash__(self) -> int:
        return hash(self.group_id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id}, {self._bundles})"


class PlacementGroupSchedulingStrategy:
    """Run a task or an actor in a placement group.

    Args:
        placement_group: The group. None: no group, even if the submitting task runs in a group that captures its
            children.
        placement_group_bundle_index: The bundle, from 0; -1 is any bundle with room.
        placement_group_capture_child_tasks: Whether tasks and actors that this task or actor submits run in the group,
            too, unless their own options differ.
    """

    def __init__(
        self,
        placement_group: PlacementGroup | None,
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
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
        self.placement_group_capture_child_tasks = placement_group_capture_child_tasks


class NodeAffinitySchedulingStrategy:
    """Run a task or an actor on one node.

    Args:
        node_id: The node's id, from `hocket.nodes()` or `get_runtime_context().get_node_id()`.
        soft: Whether another node may run it if this node does not exist. Otherwise the call raises.
    """

    def __init__(self, node_id: str, soft: bool) -> None:
        if not node_id or type(node_id) is not str:
            raise TypeError(
                f"node_id must be a node's id, but received {node_id!r}. Take one from hocket.nodes()[0]['NodeID']."
            )
        self.node_id = node_id
        self.soft = soft


@dataclass(frozen=True)
class In:
    """A condition: the label has one of these values."""

    values: tuple[str, ...]

    def __init__(self, *values: str) -> None:
        object.__setattr__(self, "values", values)

    def matches(self, label: str | None) -> bool:
        """Return whether a node's label (None: it has none) meets the condition."""
        return label in self.values


@dataclass(frozen=True)
class NotIn:
    """A condition: the label has none of these values."""

    values: tuple[str, ...]

    def __init__(self, *values: str) -> None:
        object.__setattr__(self, "values", values)

    def matches(self, label: str | None) -> bool:
        """Return whether a node's label (None: it has none) meets the condition."""
        return label not in self.values


@dataclass(frozen=True)
class Exists:
    """A condition: the node has the label."""

    def matches(self, label: str | None) -> bool:
        """Return whether a node's label (None: it has none) meets the condition."""
        return label is not None


@dataclass(frozen=True)
class DoesNotExist:
    """A condition: the node does not have the label."""

    def matches(self, label: str | None) -> bool:
        """Return whether a node's label (None: it has none) meets the condition."""
        return label is None


Condition = In | NotIn | Exists | DoesNotExist


class NodeLabelSchedulingStrategy:
    """Run a task or an actor on a node with certain labels.

    Args:
        hard: Conditions by label, which the node must meet.
        soft: Conditions by label, which the node should meet.
    """

    def __init__(self, hard: Mapping[str, Condition] | None, *, soft: Mapping[str, Condition] | None = None) -> None:
        if not hard and not soft:
            raise ValueError("NodeLabelSchedulingStrategy needs conditions: write hard={'disk': In('ssd')}.")
        for name, condition in {**(hard or {}), **(soft or {})}.items():
            if not isinstance(condition, Condition):
                raise ValueError(
                    f"The condition on label {name!r} must be In, NotIn, Exists or DoesNotExist, but received "
                    f"{condition!r}. Write {{{name!r}: In({condition!r})}}."
                )
            values = getattr(condition, "values", ())
            problems = [labels.explain_key(name), *(labels.explain_value(name, value) for value in values)]
            problem = next((problem for problem in problems if problem is not None), None)
            if problem is not None:
                raise ValueError(problem)
        self.hard = dict(hard or {})
        self.soft = dict(soft or {})


def check_strategy(name: str, value: object) -> str | None:
    """Return the error message for a scheduling strategy; None if it is right."""
    if isinstance(value, str) and value not in ("DEFAULT", "SPREAD"):
        return f"{name!r} must be 'DEFAULT', 'SPREAD' or a PlacementGroupSchedulingStrategy, but received {value!r}."
    return None


def check_group(name: str, value: object) -> str | None:
    """Return the error message for the keyword `placement_group`; None if it is right."""
    if isinstance(value, str) and value != "default":
        return f"{name!r} must be a PlacementGroup or 'default', but received {value!r}."
    return None


def check_fallback(name: str, value: Sequence[object]) -> str | None:
    """Return the error message for a list of fallbacks; None if it is right."""
    for part in value:
        if not isinstance(part, dict) or set(part) != {"label_selector"}:
            return (
                f"{name!r} must be a list of dicts such as {{'label_selector': {{'disk': 'ssd'}}}}, but holds {part!r}."
            )
        problem = labels.explain_selector("label_selector", part["label_selector"])
        if problem is not None:
            return problem
    return None


def check_conflicts(given: Mapping[str, object], what: str) -> None:
    """Warn of the old keyword `placement_group`; raise ValueError if the strategy that replaces it is given, too."""
    if given.get("placement_group") is None:
        return
    if given.get("scheduling_strategy") is not None:
        raise ValueError(
            f"The keywords 'placement_group' and 'scheduling_strategy' of {what} exclude each other. Leave out "
            "'placement_group', and write scheduling_strategy=PlacementGroupSchedulingStrategy(group)."
        )
    warnings.warn(
        "The keyword 'placement_group' is deprecated. Write "
        "scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle_index).",
        DeprecationWarning,
        stacklevel=4,
    )


def find_group(given: Mapping[str, Any]) -> tuple[int, int, bool]:
    """Return the placement group's id (0: none), the bundle, and whether children run in the group, too."""
    strategy = _find_strategy(given)
    if not isinstance(strategy, PlacementGroupSchedulingStrategy) or strategy.placement_group is None:
        return 0, -1, False
    captures = bool(strategy.placement_group_capture_child_tasks)
    return strategy.placement_group.group_id, strategy.placement_group_bundle_index, captures


def leaves_group(given: Mapping[str, Any]) -> bool:
    """Return whether the options explicitly ask for no placement group: then no group captures the work."""
    strategy = _find_strategy(given)
    return isinstance(strategy, PlacementGroupSchedulingStrategy) and (
        strategy.placement_group is None or not strategy.placement_group.group_id
    )


def _find_strategy(given: Mapping[str, Any]) -> object:
    if not isinstance(given.get("placement_group"), PlacementGroup):
        return given.get("scheduling_strategy")
    return PlacementGroupSchedulingStrategy(
        given["placement_group"],
        -1 if given.get("placement_group_bundle_index") is None else given["placement_group_bundle_index"],
        given.get("placement_group_capture_child_tasks"),
    )


# --- nodes ------------------------------------------------------------------------------------------------------------


def names_nodes(given: Mapping[str, object]) -> bool:
    """Return whether the options choose among nodes, and `check_nodes` has to check them."""
    strategy = given.get("scheduling_strategy")
    return bool(given.get("label_selector")) or isinstance(
        strategy, NodeAffinitySchedulingStrategy | NodeLabelSchedulingStrategy
    )


def describe_choice(given: Mapping[str, object]) -> str:
    """Return the options' choice of nodes as text (`resources.Shape.nodes`); empty if they do not choose.

    The text is JSON with a ``kind``: ``strategy`` (``name``), ``node`` (``node_id``, ``soft``), ``labels`` (``hard``
    and ``soft``, each with the condition's name and values by label) or ``selector`` (``label_selector``,
    ``fallback_strategy``).
    """
    strategy = given.get("scheduling_strategy")
    choice: dict[str, object] = {}
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        choice = {"kind": "node", "node_id": strategy.node_id, "soft": strategy.soft}
    elif isinstance(strategy, NodeLabelSchedulingStrategy):
        sides = {"hard": strategy.hard, "soft": strategy.soft}
        choice = {"kind": "labels"} | {
            side: {name: [type(one).__name__, *getattr(one, "values", ())] for name, one in conditions.items()}
            for side, conditions in sides.items()
        }
    elif given.get("label_selector"):
        choice = {"kind": "selector"} | {
            name: given[name] for name in ("label_selector", "fallback_strategy") if given.get(name)
        }
    elif strategy == "SPREAD":
        choice = {"kind": "strategy", "name": strategy}
    return json.dumps(choice, sort_keys=True) if choice else ""


def check_nodes(given: Mapping[str, Any], what: str) -> None:
    """Raise TaskUnschedulableError if no node meets the options."""
    nodes = session.get_engine().resources.list_nodes()
    strategy = given.get("scheduling_strategy")
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        if not strategy.soft and strategy.node_id not in [node["NodeID"] for node in nodes]:
            raise exceptions.TaskUnschedulableError(
                f"{what} must run on node {strategy.node_id!r}, but no node has this id. Take an id from "
                "hocket.nodes(), or set soft=True."
            )
        return
    if isinstance(strategy, NodeLabelSchedulingStrategy):
        if not any(
            all(condition.matches(node["Labels"].get(name)) for name, condition in strategy.hard.items())
            for node in nodes
        ):
            raise exceptions.TaskUnschedulableError(
                f"{what} needs a node with the labels {strategy.hard}, but the labels of the nodes are "
                f"{[node['Labels'] for node in nodes]}. Give labels with hocket.init(labels={{...}})."
            )
        return
    selectors = [given["label_selector"]]
    selectors += [part["label_selector"] for part in given.get("fallback_strategy") or ()]
    if not any(_matches(selector, node["Labels"]) for selector in selectors for node in nodes):
        raise exceptions.TaskUnschedulableError(
            f"{what} needs a node with the labels {' or '.join(map(str, selectors))}, but the labels of the "
            f"nodes are {[node['Labels'] for node in nodes]}. Give labels with hocket.init(labels={{...}})."
        )


def _matches(selector: Mapping[str, str], given: Mapping[str, str]) -> bool:
    for name, wanted in selector.items():
        negated = wanted.startswith("!")
        text = wanted.removeprefix("!")
        values = [part.strip() for part in text[3:-1].split(",")] if text.startswith("in(") else [text]
        if (given.get(name) in values) == negated:
            return False
    return True


@exceptions.hide_frames_of
def placement_group(
    bundles: Sequence[Mapping[str, float]],
    strategy: str | None = "PACK",
    name: str = "",
    lifetime: str | None = None,
    **ignored: object,
) -> PlacementGroup:
    """Reserve bundles of resources, all together or not at all.

    The call returns at once; `PlacementGroup.ready` shows when the bundles are reserved. On one machine all strategies
    mean the same, except STRICT_SPREAD, which needs several machines.

    Args:
        bundles: A dict for each bundle, from resource name to amount: ``[{"CPU": 1}, {"CPU": 1, "GPU": 0.5}]``.
        strategy: ``"PACK"`` (default), ``"SPREAD"``, ``"STRICT_PACK"`` or ``"STRICT_SPREAD"``.
        name: The group's name, for messages, `get_placement_group` and `placement_group_table`.
        lifetime: None or ``"detached"``. A group that an actor has made ends with the actor, unless it is detached;
            others live until they are removed or the session ends.
        **ignored: Ray's keywords that choose among nodes (``_soft_target_node_id``, ``bundle_label_selector``,
            ``topology_strategy``). They have no effect.

    Raises:
        ValueError: A bundle is empty or has a negative amount, or the strategy is unknown.
        InfeasibleResourcesError: The session can never have so much.

    Example:
        >>> from hocket.util import placement_group, remove_placement_group
        >>> group = placement_group([{"CPU": 1}, {"CPU": 1}])
        >>> group.wait(timeout_seconds=10)
        True
        >>> remove_placement_group(group)
    """
    strategy = strategy or "PACK"
    unknown = sorted(set(ignored) - {"_soft_target_node_id", "bundle_label_selector", "topology_strategy"})
    if unknown:
        raise TypeError(
            f"placement_group() has no keyword {unknown[0]!r}. It takes bundles, strategy, name and lifetime."
        )
    if lifetime not in (None, "detached"):
        raise ValueError(f"lifetime must be None or 'detached', but received {lifetime!r}.")
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
        for resource, amount in bundle.items():
            problem = amounts.explain_amount(f"{resource!r} of bundle {index}", resource, amount)
            if problem is not None:
                raise ValueError(problem)
        demand = resources.parse_demand(bundle)
        if not demand:
            raise ValueError(
                f"Bundle {index} must have an amount above 0, but received {bundle!r}. Write for example {{'CPU': 1}}."
            )
        demands.append(demand)
    engine, is_detached = session.get_engine(), lifetime == "detached"
    try:
        return PlacementGroup(engine.resources.reserve(demands, strategy, name, is_detached=is_detached), bundles)
    except exceptions.InfeasibleResourcesError as error:
        names = dict.fromkeys(itertools.chain.from_iterable(bundles))
        question = amounts.ask_for_names(names, engine.resources.get_total_resources())
        if not question:
            raise
        raise type(error)(f"{error}{question}") from None


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Give the bundles back. Tasks and actors in them end; tasks and actors that wait for them fail."""
    if not isinstance(placement_group, PlacementGroup):
        raise TypeError(f"remove_placement_group takes a PlacementGroup, but received {placement_group!r}.")
    session.get_engine().resources.remove_group(placement_group.group_id)


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Return the placement group with this name.

    Raises:
        ValueError: There is no such group.
    """
    engine = session.get_engine()
    for group in engine.resources.list_groups():
        if group["name"] == placement_group_name and placement_group_name and group["state"] != "REMOVED":
            ref = engine.handles.intern(int(group["placement_group_id"], 16))
            return PlacementGroup(ref, list(group["bundles"].values()))
    raise ValueError(f"Failed to look up placement group with name {placement_group_name!r}: no group has it.")


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Return a description of one placement group, or of all by id.

    The table includes the last thousand removed groups, with the state ``"REMOVED"``.
    """
    table = {group["placement_group_id"]: group for group in session.get_engine().resources.list_groups()}
    if placement_group is None:
        return table
    found = table.get(placement_group.id)
    if found is None:
        raise exceptions.TaskPlacementGroupRemoved(f"{placement_group!r} was removed.")
    return dict(found)


def get_current_placement_group() -> PlacementGroup | None:
    """Return the placement group in which the calling task or actor runs; None if there is none."""
    engine = session.get_engine()
    found = engine.view.get_context().placement_group_id
    if found is None:
        return None
    group = next((group for group in engine.resources.list_groups() if group["placement_group_id"] == found), None)
    if group is None:
        return None
    return PlacementGroup(engine.handles.intern(int(found, 16)), list(group["bundles"].values()))
