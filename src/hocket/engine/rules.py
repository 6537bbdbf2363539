"""Rules of all engines, also of those without a kernel: errors, the wait for a name, and the errors of tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from hocket import exceptions
from hocket._base import texts
from hocket.engine import contract

CLAIM_SECONDS = 10.0
"""Seconds to wait for an actor that another process is creating: that process may be stopped."""

CLAIM_INTERVAL_S = 0.001


def build_name_error(name: str, namespace: str) -> exceptions.ActorAlreadyExistsError:
    """Return the error for a new actor with a name that another actor has."""
    return exceptions.ActorAlreadyExistsError(
        f"The name {name!r} is taken by another actor in namespace {namespace!r}. Choose another name, or get the "
        f"existing one with hocket.get_actor({name!r})."
    )


def await_claim(look_up: Callable[[], tuple[contract.ActorInfo | None, bool]]) -> contract.ActorInfo | None:
    """Return the actor that `look_up` finds; wait while `look_up` says that the actor is being created."""
    deadline = time.monotonic() + CLAIM_SECONDS
    while True:
        found, is_coming = look_up()
        if not is_coming or time.monotonic() > deadline:
            return found
        time.sleep(CLAIM_INTERVAL_S)


def build_timeout_error(missing: int, wanted: int, timeout_s: float | None) -> exceptions.GetTimeoutError:
    """Return the error of a `get` after its time-out."""
    return exceptions.GetTimeoutError(
        f"{missing} of {wanted} objects were not ready after {timeout_s} s. The tasks go on; call get again, or give "
        "a longer time-out."
    )


def build_ended_error() -> exceptions.SessionClosedError:
    """Return the error of a session that was shut down."""
    return exceptions.SessionClosedError("The session was shut down. Call hocket.init() to open a new one.")


def raise_ended(end: exceptions.HocketError, what: str) -> NoReturn:
    """Raise the error for a call on an actor of a session that is over."""
    if isinstance(end, exceptions.SessionClosedError):
        raise exceptions.ActorHandleNotFoundError(
            f"`{what}` cannot be called: the actor belonged to a session that was shut down. Handles do not outlive "
            "shutdown() and init(); build the actor again."
        )
    raise end


def build_pending_error(class_name: str, pending: int, most: int) -> exceptions.PendingCallsLimitExceeded:
    """Return the error of a caller that has as many unanswered calls on an actor as it may have."""
    return exceptions.PendingCallsLimitExceeded(
        f"Actor `{class_name}` has {pending} unanswered calls from this caller, but max_pending_calls={most}. Wait for "
        "some of them with hocket.wait(...), then call again."
    )


def explain_unforcible(what: str) -> str:
    """Return the message for cancelling an actor's call by force."""
    return (
        f"force=True is not supported for {what}: it would end the whole actor. Cancel without force, or end the "
        "actor with hocket.kill(actor)."
    )


def wrap_error(name: str, error: BaseException) -> BaseException:
    """Return the error that the caller of a task gets for an exception that left the task.

    An error of ours that passed no user code is about this task itself, for example if its result cannot be encoded,
    and stays as it is. An error of ours that passed the user's code is about something else, such as an actor that the
    task called. It is wrapped like any exception; what `get` raises is still an instance of its class.
    """
    kind = type(error)
    if issubclass(kind, exceptions.HocketError) and not texts.passed_user(error):
        return error
    return exceptions.TaskError(name, texts.format_error(error), exceptions.get_cause(error))


def wrap_cancelled(name: str, error: BaseException) -> exceptions.TaskError:
    """Return the error of a task that was cancelled while it ran: as in Ray, an instance of `TaskError`, too."""
    return exceptions.TaskError(name, "", exceptions.get_cause(error))


def build_interrupted(name: str, error: BaseException) -> exceptions.TaskCancelledError:
    """Return the error of a task that raised KeyboardInterrupt itself. In the caller's process that exception would end
    the program."""
    return exceptions.TaskCancelledError(
        f"Task `{name}` was ended by a KeyboardInterrupt:\n{texts.format_error(error)}"
    )


def limit_true(there: list[bool], most: int) -> list[bool]:
    """Return the list with all but the first `most` True entries changed to False."""
    left = most
    for position, is_there in enumerate(there):
        if is_there:
            left -= 1
            if left < 0:
                there[position] = False
    return there
