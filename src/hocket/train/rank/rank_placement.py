"""The places of a group's ranks: the node of each, and its index there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Introduction:
    """The facts that a rank's process sends when it has started."""

    node_id: str
    pid: int
    gpu_ids: tuple[str, ...]
    temporary: str
    """The folder of the node's temporary files."""
    num_cores: int = 0
    """The number of processors that the process may run on; 0 if not known."""


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """The place of a rank."""

    introduction: Introduction
    local_rank: int
    """The rank's index among the ranks of its node."""
    local_world_size: int
    """The number of ranks on the node."""
    node_rank: int
    """The index of the node."""

    @property
    def node_id(self) -> str:
        """The id of the node."""
        return self.introduction.node_id


def sort_by_node(found: Sequence[Introduction]) -> list[int]:
    """Return the order in which processes become ranks: node by node, the first process's node first, then by GPU.

    The order is Ray Train's. Frameworks may assume that neighbours are on one machine.
    """
    nodes = list(dict.fromkeys(one.node_id for one in found))

    def rank(index: int) -> tuple[int, list[tuple[int, str]]]:
        one = found[index]
        return nodes.index(one.node_id), [(int(gpu) if gpu.isdecimal() else 0, gpu) for gpu in one.gpu_ids]

    return sorted(range(len(found)), key=rank)


def describe_crowd(ranks_places: Sequence[RankPlacement]) -> str:
    """Return the warning for ranks that outnumber the processors of their node; an empty string if none do."""
    for place in ranks_places:
        cores = place.introduction.num_cores
        if 0 < cores < place.local_world_size:
            return (
                f"{place.local_world_size} ranks share {cores} processor{'s' * (cores != 1)} of one machine. Each rank "
                "repeats the work that does not depend on its number of rows, above all the optimizer's step, and "
                f"waits for its turn to compute. So this is slower than num_workers={cores}, which has the same "
                f'results if each rank gets {place.local_world_size / cores:.3g} times the rows. See "How many ranks" '
                "in docs/train.md."
            )
    return ""


def describe_launcher(variables: Mapping[str, str]) -> str:
    """Return the warning for several processes of `hocket run` or torchrun that each train with ranks of their own.

    In all processes but the first, and elsewhere, return an empty string.

    Args:
        variables: The environment of the process that calls ``fit``.
    """
    is_launched = "TORCHELASTIC_RUN_ID" in variables  # Hocket's own ranks have the other variables too
    size = variables.get("WORLD_SIZE", "1")
    if not is_launched or size == "1" or variables.get("RANK") != "0":
        return ""
    return (
        f"`hocket run` or torchrun has started {size} processes, and each of them calls fit(), which starts ranks of "
        "its own and repeats the same training. Start the script with python."
    )


def assign(found: Sequence[Introduction]) -> tuple[RankPlacement, ...]:
    """Return the places of ranks, by rank, from their introductions."""
    nodes = list(dict.fromkeys(one.node_id for one in found))
    by_node: dict[str, list[int]] = {node_id: [] for node_id in nodes}
    for rank, one in enumerate(found):
        by_node[one.node_id].append(rank)
    return tuple(
        RankPlacement(
            introduction=one,
            local_rank=by_node[one.node_id].index(rank),
            local_world_size=len(by_node[one.node_id]),
            node_rank=nodes.index(one.node_id),
        )
        for rank, one in enumerate(found)
    )
