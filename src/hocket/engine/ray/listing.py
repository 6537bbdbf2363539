"""Ray's facts about running code, nodes, placement groups and actors, and about the objects of this process."""

from __future__ import annotations

import functools
import operator
import os
import pickle
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import ray

from hocket import exceptions
from hocket._base.internals import ray as ray_internals
from hocket.engine import contract, node, rules
from hocket.engine.ray import keywords, natives, outside, runner
from hocket.kernel import records, resources

Row = dict[str, Any]

_KV_NAMESPACE = b"hocket"

_OF_GROUP = re.compile(rf"_group_(\d+_)?[0-9a-f]{{{2 * ray.PlacementGroupID.size()}}}$")
"""A pattern of Ray's names for the resources of a placement group's bundles, which it lists beside the nodes' own."""

# --- the calling code -------------------------------------------------------------------------------------------------


_DEATH_SECONDS: Final = 5.0
"""How many seconds to wait for the death of a killed actor. A guess: Ray reports it within some 10 ms."""


def build_context(session_id: str, namespace: str) -> contract.WorkContext:
    """Return facts about the task, actor or driver that runs the calling code."""
    found = ray.get_runtime_context()
    actor_id = found.get_actor_id()
    is_work = found.worker.mode == ray.WORKER_MODE
    return contract.WorkContext(
        job_id=session_id,
        node_id=found.get_node_id(),
        worker_id=found.get_worker_id(),
        task_id=found.get_task_id() if is_work else None,
        task_name=found.get_task_name() if is_work else None,
        function_name=found.get_task_function_name() if is_work else None,
        actor_id=actor_id,
        actor_name=found.get_actor_name() if actor_id else None,
        resources=found.get_assigned_resources() if is_work else {},
        gpu_ids=tuple(ray.get_gpu_ids()) if is_work else (),
        placement_group_id=found.get_placement_group_id() if is_work else None,
        namespace=namespace,
        actor_attempt=_count_restarts(actor_id) if actor_id else 0,
        is_canceled=is_work and _is_canceled(found),
        environment=_format_environment(found),
        captures_children=found.should_capture_child_tasks_in_placement_group,
    )


@functools.cache  # this process has one actor, and ends with it: the count never changes
def _count_restarts(actor_id: str) -> int:
    found = ray_internals.find_actor(actor_id)
    return int(found["NumRestarts"]) if found else 0


def _is_canceled(found: Any) -> bool:
    try:
        return bool(found.is_canceled())
    except RuntimeError:  # Ray raises in an asynchronous actor, where asyncio cancels calls
        return False


def _format_environment(found: Any) -> str:
    text = found.get_runtime_env_string()
    return "" if text in ("", "{}") else str(text)


# --- nodes and their resources ----------------------------------------------------------------------------------------


