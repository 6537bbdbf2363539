"""What all strategies are."""

from __future__ import annotations


class Strategy:
    """How updates travel between ranks. A description: immutable, picklable, without a run's state and without a framework.

    It is made in the driver and travels to the ranks. There the adapter of their framework (`hocket.train.torch`, `hocket.train.jax`, ...) does
    what it says. One that needs something in the driver, for as long as a run takes, has a host: see `hocket.train.strategies.hosting`.
    """
