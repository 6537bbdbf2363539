"""Searchers: what proposes the configurations of a search.

`BasicVariantGenerator` draws and goes through grids, `OptunaSearch` (`hocket.tune.search.optuna`) learns from results,
and what inherits from `Searcher` adapts any other library.
"""

from hocket._base import missing as _missing
from hocket.tune.search.basic_variant import BasicVariantGenerator as BasicVariantGenerator
from hocket.tune.search.concurrency_limiter import ConcurrencyLimiter as ConcurrencyLimiter
from hocket.tune.search.creation import create_searcher as create_searcher
from hocket.tune.search.repeater import Repeater as Repeater
from hocket.tune.search.searcher import Searcher as Searcher

SearchAlgorithm = Searcher
"""Ray's name for what it runs."""

_missing.explain(__name__)
