"""The group of a run's ranks: all start together or not at all, and all end together."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket import exceptions
from hocket._base import settings
from hocket.collective import world
from hocket.core import actor, amounts, api, placement, remote_function, session
from hocket.engine import contract, node
from hocket.train import configs, errors
from hocket.train.checkpoints import cache
from hocket.train.rank import rank_actor, rank_placement
from hocket.train.run import failures, roles

_log = logging.getLogger("hocket.train")

GROW_SECONDS = 5.0
"""Seconds that an elastic group waits for more ranks than its least, when their resources seemed free. A guess."""

RETURN_SECONDS = 2.0
"""Seconds that an elastic group waits until the resources of its former ranks are free again. On one machine they are
free at once; on Ray, this is a guess."""

START_SECONDS = settings.read_seconds("HOCKET_TRAIN_WORKER_GROUP_START_TIMEOUT_S", 60)
"""Seconds that others may hold the resources of a group before `fit` gives up. A group that is started again waits as
long for a node to come back. Ray's default."""

STUCK_SECONDS = 240.0
"""Seconds of further waiting when a node was lost meanwhile. Ray reserves one group after the other. If a machine loses
power during its group's reservation, that group holds up the next ones, and keeps resources of other machines, for 136
seconds (measured with Ray's own settings)."""

LOOK_SECONDS = 0.25
"""Seconds between checks whether a node has come back."""

REMOVE_SECONDS = 15.0
"""Seconds that the removal of copies on the nodes may take before the group's end goes on without it. A guess."""

Ref = contract.AnyRef


class WorkerGroup:
    """The living ranks. Made by `start`; `shutdown` must be called.

    Args:
        reservation: The placement group that holds the ranks' resources.
        actors: The ranks' actors, by rank.
        ranks_places: The ranks' places; empty as long as they are not known.
        scaling: The trainer's configuration.
        ranks_roles: The role of each rank; empty if all are alike.
        runtime_env: The environment of the ranks' processes.
    """

    def __init__(
        self,
        reservation: placement.PlacementGroup,
        actors: Sequence[actor.ActorHandle],
        ranks_places: Sequence[rank_placement.RankPlacement],
        scaling: configs.ScalingConfig,
        ranks_roles: Sequence[roles.Role] = (),
        runtime_env: Mapping[str, object] | None = None,
    ) -> None:
        self._reservation = reservation
        self._runtime_env = runtime_env or {}
        self.actors = tuple(actors)
        self.places = tuple(ranks_places)
        self.scaling = scaling
        self.roles = tuple(ranks_roles)
        self.notes: dict[str, Any] = {}
        """State of the group that backends keep."""
        self.unusable = 0
        """The number of further ranks that free resources suffice for by their sum, but cannot be reserved for. The
        resources lie in pieces too small for a rank, or where the placement strategy forbids ranks."""
        self._folders: set[tuple[str, str]] = set()
        self._secret = secrets.token_hex(16)
        self.resources = contextlib.ExitStack()
        """Resources that `shutdown` closes after the ranks have ended; backends add to them."""

    shares_process = False
    """Whether the ranks are threads of this process. Such ranks can take values that cannot be pickled."""

    def __len__(self) -> int:
        return len(self.actors)

    def execute(self, function: Callable[..., object], args_by_rank: Sequence[tuple[object, ...]]) -> list[Any]:
        """Call a function in all ranks at once, and return its values by rank."""
        return self.gather(
            [handle.execute.remote(function, *args) for handle, args in zip(self.actors, args_by_rank, strict=True)]
        )

    def call(self, rank: int, function: Callable[..., object], *args: object) -> Any:
        """Call a function in one rank, and return its value."""
        return self.get(rank, self.actors[rank].execute.remote(function, *args))

    def gather(self, refs: Sequence[Ref]) -> list[Any]:
        """Return the values of one reference of each rank. The first failure ends the wait."""
        values: dict[Ref, Any] = {}
        waiting = list(refs)
        while waiting:
            ready, waiting = api.wait(waiting, num_returns=1)
            values[ready[0]] = self.get(refs.index(ready[0]), ready[0])
        return [values[ref] for ref in refs]

    def get(self, rank: int, ref: Ref) -> Any:
        """Return the value of a rank's call."""
        try:
            return api.get(ref)
        except exceptions.HocketError as error:  # any other error comes from a signal's handler, not from the rank
            raise self.explain(rank, error) from None

    def explain(self, rank: int, error: Exception) -> errors.WorkerGroupError:
        """Return the group's error, after a rank failed with `error`."""
        return failures.explain(rank, error, self.actors, self.places, [role.name for role in self.roles])

    def list_addresses(self) -> list[str]:
        """Return the address of each rank's node, by rank."""
        known = {found["NodeID"]: str(found["NodeManagerAddress"]) for found in api.nodes()}
        return [known[place.node_id] for place in self.places]

    def start_exchange(self, size: int) -> actor.ActorHandle:
        """Start the actor through which this number of machines gather values. It ends with the group."""
        exchange = world.start_actor(size)
        self.resources.callback(api.kill, exchange)
        return exchange

    def replace(self, rank: int) -> None:
        """Start a new process for a dead rank, on the same node with the same resources. Only in groups with roles."""
        handle = _start_rank(self.roles[rank].bundle, self._runtime_env, self._reservation, rank)
        self.actors = (*self.actors[:rank], handle, *self.actors[rank + 1 :])
        ref = handle.introduce.remote()
        if not api.wait([ref], timeout=START_SECONDS)[0]:
            error = errors.TrainingFailedError(
                f"The rank died, and its new process did not start within {START_SECONDS:.0f} s."
            )
            raise self.explain(rank, error)
        found = [place.introduction for place in self.places]
        found[rank] = self.get(rank, ref)
        self.places = rank_placement.assign(found)

    def claim_folder(self, rank: int) -> str:
        """Return the path for a folder among the temporary files of a rank's node. `shutdown` removes that folder."""
        place = self.places[rank]
        folder = cache.name_folder(place.introduction.temporary, self._secret, place.node_rank)
        self._folders.add((place.node_id, folder))
        return folder

    def shutdown(self) -> None:
        """End all ranks now, and give their resources back. Can be called more than once."""
        with self.resources:
            if not session.is_initialized():  # the session was closed meanwhile, and everything with it
                return
            for handle in self.actors:
                api.kill(handle)
            placement.remove_placement_group(self._reservation)
            self._remove_folders()

    def _remove_folders(self) -> None:
        """Remove the nodes' folders, with a task on each node. A lost node has taken its folder with it."""
        refs: list[Ref] = []
        for node_id, folder in self._folders:
            pids = [place.introduction.pid for place in self.places if place.node_id == node_id]
            affinity = placement.NodeAffinitySchedulingStrategy(node_id, soft=False)
            options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": affinity}
            with contextlib.suppress(exceptions.HocketError):
                refs.append(remote_function.RemoteFunction(cache.remove_folder, options).remote(folder, pids))
        self._folders.clear()
        if refs:
            api.wait(refs, num_returns=len(refs), timeout=REMOVE_SECONDS)


