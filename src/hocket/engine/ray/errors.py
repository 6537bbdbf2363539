"""The translation of Ray's exceptions into ours.

For an exception of the user's code, the worker raises our `TaskError` instead (see `runner`). It comes inside an
exception of Ray's, from which `translate` takes it. An exception of Ray itself becomes our error with the same meaning,
with Ray's evidence in its text.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any, NamedTuple

import ray

from hocket import exceptions
from hocket._base import texts
from hocket.engine import rules, undecodable, values
from hocket.kernel import reasons

_SAME_NAME = (
    "AuthenticationError",
    "CrossLanguageError",
    "RpcError",
    "UserCodeException",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectRefStreamEndOfStreamError",
    "ObjectStoreFullError",
    "OutOfDiskError",
    "OwnerDiedError",
    "ReferenceCountingAssertionError",
    "RuntimeEnvSetupError",
    "TaskPlacementGroupRemoved",
    "ActorPlacementGroupRemoved",
    "PendingCallsLimitExceeded",
    "TaskUnschedulableError",
    "ActorUnschedulableError",
    "ActorAlreadyExistsError",
    "ActorHandleNotFoundError",
    "GetTimeoutError",
)
"""Classes with the same meaning in Ray and here, which take only a message."""

_CREATION = "The actor died because of an error raised in its creation task, "
_UNSENDABLE = re.compile(r"cannot pickle|[Cc]ould not serialize|[Cc]an't pickle")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_FUNCTION = re.compile(r"ray::([^\s(]+)\(")
_DETAIL = re.compile(r"Worker exit detail: (.*)", re.DOTALL)
_FRAME = re.compile(r"^ray::.*\n")
"""Ray's line above a traceback, which names the process."""
_FIELD = re.compile(r"^\t(\w+): (.*)$", re.MULTILINE)

_NO_EVIDENCE = (
    "Ray reports no signal, exit code or last lines of a dead worker; its log files are in the folder of the Ray "
    "session on its node."
)

_DECODING = re.compile(r"^ *System error: .*^traceback: Traceback.*_deserialize_", re.DOTALL | re.MULTILINE)
"""Ray's error for a value that it cannot unpickle. It does not name the value."""

_COMMON_CAUSES = re.compile(r" Some common causes include.*?(?=\n|$)")
"""Ray's list of possible causes, in the message about each unexplained death."""

_SIGTERM = "process receives a SIGTERM"

texts.add_carriers(str(Path(ray.__file__).parent), "python/ray/")  # the second is for Ray's compiled modules


class Origin(NamedTuple):
    """The task or call that was to make a value. Ray's errors do not name it."""

    name: str = ""
    """The name of the task or the call; empty if unknown."""
    tries: int = 1
    """The most attempts."""
    is_of_argument: bool = False
    """Whether not this task failed, but one on which it depends."""
    before: tuple[str, ...] = ()
    """The names of tasks on which this task depends; one of them has failed."""
    is_call: bool = False
    """Whether it is a cancelled call of an actor."""

    def describe(self) -> str:
        """Return the words for the failed task or call in a sentence."""
        if self.is_of_argument:
            known = ", ".join(f"`{name}`" for name in self.before)
            return f"a task that `{self.name}` depends on" + (f" ({known})" if known else "")
        return f"{'call' if self.is_call else 'task'} `{self.name}`" if self.name else "the task"


_NOBODY = Origin()


def is_timeout(error: BaseException) -> bool:
    """Return whether an error of Ray's says that a value is not there yet. A task's error is none: Ray makes it an
    instance of the class that the task raised, which may be Ray's time-out."""
    return isinstance(error, ray.exceptions.GetTimeoutError) and not isinstance(error, ray.exceptions.RayTaskError)


def translate(error: BaseException, origin: Origin = _NOBODY) -> BaseException:
    """Return our error with the meaning of an error of Ray's; return other errors unchanged.

    Args:
        error: The error.
        origin: The task or call that was to make the value.
    """
    if isinstance(error, ray.exceptions.RayTaskError):
        return _translate_task_error(error, origin)
    if isinstance(error, ray.exceptions.ActorDiedError | ray.exceptions.ActorUnavailableError):
        return _translate_actor_error(error, origin)
    text, what, tries = _strip(str(error)), origin.describe(), reasons.count_tries(origin.tries)
    if isinstance(error, ray.exceptions.TaskCancelledError):
        return exceptions.TaskCancelledError(f"{what[0].upper()}{what[1:]} was cancelled before it was done.")
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        told = f"The node that ran {what} had too little memory left, and Ray ended its worker.{tries}"
        return exceptions.OutOfMemoryError(f"{told} {text}")
    if isinstance(error, ray.exceptions.NodeDiedError):
        return exceptions.NodeDiedError(f"The node that ran {what} died.{tries} {text}")
    if isinstance(error, ray.exceptions.LocalRayletDiedError):
        return exceptions.LocalEngineDiedError(f"The node that this process belongs to has died. {text}")
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return exceptions.WorkerCrashedError(f"The worker that ran {what} died.{tries} {_NO_EVIDENCE}")
    if isinstance(error, ray.exceptions.RaySystemError) and _DECODING.search(text):
        return undecodable.build_error("A value", text.strip().splitlines()[-1])
    for kind in type(error).__mro__:
        if kind.__name__ in _SAME_NAME and kind.__module__.startswith("ray"):
            same: type[exceptions.HocketError] = getattr(exceptions, kind.__name__)
            is_lost = issubclass(same, exceptions.ObjectLostError) and origin.name
            return same(f"A value of {what} is lost. {text}" if is_lost else text)
    if isinstance(error, ray.exceptions.RayError):
        return exceptions.SystemError(f"{type(error).__name__}: {text}")
    return error