def hide_groups(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return resources as every engine lists them: without those of placement groups."""
    return {name: amount for name, amount in amounts.items() if not _OF_GROUP.search(name)}


def list_nodes() -> list[Row]:
    """Return Ray's description of each node."""
    return [{**found, "Resources": hide_groups(found["Resources"])} for found in ray.nodes()]


def _list_totals() -> list[dict[str, float]]:
    return [found["Resources"] for found in list_nodes() if found["Alive"]]


def can_grow() -> bool:
    """Return whether an autoscaler may add nodes: then no request is certainly impossible."""
    return outside.ask(_can_grow)


def _can_grow() -> bool:
    return bool(ray_internals.read_most_resources())


def find_obstacle(shape: resources.Shape, group: Any, what: str) -> str | None:
    """Return why no task of the shape can ever run; None if one can, or if the cluster may grow."""
    if shape.group_id:
        bundles = group.bundle_specs if group is not None else keywords.build_group(shape.group_id).bundle_specs
        if shape.bundle_index >= 0:
            bundles = bundles[shape.bundle_index : shape.bundle_index + 1]
        if any(_fits(shape.demand, bundle) for bundle in bundles):
            return None
        return node.explain_infeasible(what, shape, {})
    totals = _list_totals()
    if any(_fits(shape.demand, total) for total in totals) or can_grow():
        return None
    if len(totals) == 1:
        return node.explain_infeasible(what, shape, totals[0])
    largest = " or ".join(sorted({node.format_resources(total) for total in totals}))
    return (
        f"{what} asks for {resources.format_demand(shape.demand)}, but no node of this cluster has that much; the "
        f"nodes have {largest}. Ask for less, or add a larger node."
    )


def _fits(demand: resources.Demand, total: Mapping[str, float]) -> bool:
    return all(units <= round(total.get(name, 0) * resources.UNIT) for name, units in demand)


HOMELESS_SECONDS: Final = 20.0
"""After the last large enough node was lost, a task waits so many seconds for another before it fails. A guess: a node
that is started again takes some seconds to join."""


class Room:
    """A memory of the shapes for which some node is large enough."""

    def __init__(self) -> None:
        self._feasible: set[resources.Shape] = set()
        #: By shape, the time since when no node is large enough any more.
        self._homeless: dict[resources.Shape, float] = {}

    def check(
        self, shape: resources.Shape, group: Any, kind: type[exceptions.InfeasibleResourcesError], what: str
    ) -> None:
        """Raise if no task of the shape can ever run."""
        if shape in self._feasible:
            return
        problem = find_obstacle(shape, group, what)
        if problem is not None:
            raise kind(problem)
        self._feasible.add(shape)

    def find_loss(self, shape: resources.Shape) -> str | None:
        """Return why no node is large enough; None if one is, or if one was within the last `HOMELESS_SECONDS`."""
        problem = None if shape.group_id else find_obstacle(shape, None, "")
        if problem is None:
            self._homeless.pop(shape, None)
            return None
        self._feasible.discard(shape)
        since = self._homeless.setdefault(shape, time.monotonic())
        return problem.strip() if time.monotonic() - since >= HOMELESS_SECONDS else None


def check_bundles(bundles: Sequence[resources.Demand], strategy: str) -> None:
    """Raise if bundles can certainly never be reserved together. Bundles that pass may still find no room."""
    if can_grow():
        return
    totals = _list_totals()
    if strategy == "STRICT_SPREAD" and len(bundles) > len(totals):
        raise exceptions.InfeasibleResourcesError(
            f"A placement group with strategy STRICT_SPREAD asks for {len(bundles)} nodes, but this session has "
            f"{len(totals)}. Use strategy='SPREAD' or 'PACK'."
        )
    asked = _add_up(dict(bundle) for bundle in bundles)
    rooms = totals if strategy == "STRICT_PACK" else [_add_up(totals)]
    each_fits = all(any(_fits(bundle, total) for total in totals) for bundle in bundles)
    if not each_fits or not any(_fits(tuple(asked.items()), room) for room in rooms):
        have = " and ".join(map(node.format_resources, totals))
        raise node.explain_infeasible_bundles(bundles, have, _add_up(totals))


def _add_up(amounts: Iterable[Mapping[str, object]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in amounts:
        total.update(one)
    return total


# --- placement groups -------------------------------------------------------------------------------------------------


_GROUP_FIELDS = ("placement_group_id", "name", "bundles", "bundles_to_node_id", "strategy", "state", "stats")


def list_groups() -> list[Row]:
    """Return a description of each placement group."""
    return [
        {name: found[name] for name in _GROUP_FIELDS if name in found}
        for found in ray.util.placement_group_table().values()
    ]


def list_removed_groups() -> set[int]:
    """Return the ids of placement groups that are gone."""
    return {int(found["placement_group_id"], 16) for found in list_groups() if found["state"] == "REMOVED"}


def find_group(group_id: int) -> object:
    """Return Ray's handle on the placement group with this id; None if there is none."""
    if any(int(found["placement_group_id"], 16) == group_id for found in list_groups()):
        return keywords.build_group(group_id)
    return None


# --- actors -----------------------------------------------------------------------------------------------------------


def publish_actor(native: object, options: records.ActorOptions) -> None:
    """Publish the options of an actor with a name to all processes."""
    ray_internals.put_value(_get_key(native), ray.cloudpickle.dumps(options), _KV_NAMESPACE)


def look_up_actor(native: object, name: str, namespace: str) -> records.ActorOptions:
    """Return an actor's options; for an actor that plain Ray has made, those in Ray's handle."""
    key = _get_key(native)
    blob = ray_internals.get_value(key, _KV_NAMESPACE)
    if blob is None:
        class_name, names = outside.ask(ray_internals.describe_handle, native)
        # Ray knows the name of an actor of ours a moment before its creator publishes the options.
        deadline = time.monotonic() + (rules.CLAIM_SECONDS if name and runner.CALL_FUNCTION in names else 0.0)
        while blob is None and time.monotonic() < deadline:
            time.sleep(rules.CLAIM_INTERVAL_S)
            blob = ray_internals.get_value(key, _KV_NAMESPACE)
        if blob is None:
            return _build_options(class_name, names, name, namespace)
    options: records.ActorOptions = pickle.loads(blob)
    return options


def _build_options(class_name: str, names: Sequence[str], name: str, namespace: str) -> records.ActorOptions:
    """Return the options of an actor of plain Ray."""
    methods = tuple((method, records.MethodOptions()) for method in names)
    shape = records.DEFAULT_SHAPE
    return records.ActorOptions(
        class_name=class_name.rpartition(".")[2],
        creation=records.TaskOptions(name=f"{class_name}.__init__", shape=shape),
        lifetime_shape=resources.Shape(()),
        name=name,
        namespace=namespace,
        methods=methods,
    )


def _get_key(native: object) -> bytes:
    return f"actor:{natives.format_id(native)}".encode()


# --- counts ----------------------------------------------------------------------------------------------------------


def list_living_actors() -> list[str]:
    """Return the ids of the actors of this driver's job that are not dead."""
    return [actor_id for actor_id, state in outside.ask(_list_actor_states).items() if state != "DEAD"]


def list_dead_actors() -> list[str]:
    """Return the ids of the actors of this driver's job that are dead."""
    return [actor_id for actor_id, state in outside.ask(_list_actor_states).items() if state == "DEAD"]


def _list_actor_states() -> dict[str, str]:
    job_id = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    return {actor_id: actor["State"] for actor_id, actor in ray_internals.list_actors(job_id).items()}


def list_objects() -> dict[bytes, Row]:
    """Return the counts of each object that this process refers to, by id."""
    return outside.list_objects() if outside.is_outside() else ray_internals.count_references()


def count(earlier: frozenset[bytes | str]) -> dict[str, Any]:
    """Return this process's counts for `statistics`, without the objects and actors in `earlier`."""
    counts = [found for object_id, found in list_objects().items() if object_id not in earlier]
    return {
        "tasks": sum(map(operator.itemgetter("submitted"), counts)),
        "objects": len(counts),
        "actors": len(set(list_living_actors()) - earlier),
        "workers": 0,
        "worker_pids": [],
        "guardian_pid": None,
        "shared_bytes": 0,
        "driver_pid": os.getpid(),
    }


# By the contract, an actor's placement groups end with the actor, unless they are detached. Ray removes them only at
# the end of the whole job, and their resources would stay unused until then. So the engine looks for such groups when
# it kills an actor, and while a caller waits.
def remove_groups() -> None:
    """Remove the groups of this driver's dead actors."""
    outside.ask(_remove_groups)


def remove_groups_of(actor_id: str) -> None:
    """Remove the groups of a killed actor as soon as it is dead. `actor_id` is in hexadecimal."""
    outside.ask(_remove_groups_of, actor_id)


def _remove_groups() -> None:
    for found in _list_groups_of_actors():
        if found.creator_actor_dead:
            _remove_group(found)


def _remove_groups_of(actor_id: str) -> None:
    deadline = time.monotonic() + _DEATH_SECONDS
    while True:
        groups = [found for found in _list_groups_of_actors() if found.creator_actor_id.hex() == actor_id]
        if all(found.creator_actor_dead for found in groups) or time.monotonic() > deadline:
            break
        time.sleep(0.005)
    for found in groups:
        _remove_group(found)


def _remove_group(found: Any) -> None:
    ray.util.remove_placement_group(keywords.build_group(int(found.placement_group_id.hex(), 16)))


def _list_groups_of_actors() -> Iterator[Any]:
    """Yield the rows of the groups that actors of this driver's job have made."""
    job_id = ray.get_runtime_context().get_job_id()
    for found, is_over in ray_internals.list_groups():
        is_of_actor = any(found.creator_actor_id) and found.creator_actor_id != ray.ActorID.nil().binary()
        if found.creator_job_id.hex() == job_id and is_of_actor and not found.is_detached and not is_over:
            yield found
