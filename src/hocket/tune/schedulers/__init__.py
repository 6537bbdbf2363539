"""Schedulers, which decide after each report of a trial whether it goes on."""

from hocket._base import missing as _missing
from hocket.tune.schedulers.async_hyperband import ASHAScheduler as ASHAScheduler
from hocket.tune.schedulers.async_hyperband import AsyncHyperBandScheduler as AsyncHyperBandScheduler
from hocket.tune.schedulers.contract import TrialControls as TrialControls
from hocket.tune.schedulers.contract import TrialScheduler as TrialScheduler
from hocket.tune.schedulers.creation import create_scheduler as create_scheduler
from hocket.tune.schedulers.fifo import FIFOScheduler as FIFOScheduler
from hocket.tune.schedulers.hb_bohb import HyperBandForBOHB as HyperBandForBOHB
from hocket.tune.schedulers.hyperband import HyperBandScheduler as HyperBandScheduler
from hocket.tune.schedulers.lineage import Policy as Policy
from hocket.tune.schedulers.lineage import trace as trace
from hocket.tune.schedulers.median_stopping_rule import MedianStoppingRule as MedianStoppingRule
from hocket.tune.schedulers.pb2 import PB2 as PB2
from hocket.tune.schedulers.pbt import PopulationBasedTraining as PopulationBasedTraining
from hocket.tune.schedulers.pbt_replay import PopulationBasedTrainingReplay as PopulationBasedTrainingReplay

_missing.explain(__name__)
