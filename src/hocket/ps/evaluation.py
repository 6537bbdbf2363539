"""Evaluation beside training: a process of its own looks at snapshots, while training goes on.

It reads live variables (on the servers' machine), or checkpoints as they appear in a folder; then it needs nothing of
the cluster. The name is Keras 2's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from hocket._base import addresses
from hocket.ps import base_strategy, checkpoints, snapshots

POLL_SECONDS: Final = 0.5
"""How long to wait before looking again whether there is something new. A guess."""


@final
@dataclass(frozen=True, slots=True)
class Evaluated:
    """A result.

    Attributes:
        version: How many pushes had been applied.
        value: What the function returned.
        source: The checkpoint; None for live variables.
    """

    version: int
    value: Any
    source: str | None


@final
class SidecarEvaluator:
    """Evaluates what is newest, again and again.

    Args:
        evaluate: Takes a `Snapshot`, and returns any result.
        source: A strategy; or a folder into which checkpoints are saved.
        min_pushes: How many more pushes a live snapshot must have than the last one.
        max_evaluations: After how many results to end. Default: never, or when `stop` is called.
        poll_s: Seconds between two looks.

    Raises:
        ValueError: A number is out of range.
        TypeError: It cannot be called.

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
        """Evaluate, and yield results, until it is stopped."""
        count = 0
        while not self._stopped.is_set() and count != self._max_evaluations:
            result = self.evaluate_newest()
            if result is None:
                self._stopped.wait(self._poll_s)
                continue
            count += 1
            yield result

    def start(self) -> list[Evaluated]:
        """Evaluate until it is stopped; return all results."""
        return list(self)

    def stop(self) -> None:
        """End after the evaluation that runs."""
        self._stopped.set()

    def evaluate_newest(self) -> Evaluated | None:
        """Evaluate what is newest, if it was not yet; else return None."""
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
                continue  # it was deleted while it was read: take the one before
            self._last = written_ns, path
            return Evaluated(found.version, self._evaluate(found), str(path))
        return None


def _list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the finished checkpoints of a folder, the newest first, each after when it was written: one may have been
    replaced under its name."""
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