def start(
    scaling: configs.ScalingConfig,
    runtime_env: Mapping[str, object],
    size_before: int = 0,
    ranks_roles: Sequence[roles.Role] = (),
) -> WorkerGroup:
    """Start all ranks, or none.

    Args:
        scaling: The number of ranks and the resources of each.
        runtime_env: The environment of the ranks' processes.
        size_before: The number of ranks before, if the group is started again.
        ranks_roles: The role and resources of each rank, if they are not alike. Ranks then keep this order on any node.
    """
    reservation, size, unusable = _reserve(scaling, size_before, ranks_roles)
    group = WorkerGroup(reservation, (), (), scaling)
    try:
        bundles = _Demand(scaling, ranks_roles, size).bundles
        actors = [_start_rank(bundle, runtime_env, reservation, number) for number, bundle in enumerate(bundles)]
        group = WorkerGroup(reservation, actors, (), scaling, ranks_roles)
        found: list[rank_placement.Introduction] = group.gather([handle.introduce.remote() for handle in actors])
        order = list(range(size)) if ranks_roles else rank_placement.sort_by_node(found)
        ranks_places = rank_placement.assign([found[number] for number in order])
        ordered = [actors[number] for number in order]
        group = WorkerGroup(reservation, ordered, ranks_places, scaling, ranks_roles, runtime_env)
        group.unusable = unusable
    except BaseException:
        group.shutdown()
        raise
    return group


def count_fitting(scaling: configs.ScalingConfig) -> int:
    """Return the number of further ranks that free resources suffice for, by their sum over all nodes."""
    free = api.available_resources()
    return min(int(free.get(name, 0.0) / amount + 1e-6) for name, amount in scaling.bundle.items())


@dataclass(frozen=True)
class _Demand:
    """The resources that a group of one size needs."""

    scaling: configs.ScalingConfig
    roles: Sequence[roles.Role]
    size: int

    @property
    def bundles(self) -> list[Mapping[str, float]]:
        """The resources of each rank."""
        return [role.bundle for role in self.roles] or [self.scaling.bundle] * self.size

    @property
    def total(self) -> dict[str, float]:
        return roles.sum_bundles(self.bundles) if self.roles else self.scaling.multiply(self.size)

    @property
    def name(self) -> str:
        return ", ".join(role.name for role in self.roles) or f"num_workers={self.size}"

    def describe(self) -> str:
        if self.roles:
            return f"{self.name} together need {node.format_resources(self.total)}"
        each = node.format_resources(self.scaling.bundle)
        return f"{self.name} with {each} each need {node.format_resources(self.total)} together"

    def advise(self) -> str:
        """Return advice for the error message, by the resources that are short."""
        there = api.cluster_resources()
        short = [name for name, amount in self.total.items() if amount > there.get(name, 0.0)]
        if short == ["GPU"]:
            if there.get("GPU", 0.0) < self.scaling.bundle.get("GPU", 0.0):
                return "Train on CPUs with ScalingConfig(use_gpu=False)."  # not even one worker fits
            return "Use fewer workers, or train on CPUs with ScalingConfig(use_gpu=False)."
        if short and "CPU" not in short:
            return (
                f"Use fewer workers, or open the session with more of {', '.join(short)}: "
                f"{node.write_init_call(short)}.{amounts.ask_for_names(short, there)}"
            )
        return (
            "Use fewer workers, give each less with ScalingConfig(resources_per_worker={'CPU': 0.5}), or open "
            "the session with more: hocket.init(num_cpus=...)."
        )


