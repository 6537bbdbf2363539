"""Searchers, which propose the configurations of a search.

`BasicVariantGenerator` samples values and enumerates grids, `OptunaSearch` (`hocket.tune.search.optuna`) learns from
results, and subclasses of `Searcher` adapt other libraries.
"""

from hocket._base import missing as _missing
from hocket.tune.search.basic_variant import BasicVariantGenerator as BasicVariantGenerator
from hocket.tune.search.concurrency_limiter import ConcurrencyLimiter as ConcurrencyLimiter
from hocket.tune.search.creation import create_searcher as create_searcher
from hocket.tune.search.repeater import Repeater as Repeater
from hocket.tune.search.searcher import Searcher as Searcher

SearchAlgorithm = Searcher
"""Ray's name for a searcher that it runs."""

_missing.explain(__name__)
