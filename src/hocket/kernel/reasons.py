"""Errors that say why a task failed: those that the kernel makes in several places, or that need a longer text.

Each message says what happened to which task, and what the user can do about it, if anything. The functions are pure.
"""

from __future__ import annotations

from hocket import exceptions
from hocket.kernel.records import ActorRecord, TaskRecord


def explain_death(actor: ActorRecord) -> exceptions.ActorDiedError:
    """Return the error of a call on a dead actor."""
    name = f" (named {actor.options.name!r})" if actor.options.name else ""
    return exceptions.ActorDiedError(
        f"Actor `{actor.options.class_name}`{name} is dead: {actor.death_message}",
        actor_id=f"{actor.id:016x}",
        actor_init_failed=actor.init_failed,
        death=actor.death,
        cause_data=_get_data(actor.init_error),
    )


def _get_data(error: tuple[object, ...] | None) -> bytes:
    """Return the pickle in an encoded error: in every engine it is the second element."""
    data = error[1] if error is not None else b""
    return data if isinstance(data, bytes) else b""


def explain_lost_call(actor: ActorRecord, task: TaskRecord, death: exceptions.Death) -> exceptions.HocketError:
    """Return the error of a call that was running when its actor's process died."""
    if task.cancelled:
        return exceptions.TaskCancelledError(f"Call `{task.options.name}` was cancelled, and its actor ended.")
    return exceptions.ActorUnavailableError(
        f"Call `{task.options.name}` was lost: the process (pid {death.pid}) of its actor {death.describe()} The "
        f"actor is being built again (restart {actor.restarts}). {advise_retries(task.attempt + 1)}",
        actor_id=f"{actor.id:016x}",
        death=death,
    )


def explain_crash(task: TaskRecord, death: exceptions.Death) -> exceptions.WorkerCrashedError:
    """Return the error of a task without a further attempt, after its worker died."""
    told = f"The worker (pid {death.pid}) that ran task `{task.options.name}` {death.describe()}"
    kind = exceptions.OutOfMemoryError if death.out_of_memory else exceptions.WorkerCrashedError
    return kind(told + count_tries(task.attempt + 1), death)


def count_tries(tries: int) -> str:
    """Return the sentence on how many attempts a task had; empty after a single attempt."""
    return f" It was tried {tries} times." if tries > 1 else ""


def advise_retries(tries: int) -> str:
    """Return the sentence on further attempts at a lost call that had so many."""
    if tries > 1:
        return f"The call may have run, wholly or in part; it was tried {tries} times, as max_task_retries allows."
    return "The call may have run, wholly or in part; to have such calls tried again, set max_task_retries."


def explain_cancelled(task: TaskRecord) -> exceptions.TaskCancelledError:
    """Return the error of a task that was cancelled before it ran."""
    return exceptions.TaskCancelledError(f"Task `{task.options.name}` was cancelled before it started.")
