"""Roles of ranks, for groups in which ranks are not alike.

Most groups have no roles: every rank runs the training function and reports, and `fit` waits for it. Some frameworks
need other processes beside the ranks that train, such as servers of variables or an evaluator. Their backends list one
role for each rank in `BackendConfig.list_roles`. The ranks that report come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

ALWAYS = -1
"""The value of `Role.max_restarts` for no limit."""


@final
@dataclass(frozen=True, kw_only=True)
class Role:
    """The role of one rank."""

    name: str
    """The name in messages: ``"worker 0"``."""
    bundle: Mapping[str, float]
    """The rank's resources."""
    runs: bool = True
    """Whether the rank runs the training function. If not, `BackendConfig.on_start` starts the rank's work."""
    reports: bool = True
    """Whether the rank reports, as often as the other reporting ranks, and comes to their meetings."""
    is_awaited: bool = True
    """Whether `fit` waits for the rank's training function. If not, the process is ended when all others are done."""
    max_restarts: int = 0
    """How often in an attempt the process is started again after its death, while the other ranks go on. A further
    death is a failure of the group."""


def count_reporting(roles: Sequence[Role], size: int) -> int:
    """Return the number of ranks in a group that report."""
    return sum(role.reports for role in roles) if roles else size


def sum_bundles(bundles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of bundles, by resource."""
    names = dict.fromkeys(name for bundle in bundles for name in bundle)
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}
