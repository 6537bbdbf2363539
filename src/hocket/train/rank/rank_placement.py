"""The places of a group's ranks: the node, and the number there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Introduction:
    """The facts that a rank's process reports when it has started."""

    node_id: str
    pid: int
    gpu_ids: tuple[str, ...]
    temporary: str
    """Where temporary files of its node lie."""
    num_cores: int = 0
    """How many processors the process may run on; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Where a rank is."""

    introduction: Introduction
    local_rank: int
    """Its index among the ranks of its node."""
    local_world_size: int
    """How many ranks its node has."""
    node_rank: int
    """The index of its node."""

    @property
    def node_id(self) -> str:
        """Its node."""
        return self.introduction.node_id


def sort_by_node(found: Sequence[Introduction]) -> list[int]:
    """Return the order in which processes become ranks: those of a node one after the other, by GPU, the first
    process's node first.

    As in Ray Train, so that frameworks may take neighbours for ranks of one machine.
    """
    nodes = list(dict.fromkeys(one.node_id for one in found))

    def rank(index: int) -> tuple[int, list[tuple[int, str]]]:
        one = found[index]
        return nodes.index(one.node_id), [(int(gpu) if gpu.isdecimal() else 0, gpu) for gpu in one.gpu_ids]

    return sorted(range(len(found)), key=rank)


def describe_crowd(ranks_places: Sequence[RankPlacement]) -> str:
    """Return what to say where ranks outnumber the processors of their node; nothing where they do not."""
    for place in ranks_places:
        cores = place.introduction.num_cores
        if 0 < cores < place.local_world_size:
            return (
                f"{place.local_world_size} ranks share {cores} processor{'s' * (cores != 1)} of one machine. Each "
                "repeats what does not depend on its number of rows, the optimizer's step above all, and waits for its "
                f"turn to compute, so this is slower than num_workers={cores}, which has the same results if each rank "
                f'gets {place.local_world_size / cores:.3g} times the rows. See "How many ranks" in docs/train.md.'
            )
    return ""


def describe_launcher(variables: Mapping[str, str]) -> str:
    """Return what to say where `hocket run` or torchrun has started several processes that train with ranks of their
    own; nothing elsewhere, and in all of them but the first.

    Args:
        variables: The environment of the process that calls ``fit``.
    """
    is_launched = "TORCHELASTIC_RUN_ID" in variables  # a rank of ours has the others too
    size = variables.get("WORLD_SIZE", "1")
    if not is_launched or size == "1" or variables.get("RANK") != "0":
        return ""
    return (
        f"This is one of {size} processes that `hocket run` or torchrun has started, and each of them calls fit(), "
        "which starts ranks of its own and trains the same. Start the script with python."
    )


def assign(found: Sequence[Introduction]) -> tuple[RankPlacement, ...]:
    """Return the places of ranks, by rank, from what they told."""
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
