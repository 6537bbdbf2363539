"""Preemption: ranks that got SIGTERM, and have some time left. Clouds, Kubernetes and batch systems
send it.

The signal is a notice and not the end: the rank goes on (`rank.preemption_signals`), its controller hears of
it (`run.preemption_policy`), and the training function of every
rank can ask (`hocket.train.get_preemption_info`) and save. After the next commit the group is started again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PreemptionInfo:
    """The ranks that got SIGTERM, and until when they may go on. The return value of `get_preemption_info`.

    Example:
        >>> from hocket import train
        >>> info = train.PreemptionInfo(
        ...     deadline_ms=1_700_000_030_000, preempted_node_to_ranks={"node-b": [3, 2], "node-a": [0]}
        ... )
        >>> info.preempted_ranks, info.preempted_node_ids
        ([0, 2, 3], ['node-a', 'node-b'])
    """

    deadline_ms: int | None
    """When they are ended if nothing was saved before: milliseconds since 1970."""
    preempted_node_to_ranks: dict[str, list[int]]
    """The ranks, by the id of their node."""

    @property
    def preempted_node_ids(self) -> list[str]:
        """The nodes, sorted."""
        return sorted(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self) -> list[int]:
        """The ranks of all nodes, sorted."""
        return sorted({rank for ranks in self.preempted_node_to_ranks.values() for rank in ranks})
