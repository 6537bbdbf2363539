"""The search for the rank that failed first, and the message about it.

When a process dies, its peers' connections to it break at the same moment, and their errors may reach the driver before
news of the death. So after an error of the training function the driver pings the other ranks. A dead rank is the
cause.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from hocket import exceptions
from hocket._base import texts
from hocket.core import actor, api
from hocket.engine import contract
from hocket.train import errors
from hocket.train.rank import rank_placement

DEATHS = (exceptions.ActorDiedError, exceptions.NodeDiedError)
"""Errors of a call on a rank that is dead."""

PING_SECONDS = 1.0
"""Seconds that a living rank may take to answer a ping: milliseconds, unless it holds the GIL. A dead rank is known
without waiting."""

NODE_SECONDS = 30.0
"""Seconds of further waiting for the first silent rank, if there are several nodes and no death is known. Ray itself
finds a dead node after some 15 seconds; this guess leaves room for that."""

AGAIN_SECONDS = 0.1
"""Seconds until an unreachable rank is pinged again."""


def explain(
    rank: int,
    error: Exception,
    actors: Sequence[actor.ActorHandle],
    ranks_places: Sequence[rank_placement.RankPlacement],
    titles: Sequence[str] = (),
) -> errors.WorkerGroupError:
    """Return the error of the group, after a call on a rank failed with `error`.

    Args:
        rank: The rank of the failed call.
        error: The call's error.
        actors: The actors of all ranks.
        ranks_places: The places of all ranks; empty if they are not known yet.
        titles: The role of each rank, if the ranks are not alike.
    """
    if isinstance(error, errors.WorkerGroupError):
        return error
    if isinstance(error, exceptions.ActorUnavailableError) and not isinstance(error, exceptions.TaskError):
        error = _ask_again(actors[rank], error)
    failed = {rank: error}
    if not is_death(error):
        failed = {**_find_dead(rank, actors, len({place.node_id for place in ranks_places})), **failed}
    nodes = _name_nodes(ranks_places)
    names = {other: (f" ({titles[other]})" if titles else "") + nodes.get(other, "") for other in failed}
    return errors.WorkerGroupError(build_message(failed, len(actors), names), failed)


def is_death(error: Exception) -> bool:
    """Return whether an error shows a rank's own death, and not an error that the rank got from another dead actor."""
    return isinstance(error, DEATHS) and not isinstance(error, exceptions.TaskError)


def _ask_again(handle: actor.ActorHandle, error: Exception) -> Exception:
    """Return the death of an unreachable rank; the given error, if no death is known in time."""
    deadline = time.monotonic() + NODE_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        try:
            api.get(handle.get_pid.remote(), timeout=left)
        except exceptions.ActorUnavailableError:
            time.sleep(AGAIN_SECONDS)
        except DEATHS as death:
            return death
        except exceptions.GetTimeoutError:
            break
        else:
            break
    return error


def _find_dead(asking: int, actors: Sequence[actor.ActorHandle], num_nodes: int) -> dict[int, Exception]:
    pings = {handle.get_pid.remote(): rank for rank, handle in enumerate(actors) if rank != asking}
    if not pings:
        return {}
    answered, silent = api.wait(list(pings), num_returns=len(pings), timeout=PING_SECONDS)
    dead = _list_errors(answered)
    if silent and not dead and num_nodes > 1:
        dead = _list_errors(api.wait(silent, num_returns=1, timeout=NODE_SECONDS)[0])
    return {pings[ref]: error for ref, error in dead.items()}


def _list_errors(answered: Sequence[contract.ObjectRef[object]]) -> dict[contract.ObjectRef[object], Exception]:
    """Return the pings that show a death, with its error."""
    dead: dict[contract.ObjectRef[object], Exception] = {}
    for ref in answered:
        try:
            api.get(ref)
        except (*DEATHS, exceptions.ActorUnavailableError) as error:  # ranks are never restarted: it is gone
            dead[ref] = error
    return dead


def _name_nodes(ranks_places: Sequence[rank_placement.RankPlacement]) -> dict[int, str]:
    """Return a description of each rank's node; nothing if there is only one node."""
    if len({place.node_id for place in ranks_places}) < 2:
        return {}
    nodes = {node["NodeID"]: node for node in api.nodes()}
    return {rank: _name_node(place.node_id, nodes.get(place.node_id)) for rank, place in enumerate(ranks_places)}


def _name_node(node_id: str, node: dict[str, object] | None) -> str:
    if node is None:
        return f" (node {node_id}, which is gone)"
    where = f"node {node_id} at {node['NodeManagerAddress']}"
    return f" ({where})" if node["Alive"] else f" ({where}, which is dead)"


def build_message(failed: dict[int, Exception], world_size: int, names: dict[int, str]) -> str:
    """Return the message about failed ranks.

    Args:
        failed: The error of each failed rank, the cause first.
        world_size: The number of all ranks.
        names: The text behind each rank's number: its role and its node.
    """
    parts = [_describe(f"Rank {rank} of {world_size}{names[rank]}", error) for rank, error in failed.items()]
    return "\n\nLater failures:\n".join([parts[0], *parts[1:]])


def _describe(who: str, error: Exception) -> str:
    if isinstance(error, exceptions.TaskError):
        first = _read_text(error)
        trace = texts.add_sources(_drop_line(error.traceback_str, first))
        head = "\nIts traceback:\n" if '  File "' in trace else ""
        return f"{who} raised {first}\n{head}{trace}"
    if isinstance(error, exceptions.NodeDiedError):
        return f"{who} died with its node: {error}"
    if isinstance(error, exceptions.ActorDiedError):
        if error.death is None or not error.death.pid:  # it left by itself or was killed: the error says which
            return f"{who} died: {str(error).partition(' is dead: ')[2] or error}"
        return f"{who} died: its process (pid {error.death.pid}) {error.death.describe()}"
    if isinstance(error, exceptions.ActorUnavailableError):  # Ray's first sign of a death; ranks are never restarted
        return f"{who} died, or cannot be reached: {error}"
    return f"{who} failed with {texts.describe(error)}"


def _read_text(error: exceptions.TaskError) -> str:
    """Return an exception's class and text, as the rank saw them."""
    # A class with an ``__init__`` that builds the text from its arguments changes the text when it is unpickled.
    found = texts.describe(error.cause)
    if found in error.traceback_str:
        return found
    last = error.traceback_str.rstrip("\n").rpartition("\n")[2]
    at = last.find(f"{type(error.cause).__name__}: ")
    return last[at:] if at >= 0 and not last.startswith(" ") else found


def _drop_line(trace: str, text: str) -> str:
    """Return a traceback without its last text (notes stay), because the message has that text above it."""
    trace = trace.removeprefix("Traceback (most recent call last):\n")
    at = trace.rfind(text)
    start = trace.rfind("\n", 0, at) + 1
    is_name = trace[start:at].replace(".", "").replace("_", "").isalnum() or start == at  # the class's module
    return trace[:start] + trace[at + len(text) :].removeprefix("\n") if at >= 0 and is_name else trace
