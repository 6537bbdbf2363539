"""The session behind the functions of 2022 in a rank of `Trainer`."""

from __future__ import annotations

import datetime as dt
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import cloudpickle

from hocket._base import texts
from hocket.train.rank import report_forms, worker_session
from hocket.util import lookup

TIMESTAMP = "_timestamp"
"""The key of the time in reports and checkpoints: seconds since 1970."""


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of a rank in one run."""

    checkpoint_blob: bytes | None
    """The first value of ``load_checkpoint``, pickled."""
    score_attribute: str | None
    """The key of the score in checkpoints; None if checkpoints are not kept as files, and need no score."""
    is_detailed: bool
    """Whether reports include where and when they were made."""


@final
class RankSession:
    """The state behind the functions of 2022 in one rank. It sends their values to the driver, and waits for it."""

    def __init__(self, task: Task, rank: worker_session.WorkerSession) -> None:
        self._task = task
        self._rank = rank
        blob = task.checkpoint_blob
        self.checkpoint: dict[str, Any] | None = None if blob is None else cloudpickle.loads(blob)
        """The last saved checkpoint, or the checkpoint that the run began with."""
        self._iteration = 0
        self._started = self._last = time.monotonic()
        self._is_ignored = False
        self._lock = threading.Lock()

    def report(self, metrics: dict[str, Any]) -> None:
        """Send metrics to the driver, and wait until it has taken them."""
        self._hand_over("report", {**metrics, **self._describe()})

    def _describe(self) -> dict[str, object]:
        """Return the entries that are added to every report's metrics."""
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

    def save_checkpoint(self, state: dict[str, object]) -> None:
        """Send a checkpoint to the driver, which keeps rank 0's, and wait until it has taken it."""
        self.checkpoint = state = {TIMESTAMP: int(time.time()), **_unwrap(state)}
        is_first, key = self._rank.info.rank == 0, self._task.score_attribute
        score = _get_score(state, key) if is_first and key is not None else None
        self._hand_over("save_checkpoint", state if is_first else None, score)

    def _hand_over(self, call: str, values: dict[str, object] | None, score: float | None = None) -> None:
        blob = None if values is None else _encode(call, values)
        with self._lock:  # several threads take turns
            if not self._is_ignored:
                self._is_ignored = self._rank.hand_over(call, blob, score)


def perform(task: Task, function: Callable[..., object], args: tuple[object, ...]) -> object:
    """Run a training function of 2022 in a rank, and return its value. Ranks of `Trainer` run this function."""
    rank = worker_session.get_session("Trainer.run")
    with report_forms.use_classic(rank, RankSession(task, rank)):
        return function(*args)


def _unwrap(state: dict[str, object]) -> dict[str, object]:
    """Return the state with models in place of DistributedDataParallel wrappers, which only load in a process group."""
    torch = sys.modules.get("torch")  # without torch there can be no wrapper, so torch is not imported for this
    if torch is None or not torch.distributed.is_available():
        return state
    wrapper = torch.nn.parallel.DistributedDataParallel
    return {key: value.module if isinstance(value, wrapper) else value for key, value in state.items()}


def _get_score(state: dict[str, Any], key: str) -> float:
    if key not in state:
        raise ValueError(
            f"checkpoint_score_attribute is {key!r}, which every checkpoint must have, but save_checkpoint() received "
            f"{sorted(state)}. Write save_checkpoint({key}=..., ...), or name another key in CheckpointStrategy."
        )
    score = state[key]
    try:
        if isinstance(score, bool | str):
            raise TypeError(f"it is {texts.name_kind(score)}")
        return float(score)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"checkpoint_score_attribute is {key!r}, which must be a number in every checkpoint, but "
            f"save_checkpoint() received {key}={score!r}. Save a number there, or name another key in "
            "CheckpointStrategy."
        ) from error


def _encode(call: str, values: dict[str, object]) -> bytes:
    try:
        blob: bytes = cloudpickle.dumps(values)
    except Exception as error:
        raise ValueError(
            f"{call}() takes values that can be pickled, but received {texts.safe_repr(values)}: "
            f"{texts.safe_text(error)}. Pass numbers, strings, arrays and state dicts."
        ) from error
    return blob
