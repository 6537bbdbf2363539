"""Searchers by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hocket.tune.search import basic_variant, searcher
from hocket.tune.search.optuna import optuna_search

_BUILT: Final[dict[str, Callable[..., searcher.Searcher]]] = {
    "random": basic_variant.BasicVariantGenerator,
    "variant_generator": basic_variant.BasicVariantGenerator,
    "optuna": optuna_search.OptunaSearch,
}

_COMPARABLE: Final = {
    "ax": "GPSampler() (Gaussian processes)",
    "hyperopt": "TPESampler() (the same algorithm)",
    "bayesopt": "GPSampler() (Gaussian processes)",
    "bohb": "TPESampler(multivariate=True), with HyperBandScheduler as the scheduler",
    "nevergrad": "CmaEsSampler() (evolution), or NSGAIISampler() for several metrics",
    "zoopt": "CmaEsSampler() (search without gradients)",
    "hebo": "GPSampler() (Gaussian processes)",
}
"""Ray's other names, each with the closest sampler of Optuna."""


def create_searcher(search_alg: str, **kwargs: object) -> searcher.Searcher:
    """Return a new searcher, by its name in Ray Tune.

    Args:
        search_alg: ``"random"`` or ``"variant_generator"`` for `BasicVariantGenerator`, ``"optuna"`` for
            `OptunaSearch`; upper or lower case.
        **kwargs: The searcher's arguments.

    Raises:
        ValueError: No searcher has that name. The message names a comparable one.

    Example:
        >>> from hocket.tune.search import create_searcher
        >>> type(create_searcher("random", random_state=1)).__name__
        'BasicVariantGenerator'
    """
    name = str(search_alg).lower()
    if name in _BUILT:
        return _BUILT[name](**kwargs)
    if name in _COMPARABLE:
        raise ValueError(
            f"create_searcher received {search_alg!r}, but Hocket has no searcher of that library. OptunaSearch has a "
            f"comparable one: OptunaSearch(sampler=optuna.samplers.{_COMPARABLE[name]}). Or adapt the library with a "
            "class that inherits from hocket.tune.search.Searcher."
        )
    raise ValueError(
        f"create_searcher takes one of {', '.join(map(repr, sorted(_BUILT)))}, but received {search_alg!r}. Write "
        "create_searcher('optuna')."
    )
