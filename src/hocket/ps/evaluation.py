"""Evaluation beside training: a separate process evaluates snapshots while training goes on.

The snapshots come from live variables (on the servers' machine), or from the checkpoints of a folder. A folder needs no
access to the cluster. The name `SidecarEvaluator` is Keras 2's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from hocket._base import addresses
from hocket.ps import base_strategy
from hocket.ps.checkpoint import checkpoints, snapshots

POLL_SECONDS: Final = 0.5
"""Seconds between two looks for a new snapshot. A guess."""


@final
@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result of one evaluation.

    Attributes:
        version: The number of pushes that had been applied.
        value: The function's result.
        source: The checkpoint's path; None for live variables.
    """

    version: int
    value: Any
    source: str | None


@final
class SidecarEvaluator:
    """An evaluator of the newest snapshot, again and again.

    Args:
        evaluate: Takes a `Snapshot`, and returns any result.
        source: A strategy, or a folder of checkpoints.
        min_pushes: The number of pushes between one live snapshot and the next, at least.
        max_evaluations: The number of results to yield. Default: no limit; `stop` ends the evaluation.
        poll_s: Seconds between two looks for a new snapshot.

    Raises:
        ValueError: A number is out of range.
        TypeError: `evaluate` cannot be called.

    Example:
        >>> import hocket, tempfile
        >>> from hocket import ps
        >>> strategy = ps.ParameterServerStrategy({"worker": 1, "server": 1})
        >>> with strategy.scope():
        ...     weight = ps.Variable(2.0, name="weight")
        >>> folder = tempfile.mkdtemp()
        >>> path = strategy.save(f"{folder}/checkpoint-1")
        >>> strategy.close()
        >>> evaluator = ps.SidecarEvaluator(lambda found: float(found["weight"]) * 10, folder, max_evaluations=1)
        >>> [result.value for result in evaluator]
        [20.0]
    """

    def __init__(
        self,
        evaluate: Callable[[snapshots.Snapshot], object],
        source: base_strategy.BaseStrategy | str | os.PathLike[str],
        *,
        min_pushes: int = 1,
        max_evaluations: int | None = None,
        poll_s: float = POLL_SECONDS,
    ) -> None:
        if not callable(evaluate):
            raise TypeError(f"evaluate must be a function of a snapshot, but received {evaluate!r}.")
        if min_pushes < 1 or not poll_s > 0 or (max_evaluations is not None and max_evaluations < 1):
            raise ValueError(
                "min_pushes and max_evaluations must be 1 or more, and poll_s more than 0, but received "
                f"{min_pushes!r}, {max_evaluations!r} and {poll_s!r}."
            )
        if isinstance(source, str | os.PathLike):
            addresses.refuse(source, "SidecarEvaluator's folder")
        self._evaluate = evaluate
        self._source = source
        self._min_pushes = min_pushes
        self._max_evaluations = max_evaluations
        self._poll_s = poll_s
        self._stopped = threading.Event()
        self._last: Any = None

    def __iter__(self) -> Iterator[Evaluated]:
        """Yield results until `stop` is called, or `max_evaluations` is reached."""
        count = 0
        while not self._stopped.is_set() and count != self._max_evaluations:
            result = self.evaluate_newest()
            if result is None:
                self._stopped.wait(self._poll_s)
                continue
            count += 1
            yield result

    def start(self) -> list[Evaluated]:
        """Evaluate until `stop` is called, or `max_evaluations` is reached; return all results."""
        return list(self)

    def stop(self) -> None:
        """End after the evaluation that is running."""
        self._stopped.set()

    def evaluate_newest(self) -> Evaluated | None:
        """Evaluate the newest snapshot; return None if there is no new one."""
        if isinstance(self._source, base_strategy.BaseStrategy):
            version = self._source.version
            if self._last is not None and version < self._last + self._min_pushes:
                return None
            found = self._source.snapshot()
            self._last = found.version
            return Evaluated(found.version, self._evaluate(found), None)
        for written_ns, path in _list_checkpoints(Path(self._source)):
            if (written_ns, path) == self._last:
                return None
            try:
                found = checkpoints.load_checkpoint(path)
            except FileNotFoundError:
                continue  # it was deleted while it was read: try the next older one
            self._last = written_ns, path
            return Evaluated(found.version, self._evaluate(found), str(path))
        return None


def _list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the finished checkpoints of a folder, newest first, each with its time of writing: a new checkpoint may
    have replaced an old one under the same name."""
    try:
        found = [path for path in folder.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []
    ages = []
    for path in found:
        try:
            ages.append(((path / checkpoints.MANIFEST).stat().st_mtime_ns, path))
        except OSError:
            continue
    return sorted(ages, reverse=True)
