"""Roles of ranks, in a group whose ranks are not alike.

Most groups have no roles: every rank runs the training function, reports, and is waited for. A backend whose framework
wants other processes beside the ranks that train (servers of variables, an evaluator) lists roles, one a rank, in
`BackendConfig.list_roles`. The ranks that report come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

ALWAYS = -1
"""As `Role.max_restarts`: without end."""


@final
@dataclass(frozen=True, kw_only=True)
class Role:
    """One rank's."""

    name: str
    """What messages call it: ``"worker 0"``."""
    bundle: Mapping[str, float]
    """What it holds."""
    runs: bool = True
    """Whether the training function runs there. Where it does not, the backend starts in `BackendConfig.on_start` what
    is to run."""
    reports: bool = True
    """Whether it reports, as often as the others that do, and comes to their meetings."""
    is_awaited: bool = True
    """Whether `fit` waits until the training function has returned there. Where not, the process is ended when all the
    others are done."""
    max_restarts: int = 0
    """How often in an attempt its process is started again when it has died, while the others go on; after that, a
    death is a failure of the group."""


def count_reporting(roles: Sequence[Role], size: int) -> int:
    """Return how many of a group's ranks report."""
    return sum(role.reports for role in roles) if roles else size


def sum_bundles(bundles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what they hold together."""
    names = dict.fromkeys(name for bundle in bundles for name in bundle)
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}
