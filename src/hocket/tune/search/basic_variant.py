"""The searcher that does not learn: it enumerates grids, and samples all other values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from hocket import keywords
from hocket.tune import errors
from hocket.tune.search import points, searcher, variants


@keywords.guard_init
@final
class BasicVariantGenerator(searcher.Searcher):
    """A searcher that enumerates grids and samples the other values at random. The default of a search.

    Args:
        points_to_evaluate: Whole or partial configurations to begin with. Each counts as one of the ``num_samples``. A
            key that it lacks is sampled, or enumerated if it is a grid.
        max_concurrent: The most trials that run at once. Default: 0, as many as the search allows.
        constant_grid_search: Whether all combinations of the grids in one sample share their sampled values. Default:
            each combination has its own.
        random_state: A seed, or a NumPy generator that yields one. Default: the search's seed.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A number is negative.

    Example:
        >>> from hocket.tune.search.basic_variant import BasicVariantGenerator
        >>> from hocket.tune.search.space import grid_search
        >>> searcher = BasicVariantGenerator(random_state=1)
        >>> searcher.set_search_properties(None, None, {"a": grid_search([1, 2])}, num_samples=1, seed=0)
        True
        >>> [searcher.suggest(trial_id) for trial_id in ("t0", "t1", "t2")]
        [{'a': 1}, {'a': 2}, 'FINISHED']
    """

    counts_trials = True

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
    ) -> None:
        super().__init__()
        if type(max_concurrent) is not int or max_concurrent < 0:
            raise ValueError(
                f"max_concurrent must be 0 or more trials, but received {max_concurrent!r}. Leave it out for no limit."
            )
        self.max_concurrent = max_concurrent
        self._points = copy.deepcopy(points.check(points_to_evaluate))
        self._constant_grid_search = constant_grid_search
        self._seed = _get_seed(random_state)
        self._variants: variants.Variants | None = None
        #: The number of the next configuration.
        self._next = 0
        self._running: set[str] = set()

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take the search's space.

        Args:
            metric: Kept, but not used.
            mode: Kept, but not used.
            config: The space.
            **spec: ``num_samples`` and ``seed``.

        Returns:
            True.

        Raises:
            TypeError: A value of the space looks like a domain but is none.
            ValueError: A grid is empty or malformed, or a point does not fit the space.
            TuneError: There is a grid, but ``num_samples`` is -1.
        """
        self.metric, self.mode = metric, mode
        seed = self._seed if self._seed is not None else int(spec.get("seed") or 0)
        self._variants = variants.Variants(
            config, int(spec.get("num_samples", 1)), seed, self._constant_grid_search, self._points
        )
        return True

    @property
    def total_samples(self) -> int | None:
        """The number of configurations; None if there is no end, 0 until the search has set the space."""
        return 0 if self._variants is None else self._variants.count()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._variants is None:
            raise errors.TuneError(
                "BasicVariantGenerator has no space yet. Give it to a Tuner, or call set_search_properties."
            )
        total = self._variants.count()
        if total is not None and self._next >= total:
            return self.FINISHED
        if self.max_concurrent and len(self._running) >= self.max_concurrent:
            return None
        config, _ = self._variants.build(self._next)
        self._note(trial_id)
        return config

    def on_trial_complete(self, trial_id: str, result: Mapping[str, object] | None = None, error: bool = False) -> None:
        self._running.discard(trial_id)

    def on_trial_restored(self, trial_id: str, config: Mapping[str, object]) -> None:
        """Skip a configuration without building it."""
        self._note(trial_id)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        self.max_concurrent = max_concurrent
        return True

    def _note(self, trial_id: str) -> None:
        self._next += 1
        self._running.add(trial_id)


def _get_seed(random_state: object) -> int | None:
    if random_state is None:
        return None
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**63))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer):
        raise TypeError(f"random_state must be a seed or a numpy generator, but received {random_state!r}. Write 0.")
    if random_state < 0:
        raise ValueError(f"random_state must be 0 or more, but received {random_state!r}.")
    return int(random_state)
