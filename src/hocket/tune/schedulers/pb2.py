"""What stands for Ray's population based bandits."""

from __future__ import annotations

from typing import Any, NoReturn, final

from hocket.tune.schedulers import fifo


@final
class PB2(fifo.FIFOScheduler):
    """Says that there is no PB2.

    It is of Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with
    Population-Based Bandits" (2020).

    Args:
        **settings: Ignored.

    Raises:
        NotImplementedError: Always.

    Example:
        >>> from hocket.tune.schedulers.pb2 import PB2
        >>> PB2(hyperparam_bounds={"lr": [1e-4, 1e-1]})
        Traceback (most recent call last):
            ...
        NotImplementedError: Hocket has no PB2, ...
    """

    def __init__(self, **settings: Any) -> None:
        _refuse()


def _refuse() -> NoReturn:
    raise NotImplementedError(
        "Hocket has no PB2, which models the scores of a population with a Gaussian process. Write "
        "PopulationBasedTraining(hyperparam_mutations={'lr': tune.uniform(low, high)}) with what you would give PB2 as "
        "hyperparam_bounds."
    )
