"""Stoppers, which end trials or a whole search by their reports."""

from hocket.tune.stopper.plateau import ExperimentPlateauStopper as ExperimentPlateauStopper
from hocket.tune.stopper.plateau import TrialPlateauStopper as TrialPlateauStopper
from hocket.tune.stopper.stoppers import CombinedStopper as CombinedStopper
from hocket.tune.stopper.stoppers import FunctionStopper as FunctionStopper
from hocket.tune.stopper.stoppers import MaximumIterationStopper as MaximumIterationStopper
from hocket.tune.stopper.stoppers import NoopStopper as NoopStopper
from hocket.tune.stopper.stoppers import Stopper as Stopper
from hocket.tune.stopper.stoppers import TimeoutStopper as TimeoutStopper
from hocket.tune.stopper.stoppers import build_stopper as build_stopper
