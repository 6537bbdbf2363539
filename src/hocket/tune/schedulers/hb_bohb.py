"""HyperBand that fills the largest brackets first, for searchers that learn from trials as BOHB does.

Falkner, Klein and Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale" (2018).
"""

from __future__ import annotations

from typing import final

from hocket.tune.schedulers import hyperband


@final
class HyperBandForBOHB(hyperband.HyperBandScheduler):
    """HyperBand that fills its largest brackets first, so that a searcher soon has many trials to learn from.

    It takes `HyperBandScheduler`'s arguments.

    Example:
        >>> from hocket.tune.schedulers import HyperBandForBOHB
        >>> from hocket.tune.simulation import simulate
        >>> curves = [[quality] * 9 for quality in (1, 2, 3, 4)]
        >>> run = simulate(HyperBandForBOHB(max_t=4, reduction_factor=2), curves, metric="acc", mode="max")
        >>> [trial.steps for trial in run.trials]
        [1, 1, 2, 4]
    """

    def _choose_kind(self, number: int) -> int:
        return len(self._starts) - 1 - number % len(self._starts)