def _strip(text: str) -> str:
    return _COLOR.sub("", text)


def _translate_task_error(error: Any, origin: Origin) -> BaseException:
    cause = error.cause
    if isinstance(cause, exceptions.TaskError):
        return cause.as_instanceof_cause()
    if isinstance(cause, exceptions.HocketError):
        return cause
    if isinstance(cause, ray.exceptions.RayError):  # for an argument that was never made, or a cancelled running task
        found = translate(cause, origin)
        is_cancelled = isinstance(found, exceptions.TaskCancelledError)
        return rules.wrap_cancelled(origin.name, found).as_instanceof_cause() if is_cancelled else found
    text = _strip(str(error))
    name = _find_function(text)
    if isinstance(cause, TypeError) and _UNSENDABLE.search(str(cause)):
        return exceptions.SerializationError(
            f"Cannot send the result of `{name}` to another process ({_strip(str(cause)).splitlines()[-1]}). Remedy: "
            "return plain data, or keep it in an actor."
        )
    return exceptions.TaskError(name, text, cause).as_instanceof_cause()


def _find_function(text: str) -> str:
    found = _FUNCTION.search(text)
    return found.group(1) if found else "A task"


def _translate_actor_error(error: Any, origin: Origin) -> exceptions.ActorError:
    text = _strip(str(error))
    fields = dict(_FIELD.findall(text))
    name = fields.get("class_name", "")
    if error.actor_init_failed and not name:
        name = _find_function(text).removesuffix(".__init__")
    who = f"Actor `{name}`" if name else "The actor"
    if fields.get("name"):
        who += f" (named {fields['name']!r})"
    actor_id = error.actor_id or ""
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return exceptions.ActorUnavailableError(
            f"{f'Call `{origin.name}`' if origin.name else 'A call'} was lost: the process of its actor is gone, or "
            f"cannot be reached, and may come back. {reasons.advise_retries(origin.tries)} ({text})",
            actor_id=actor_id,
        )
    if error.actor_init_failed:
        story = text.removeprefix(_CREATION)
        story = story.partition(" raised an exception:\n")[2] or story  # the text of our own error
        story = _FRAME.sub("", story)
        cause = exceptions.HocketError(story.rstrip().rpartition("\n")[2])  # Ray keeps only the text
        raised = exceptions.TaskError(f"{name}.__init__", story, cause)
        return exceptions.ActorDiedError(
            f"{who} is dead: its constructor raised an exception:",
            actor_id=actor_id,
            actor_init_failed=True,
            cause_data=values.encode_error(raised),
        )
    return exceptions.ActorDiedError(
        f"{who} is dead: {_explain_end(text, fields)}", actor_id=actor_id, death=_find_death(text, fields)
    )


def _explain_end(text: str, fields: dict[str, str]) -> str:
    if "killed by `ray.kill`" in text:
        return "it was killed by `kill`."
    if "exit_actor() is called" in text or "INTENDED_USER_EXIT" in text:
        return "it ended itself with exit_actor()."
    if "out of scope" in text or "all references to the actor were removed" in text.lower():
        return "its last handle went out of scope."
    where = f" (pid {fields['pid']}, on {fields.get('ip', 'an unknown node')})" if "pid" in fields else ""
    if "node" in text and ("died" in text or "dead" in text) and "Worker exit" not in text:
        return f"its node died{where}. {text.splitlines()[-1]}"
    if _SIGTERM in text:
        return f"its process{where} was killed by signal 15 (SIGTERM)."
    return f"its process{where} ended. {_find_detail(text)} {_NO_EVIDENCE}"


def _find_detail(text: str) -> str:
    found = _DETAIL.search(text)
    return _COMMON_CAUSES.sub("", found.group(1).splitlines()[0] if found else text.splitlines()[-1])


def _find_death(text: str, fields: dict[str, str]) -> exceptions.Death | None:
    """Return the facts about a dead process: a SIGTERM, or Ray's words about its end; None if there is no pid."""
    if not fields.get("pid", "").isdigit():
        return None
    if _SIGTERM in text:
        return exceptions.Death(int(fields["pid"]), int(signal.SIGTERM))
    told = f"ended; Ray reports: {_find_detail(text).rstrip('.')}"
    return exceptions.Death(int(fields["pid"]), explanation=told)
