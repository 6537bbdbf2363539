"""A searcher that proposes only while few of its trials run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from hocket import keywords
from hocket.tune.search import searcher as searchers


def check_searcher(wrapper: str, searcher: object) -> None:
    """Raise TypeError if the object to wrap is no searcher."""
    if not isinstance(searcher, searchers.Searcher):
        raise TypeError(
            f"{wrapper} takes a Searcher, but received {searcher!r}. Write {wrapper}(OptunaSearch(...), ...), or have "
            "your class inherit from hocket.tune.search.Searcher."
        )


@keywords.guard_init
@final
class ConcurrencyLimiter(searchers.Searcher):
    """A searcher that limits how many of another searcher's trials run at once, so each proposal knows more results.

    Args:
        searcher: The searcher that proposes.
        max_concurrent: The most trials that run at once.
        batch: Whether to withhold results until all running trials have ended.

    Raises:
        TypeError: `searcher` is no searcher.
        ValueError: `max_concurrent` is less than 1.

    Example:
        >>> from hocket.tune.search import BasicVariantGenerator, ConcurrencyLimiter
        >>> limiter = ConcurrencyLimiter(BasicVariantGenerator(), max_concurrent=1)
        >>> limiter.set_search_properties(None, None, {"a": 1}, num_samples=2, seed=0)
        True
        >>> limiter.suggest("t0"), limiter.suggest("t1")
        ({'a': 1}, None)
    """

    def __init__(self, searcher: searchers.Searcher, max_concurrent: int, batch: bool = False) -> None:
        check_searcher("ConcurrencyLimiter", searcher)
        _check_limit(max_concurrent)
        super().__init__(searcher.metric, searcher.mode)
        self.searcher, self.max_concurrent, self.batch = searcher, max_concurrent, batch
        self._running: set[str] = set()
        #: Withheld results, with whether the trial failed.
        self._held: dict[str, tuple[Mapping[str, object] | None, bool]] = {}
        self._limits = not searcher.set_max_concurrency(max_concurrent)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, object], **spec: object
    ) -> bool:
        """Pass the search's properties to the searcher, and return its answer."""
        taken = self.searcher.set_search_properties(metric, mode, config, **spec)
        self.metric, self.mode = self.searcher.metric, self.searcher.mode
        self.counts_trials = self.searcher.counts_trials
        return taken

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._limits and len(self._running) + len(self._held) >= self.max_concurrent:
            return None
        config = self.searcher.suggest(trial_id)
        if isinstance(config, dict):
            self._running.add(trial_id)
        return config

    def on_trial_result(self, trial_id: str, result: Mapping[str, object]) -> None:
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, object] | None = None, error: bool = False) -> None:
        self._running.discard(trial_id)
        if not (self._limits and self.batch):
            self.searcher.on_trial_complete(trial_id, result, error)
            return
        self._held[trial_id] = (result, error)
        if not self._running:
            held, self._held = self._held, {}
            for each, (held_result, failed) in held.items():
                self.searcher.on_trial_complete(each, held_result, failed)

    def on_trial_restored(self, trial_id: str, config: Mapping[str, object]) -> None:
        self.searcher.on_trial_restored(trial_id, config)
        self._running.add(trial_id)

    def add_evaluated_point(self, parameters: Mapping[str, object], value: float, error: bool = False) -> None:
        self.searcher.add_evaluated_point(parameters, value, error)

    def save(self, checkpoint_path: str) -> None:
        self.searcher.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        self.searcher.restore(checkpoint_path)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        _check_limit(max_concurrent)
        self.max_concurrent = max_concurrent
        self._limits = not self.searcher.set_max_concurrency(max_concurrent)
        return True


def _check_limit(max_concurrent: object) -> None:
    if type(max_concurrent) is not int or max_concurrent < 1:
        raise ValueError(
            f"max_concurrent must be 1 or more trials, but received {max_concurrent!r}. For no limit, give the "
            "searcher itself to the search."
        )
