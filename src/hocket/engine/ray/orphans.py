"""Placement groups whose actor is dead.

An actor's groups end with it, unless they are detached: the contract says so. Ray waits for the end of the whole job
besides, so that what a killed actor has reserved would be lent to nobody until then. So they are looked for when an
actor is killed, and whenever something is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import ray
from ray.core.generated import gcs_pb2

from hocket.engine.ray import keywords, outside

DEATH_SECONDS: Final = 5.0
"""How long a killed actor may take to be dead. A guess: Ray says so within some 10 ms."""


def remove_groups() -> None:
    """Remove the groups of this driver's dead actors."""
    outside.ask(_remove_groups)


def remove_groups_of(actor_id: str) -> None:
    """Remove the groups of an actor that was killed, as soon as it is dead.

    Args:
        actor_id: In hexadecimal.
    """
    outside.ask(_remove_groups_of, actor_id)


def _remove_groups() -> None:
    for found in _list_groups():
        if found.creator_actor_dead:
            _remove(found)


def _remove_groups_of(actor_id: str) -> None:
    deadline = time.monotonic() + DEATH_SECONDS
    while True:
        groups = [found for found in _list_groups() if found.creator_actor_id.hex() == actor_id]
        if all(found.creator_actor_dead for found in groups) or time.monotonic() > deadline:
            break
        time.sleep(0.005)
    for found in groups:
        _remove(found)


def _remove(found: Any) -> None:
    ray.util.remove_placement_group(keywords.build_group(int(found.placement_group_id.hex(), 16)))


def _list_groups() -> Iterator[Any]:
    """Yield the rows of the groups that actors of this driver's job have made."""
    job_id = ray.get_runtime_context().get_job_id()
    accessor = ray._private.state.state._connect_and_get_accessor()
    for text in accessor.get_placement_group_table():
        found = gcs_pb2.PlacementGroupTableData.FromString(text)
        is_of_actor = any(found.creator_actor_id) and found.creator_actor_id != ray.ActorID.nil().binary()
        is_over = found.state == gcs_pb2.PlacementGroupTableData.REMOVED
        if found.creator_job_id.hex() == job_id and is_of_actor and not found.is_detached and not is_over:
            yield found
