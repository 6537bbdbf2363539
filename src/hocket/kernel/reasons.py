"""Why a task failed, in words: the errors that the kernel makes more than once, or that need more than a sentence.

Each message has what happened, to whom, and what to do about it if anything can be done. Pure functions of records.
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
    """Return the pickle in an encoded error: in every engine it is what stands second."""
    data = error[1] if error is not None else b""
    return data if isinstance(data, bytes) else b""


def explain_lost_call(actor: ActorRecord, task: TaskRecord, death: exceptions.Death) -> exceptions.HocketError:
    """Return the error of a call that was under way when its actor's process died."""
    if task.cancelled:
        return exceptions.TaskCancelledError(f"Call `{task.options.name}` was cancelled, and its actor ended.")
    return exceptions.ActorUnavailableError(
        f"Call `{task.options.name}` was lost: the process (pid {death.pid}) of its actor {death.describe()} The "
        f"actor is being built again (restart {actor.restarts}). {advise_retries(task.attempt + 1)}",
        actor_id=f"{actor.id:016x}",
        death=death,
    )


def explain_crash(task: TaskRecord, death: exceptions.Death) -> exceptions.WorkerCrashedError:
    """Return the error of a task whose worker died, and that is not tried again."""
    told = f"The worker (pid {death.pid}) that ran task `{task.options.name}` {death.describe()}"
    kind = exceptions.OutOfMemoryError if death.out_of_memory else exceptions.WorkerCrashedError
    return kind(told + count_tries(task.attempt + 1), death)


def count_tries(tries: int) -> str:
    """Return what to say of how often a task was tried."""
    return f" It was tried {tries} times." if tries > 1 else ""


def advise_retries(tries: int) -> str:
    """Return what to say of a call that was lost, and was tried so often."""
    if tries > 1:
        return f"Nobody knows how far the call came; it was tried {tries} times, as max_task_retries allows."
    return "Nobody knows how far the call came; to have calls tried again, set max_task_retries."


def explain_cancelled(task: TaskRecord) -> exceptions.TaskCancelledError:
    """Return the error of a task that was cancelled before it ran."""
    return exceptions.TaskCancelledError(f"Task `{task.options.name}` was cancelled before it started.")
