"""Ray's module for the base of schedulers."""

from hocket.tune.schedulers.contract import TrialScheduler
from hocket.tune.schedulers.fifo import FIFOScheduler

__all__ = ["FIFOScheduler", "TrialScheduler"]
