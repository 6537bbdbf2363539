"""Finds out which rank failed first, and says so.

When a process dies, its peers' connections to it break at the same moment, and their errors may arrive before the death does. So
after an error of the training function the other ranks are asked whether they live; one that does not is the cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from hocket import exceptions
from hocket.core import actor, api
from hocket.train import errors

PING_SECONDS = 1.0
"""How long a living rank may take to say so; milliseconds, unless it holds the GIL. A dead one is known without waiting."""


def explain(rank: int, error: Exception, actors: Sequence[actor.ActorHandle]) -> errors.WorkerGroupError:
    """Return the error of the group, after a call on a rank failed with `error`."""
    if isinstance(error, errors.WorkerGroupError):
        return error
    failed = {rank: error}
    if not isinstance(error, exceptions.ActorDiedError):
        failed = {**_find_dead(rank, actors), **failed}
    return errors.WorkerGroupError(_build_message(failed, len(actors)), failed)


def _find_dead(asking: int, actors: Sequence[actor.ActorHandle]) -> dict[int, Exception]:
    pings = {handle.get_pid.remote(): rank for rank, handle in enumerate(actors) if rank != asking}
    if not pings:
        return {}
    answered, _ = api.wait(list(pings), num_returns=len(pings), timeout=PING_SECONDS)
    dead: dict[int, Exception] = {}
    for ref in answered:
        try:
            api.get(ref)
        except exceptions.ActorDiedError as error:
            dead[pings[ref]] = error
    return dead


def _build_message(failed: dict[int, Exception], world_size: int) -> str:
    parts = [_describe(rank, error, world_size) for rank, error in failed.items()]
    return "\n\nAfter it, also:\n".join([parts[0], *parts[1:]])


def _describe(rank: int, error: Exception, world_size: int) -> str:
    who = f"Rank {rank} of {world_size}"
    if isinstance(error, exceptions.ActorDiedError):
        if error.death is None:
            return f"{who} died: {error}"
        return f"{who} died: its process (pid {error.death.pid}) {error.death.describe()}"
    if isinstance(error, exceptions.TaskError):
        cause = error.cause
        return f"{who} raised {type(cause).__name__}: {cause}\n\nIts traceback:\n{error.traceback_str}"
    return f"{who} failed with {type(error).__name__}: {error}"
