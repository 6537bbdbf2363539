"""One run of a `Trainer`, from which the driver takes report by report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, final

import cloudpickle

from hocket.compat.classic import checkpoints, ranks
from hocket.train import errors
from hocket.train.rank import questions
from hocket.train.run import budget

_log = logging.getLogger("hocket.train")


@final
class TrainingIterator:
    """The iterator over a run's reports, each a list of dicts by rank. Made by `Trainer.run_iterator`.

    The ranks wait in ``report`` for the next call. ``next`` raises the training function's errors. When ranks die, the
    training function is started again, in new processes, from the last saved checkpoint.

    Args:
        begin: Starts the training function from a checkpoint, with a flag for new ranks, and returns the ranks.
        store: Takes saved checkpoints.
        max_retries: How often ranks may die; -1: without end.
        on_end: Called when the run is over, with whether it ended well.
    """

    def __init__(
        self,
        begin: Callable[[bytes | None, bool], ranks.Ranks],
        store: checkpoints.CheckpointStore,
        max_retries: int,
        on_end: Callable[[bool], None],
    ) -> None:
        self._begin = begin
        self._store = store
        self._budget = budget.Budget({"max_retries": max_retries})
        self._on_end = on_end
        self._is_over = False
        self._results: list[object] | None = None
        self._ranks: ranks.Ranks = self._guard(self._start)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        return self

    def __next__(self) -> list[dict[str, Any]]:
        if self._is_over:
            raise StopIteration
        results: list[dict[str, Any]] | None = self._guard(self._take)
        if results is None:
            raise StopIteration
        return results

    def is_finished(self) -> bool:
        """Return whether the training function has returned in all ranks, and all reports were taken."""
        return self._results is not None

    def get_final_results(self, force: bool = False) -> list[Any] | None:
        """Return the training function's values, by rank; None if reports are still to be taken.

        Args:
            force: Whether to drop the remaining reports and checkpoints, and wait for the end of the training function.

        Raises:
            Exception: The training function's error.
            WorkerGroupError: A rank died.
        """
        if self._results is None and not self._is_over:
            if not force:
                _log.info(
                    "There are no final results yet, because reports are left to read. Iterate to the end, or pass "
                    "force=True to drop the reports."
                )
                return None
            self._guard(self._finish_now)
        return self._results

    def close(self) -> None:
        """Give the run up if it is not over, and end its ranks."""
        if not self._is_over:
            self._end(is_good=False)

    def _take(self) -> list[dict[str, object]] | None:
        """Return the next report of each rank; None after the last."""
        while True:
            try:
                taken = self._ranks.take()
            except errors.WorkerGroupError as error:
                self._ranks = self._start(error)
                continue
            first = taken[0]
            if len({None if one is None else one.call for one in taken}) > 1:
                raise RuntimeError(_describe_mismatch(taken))
            if first is None:
                self._results = self._ranks.finish()
                self._end(is_good=True)
                return None
            if first.call == "report":
                return [cloudpickle.loads(one.blob) for one in taken if one is not None and one.blob is not None]
            self._store.take(first)

    def _start(self, error: errors.WorkerGroupError | None = None) -> ranks.Ranks:
        """Start the training function, again and again while ranks die and the budget allows it."""
        while True:
            if error is not None and not (ranks.is_death(error) and self._budget.spend("max_retries", error)):
                raise error
            try:
                return self._begin(self._store.latest_blob, error is not None)
            except errors.WorkerGroupError as another:
                error = another

    def _finish_now(self) -> None:
        self._results = self._ranks.finish_now()
        self._end(is_good=True)

    def _end(self, *, is_good: bool) -> None:
        self._is_over = True
        self._on_end(is_good)

    def _guard(self, step: Callable[[], object]) -> Any:
        """Call a step of the run. An error of any kind ends the run."""
        try:
            return step()
        except BaseException:
            self._end(is_good=False)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _describe_mismatch(taken: Sequence[questions.HandOver | None]) -> str:
    done = "; ".join(
        f"rank {rank} {'returned' if one is None else f'called {one.call}()'}" for rank, one in enumerate(taken)
    )
    return (
        f"Every rank must call report() and save_checkpoint() in the same order and equally often, but {done}. Call "
        "them in all ranks, not under `if world_rank() == 0`: only rank 0's checkpoints are kept anyway."
    )
