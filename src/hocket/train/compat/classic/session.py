"""What a rank knows while it runs a training function for `Trainer`."""

from __future__ import annotations

import datetime as dt
import math
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from hocket import texts
from hocket.train.compat.classic import exchange
from hocket.train.rank import questions, worker_session
from hocket.util import lookup

TIMESTAMP = "_timestamp"
"""The key of the seconds since 1970 in what is reported and saved."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a rank is to do in one run."""

    function: Callable[..., Any]
    """The training function."""
    args: tuple[Any, ...]
    """Its arguments: the configuration, if it takes one."""
    checkpoint_blob: bytes | None
    """What ``load_checkpoint`` returns at first, pickled."""
    score_attribute: str
    """The key of the score in what is saved."""
    persists: bool
    """Whether what is saved is kept in files, and so needs a score."""
    is_detailed: bool
    """Whether reports say where and when they were made."""


class RankSession:
    """The state behind the functions of 2022 in one rank.

    Args:
        task: What the rank does.
        rank: Its index.
        to_driver: Takes what it hands over.
    """

    def __init__(self, task: Task, rank: int, to_driver: exchange.Exchange) -> None:
        self._task = task
        self._rank = rank
        self._exchange = to_driver
        blob = task.checkpoint_blob
        self.checkpoint: dict[str, Any] | None = None if blob is None else cloudpickle.loads(blob)
        """What was saved last, or what the run began with."""
        self._iteration = 0
        self._started = self._last = time.monotonic()

    def report(self, metrics: dict[str, Any]) -> None:
        """Hand metrics to the driver, and wait until it has taken them."""
        self._exchange.hand_over(exchange.Reported(_encode("report", {**metrics, **self._describe()})))

    def _describe(self) -> dict[str, Any]:
        """Return what every report says besides its metrics."""
        now = time.monotonic()
        self._iteration += 1
        found: dict[str, Any] = {
            TIMESTAMP: int(time.time()),
            "_time_this_iter_s": now - self._last,
            "_training_iteration": self._iteration,
        }
        self._last = now
        if self._task.is_detailed:
            found |= {
                "_date": dt.datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S"),
                "_hostname": socket.gethostname(),
                "_node_ip": lookup.get_node_ip_address(),
                "_pid": os.getpid(),
                "_time_total_s": now - self._started,
            }
        return found

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Hand a checkpoint to the driver, which keeps rank 0's, and wait until it has it."""
        state = {TIMESTAMP: int(time.time()), **_unwrap(state)}
        self.checkpoint = state
        if self._rank != 0:
            self._exchange.hand_over(exchange.Saved(None, None))
            return
        score = _get_score(state, self._task.score_attribute) if self._task.persists else None
        self._exchange.hand_over(exchange.Saved(_encode("save_checkpoint", state), score))


def _unwrap(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with models in place of their DistributedDataParallel wrappers, which cannot be loaded without the group."""
    torch = sys.modules.get("torch")  # a wrapper can only be there if torch is; it is not imported for this
    if torch is None or not torch.distributed.is_available():
        return state
    wrapper = torch.nn.parallel.DistributedDataParallel
    return {key: value.module if isinstance(value, wrapper) else value for key, value in state.items()}


def _get_score(state: dict[str, Any], key: str) -> float:
    if key not in state:
        raise ValueError(
            f"checkpoint_score_attribute is {key!r}, which every checkpoint must have, but save_checkpoint() received {sorted(state)}. "
            f"Write save_checkpoint({key}=..., ...), or name another key in CheckpointStrategy."
        )
    score = state[key]
    try:
        if isinstance(score, bool | str):
            raise TypeError(f"it is a {type(score).__name__}")
        number = float(score)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"checkpoint_score_attribute is {key!r}, which must be a number in every checkpoint, but save_checkpoint() received "
            f"{key}={score!r}. Save a number there, or name another key in CheckpointStrategy."
        ) from error
    return math.nan if math.isnan(number) else number


def _encode(call: str, values: dict[str, Any]) -> bytes:
    try:
        blob: bytes = cloudpickle.dumps(values)
    except Exception as error:
        raise ValueError(
            f"{call}() takes what can be pickled, but received {texts.safe_repr(values)}: {texts.safe_text(error)}. Pass numbers, strings, arrays and state dicts."
        ) from error
    return blob


_exchange: exchange.Exchange | None = None


def perform(task: Task, info: worker_session.RankInfo, to_driver: exchange.Exchange) -> Any:
    """Run the training function as a rank, and return what it returns."""
    session = RankSession(task, info.rank, to_driver)
    seat = worker_session.WorkerSession(
        info, _refuse, questions.Inquiry(_refuse), _refuse, classic=session
    )  # adapters of frameworks look for their rank there
    try:
        with worker_session.open_session(seat):
            return task.function(*task.args)
    finally:
        to_driver.end()


def _refuse(_: object) -> None:
    raise AssertionError("report() serves the session of 2022 first")


# --- what the driver calls in a rank's process ------------------------------------------------------------------------


def begin() -> None:
    """Make ready for a run."""
    global _exchange  # noqa: PLW0603 (the calls of a run come separately)
    _exchange = exchange.Exchange()


def run(task: Task, info: worker_session.RankInfo) -> Any:
    """Run the training function."""
    assert _exchange is not None, "begin comes first"
    return perform(task, info, _exchange)


def take() -> exchange.Event:
    """Wait for what the training function hands over next."""
    assert _exchange is not None, "begin comes first"
    return _exchange.take()


def ignore() -> None:
    """Let the training function run to its end."""
    assert _exchange is not None, "begin comes first"
    _exchange.ignore()
