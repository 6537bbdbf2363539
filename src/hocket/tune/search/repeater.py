"""A searcher that tries each proposal several times."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from hocket import keywords
from hocket.train.tracking import plain
from hocket.tune.search import concurrency_limiter
from hocket.tune.search import searcher as searchers

_log = logging.getLogger(__name__)

TRIAL_INDEX: Final = "__trial_index__"
"""The key of the repetition's number, from 0, in a trial's configuration."""


@dataclass(slots=True)
class _Group:
    """The trials of one proposal."""

    first: str
    """The id of the group's trial that the searcher knows."""
    config: dict[str, Any]
    """The proposed configuration."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """The metrics of each finished trial, NaN for missing ones."""
    size: int = 1
    """The number of trials so far."""


@keywords.guard_init
@final
class Repeater(searchers.Searcher):
    """A searcher that tries each proposal of another searcher several times, and passes on the mean of the metric.

    It is for functions with noisy results. Make ``num_samples`` a multiple of `repeat`: trials beyond a multiple run,
    but the searcher does not learn of them. Schedulers that stop trials early make the means incomparable.

    Args:
        searcher: The searcher that proposes. It sees one trial for each proposal.
        repeat: The number of trials for each proposal.
        set_index: Whether the configuration has the repetition's number, under `TRIAL_INDEX`; use it as a seed, say.

    Raises:
        TypeError: `searcher` is no searcher.
        ValueError: `repeat` is less than 1.

    Example:
        >>> from hocket.tune.search import BasicVariantGenerator, Repeater
        >>> repeater = Repeater(BasicVariantGenerator(), repeat=2)
        >>> repeater.set_search_properties("loss", "min", {"a": 1}, num_samples=2, seed=0)
        True
        >>> repeater.suggest("t0"), repeater.suggest("t1")
        ({'a': 1, '__trial_index__': 0}, {'a': 1, '__trial_index__': 1})
    """

    def __init__(self, searcher: searchers.Searcher, repeat: int = 1, set_index: bool = True) -> None:
        concurrency_limiter.check_searcher("Repeater", searcher)
        if type(repeat) is not int or repeat < 1:
            raise ValueError(f"repeat must be 1 or more trials, but received {repeat!r}. Write 1 to try each once.")
        super().__init__(searcher.metric, searcher.mode)
        self.searcher, self.repeat, self._set_index = searcher, repeat, set_index
        self._group: _Group | None = None
        self._groups: dict[str, _Group] = {}

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Pass on the search's properties, with the number of proposals as ``num_samples``."""
        num_samples = spec.get("num_samples", -1)
        if num_samples > 0:
            if num_samples % self.repeat:
                _log.warning(
                    "num_samples=%s is not a multiple of repeat=%s: the last configuration gets fewer trials than the "
                    "others, and the searcher does not learn its result.", num_samples, self.repeat,
                )  # fmt: skip
            spec["num_samples"] = -(-num_samples // self.repeat)
        taken = self.searcher.set_search_properties(metric, mode, config, **spec)
        self.metric, self.mode = self.searcher.metric, self.searcher.mode
        self.counts_trials = self.searcher.counts_trials
        return taken

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._group is not None and self._group.size < self.repeat:
            return self._join(self._group, trial_id)
        config = self.searcher.suggest(trial_id)
        return self._begin(trial_id, config) if isinstance(config, dict) else config

    def on_trial_restored(self, trial_id: str, config: Mapping[str, object]) -> None:
        if self._group is not None and self._group.size < self.repeat:
            self._join(self._group, trial_id)
            return
        proposed = {key: value for key, value in config.items() if not (self._set_index and key == TRIAL_INDEX)}
        self.searcher.on_trial_restored(trial_id, proposed)
        self._begin(trial_id, proposed)

    def _begin(self, trial_id: str, config: dict[str, object]) -> dict[str, object]:
        self._group = self._groups[trial_id] = _Group(trial_id, copy.deepcopy(config))
        return self._build_config(self._group, 0)

    def _join(self, group: _Group, trial_id: str) -> dict[str, object]:
        group.size += 1
        self._groups[trial_id] = group
        return self._build_config(group, group.size - 1)

    def _build_config(self, group: _Group, index: int) -> dict[str, object]:
        config = copy.deepcopy(group.config)
        return {**config, TRIAL_INDEX: index} if self._set_index else config

    def on_trial_complete(self, trial_id: str, result: Mapping[str, object] | None = None, error: bool = False) -> None:
        """Take in a trial's metrics; after the last repetition, pass on their means, ignoring missing values."""
        group = self._groups.pop(trial_id, None)
        if group is None:
            _log.warning("Trial %s has ended, but Repeater did not propose it. Its result is ignored.", trial_id)
            return
        given: Any = self.metric or ""
        names = given if isinstance(given, list) else [given]
        found = {} if result is None else {name: plain.get_metric(result, name) for name in names}
        group.scores[trial_id] = {name: math.nan if value is None else float(value) for name, value in found.items()}
        if len(group.scores) < self.repeat:
            return
        means = {
            name: _compute_mean([scores.get(name, math.nan) for scores in group.scores.values()]) for name in names
        }
        known = {name: value for name, value in means.items() if not math.isnan(value)}
        self.searcher.on_trial_complete(group.first, known or None, error=not known and error)

    def add_evaluated_point(self, parameters: Mapping[str, object], value: float, error: bool = False) -> None:
        self.searcher.add_evaluated_point(parameters, value, error)

    def save(self, checkpoint_path: str) -> None:
        self.searcher.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        self.searcher.restore(checkpoint_path)


def _compute_mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
