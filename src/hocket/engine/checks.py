"""Checks that an engine makes before it calls its kernel. Workers have no kernel, and do not load this module."""

from __future__ import annotations

from hocket import exceptions
from hocket.engine import rules
from hocket.kernel import calls, machine, records
from hocket.kernel.records import TaskKind


def get_actor(kernel: machine.Kernel, actor_id: int) -> records.ActorRecord:
    """Return the record of an actor; raise ActorHandleNotFoundError if there is no actor with this id."""
    actor = kernel.actors.get(actor_id)
    if actor is None or actor_id not in kernel.objects:
        raise exceptions.ActorHandleNotFoundError(
            f"Actor {actor_id:016x} belongs to another session, or has ended. Handles do not outlive shutdown() and "
            "init(); build the actor again."
        )
    return actor


def check_pending(kernel: machine.Kernel, actor_id: int, caller: int) -> None:
    """Raise PendingCallsLimitExceeded if the caller has as many unanswered calls on the actor as it may have."""
    actor = kernel.actors.get(actor_id)
    if actor is None:
        return
    most = actor.options.max_pending_calls
    pending = calls.count_pending(actor, caller)
    if 0 <= most <= pending:
        raise rules.build_pending_error(actor.options.class_name, pending, most)


def check_forcible(kernel: machine.Kernel, object_id: int) -> None:
    """Raise ValueError if an actor's call makes the object: such a call cannot be cancelled by force."""
    record = kernel.objects.get(object_id)
    task = record.task if record is not None else None
    if task is not None and task.kind != TaskKind.FUNCTION:
        raise ValueError(rules.explain_unforcible(f"`{task.options.name}`, a call of an actor"))
