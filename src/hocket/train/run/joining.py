"""The ranks' own collectives on numpy arrays, for frameworks without a process group: the driver's side.

A framework's `BackendConfig` calls `arrange` when the ranks live, and `leave` when they are done. Its adapter calls
`hocket.train.rank.world.get_world` in a rank. No rank listens on a port, because the controller connects the ranks: the
first rank of each machine makes the shared memory, and the others open it below ``/proc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from hocket.collective import meeting
from hocket.train.rank import world
from hocket.train.run import backend, worker_group

TIMEOUT_SECONDS = 1800.0
"""Seconds that an operation waits for a rank. torch's default."""

LOOPBACK = "127.0.0.1"
"""The address at which ranks of one machine meet."""


@final
@dataclass(frozen=True, kw_only=True)
class WorldConfig(backend.BackendConfig):
    """A setup that only joins the ranks for `get_world`.

    It is for training functions that average numpy arrays themselves.

    Raises:
        ValueError: `timeout_s` is not positive.
    """

    timeout_s: float = TIMEOUT_SECONDS
    """Seconds that an operation may wait for a rank."""

    def __post_init__(self) -> None:
        check_timeout(self.timeout_s)

    def on_start(self, group: worker_group.WorkerGroup) -> None:
        """Join the ranks."""
        arrange(group, self.timeout_s)

    def on_shutdown(self, group: worker_group.WorkerGroup) -> None:
        """Part the ranks."""
        leave(group)


def check_timeout(timeout_s: float) -> None:
    """Refuse a time-out that is not more than 0 seconds."""
    if not timeout_s > 0:
        raise ValueError(
            f"timeout_s must be more than 0 seconds, but received {timeout_s!r}. Leave it out for "
            f"{TIMEOUT_SECONDS:.0f}."
        )


def find_addresses(group: worker_group.WorkerGroup) -> list[str]:
    """Return an address for each rank, for libraries that listen: loopback if all ranks are on one machine."""
    is_apart = len({place.node_id for place in group.places}) > 1
    return group.list_addresses() if is_apart else [LOOPBACK] * len(group)


def arrange(group: worker_group.WorkerGroup, timeout_s: float = TIMEOUT_SECONDS) -> None:
    """Join the ranks of a group. Called by the controller."""
    size = len(group)
    hosts = meeting.group_by_host(group.execute(meeting.identify_host, [()] * size))
    made = {host[0]: group.call(host[0], world.make_memory, len(host)) for host in hosts if host[1:]}
    exchange = None
    if len(hosts) > 1:
        exchange = group.start_exchange(len(hosts))
    steps = [
        world.Step(rank, hosts, made.get(world.find_host(hosts, rank)[0], ("", "")), exchange) for rank in range(size)
    ]
    group.execute(world.open_memory, [(step,) for step in steps])
    group.execute(world.join, [(step, timeout_s) for step in steps])


def leave(group: worker_group.WorkerGroup) -> None:
    """Part the ranks of a group. Called by the controller."""
    group.execute(world.leave, [()] * len(group))
