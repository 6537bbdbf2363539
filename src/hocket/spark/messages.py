"""Messages between the driver and a rank, which is a task of Spark's. Both ends trust each other: a message
may be any Python object, so neither hears the other before it has shown that it knows the run's key."""

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
    """An exception of a rank."""

    function_name: str
    traceback_str: str
    text: str
    """The error, in one line."""
    blob: bytes
    """The error, pickled; empty if it cannot be."""

    def build_error(self) -> Exception:
        """Return it as an error of the group's: an instance of `TaskError` and, where that can be, of its own class."""
        try:
            cause: BaseException = pickle.loads(self.blob)
        except Exception:  # noqa: BLE001 (a user's class may raise anything when it is made)
            cause = RuntimeError(self.text)
        found = exceptions.TaskError(self.function_name, self.traceback_str, cause).as_instanceof_cause()
        assert isinstance(found, Exception), "it is made of a TaskError"
        return found


def describe_failure(error: BaseException, name: str, ours: Container[str]) -> Failure:
    """Return what was raised, for the driver.

    Args:
        error: It.
        name: What was called.
        ours: Files whose frames, at the beginning of its traceback, say nothing to the user.
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
    """A task has begun."""

    index: int
    """Its number in the stage."""
    introduction: rank_placement.Introduction


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a function that the driver wanted to be called."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """A function has raised. Nothing more comes."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Ended:
    """The training function has returned."""

    value: Any
    """What; of other ranks than the first, None."""


@dataclass(frozen=True, slots=True)
class Died:
    """The process of a rank has ended without a word. Its parent says so, over a wire of its own."""

    index: int
    death: exceptions.Death


@dataclass(frozen=True, slots=True)
class Pong:
    """The process lives."""


FromRank: TypeAlias = Hello | Reply | Failed | Ended | Died | Pong | reports.Report | equality.Item | questions.Question

# --- to a rank --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """Call this; answered with a `Reply`."""

    function: Callable[..., object]
    args: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """Run the training function; answered with `Ended`, after reports and questions."""

    work: bytes
    """It and its arguments, pickled."""
    info: rank_info.RankInfo


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """A checkpoint was committed with the report of that index."""

    index: int
    committed: checkpoint.Checkpoint


@dataclass(frozen=True, slots=True)
class Ping:
    """Say that you live."""


@dataclass(frozen=True, slots=True)
class Leave:
    """All is done."""


ToRank: TypeAlias = Call | Begin | Acknowledge | questions.Answer | Ping | Leave


def encode(message: FromRank | ToRank) -> bytes:
    """Return a message as bytes; functions that nobody could import go along."""
    blob: bytes = cloudpickle.dumps(message, 5)
    return blob
