"""Preemption: a cloud, Kubernetes or a batch system sends SIGTERM to ranks, and they have some time left.

The signal is a notice. The rank goes on (`rank.preemption_signals`) and informs its controller
(`run.preemption_policy`). The training function of every rank can query it (`hocket.train.get_preemption_info`) and
save. After the next commit the group starts again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreemptionInfo:
    """The ranks that got SIGTERM, and their deadline. The return value of `get_preemption_info`.

    Example:
        >>> from hocket import train
        >>> info = train.PreemptionInfo(
        ...     deadline_ms=1_700_000_030_000, preempted_node_to_ranks={"node-b": [3, 2], "node-a": [0]}
        ... )
        >>> info.preempted_ranks, info.preempted_node_ids
        ([0, 2, 3], ['node-a', 'node-b'])
    """

    deadline_ms: int | None
    """When the ranks are ended if no checkpoint was committed before: milliseconds since 1970."""
    preempted_node_to_ranks: dict[str, list[int]]
    """The preempted ranks of each node, by the node's id."""

    @property
    def preempted_node_ids(self) -> list[str]:
        """The nodes, sorted."""
        return sorted(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self) -> list[int]:
        """The ranks of all nodes, sorted."""
        return sorted({rank for ranks in self.preempted_node_to_ranks.values() for rank in ranks})
