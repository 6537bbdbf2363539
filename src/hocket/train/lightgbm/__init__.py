"""LightGBM: one model from the rows of all ranks, which communicate through shared memory.

Importing this package imports LightGBM.
"""

from importlib import import_module as _import_module

from hocket import extras as _extras
from hocket._base import missing as _missing

with _extras.explain("hocket.train.lightgbm", "LightGBM", "Run pip install 'hocket[lightgbm]'."):
    _import_module("lightgbm")

from hocket.train.frameworks.boosters.lightgbm.callbacks import RayTrainReportCallback as RayTrainReportCallback
from hocket.train.frameworks.boosters.lightgbm.config import LightGBMConfig as LightGBMConfig
from hocket.train.frameworks.boosters.lightgbm.network import get_network_params as get_network_params
from hocket.train.frameworks.boosters.lightgbm.trainer import LightGBMTrainer as LightGBMTrainer

_missing.explain(__name__)
