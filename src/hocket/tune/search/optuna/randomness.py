"""What Optuna's samplers draw from, put in our hands.

A sampler keeps generators, whose state depends on all that was ever drawn. Here they are seeded anew before each
proposal, with the search's seed and the number of the proposal. Then a proposal depends on these two and on the trials
that the study holds, and a search that goes on with a new sampler proposes what the old one would have.

In Optuna 3.6 (not in 4.5) a `GridSampler` without a seed shuffles its grid anew in each process, so it
needs one to be resumed.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any, Final, final

import numpy as np

_FITTED: Final = ("_gprs_cache_list", "_constraints_gprs_cache_list")
"""Where `GPSampler` keeps the processes that it has fitted last, from which the next fit starts."""

_FROM_TRIALS_ALONE: Final = ("RandomSampler", "TPESampler", "GPSampler", "BruteForceSampler")
"""Samplers that look at the parameters and results of trials only. Others leave notes in the study with a proposal."""


@final
class Randomness:
    """The generators of a sampler.

    Args:
        sampler: One of Optuna's, or one that inherits from ``optuna.samplers.BaseSampler``.
        seed: What they are seeded with. Default: what the sampler was seeded with.
        default: What they are seeded with if neither says it.

    Example:
        >>> from hocket.tune.search.optuna import adapter, randomness
        >>> sampler = adapter.load().samplers.RandomSampler()
        >>> draws = randomness.Randomness(sampler, None, default=1)
        >>> draws.seed_for(7)
    """

    def __init__(self, sampler: object, seed: int | None, default: int) -> None:
        parts = list(_find_parts(sampler, set()))
        self._generators = [part for part in parts if _is_generator(part)]
        self._fitted = [(part, name) for part in parts for name in _FITTED if hasattr(part, name)]
        found = _read_seed(self._generators)
        self._seed = next(each for each in (seed, found, default) if each is not None)
        for part in parts:
            # A quasi-random sequence has one seed for all trials.
            if type(part).__name__ == "QMCSampler" and (seed is not None or found is None):
                part._seed = self._seed
        samplers = [part for part in parts if hasattr(part, "sample_relative")]
        self.proposes_from_trials_alone = all(
            type(part).__name__ in _FROM_TRIALS_ALONE and type(part).__module__.startswith("optuna.")
            for part in samplers
        )
        """Whether a trial that is put into a study serves as well as one that the sampler has proposed."""

    def seed_for(self, number: int) -> None:
        """Make ready for a proposal."""
        seeds = np.random.SeedSequence([self._seed, number]).generate_state(max(1, len(self._generators)))
        for generator, seed in zip(self._generators, seeds.tolist(), strict=False):
            _seed(generator, seed)
        for part, name in self._fitted:
            setattr(part, name, None)


def _is_generator(part: object) -> bool:
    kinds = np.random.RandomState | np.random.Generator | random.Random
    return isinstance(part, kinds) or type(part).__name__ == "LazyRandomState"


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    elif isinstance(generator, np.random.RandomState | random.Random):
        generator.seed(seed)
    else:
        generator.rng.seed(seed)


def _find_parts(part: object, seen: set[int]) -> Iterator[Any]:
    """Yield a sampler and what belongs to it, in the order of its attributes."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if _is_generator(part):
        yield part
    elif isinstance(part, list | tuple | dict):
        for item in part.values() if isinstance(part, dict) else part:
            yield from _find_parts(item, seen)
    elif hasattr(part, "sample_relative") or (
        type(part).__module__.startswith("optuna.") and hasattr(part, "__dict__")
    ):
        yield part
        for item in list(vars(part).values()):
            yield from _find_parts(item, seen)


def _read_seed(generators: list[object]) -> int | None:
    """Return a number that depends on the seed which a sampler was made with; None if it was made without one."""
    for generator in generators:
        state = copy.deepcopy(getattr(generator, "_rng", None))
        if isinstance(state, np.random.RandomState):
            return int(state.randint(2**31))
    return None