def _reserve(
    scaling: configs.ScalingConfig, size_before: int, ranks_roles: Sequence[roles.Role]
) -> tuple[placement.PlacementGroup, int, int]:
    """Reserve the ranks' resources; return the reservation, the number of ranks, and `WorkerGroup.unusable`."""
    chosen = len(ranks_roles) or _choose_size(scaling, size_before)
    reservation, size = _reserve_most(scaling, chosen, size_before, ranks_roles)
    return reservation, size, min(chosen - size, count_fitting(scaling)) if size < chosen else 0


def _reserve_most(
    scaling: configs.ScalingConfig, size: int, size_before: int, ranks_roles: Sequence[roles.Role]
) -> tuple[placement.PlacementGroup, int]:
    """Reserve the resources of this number of ranks, or of fewer, down to the least that is allowed."""
    least = len(ranks_roles) or scaling.min_workers
    there_before = _list_living_nodes()
    while True:
        demand = _Demand(scaling, ranks_roles, size)
        try:
            reservation = _request_patiently(demand, START_SECONDS if size_before and size == least else 0.0)
        except exceptions.InfeasibleResourcesError:  # the sum suffices, but in too small pieces
            if size == least:
                raise
            size -= 1
            continue
        try:
            if reservation.wait(START_SECONDS if size == least else GROW_SECONDS):
                return reservation, size
            if size == least and there_before - _list_living_nodes():
                _warn_of_a_wait(demand.describe())
                if reservation.wait(STUCK_SECONDS):
                    return reservation, size
        except BaseException:
            placement.remove_placement_group(reservation)
            raise
        placement.remove_placement_group(reservation)
        if size == least:
            raise errors.TrainingFailedError(
                f"{demand.describe()}, but that was not free for {START_SECONDS:.0f} s: "
                f"{node.format_resources(api.available_resources())} of "
                f"{node.format_resources(api.cluster_resources())} are left. End the tasks and actors that hold the "
                "rest, or use fewer workers."
            )
        size -= 1


def _list_living_nodes() -> set[str]:
    return {found["NodeID"] for found in api.nodes() if found["Alive"]}


def _warn_of_a_wait(wanted: str) -> None:
    _log.warning(
        "%s, but that could not be reserved in %.0f s, in which a node was lost. Ray may wait for an answer of the "
        "lost node before it gives up, so the wait goes on for %.0f s at most. To shorten it, set "
        "RAY_grpc_client_keepalive_time_ms=10000 where the cluster is started.",
        wanted,
        START_SECONDS,
        STUCK_SECONDS,
    )


def _choose_size(scaling: configs.ScalingConfig, size_before: int) -> int:
    if not scaling.elasticity_enabled:
        return scaling.min_workers
    deadline = time.monotonic() + RETURN_SECONDS
    while (fitting := count_fitting(scaling)) < size_before and time.monotonic() < deadline:
        time.sleep(0.02)
    return min(max(fitting, scaling.min_workers), scaling.max_workers)


def _request_patiently(demand: _Demand, patience_s: float) -> placement.PlacementGroup:
    """Reserve the ranks' resources. If the session has too little, wait up to this time for it to get more."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _request(demand)
        except exceptions.InfeasibleResourcesError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(LOOK_SECONDS)


def _request(demand: _Demand) -> placement.PlacementGroup:
    strategy = demand.scaling.placement_strategy
    try:
        return placement.placement_group(demand.bundles, strategy, name="")
    except exceptions.InfeasibleResourcesError as error:
        num_nodes = len(_list_living_nodes())
        if strategy == "STRICT_SPREAD" and num_nodes < demand.size:
            raise exceptions.InfeasibleResourcesError(
                f"{demand.name} need STRICT_SPREAD on {demand.size} nodes, but the session has {num_nodes}. "
                "Use fewer workers, or placement_strategy='SPREAD', which uses as many nodes as there are."
            ) from error
        have = node.format_resources(api.cluster_resources())
        raise exceptions.InfeasibleResourcesError(
            f"{demand.describe()}, but the session has {have}. {demand.advise()}"
        ) from error


def _start_rank(
    bundle: Mapping[str, float], runtime_env: Mapping[str, object], reservation: placement.PlacementGroup, rank: int
) -> actor.ActorHandle:
    others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
    options = {
        "num_cpus": bundle.get("CPU", 0),
        "num_gpus": bundle.get("GPU", 0),
        "resources": others,
        "max_concurrency": rank_actor.MAX_CONCURRENCY,
        "scheduling_strategy": placement.PlacementGroupSchedulingStrategy(reservation, rank),
    }
    if runtime_env:
        options["runtime_env"] = dict(runtime_env)
    return actor.ActorClass(rank_actor.RankActor, options).remote()
