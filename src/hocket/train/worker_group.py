"""The gang: all ranks of a run, started together or not at all, and ended together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from hocket import exceptions
from hocket.core import actor, api, placement, remote_function, session
from hocket.engine import contract
from hocket.train import configs, copies, errors, failures, places, rank_actor

START_SECONDS = float(os.environ.get("HOCKET_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "60"))
"""How long the resources of a group may be held by others before `fit` gives up. Ray's default."""

REMOVE_SECONDS = 15.0
"""How long the removal of copies on the nodes may take before the group's end goes on without it. A guess."""

Ref = contract.ObjectRef[Any]


class WorkerGroup:
    """Living ranks. Made by `start`; `shutdown` must be called.

    Args:
        reservation: The placement group that holds their resources.
        actors: By rank.
        ranks_places: Where each of them is; none as long as it is not known.
        scaling: What they were started from.
    """

    def __init__(
        self,
        reservation: placement.PlacementGroup,
        actors: Sequence[actor.ActorHandle],
        ranks_places: Sequence[places.Place],
        scaling: configs.ScalingConfig,
    ) -> None:
        self._reservation = reservation
        self.actors = tuple(actors)
        self.places = tuple(ranks_places)
        self.scaling = scaling
        self._folders: set[tuple[str, str]] = set()
        self.resources = contextlib.ExitStack()
        """What `shutdown` closes after the ranks have ended; backends add to it."""

    def __len__(self) -> int:
        return len(self.actors)

    def execute(self, function: Callable[..., Any], args_by_rank: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function in all ranks at once; return what it returns, by rank.

        Raises:
            WorkerGroupError: It raised in a rank, or a rank died.
        """
        return self.gather(
            [handle.execute.remote(function, *args) for handle, args in zip(self.actors, args_by_rank, strict=True)]
        )

    def call(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in one rank; return what it returns.

        Raises:
            WorkerGroupError: It raised, or the rank died.
        """
        return self.get(rank, self.actors[rank].execute.remote(function, *args))

    def gather(self, refs: Sequence[Ref]) -> list[Any]:
        """Wait for one reference of each rank; the first failure ends the wait.

        Raises:
            WorkerGroupError: One of them is an error.
        """
        values: dict[Ref, Any] = {}
        waiting = list(refs)
        while waiting:
            ready, waiting = api.wait(waiting, num_returns=1)
            values[ready[0]] = self.get(refs.index(ready[0]), ready[0])
        return [values[ref] for ref in refs]

    def get(self, rank: int, ref: Ref) -> Any:
        """Return the value of a rank's call.

        Raises:
            WorkerGroupError: It is an error.
        """
        try:
            return api.get(ref)
        except Exception as error:
            raise self.explain(rank, error) from error

    def explain(self, rank: int, error: Exception) -> errors.WorkerGroupError:
        """Return the group's error, after something of a rank's failed with `error`."""
        return failures.explain(rank, error, self.actors, self.places)

    def claim_folder(self, rank: int, token: str) -> str:
        """Return the path of a folder among the temporary files of a rank's node; `shutdown` removes it, if it was made."""
        place = self.places[rank]
        folder = copies.name_folder(place.introduction.temporary, token, place.node_rank)
        self._folders.add((place.node_id, folder))
        return folder

    def shutdown(self) -> None:
        """End all ranks now, and give their resources back. Can be called again."""
        with self.resources:
            if not session.is_initialized():  # closed under us, and everything with it
                return
            for handle in self.actors:
                api.kill(handle)
            placement.remove_placement_group(self._reservation)
            self._remove_folders()

    def _remove_folders(self) -> None:
        """Have the nodes' folders removed, by a task on each node. A node that is gone has taken its folder with it."""
        refs: list[Ref] = []
        for node_id, folder in self._folders:
            pids = [place.introduction.pid for place in self.places if place.node_id == node_id]
            affinity = placement.NodeAffinitySchedulingStrategy(node_id, soft=False)
            options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": affinity}
            with contextlib.suppress(exceptions.HocketError):
                refs.append(remote_function.RemoteFunction(copies.remove_folder, options).remote(folder, pids))
        self._folders.clear()
        if refs:
            api.wait(refs, num_returns=len(refs), timeout=REMOVE_SECONDS)


def start(scaling: configs.ScalingConfig) -> WorkerGroup:
    """Start all ranks, or none.

    Raises:
        InfeasibleResourcesError: They ask for more than the session can ever have.
        TrainingFailedError: What they ask for was held by others for too long.
        WorkerGroupError: A rank died while it started.
    """
    reservation = _reserve(scaling)
    group = WorkerGroup(reservation, (), (), scaling)
    try:
        if not reservation.wait(START_SECONDS):
            raise errors.TrainingFailedError(
                f"{_describe(scaling)} were not free for {START_SECONDS:.0f} s: of {api.cluster_resources()} there are "
                f"{api.available_resources()} left. End the tasks and actors that hold the rest, or use fewer workers."
            )
        actors = [_start_rank(scaling, reservation, number) for number in range(scaling.num_workers)]
        group = WorkerGroup(reservation, actors, (), scaling)
        found: list[places.Introduction] = group.gather([handle.introduce.remote() for handle in actors])
        order = places.sort_by_node(found)
        ranks_places = places.assign([found[number] for number in order])
        group = WorkerGroup(reservation, [actors[number] for number in order], ranks_places, scaling)
    except BaseException:
        group.shutdown()
        raise
    return group


def _reserve(scaling: configs.ScalingConfig) -> placement.PlacementGroup:
    bundles = [scaling.bundle] * scaling.num_workers
    try:
        return placement.placement_group(bundles, scaling.placement_strategy, name="")
    except exceptions.InfeasibleResourcesError as error:
        num_nodes = sum(node["Alive"] for node in api.nodes())
        if scaling.placement_strategy == "STRICT_SPREAD" and num_nodes < scaling.num_workers:
            raise exceptions.InfeasibleResourcesError(
                f"num_workers={scaling.num_workers} need STRICT_SPREAD on {scaling.num_workers} nodes, but the session has {num_nodes}. "
                "Use fewer workers, or placement_strategy='SPREAD', which uses as many nodes as there are."
            ) from error
        raise exceptions.InfeasibleResourcesError(
            f"{_describe(scaling)}, but the session has {api.cluster_resources()}. Use fewer workers, give each less with "
            "ScalingConfig(resources_per_worker={'CPU': 0.5}), or open the session with more: hocket.init(num_cpus=...)."
        ) from error


def _describe(scaling: configs.ScalingConfig) -> str:
    return f"num_workers={scaling.num_workers} with {scaling.bundle} each need {scaling.total_resources}"


def _start_rank(scaling: configs.ScalingConfig, reservation: placement.PlacementGroup, rank: int) -> actor.ActorHandle:
    others = {name: amount for name, amount in scaling.bundle.items() if name not in ("CPU", "GPU")}
    return actor.ActorClass(
        rank_actor.RankActor,
        {
            "num_cpus": scaling.bundle.get("CPU", 0),
            "num_gpus": scaling.bundle.get("GPU", 0),
            "resources": others,
            "max_concurrency": rank_actor.MAX_CONCURRENCY,
            "scheduling_strategy": placement.PlacementGroupSchedulingStrategy(reservation, rank),
        },
    ).remote()
