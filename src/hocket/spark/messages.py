"""Messages between the driver and a rank, which is a Spark task. A message may be any Python object, so each end first
makes the other prove that it knows the run's key."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, TypeAlias

import cloudpickle

from hocket import exceptions
from hocket._base import texts
from hocket.train.checkpoints import checkpoint
from hocket.train.rank import equality, questions, rank_info, rank_placement, reports


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in a rank."""

    function_name: str
    traceback_str: str
    text: str
    """The error, in one line."""
    blob: bytes
    """The error, pickled; empty if it cannot be."""

    def build_error(self) -> Exception:
        """Return the exception as a `TaskError` that is, if possible, also an instance of the exception's class."""
        try:
            cause: BaseException = pickle.loads(self.blob)
        except Exception:  # noqa: BLE001 (a user's class may raise anything when it is made)
            cause = RuntimeError(self.text)
        found = exceptions.TaskError(self.function_name, self.traceback_str, cause).as_instanceof_cause()
        assert isinstance(found, Exception), "it is made of a TaskError"
        return found


def describe_failure(error: BaseException, name: str, ours: Container[str]) -> Failure:
    """Return an exception in a form for the driver.

    Args:
        error: The exception.
        name: The name of the function that raised it.
        ours: Files of this package: their frames at the start of the traceback are left out.
    """
    start = error.__traceback__
    while start is not None and start.tb_next is not None and start.tb_frame.f_code.co_filename in ours:
        start = start.tb_next
    try:
        blob = cloudpickle.dumps(error)
    except Exception:  # noqa: BLE001 (it may hold anything)
        blob = b""
    text = "".join(traceback.format_exception(type(error), error, start))
    return Failure(function_name=name, traceback_str=text, text=texts.describe(error), blob=blob)


# --- from a rank ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """A task has started."""

    index: int
    """The task's number in the stage."""
    introduction: rank_placement.Introduction


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a `Call`."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """A function has raised. No message follows."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Ended:
    """The training function has returned."""

    value: Any
    """The function's result in rank 0; None in other ranks."""


@dataclass(frozen=True, slots=True)
class Died:
    """A rank's process has died without a message. Its parent reports that on a connection of its own."""

    index: int
    death: exceptions.Death


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a `Ping`: the process is alive."""


FromRank: TypeAlias = Hello | Reply | Failed | Ended | Died | Pong | reports.Report | equality.Item | questions.Question

# --- to a rank --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function, and answer with a `Reply`."""

    function: Callable[..., object]
    args: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """Run the training function. Send reports and questions, then answer with `Ended`."""

    work: bytes
    """The training function and its arguments, pickled."""
    info: rank_info.RankInfo


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """A checkpoint was committed with the report of an index."""

    index: int
    committed: checkpoint.Checkpoint


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer with a `Pong`."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End the process: all work is done."""


ToRank: TypeAlias = Call | Begin | Acknowledge | questions.Answer | Ping | Leave


def encode(message: FromRank | ToRank) -> bytes:
    """Return a message as bytes. Functions that the other end cannot import travel with it."""
    blob: bytes = cloudpickle.dumps(message, 5)
    return blob
